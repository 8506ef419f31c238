"""`grouptrail dashboards export`: what is written, what is replaced, and where alerts link to."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from grouptrail import cli
from grouptrail.exporter.dashboards import RECORD, exported_files
from support.prometheus_server import tool

ROOT = Path(__file__).resolve().parents[2]
SOURCE = {
    **{f"dashboards/{path.name}": path.read_text("utf-8") for path in (ROOT / "dashboards" / "built").iterdir()},
    **{f"alerts/{path.name}": path.read_text("utf-8") for path in (ROOT / "dashboards" / "alerts").glob("*.yaml")},
}
RUNBOOKS = "https://docs.example/kafka/runbooks.html"


def export(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(cli.app, ["dashboards", "export", str(folder), *options])


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text("utf-8")
        for path in folder.rglob("*")
        if path.is_file() and path.name != RECORD
    }


def test_export_writes_the_committed_dashboards_and_alerts(tmp_path: Path) -> None:
    written = export(tmp_path / "new" / "folder")
    assert written.exit_code == 0
    assert contents(tmp_path / "new" / "folder") == SOURCE
    assert len(SOURCE) == 7
    lines = written.stdout.splitlines()
    assert sorted(lines) == sorted(f"{tmp_path / 'new' / 'folder' / path} (new)" for path in SOURCE)
    assert "give --runbook-url" in written.stderr


def test_export_links_each_alert_to_its_section(tmp_path: Path) -> None:
    headings = re.findall(r"^## (\w+)", (ROOT / "docs" / "runbooks.md").read_text("utf-8"), re.MULTILINE)
    anchors = {heading.lower() for heading in headings}
    assert "runbook_url" not in export(tmp_path, "--runbook-url", RUNBOOKS).stderr
    links = []
    for path in sorted((tmp_path / "alerts").iterdir()):
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            for rule in (one for one in group["rules"] if "alert" in one):
                assert "runbook" not in rule["annotations"]
                links.append(rule["annotations"]["runbook_url"])
                assert links[-1] == f"{RUNBOOKS}#{rule['alert'].lower()}"
                assert links[-1].partition("#")[2] in anchors
        checked = subprocess.run([tool("promtool"), "check", "rules", path], capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr
    assert len(links) == "".join(SOURCE.values()).count("- alert:") > 20


@pytest.mark.parametrize(
    "url", ["docs/runbooks.md", "", "https://x/{{ $labels.group }}", 'https://x/"', "https://x/\ny", "https://x#a"]
)
def test_export_refuses_a_runbook_address_that_is_no_page(tmp_path: Path, url: str) -> None:
    refused = export(tmp_path, "--runbook-url", url)
    assert refused.exit_code == 1
    assert "is not the URL of a page" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_export_selects_the_data_source(tmp_path: Path) -> None:
    export(tmp_path, "--datasource-uid", "prom-1")
    for path in (tmp_path / "dashboards").iterdir():
        board = json.loads(path.read_text("utf-8"))
        (variable,) = [one for one in board["templating"]["list"] if one["type"] == "datasource"]
        assert variable.pop("current") == {"text": "prom-1", "value": "prom-1"}
        assert board == json.loads(SOURCE[f"dashboards/{path.name}"])


def test_export_again_updates_what_an_export_wrote(tmp_path: Path) -> None:
    export(tmp_path)
    assert {line.rpartition(" ")[2] for line in export(tmp_path).stdout.splitlines()} == {"(unchanged)"}
    changes = dict(line.rsplit(" ", 1) for line in export(tmp_path, "--runbook-url", RUNBOOKS).stdout.splitlines())
    assert {Path(path).name for path, change in changes.items() if change == "(updated)"} == {
        "groups.yaml",
        "pipeline.yaml",
    }
    assert contents(tmp_path) == exported_files(runbook_url=RUNBOOKS)


@pytest.mark.parametrize("record", ["kept", "lost", "damaged"])
def test_export_overwrites_nothing_of_others_unless_told_to(tmp_path: Path, record: str) -> None:
    """A file that was there before, and one that was edited; nothing at all is written."""
    export(tmp_path)
    (tmp_path / "alerts" / "groups.yaml").write_text("groups: []  # mine\n")
    if record != "kept":
        (tmp_path / RECORD).unlink()
    if record == "damaged":
        (tmp_path / RECORD).write_text("[")
    before = contents(tmp_path)
    refused = export(tmp_path, "--runbook-url", RUNBOOKS)
    assert refused.exit_code == 1
    assert "alerts/groups.yaml" in refused.stderr
    assert "give --overwrite" in refused.stderr
    assert contents(tmp_path) == before
    assert export(tmp_path, "--overwrite").exit_code == 0
    assert contents(tmp_path) == SOURCE


def test_export_to_what_is_no_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = export(tmp_path / "file")
    assert refused.exit_code == 1
    assert re.fullmatch(r"grouptrail: .*: choose another folder\n", refused.stderr)

"""The documents are correct: commands run or exist, every setting is documented, links and paths exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from grouptrail import contracts
from grouptrail.cli import app
from grouptrail.config import Config, load_configs
from grouptrail.exporter.alias import ALIASES, NOT_SERVED
from grouptrail.jobs import JOBS
from reference.__main__ import pages
from support.small_tables import at

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md", "dashboards/**/*.md", "tests/**/*.md")
    for path in ROOT.glob(pattern)
    if not path.is_symlink()
)
COMMANDS: dict[str, Any] = cast("Any", typer.main.get_command(app)).commands


@dataclass(frozen=True)
class Shown:
    """A command line in a ```console block, with the output below it."""

    document: str
    line: str
    output: str

    @property
    def words(self) -> list[str]:
        """Return the command's words without leading variables."""
        words = shlex.split(self.line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0], re.DOTALL):
            del words[0]
        return words

    @property
    def is_grouptrail(self) -> bool:
        return Path(self.words[0]).name == "grouptrail"


def console_blocks(text: str) -> Iterator[str]:
    for block in re.finditer(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield block[1]


def shown_in(path: Path) -> Iterator[Shown]:
    for block in console_blocks(path.read_text("utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, output = _command_and_output(part)
            yield Shown(str(path.relative_to(ROOT)), line, output)


def _command_and_output(part: str) -> tuple[str, str]:
    """Split a block after the command, which continues over open quotes and backslashes."""
    lines = part.splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        command = "".join(lines[:count])
        if command.endswith("\\\n"):
            continue
        try:
            shlex.split(command, comments=True)
        except ValueError:
            continue
        return command.strip(), "".join(lines[count:])
    raise AssertionError(f"an open quote in {part!r}")


SHOWN = [shown for path in DOCUMENTS for shown in shown_in(path)]
GROUPTRAIL = [shown for shown in SHOWN if shown.is_grouptrail]
# Commands that need neither a broker nor tables print the same output everywhere.
QUICK = [shown for shown in GROUPTRAIL if shown.words[1:2] == ["decode"] and shown.output]


def name_of(shown: object) -> str:
    return f"{shown.document}: {shown.line[:60]}" if isinstance(shown, Shown) else str(shown)


def test_documents_show_the_main_commands() -> None:
    assert QUICK
    assert {shown.words[1] for shown in GROUPTRAIL} >= {"decode", "sql", "tables", "doctor", "run"}


@pytest.mark.parametrize("shown", QUICK, ids=name_of)
def test_documented_decode_output_matches_actual_output(shown: Shown, tmp_path: Path) -> None:
    grouptrail = tmp_path / "grouptrail"
    grouptrail.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m grouptrail "$@"\n')
    grouptrail.chmod(0o755)
    line = re.sub(r"(\S+/)?grouptrail(?= )", shlex.quote(str(grouptrail)), shown.line)
    printed = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=ROOT, check=True)
    assert printed.stdout == shown.output


@pytest.mark.parametrize("shown", GROUPTRAIL, ids=name_of)
def test_documented_commands_and_flags_exist(shown: Shown) -> None:
    arguments = shown.words[1:]
    if arguments in (["--help"], ["--version"]):
        return
    COMMANDS[arguments[0]].make_context(arguments[0], _before_a_pipe(arguments[1:]))


def _before_a_pipe(words: list[str]) -> list[str]:
    ends = [index for index, word in enumerate(words) if word in ("|", "<", ">", "&&")]
    return words[: ends[0]] if ends else words


def test_every_command_is_documented() -> None:
    text = "".join(path.read_text("utf-8") for path in DOCUMENTS)
    assert [name for name in COMMANDS if f"grouptrail {name}" not in text] == []


@pytest.mark.parametrize("shown", [shown for shown in SHOWN if shown.document == "docs/recipes.md"], ids=name_of)
def test_recipe_output_matches_the_documented_rows(
    shown: Shown, example: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly, except for the duration: run on the warehouse of `support.sample_history`, at 13:15 of its day.

    Its data are older than a running pipeline's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GROUPTRAIL_WAREHOUSE", example.warehouse)
    monkeypatch.setattr("grouptrail.query.views.utc_now", lambda: at(75))
    monkeypatch.setattr("grouptrail.query.sql.stale_note", lambda *_, **__: None)
    run = CliRunner().invoke(app, shown.words[1:])
    assert run.exit_code == 0, run.output
    assert _untimed(run.stdout) == _untimed(shown.output)


def _untimed(text: str) -> list[str]:
    return [re.sub(r" in [\d.]+ s$", "", line.rstrip()) for line in text.strip().splitlines()]


def python_blocks() -> list[str]:
    """Return the blocks that need no server; tests/spark runs the others."""
    text = (ROOT / "docs" / "sql-clients.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for block in blocks if "remote(" not in block]


@pytest.mark.parametrize("block", python_blocks(), ids=lambda block: block.splitlines()[0])
def test_documented_python_runs_and_prints_the_documented_output(block: str, example: Config) -> None:
    """The comments at the end of a block are its output."""
    program = block.replace("/data/grouptrail", example.warehouse)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    shown = "".join(line.removeprefix("# ") + "\n" for line in re.findall(r"^# .*$", block, re.MULTILINE))
    assert run.stdout == shown if shown else "billing" in run.stdout or "member_joined" in run.stdout


@pytest.mark.parametrize(("name", "text"), pages().items(), ids=list(pages()))
def test_reference_page_matches_its_generated_text(name: str, text: str) -> None:
    """Byte for byte, from contracts, settings and aliases."""
    assert (ROOT / "docs" / name).read_text("utf-8") == text, "run make docs"


def test_settings_page_names_existing_settings_each_with_a_description() -> None:
    text = pages()["settings.md"]
    for variable in re.findall(r"GROUPTRAIL_\w+", text):
        section, _, name = variable.removeprefix("GROUPTRAIL_").lower().partition("__")
        if section not in ("config", "kafka", "storage"):
            known = type(getattr(Config(), section)).model_fields if name else Config.model_fields
            assert (name or section) in known
    rows = re.findall(r"^\| `([\w.]+)` \|.*\| (.+) \|$", text, re.MULTILINE)
    assert len(rows) > 30
    assert {name for name, meaning in rows if not meaning.endswith(".")} == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_row_of_a_table_is_one_line(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert [line for line in text.splitlines() if line.startswith("| ") and not line.endswith("|")] == []


EXAMPLES = [
    (str(path.relative_to(ROOT)), block)
    for path in DOCUMENTS
    for block in re.findall(r"^```toml\n(.*?)^```$", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize(("document", "example"), EXAMPLES, ids=[document for document, _ in EXAMPLES])
def test_documented_configuration_example_is_valid(document: str, example: str, tmp_path: Path) -> None:
    file = tmp_path / "grouptrail.toml"
    file.write_text(example)
    assert load_configs(file, {}, {}), document


def test_getting_started_has_a_configuration_example() -> None:
    assert "docs/getting-started.md" in {document for document, _ in EXAMPLES}


def test_readme_first_block_is_make_demo_and_make_test() -> None:
    first = next(console_blocks((ROOT / "README.md").read_text("utf-8")))
    assert [line.partition("#")[0].strip() for line in first.splitlines()] == ["$ make demo", "$ make test"]


def test_documented_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (str(path.relative_to(ROOT)), target)
        for path in DOCUMENTS
        for target in re.findall(r"(?:`|\$ )make ([a-z-]+)", path.read_text("utf-8"))
    }
    assert named
    assert {(path, target) for path, target in named if target not in targets} == set()


@pytest.mark.parametrize("page", ["metrics.md", "migrate.md"])
def test_metrics_and_migrate_pages_list_each_metric_once(page: str) -> None:
    """Grouptrail's metrics on one page, other exporters' on the other."""
    names = set(contracts.metrics()) if page == "metrics.md" else _others_names()
    text = pages()[page]
    assert [name for name in names if len(re.findall(rf"^(?:\| |- )`{name}`", text, re.MULTILINE)) != 1] == []


def test_documented_promql_queries_use_existing_metrics() -> None:
    """Check the queries on the metrics page."""
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    asked = re.findall(r"^\| [a-z].*\| `(.*(?:kafka|grouptrail)_.*)` \|$", page, re.MULTILINE)
    names = {name for query in asked for name in re.findall(r"\b(?:kafka|grouptrail)_\w+", query)}
    assert len(asked) > 5
    assert names - set(contracts.metrics()) == set()


def _others_names() -> set[str]:
    served = {metric.name for exporter in ALIASES.values() for metric in exporter}
    return served | {name for exporter in NOT_SERVED.values() for name in exporter}


def test_architecture_lists_the_packages_of_the_layers_contract() -> None:
    """Line by line, in the same order."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (layers,) = [contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers"]
    section = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("## Packages")[2]
    diagram = section.split("```text\n")[1].partition("```")[0]
    assert [re.split(r" {2,}", line)[0] for line in diagram.splitlines()] == layers


def test_architecture_names_every_job_and_every_table_that_a_job_writes() -> None:
    flow = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("## Packages")[0]
    names = {name for job in JOBS for name in (job.name, *job.writes)} - {"history_positions"}  # internal state
    assert [name for name in sorted(names) if not re.search(rf"(?<![\w-]){name}(?![\w-])", flow)] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_document_links_and_file_paths_exist(path: Path) -> None:
    text = path.read_text("utf-8")
    links = [link.split("#")[0] for link in re.findall(r"\]\((?!https?:|mailto:|#)([^)]+)\)", text)]
    gone = [link for link in links if not os.path.exists(path.parent / link)]
    named = re.findall(r"`((?:jobs|schemas|deploy|tests|docs|dashboards)/[\w./*-]+)`", text)
    gone += [name for name in named if not list(ROOT.glob(name.rstrip("/")))]
    assert gone == []


def contributing_rows() -> list[tuple[str, str]]:
    """Return the rows of CONTRIBUTING.md's first table: what to change, and what to open."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = text.partition("## To change X, open Y")[2].partition("\n## ")[0]
    return re.findall(r"^\| (?!to change|---)(.+?) \| (.+) \|$", section, re.MULTILINE)


@pytest.mark.parametrize(("change", "where"), contributing_rows(), ids=[row[0] for row in contributing_rows()])
def test_contributing_row_names_existing_files(change: str, where: str) -> None:
    """A bare file name is in the folder of the path before it."""
    names = [name for name in re.findall(r"`([^`\n]+)`", where) if re.fullmatch(r"[\w./*<>-]+\.\w+|[\w./-]+/", name)]
    assert names, change
    folder, gone = ROOT, []
    for name in names:
        pattern = re.sub(r"<\w+>", "*", name).rstrip("/")
        paths = [*ROOT.glob(pattern)] if "/" in name else [*folder.glob(pattern)] or [*ROOT.glob(pattern)]
        gone += [] if paths else [name]
        if paths and "/" in name:
            folder = paths[0] if paths[0].is_dir() else paths[0].parent
    assert gone == []


def test_deploy_readme_lists_every_entry_of_the_folder() -> None:
    folder = ROOT / "deploy"
    section = (folder / "README.md").read_text("utf-8").partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    named = {name.rstrip("/") for cell in cells for name in re.findall(r"`(.+?)`", cell)}
    assert named == {path.name for path in folder.iterdir() if not path.name.startswith((".", "_"))} - {"README.md"}

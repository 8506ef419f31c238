"""`--out` of `grouptrail timeline` and `report`: which files they replace."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grouptrail.cli import app
from grouptrail.query.errors import QueryError
from grouptrail.report.page import page, write
from support.exporter_tables import configured, lay_everything

PAGES = {
    "timeline": page("timeline", (), title="billing", data={"of": "billing"}),
    "report": page("report", (), title="default", data={"of": "default"}),
}


@pytest.mark.parametrize("name", PAGES)
def test_write_replaces_an_earlier_page(tmp_path: Path, name: str) -> None:
    path = tmp_path / "page.html"
    for earlier in PAGES.values():
        write(earlier, path)
        write(PAGES[name], path)
        assert path.read_text("utf-8") == PAGES[name]
    assert list(tmp_path.iterdir()) == [path]


def linked(path: Path) -> None:
    path.symlink_to(path.with_name("victim"))


def foreign(path: Path) -> None:
    path.write_text("<!doctype html>\n<html>precious</html>")


def empty(path: Path) -> None:
    path.touch()


@pytest.mark.parametrize(
    ("lay", "reason"),
    [
        (linked, "is a link: name the file itself with --out"),
        (foreign, "exists and is no page of grouptrail: give another --out, or delete it"),
        (empty, "is no page of grouptrail"),
        (os.mkfifo, "is no page of grouptrail"),
        (Path.mkdir, "is no page of grouptrail"),
    ],
)
def test_write_refuses_a_link_and_what_it_did_not_write(
    tmp_path: Path, lay: Callable[[Path], object], reason: str
) -> None:
    """A link is refused even if a page is behind it: it may point to another user's."""
    victim, path = tmp_path / "victim", tmp_path / "page.html"
    victim.write_text(PAGES["report"], "utf-8")
    lay(path)
    before = path.lstat()
    with pytest.raises(QueryError, match=reason):
        write(PAGES["timeline"], path)
    assert (path.lstat().st_ino, path.lstat().st_size) == (before.st_ino, before.st_size)
    assert victim.read_text("utf-8") == PAGES["report"]
    assert sorted(tmp_path.iterdir()) == [path, victim]


def test_write_link_planted_after_the_check_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, path = tmp_path / "victim", tmp_path / "page.html"
    victim.write_text("precious")
    monkeypatch.setattr("grouptrail.report.page._refuse_other_file", linked)
    write(PAGES["timeline"], path)
    assert victim.read_text() == "precious"
    assert path.read_text("utf-8") == PAGES["timeline"]
    assert not path.is_symlink()


def test_write_folder_missing_raises_one_line(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match=r"cannot be written \(No such file or directory\)"):
        write(PAGES["timeline"], tmp_path / "gone" / "page.html")


def test_report_out_refuses_another_file_and_exits_with_one_line(tmp_path: Path) -> None:
    lay_everything(configured(tmp_path / "lake"))
    out = tmp_path / "notes.html"
    out.write_text("precious")
    run = CliRunner().invoke(app, ["report", "--warehouse", str(tmp_path / "lake"), "--out", str(out)])
    assert run.exit_code == 1
    assert run.output == (
        f"grouptrail: {out} exists and is no page of grouptrail: give another --out, or delete it\n"
    )
    assert out.read_text() == "precious"

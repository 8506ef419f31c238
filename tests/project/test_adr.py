"""docs/adr: numbered without gaps, each with status and sections, all in the index."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "adr"
DECISIONS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
INDEX = (FOLDER / "README.md").read_text("utf-8")

each_decision = pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)


def test_decisions_are_numbered_without_gaps() -> None:
    assert [path.name[:5] for path in DECISIONS] == [f"{number:04d}-" for number in range(1, len(DECISIONS) + 1)]


@each_decision
def test_decision_has_title_status_and_date(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    assert re.fullmatch(rf"# {path.name[:4]}: \S.*", lines[0])
    status = re.fullmatch(r"- Status: (?:Accepted|Superseded by \[(\d{4})\]\((\1-[\w-]+\.md)\))", lines[2])
    assert status
    assert status[2] is None or (FOLDER / status[2]).exists()
    assert date.fromisoformat(lines[3].removeprefix("- Date: "))


@each_decision
def test_decision_has_context_decision_and_consequences_on_one_page(path: Path) -> None:
    text = path.read_text("utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert [name for name in headings if name != "Alternatives"] == ["Context", "Decision", "Consequences"]
    assert len(text.splitlines()) <= 70


def test_index_lists_every_decision_with_its_title_status_and_date() -> None:
    rows = re.findall(r"^\| \[(\d{4})\]\((.+?)\) \| (.+) \| (.+) \| (.+) \|$", INDEX, re.MULTILINE)
    listed = []
    for path in DECISIONS:
        title, _, status, day = path.read_text("utf-8").splitlines()[:4]
        number, _, name = title.removeprefix("# ").partition(": ")
        listed.append((number, path.name, name, status.removeprefix("- Status: "), day.removeprefix("- Date: ")))
    assert rows == listed

"""CHANGELOG.md follows Keep a Changelog, and the release notes are extracted from it."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path

import pytest

import release_notes

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]

SAMPLE = """\
# Changelog

## [Unreleased]

### Added
- c

## [1.2.0] - 2026-02-01

### Fixed
- b

## [1.1.0] - 2026-01-01

### Added
- a
"""


def releases() -> list[str]:
    """The second-level headings, without the hashes."""
    return re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)


def test_changelog_begins_with_title_and_unreleased() -> None:
    assert CHANGELOG.startswith("# Changelog\n")
    assert releases()[0] == "[Unreleased]"


def test_released_versions_have_a_valid_date_newest_first() -> None:
    matches = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", heading) for heading in releases()[1:]]
    assert matches
    assert None not in matches
    versions = [tuple(map(int, match[1].split("."))) for match in matches if match]
    dates = [date.fromisoformat(match[2]) for match in matches if match]
    assert versions == sorted(versions, reverse=True)
    assert dates == sorted(dates, reverse=True)


def test_newest_release_is_the_version_of_pyproject() -> None:
    assert releases()[1].startswith(f"[{VERSION}] ")


def test_entries_are_in_known_sections_each_once_and_in_order() -> None:
    for release in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        names = re.findall(r"^### (.*)$", release, re.MULTILINE)
        assert names == [name for name in SECTIONS if name in names], release.splitlines()[0]


def test_every_section_has_entries() -> None:
    sections = re.split(r"^### ", CHANGELOG, flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0] for section in sections if "\n- " not in section] == []


def test_changelog_is_made_of_headings_and_entries_only() -> None:
    body = CHANGELOG.split("## [Unreleased]", 1)[1]
    stray = [line for line in body.splitlines() if line and not re.match(r"## \[|### \w|- \S|  \S", line)]
    assert stray == []


def test_security_policy_supports_the_current_version() -> None:
    policy = (ROOT / "SECURITY.md").read_text("utf-8")
    assert f"| {VERSION.rpartition('.')[0]} | yes |" in policy


@pytest.mark.parametrize(
    ("version", "notes"), [("1.2.0", "### Fixed\n- b"), ("1.1.0", "### Added\n- a"), ("1.2", ""), ("1x1.0", "")]
)
def test_release_notes_are_the_section_of_the_version(version: str, notes: str) -> None:
    assert release_notes.release_notes(SAMPLE, version) == notes


def test_release_notes_of_the_current_version_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert release_notes.main(f"v{VERSION}") == 0
    assert capsys.readouterr().out.startswith("### Added\n- ")


def test_release_notes_of_another_tag_fail_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert release_notes.main("v9.9.9") == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        f"release notes: the tag v9.9.9 is not v{VERSION}, the version in pyproject.toml: change one of them\n"
    )

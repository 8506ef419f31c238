"""Print the changelog's section of a release: `release_notes.py v0.1.0`.

Exits with 1 and one line if the tag is not the version in pyproject.toml, or if the changelog has no entries for it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def release_notes(changelog: str, version: str) -> str:
    """Return the entries below the heading of this version, without the heading; empty if there are none."""
    heading = rf"^## \[{re.escape(version)}\] - [^\n]*\n"
    section = re.search(rf"{heading}(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    return section[1].strip() if section else ""


def main(tag: str) -> int:
    """Print the notes of this tag; return the exit status."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    if tag != f"v{version}":
        return _fail(f"the tag {tag} is not v{version}, the version in pyproject.toml: change one of them")
    notes = release_notes((ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    if not notes:
        return _fail(f"CHANGELOG.md has no entries below a heading '## [{version}] - DATE': add them")
    print(notes)
    return 0


def _fail(message: str) -> int:
    print(f"release notes: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

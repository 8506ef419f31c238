"""Every message quoted in docs/troubleshooting.md exists in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
QUOTED = [" ".join(quoted.split()) for quoted in re.findall(r"^- \*\*`(.*?)`\*\*", PAGE, re.MULTILINE | re.DOTALL)]


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the strings of a module, with … in place of each interpolated value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.fixture(scope="module")
def messages() -> list[str]:
    files = sorted((ROOT / "jobs").rglob("*.py"))
    return [" ".join(text.split()) for file in files for text in texts(ast.parse(file.read_text("utf-8")))]


def test_troubleshooting_page_quotes_more_than_twenty_messages() -> None:
    assert len(QUOTED) > 20


@pytest.mark.parametrize("quoted", QUOTED)
def test_troubleshooting_quoted_message_is_in_the_code(quoted: str, messages: list[str]) -> None:
    """Compare the constant parts word by word; a quoted message may span several strings."""
    parts = [part.strip() for part in quoted.split("…") if part.strip(" ():.?")]
    assert [part for part in parts if not any(part in message for message in messages)] == []

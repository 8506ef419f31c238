"""docs/troubleshooting.md quotes messages that the code has."""

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
    """The strings of a module, with … where something is put in."""
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
    """Between what differs from case to case, word by word; where the page has more, it goes on in another string."""
    parts = [part.strip() for part in quoted.split("…") if part.strip(" ():.?")]
    assert [part for part in parts if not any(part in message for message in messages)] == []

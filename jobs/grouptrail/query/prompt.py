"""`grouptrail sql` on a terminal: a prompt with a history, which completes tables, views, columns and keywords."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer

from grouptrail import contracts
from grouptrail.console.text import harmless
from grouptrail.query.errors import QueryError
from grouptrail.query.sql import QueryContext, print_columns, print_tables, run_sql

_KEYWORDS = """
AND AS ASC BETWEEN BY CASE CAST COUNT CROSS DESC DESCRIBE DISTINCT ELSE END EXISTS EXPLAIN FROM GROUP HAVING IN
INTERVAL IS JOIN LEFT LIKE LIMIT MAX MIN NOT NULL ON OR ORDER OVER PARTITION SELECT SHOW SUM TABLES THEN TIMESTAMP
UNION USING VALUES WHEN WHERE WITH
"""
_LEAVE = ("exit", "quit", r"\q")
_HELP = ("help", "?", r"\?")
_SOURCE = re.compile(r"(?:\b(?:from|join)|(^\s*tables))\s+(\w*)$", re.IGNORECASE)
_WELCOME = "Enter runs a query, Esc Enter adds a line, Tab completes; `tables [NAME]` lists; Ctrl-D leaves.\n"


class Names(Completer):
    """Complete the word before the cursor: columns of the tables and views in the query, or of all of them.

    After FROM and JOIN only tables and views are offered, also before the first letter."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:  # noqa: ARG002
        source = _SOURCE.search(document.text_before_cursor)
        word = source[2] if source else document.get_word_before_cursor()
        if source is None and not re.fullmatch(r"\w+", word):
            return
        names = tables_and_views() if source else candidates(document.text)
        for name in (name.removesuffix("(") for name in names) if source and source[1] else names:
            if name.lower().startswith(word.lower()) and name != word:
                yield Completion(name, start_position=-len(word))


def candidates(text: str) -> list[str]:
    """Return the completions of a word in a query: columns first, then tables, views and keywords."""
    sources: dict[str, contracts.Table | contracts.View] = {**contracts.tables(), **contracts.views()}
    named = [sources[word] for word in re.findall(r"\w+", text.lower()) if word in sources]
    columns = sorted({column.name for source in named or sources.values() for column in source.columns})
    return list(dict.fromkeys([*columns, *tables_and_views(), *_KEYWORDS.split()]))


def tables_and_views() -> list[str]:
    """Return the names of tables and views; a view that needs arguments ends with its opening parenthesis."""
    calls = (view.name if not view.required else f"{view.name}(" for view in contracts.views().values())
    return [*contracts.tables(), *calls]


def prompt(context: QueryContext, out: TextIO) -> None:
    """Read queries and answer them until Ctrl-D; an error is one line."""
    out.write(_WELCOME)
    for text in _queries(_session()):
        try:
            _answer(context, text, out)
        except QueryError as error:
            out.write(f"{harmless(str(error), keep_lines=True)}\n")
        except KeyboardInterrupt:
            out.write("stopped\n")


def _session() -> PromptSession[str]:
    keys = KeyBindings()
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
    return PromptSession(
        "grouptrail> ",
        history=_history(),
        completer=Names(),
        complete_while_typing=False,
        key_bindings=keys,
        lexer=PygmentsLexer(SqlLexer),
    )


def _history() -> History:
    """Return the history file, readable by this user only, or a history in memory if it cannot be written."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "grouptrail"
    file = folder / "sql_history"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))


def _queries(session: PromptSession[str]) -> Iterable[str]:
    while True:
        try:
            text = session.prompt().strip().rstrip(";").strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.lower() in _LEAVE:
            return
        if text:
            yield text


def _answer(context: QueryContext, text: str, out: TextIO) -> None:
    if text.lower() in _HELP:
        out.write(_WELCOME)
        return
    listing = re.fullmatch(r"tables(?:\s+(\w+))?", text, re.IGNORECASE)
    if listing is None:
        run_sql(context, text, format="table", out=out)
    elif listing[1]:
        print_columns(listing[1].lower(), out)
    else:
        print_tables(context.warehouse, out)

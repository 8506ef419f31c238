"""Untrusted names, client ids and metadata are plain text everywhere."""

from __future__ import annotations

import io
import json
import re
from typing import Any, Literal

import pytest

from grouptrail import contracts
from grouptrail.cli import main as command_line
from grouptrail.config import Config
from grouptrail.console import text
from grouptrail.query.formats import TextFormat
from grouptrail.query.show_group import show_group
from grouptrail.query.show_lag import show_lag
from grouptrail.query.sql import run_sql
from grouptrail.report.timeline import timeline_page, timeline_rows
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.sql import datafusion_literal
from support import queries
from support.from_config import SAMPLE_SECONDS, sql_context
from support.small_tables import at, lay

STRANGE = [
    "'; DROP TABLE offset_commits; --",
    "' OR '1'='1",
    "x\\' OR 1=1 -- ",
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b2J\x85forged",
    '"} or vector(1) #',
    "fine\nbilling  OK  0",
    "fine\r\nfine",
    "\u202egnillib\u2066",
    "nul\x00byte",
    "$(id) `id` ${env:PATH} {{ $labels.group }} %s %(a)s",
    "[red]bold[/red]",
]
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
each_name = pytest.mark.parametrize("name", STRANGE, ids=range(len(STRANGE)))


class Terminal(io.StringIO):
    """An output stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A warehouse with a group, topics, members and metadata of each hostile name, and a group that no query may
    reach."""
    config = Config(warehouse=str(tmp_path_factory.mktemp("lake")))
    rows = [_rows(name, number) for number, name in enumerate([*STRANGE, "bystander"])]
    for table in rows[0]:
        lay(config, table, *(of_group[table] for of_group in rows))
    lay(config, "ingest_progress", {"record_partition": 3, "landed_at": at(31)})
    return config


def _rows(name: str, number: int) -> dict[str, dict[str, Any]]:
    shared = {"group_id": name, "topic": name, "record_partition": 3, "record_offset": number, "partition": 0}
    opened = {**shared, "is_open": True, "open_bucket": 0, "started_at": at(1), "group_kind": "classic"}
    member = {"member_id": name, "client_id": name, "client_host": name, "joined_at": at(1)}
    return {
        "offset_commits": {**shared, "committed_offset": 5, "metadata": name, "commit_at": at(1), "record_at": at(1)},
        "group_states": {**opened, "state": "Stable"},
        "generations": {**opened, "generation": 1, "member_count": 1, "protocol": name},
        "memberships": {**opened, **member},
        "partition_ownership": {**opened, **member, "owned_from": at(1)},
        "task_assignments": {**opened, **member, "subtopology": name, "role": "active", "assigned_from": at(1)}
        | {"task": 0, "endpoint": name, "process_id": name},
        "streams_topology": {**opened, "subtopology": name, "usage": "source", "known_from": at(1)},
        "rebalances": {**opened, "cause": "member_joined", "at": at(1)},
        "consumer_lag": {**shared, "sampled_at": at(30), "status": "OK", "problem": name},
    }


def asked(config: Config, query: str, format: TextFormat = "json") -> str:
    out = Terminal()
    run_sql(sql_context(config), query, format=format, out=out)
    return out.getvalue()


def assert_plain(text: str) -> None:
    """Assert that a text has no control sequences, apart from the colours that rich writes to a terminal."""
    assert OBEYED.findall(re.sub(r"\x1b\[[\d;]*m", "", text)) == []


@each_name
def test_views_hostile_group_name_selects_only_that_group(simulated: Config, name: str) -> None:
    """Every view that takes a group; the tables still exist afterwards."""
    views = [view for view in contracts.views().values() if [it.name for it in view.parameters][:1] == ["group"]]
    assert len(views) > 3
    for view in views:
        others = "" if view.required == 1 else ", '2026-03-04T12:31:00Z'"
        shown, expected = (
            asked(simulated, f"SELECT * FROM {view.name}({datafusion_literal(group)}{others})").splitlines()
            for group in (name, "bystander")
        )
        assert len(shown) == len(expected) > 0, view.name
    counted = asked(simulated, f"SELECT group_id FROM offset_commits WHERE metadata = {datafusion_literal(name)}")
    assert [json.loads(line) for line in counted.splitlines()] == [{"group_id": name}]


@pytest.mark.parametrize("format", ["table", "json", "csv"])
def test_sql_output_to_terminal_has_no_control_characters(simulated: Config, format: TextFormat) -> None:
    """Each row is one line, except for a table's header and footer."""
    text = asked(simulated, "SELECT group_id FROM offset_commits", format)
    assert_plain(text)
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) - {"table": 3, "json": 0, "csv": 1}[format] == len(STRANGE) + 1


def test_sql_output_to_file_keeps_every_character(simulated: Config) -> None:
    """Programs read the names as they are."""
    query = "SELECT group_id FROM offset_commits"
    assert {row["group_id"] for row in queries.asked(simulated, query)} == {*STRANGE, "bystander"}
    file_text = queries.printed(simulated, query, "csv")
    assert [name for name in STRANGE if '"' not in name and name not in file_text] == []


@each_name
@pytest.mark.parametrize("format", ["table", "json", "csv", "markdown"])
def test_sql_column_with_hostile_alias_prints_no_control_characters(
    simulated: Config, name: str, format: TextFormat
) -> None:
    """A query may come from elsewhere. A table has its columns beside each other, or below each other."""
    alias = name.replace("\x00", "").replace('"', '""')
    for columns in (1, 30):
        named = ", ".join(f'{number} AS "{alias}{number}"' for number in range(columns))
        text = asked(simulated, f"SELECT {named}", format)
        assert_plain(text)
        assert text.count("\n") <= columns + 4


def test_sql_reset_offsets_on_terminal_prints_no_control_characters(simulated: Config) -> None:
    query = "SELECT topic, partition, committed_offset FROM offset_commits"
    text = asked(simulated, query, "reset-offsets")
    assert_plain(text)
    assert text.count("\n") == len(STRANGE) + 1


@each_name
def test_show_hostile_group_name_prints_no_control_characters(simulated: Config, name: str) -> None:
    """For the group, its members and its lag."""
    as_table: Literal["table", "json"]
    for as_table in ("table", "json"):
        out = Terminal()
        show_group(
            warehouse_of(simulated),
            name,
            at=None,
            generations=5,
            sample_seconds=SAMPLE_SECONDS,
            format=as_table,
            out=out,
        )
        show_lag(
            warehouse_of(simulated),
            groups=["*"],
            topics=[],
            sample_seconds=SAMPLE_SECONDS,
            format=as_table,
            out=out,
        )
        assert_plain(out.getvalue())
        assert text.harmless(name)[:8] in out.getvalue() or as_table == "json"


@each_name
def test_cli_error_with_hostile_name_prints_no_control_characters(
    simulated: Config, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of an unknown group, and an invalid number."""
    monkeypatch.setenv("GROUPTRAIL_WAREHOUSE", simulated.warehouse)
    queries = [["show", "group", f"no {name}"], ["sql", f"SELECT CAST({datafusion_literal(name)} AS BIGINT)"]]
    for arguments in queries:
        monkeypatch.setattr("sys.argv", ["grouptrail", *arguments])
        with pytest.raises(SystemExit) as ended:
            command_line()
        assert ended.value.code != 0
        printed = capsys.readouterr()
        assert printed.err.startswith("grouptrail: "), printed
        assert_plain(printed.out + printed.err)


@each_name
def test_timeline_page_hostile_group_name_adds_no_html_tags(simulated: Config, name: str) -> None:
    """The page has as many elements for any name; browser tests check what it shows."""

    def page(group: str) -> str:
        return timeline_page(timeline_rows(warehouse_of(simulated), group, since=None, until=None))

    def tags(text: str) -> list[str]:
        return re.findall(r"<(?:/?script|img|iframe)\b", re.sub(r"<title>.*?</title>", "", text, flags=re.DOTALL))

    assert tags(page(name)) == tags(page("bystander"))

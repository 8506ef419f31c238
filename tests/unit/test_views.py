"""The views of `grouptrail sql`: what they give at the edges, and how their calls are found in a query."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.query.errors import QueryError
from grouptrail.query.sql import print_columns, print_tables, run_query
from grouptrail.query.views import DELTA_RS, SPARK, Dialect, expand, filled, view_query
from grouptrail.runtime.warehouses import query_context, warehouse_of
from support.queries import asked, printed, refused
from support.small_tables import at, lay


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Member a owns partitions 0 and 1; b joins after 5 minutes and takes 1; a leaves after 10.

    The same rows exist for another cluster.
    """
    config = Config(warehouse=str(tmp_path_factory.mktemp("lake")))
    rows: dict[str, list[dict[str, Any]]] = {
        "generations": [
            {"generation": 1, "group_kind": "classic", "member_count": 1, "started_at": at(0), "ended_at": at(5)},
            {"generation": 2, "group_kind": "classic", "member_count": 2, "started_at": at(5), "ended_at": at(10)},
            {"generation": 3, "group_kind": "classic", "member_count": 1, "started_at": at(10)},
        ],
        "group_states": [{"generation": 1, "state": "Stable", "evidence": "recorded", "started_at": at(0)}],
        "memberships": [
            _member("a", at(0), began="joined", joined_generation=1, left_at=at(10), left_generation=3, ended="left"),
            _member("b", at(5), began="joined", joined_generation=2),
        ],
        "partition_ownership": [
            _owner("a", 0, at(0), owned_until=at(10)),
            _owner("a", 1, at(0), owned_until=at(4)),
            _owner("b", 1, at(5)),
            _owner("b", 0, at(10)),
        ],
        "rebalances": [
            _rebalance(1, at(0), "group_started"),
            _rebalance(2, at(5), "member_joined"),
            _rebalance(3, at(10), "member_left", certainty="ambiguous", cause_note="or expired"),
        ],
    }
    for table, listed in rows.items():
        lay(config, table, *listed, *({**row, "cluster": "other"} for row in listed))
    return config


def _member(name: str, since: object, **more: Any) -> dict[str, Any]:
    return {"member_id": name, "client_id": f"client-{name}", "client_host": "/10.0.0.1", "joined_at": since, **more}


def _owner(name: str, partition: int, since: object, **more: Any) -> dict[str, Any]:
    client = f"client-{name}"
    return {
        "topic": "orders",
        "partition": partition,
        "member_id": name,
        "client_id": client,
        "owned_from": since,
        **more,
    }


def _rebalance(generation: int, when: object, cause: str, **more: Any) -> dict[str, Any]:
    return {"to_generation": generation, "at": when, "cause": cause, "certainty": "recorded", **more}


@pytest.mark.parametrize(
    ("time", "owners", "generation"),
    [
        ("2026-03-04T11:59:59Z", {}, None),
        ("2026-03-04T12:00:00Z", {0: "a", 1: "a"}, 1),
        ("2026-03-04 12:04:00", {0: "a"}, 1),
        ("2026-03-04T13:05:00+01:00", {0: "a", 1: "b"}, 2),
        ("2026-11-20T23:59:59Z", {0: "b", 1: "b"}, 3),
    ],
)
def test_owners_at_returns_the_owners_at_the_given_time(
    warehouse: Config, time: str, owners: dict[int, str], generation: int | None
) -> None:
    """Intervals include their start and exclude their end; times are UTC unless they have an offset."""
    rows = asked(warehouse, f"SELECT * FROM owners_at('billing', '{time}')")
    assert {row["partition"]: row["member_id"] for row in rows} == owners
    assert len(rows) == len(owners)
    assert {row["generation"] for row in rows} <= {generation}
    assert {row["client_host"] for row in rows} <= {"/10.0.0.1"}


@pytest.mark.parametrize(
    "call",
    [
        "owners_at('billing', '9999-12-31T23:59:59Z')",
        "lag_around('billing', '2999-01-01', '5 minutes')",
        "rebalances_by_cause('2999-01-01')",
    ],
)
def test_views_with_a_time_in_the_future_are_refused(warehouse: Config, call: str) -> None:
    assert refused(warehouse, f"SELECT * FROM {call}").endswith("is in the future: give one up to now()")


@pytest.mark.parametrize(
    ("call", "until"),
    [
        ("current_lag", None),
        ("members_at('billing', '2026-03-04T12:05:00Z')", "2026-03-04T12:05:00"),
        ("rebalances_by_hour('2026-03-04')", "2026-03-05T00:00:00"),
    ],
)
def test_expand_returns_the_time_up_to_which_a_view_is_asked(call: str, until: str | None) -> None:
    began = datetime.now(UTC)
    [(_, asked_until)] = expand(f"SELECT * FROM {call}", "c").calls
    assert asked_until >= began if until is None else asked_until.isoformat() == f"{until}+00:00"


@pytest.mark.parametrize(
    ("call", "newest"),
    [
        ("current_lag", "2026-03-04 12:02:06"),
        ("worst_groups", "2026-03-04 12:02:06"),
        ("dormant_groups('1 day')", "2026-03-04 12:02:06"),
        ("members_at('billing', now())", "2026-03-04 12:02:06"),
        ("members_at('billing', '2026-03-04 12:02')", None),
        ("rebalances_by_cause('2026-03-03')", None),
    ],
)
def test_sql_over_views_says_how_old_the_newest_data_are(
    example: Config, call: str, newest: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only if they end before the time that the view is asked for; in a table below it, otherwise on stderr."""
    note = printed(example, f"SELECT count(*) FROM {call}", "table").splitlines()[-1]
    asked(example, f"SELECT count(*) FROM {call}")
    if newest is None:
        assert note.startswith("1 row in ")
        assert capsys.readouterr().err == ""
    else:
        assert note.startswith(f"as of {newest} UTC (")
        assert note.endswith(" ago): nothing has been recorded since, see whether `grouptrail run` runs")
        assert capsys.readouterr().err == f"{note}\n"


def test_members_at_excludes_a_member_that_leaves_then(warehouse: Config) -> None:
    count = "SELECT (SELECT count(*) FROM members_at('billing', '{}')) n"
    times = ("2026-03-04T12:00:00Z", "2026-03-04T12:05:00Z", "2026-03-04T12:10:00Z")
    assert [asked(warehouse, count.format(time))[0]["n"] for time in times] == [1, 2, 1]
    assert [row["member_id"] for row in asked(warehouse, "SELECT * FROM members_at('billing', now())")] == ["b"]


def test_group_timeline_lists_events_in_time_order(warehouse: Config) -> None:
    """At the same time, causes precede effects, and all events are listed."""
    rows = asked(warehouse, "SELECT * FROM group_timeline('billing') ORDER BY step")
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert [(row["at"][14:16], row["event"], row["generation"]) for row in rows] == [
        ("00", "rebalance", 1),
        ("00", "generation", 1),
        ("00", "member joined", 1),
        ("00", "state", 1),
        ("05", "rebalance", 2),
        ("05", "generation", 2),
        ("05", "member joined", 2),
        ("10", "rebalance", 3),
        ("10", "generation", 3),
        ("10", "member left", 3),
    ]
    assert rows[-3]["what"] == "member_left (ambiguous): or expired; 0 partitions moved, 0 kept"
    assert rows[-2]["what"] == "classic, 1 members, unknown partitions"
    assert rows[-1]["what"] == "a: left"


@pytest.mark.parametrize(
    ("kind", "protocol_type", "is_listed"),
    [
        ("classic", "consumer", True),
        ("classic", "", True),
        ("consumer", "consumer", True),
        ("streams", "streams", True),
        ("classic", "sr", False),
        ("classic", "connect", False),
        ("classic", "leader-election", False),
        ("share", "share", False),
    ],
)
def test_groups_never_committing_are_those_that_consume(
    config: Config, kind: str, protocol_type: str, *, is_listed: bool
) -> None:
    """Schema Registry elects its leader in a group."""
    generation = {"group_kind": kind, "protocol_type": protocol_type, "member_count": 2, "started_at": at(0)}
    lay(config, "generations", generation)
    lay(config, "offset_commits", {"group_id": "audit"})
    rows = asked(config, "SELECT group_id FROM groups_never_committing")
    assert len(rows) == is_listed


def test_rebalance_storms_are_separated_by_window_and_threshold(config: Config) -> None:
    """Rebalances within a window form one storm if there are more than the threshold."""
    minutes = (0, 1, 2, 3, 8, 30, 40, 41, 42, 43)
    causes = ["member_joined", "member_left"] * 5
    rows = [_rebalance(number, at(minute), causes[number]) for number, minute in enumerate(minutes)]
    lay(config, "rebalances", *rows, *({**row, "group_id": "calm"} for row in rows[:3]))
    storms = asked(config, "SELECT * FROM rebalance_storms('10 minutes') ORDER BY began_at")
    assert storms == [
        {
            "group_id": "billing",
            "began_at": "2026-03-04T12:00:00Z",
            "ended_at": "2026-03-04T12:08:00Z",
            "rebalances": 5,
            "main_cause": "member_joined",
            "main_cause_rebalances": 3,
        },
        {
            "group_id": "billing",
            "began_at": "2026-03-04T12:40:00Z",
            "ended_at": "2026-03-04T12:43:00Z",
            "rebalances": 4,
            "main_cause": "member_joined",
            "main_cause_rebalances": 2,
        },
    ]
    counts = "SELECT group_id g, rebalances n FROM rebalance_storms('10 minutes', {}) ORDER BY began_at, g"
    assert asked(config, counts.format(4)) == [{"g": "billing", "n": 5}]
    assert {"g": "calm", "n": 3} in asked(config, counts.format(2))


def test_rebalances_by_cause_counts_one_utc_day(config: Config) -> None:
    hours = (-12.001, -12, 0, 11.999, 12)
    lay(config, "rebalances", *(_rebalance(1, at(hour * 60), "member_joined") for hour in hours))
    for day in ("'2026-03-04'", "DATE '2026-03-04'"):
        [row] = asked(config, f"SELECT * FROM rebalances_by_cause({day})")
        assert row == {"group_id": "billing", "cause": "member_joined", "rebalances": 3}


@pytest.mark.parametrize(
    "call",
    [
        "Members_At ( 'billing' , TIMESTAMP '2026-03-04 12:05:00' )",
        "members_at(/* of /* the */ , ) */ 'billing', -- then\n '2026-03-04T12:05:00Z') AS m",
    ],
)
def test_view_call_in_any_case_with_blanks_and_comments_is_recognised(warehouse: Config, call: str) -> None:
    assert len(asked(warehouse, f"SELECT * FROM {call}")) == 2


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'owners_at(1)', 'it''s owners_at('",
        'SELECT 1 AS "owners_at(1)"',
        "SELECT 1 -- owners_at(1)\n",
        "SELECT /* owners_at(1) /* x */ owners_at(1) */ 1",
        "SELECT $$owners_at(1)$$, E'\\' owners_at(1)'",
        "SELECT owners_at, my_owners_at(1) FROM t",
        "SELECT 1 -- \r owners_at(1)",
        "SELECT `owners_at`(1), $tag$ owners_at(1) $$ $tag$",
        "SELECT arrow_cast('owners_at(', 'Utf8')::text, [1][1], {'resets': 2}['resets'], a ->> '.resets' FROM t",
        "SELECT 'open",
    ],
)
def test_expand_text_without_a_view_call_is_unchanged(text: str) -> None:
    """Views named in strings, quoted names, columns and comments are not calls."""
    assert expand(text, "c").text == text


@pytest.mark.parametrize("dialect", [DELTA_RS, SPARK], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("WITH x AS (SELECT * FROM ", ") SELECT arrow_cast(a, 'Utf8')::text FROM x"),
        ("SELECT a[1] FROM t JOIN ", " ON t.a = members_at.b"),
        ("SELECT * FROM t WHERE a IN (SELECT b FROM ", ")"),
        ("SELECT * FROM (SELECT * FROM ", " AS m) LIMIT 3 -- 'x"),
        ("SELECT /*+ BROADCAST(t) */ c FROM ", " LATERAL VIEW explode(l) e AS c MINUS SELECT 1"),
        ("SELECT 1 FROM ", " TABLESAMPLE (5 ROWS)"),
        ("SELECT 1 FROM ", " FETCH FIRST 3 ROWS ONLY"),
        ("this is\tno SQL; ", " ) ] nor is this"),
    ],
)
def test_expand_replaces_only_the_call(dialect: Dialect, before: str, after: str) -> None:
    """Everything else keeps its spelling, even if it is not valid SQL."""
    names_rows = after.startswith((" AS m", " TABLESAMPLE"))
    expanded = expand(f"{before}Members_at('it''s', now()){after}", "c", dialect)
    assert expanded.text.startswith(f"{before}(SELECT")
    assert expanded.text.endswith(f"\n){'' if names_rows else ' AS members_at'}{after}")
    assert dialect.literal("it's") in expanded.text
    assert expanded.groups == {("generations", "it's")}


_PIECES = [
    "'",
    '"',
    "`",
    "\\",
    "--",
    "/*",
    "*/",
    "(",
    ")",
    "\n",
    "\r",
    "$",
    "$$",
    "r'",
    "e'",
    "12",
    "é",
    ";",
    ":x",
    "{#",
    "{{+",
]


@pytest.mark.parametrize("dialect", [DELTA_RS, SPARK], ids=lambda dialect: dialect.name)
@given(pieces=st.lists(st.sampled_from([*_PIECES, "FROM ", " assignors_in_use ", "assignors_in_use()"])))
def test_expand_of_any_text_keeps_what_is_not_a_call(dialect: Dialect, pieces: list[str]) -> None:
    """Or one error names what is not terminated."""
    text = "".join(pieces)
    try:
        expanded = expand(text, "c", dialect).text
    except QueryError as error:
        message = str(error)
        assert message.startswith(("a string, a quoted name", "assignors_in_use() has no closing"))
        return
    query = f"({view_query(contracts.views()['assignors_in_use'], 'c', {}, dialect)}\n)"
    left = re.sub(re.escape(query) + "(?: AS assignors_in_use)?", "assignors_in_use", expanded)
    assert left.replace("()", "") == text.replace("()", "")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SELECT * FROM assignors_in_use", 1),
        ("SELECT assignors_in_use.groups FROM ASSIGNORS_IN_USE WHERE assignors_in_use.groups = 1", 1),
        ("SELECT a.groups FROM assignors_in_use a JOIN assignors_in_use() AS b USING (group_kind)", 1),
        ("WITH assignors_in_use AS (SELECT 1 AS x UNION SELECT 2) SELECT x FROM assignors_in_use", 2),
        ("SELECT assignors_in_use FROM (SELECT 1 AS assignors_in_use)", 1),
        ("SELECT * FROM partitions_moved_most", 0),
    ],
)
def test_view_without_required_arguments_is_queried_by_name(warehouse: Config, text: str, rows: int) -> None:
    """It is used like a table; a CTE with the same name takes precedence."""
    assert len(asked(warehouse, text)) == rows


def test_dialects_write_strings_and_durations_in_their_own_syntax() -> None:
    """Spark interprets backslashes and ${variables}, and has its own function for the time between timestamps."""
    assert DELTA_RS.literal("it's \\ ${x}") == "'it''s \\ ${x}'"
    assert SPARK.literal("it's \\ ${x}") == r"'it\'s \\ \u0024{x}'"
    assert filled("SELECT :seconds(a.b, :now)", {"now": 1}, SPARK) == (
        "SELECT ((unix_micros(a.b) - unix_micros(1)) / 1e6)"
    )
    text = r"SELECT 'it\'s owners_at(', r'\', owners_at"
    assert expand(text, "c", SPARK).text == text


def test_expand_view_argument_stays_a_string_literal(warehouse: Config) -> None:
    """Whatever its content; it is not read as a placeholder."""
    text = expand("SELECT * FROM members_at('o''x :time) --', now())", "it's").text
    assert "group_id = 'o''x :time) --'" in text
    assert "cluster = 'it''s'" in text
    assert "no history of a group \"o'x" in refused(warehouse, "SELECT * FROM members_at('o''x', now())")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("owners_at('billing')", "owners_at(group, time) cannot be called with 1 arguments: write it as in SELECT"),
        ("owners_at()", "cannot be called with 0 arguments"),
        ("owners_at('billing', now(), 1)", "cannot be called with 3 arguments"),
        ("owners_at(billing, now())", "group is a string in quotes, not billing"),
        ("owners_at(now(), now())", "group is a string in quotes, not now()"),
        ("owners_at('billing', 'yesterday')", "time is a time such as '2026-11-21T14:55:00Z', or now()"),
        ("owners_at('billing', '0001-01-01T00:00:00+14:00')", "time is a time"),
        ("owners_at('billing', now() - 1)", "not now() - 1"),
        ("owners_at('billing', (SELECT now()))", "time is a time"),
        ("owners_at('billing', )", "time is a time"),
        ("owners_at('billing', now()", "has no closing parenthesis"),
        ("owners_at('billing, now())", "a string, a quoted name or a comment does not end"),
        ("rebalance_storms('ten minutes')", "window is a length of time such as '10 minutes'"),
        ("rebalance_storms('0 minutes')", "window is a length of time"),
        ("rebalance_storms('999999 weeks')", "window is a length of time"),
        ("rebalance_storms('10 minutes', '3')", "more_than is a whole number"),
        ("rebalance_storms('10 minutes', 3.5)", "more_than is a whole number"),
        ("rebalances_by_cause('2026-02-30')", "day is a day such as '2026-11-21'"),
        ("owners_at('biling', now())", "no history of a group 'biling' in cluster default: did you mean billing?"),
        ("owners_at", "owners_at is a view: write owners_at(group, time)"),
        ("owner_at('billing', now())", "did you mean owners_at(group, time)?"),
    ],
)
def test_view_call_invalid_raises_one_line_error_with_the_fix(warehouse: Config, call: str, message: str) -> None:
    assert message in refused(warehouse, f"SELECT * FROM {call}")


def test_views_read_only_the_configured_cluster(warehouse: Config) -> None:
    """The error for another one names those that are there."""
    other = warehouse.model_copy(update={"cluster": "other"})
    assert len(asked(other, "SELECT * FROM members_at('billing', '2026-03-04T12:05:00Z')")) == 2
    third = warehouse.model_copy(update={"cluster": "third"})
    assert refused(third, "SELECT * FROM members_at('billing', now())") == (
        'the warehouse has no cluster "third": it has "default", "other"; set --cluster'
    )


def test_print_tables_and_columns_describe_the_views(tmp_path: Path) -> None:
    """The list has the first sentence of each view; `print_columns` describes one view in full."""
    out = io.StringIO()
    print_tables(warehouse_of(Config(warehouse=str(tmp_path))), out)
    assert re.search(r"rebalance_storms\(window\[, more_than\]\) +One rebalance storm of a group", out.getvalue())
    out = io.StringIO()
    print_columns("rebalance_storms", out)
    assert "the highest number of rebalances in a window that is not a storm (default: 3)" in out.getvalue()


def test_queries_without_views_do_not_import_sqlglot() -> None:
    """Importing sqlglot takes longer than most queries."""
    program = (
        "import sys, grouptrail.cli, grouptrail.decode.job, grouptrail.query.show_group, grouptrail.query.show_lag\n"
        "from grouptrail.query.views import expand\n"
        "expand('SELECT * FROM offset_commits', 'c'); sys.exit('sqlglot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_group_changes_reads_a_table_once_for_each_thing_that_it_compares(example: Config) -> None:
    """Its parts were computed twice: for the list of groups, and to be joined to it."""
    text = expand("SELECT * FROM group_changes('2026-03-04T12:00:00Z')", example.cluster).text
    with query_context(example) as context:
        _, batches = run_query(context, f"EXPLAIN {text}")
        plans = [plan for batch in batches for plan in batch.column("plan").to_pylist()]
    scans = Counter(re.findall(r"TableScan: (\w+)", plans[0]))
    assert {scans[name] for name in ("offset_commits", "generations", "memberships", "ingest_progress")} == {1}

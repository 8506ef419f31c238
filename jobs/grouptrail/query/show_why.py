"""`grouptrail show group --why`: what a rebalance's cause and its members' ends rest on, and what that rules out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from grouptrail.console.text import harmless_json
from grouptrail.query.document import Block, Grid, Line, write_document
from grouptrail.query.errors import QueryError
from grouptrail.query.formats import RowsFormat, to_the_second, write_rows
from grouptrail.query.views import filled
from grouptrail.storage.sql import Value
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.warehouse import Warehouse

Row = dict[str, Any]

_REBALANCE = """
SELECT
  group_id, group_kind, from_generation, to_generation, at, cause, certainty, cause_note, rule, ruled_out,
  evidence, incarnation, members_left
FROM rebalances
WHERE cluster = :cluster AND group_id = :group AND to_generation = :generation
ORDER BY record_offset DESC
LIMIT 1
"""
_MEMBERS = """
SELECT
  member_id, instance_id, client_id, client_host, left_generation, ended, ended_because, rule, ruled_out, evidence
FROM memberships
WHERE cluster = :cluster AND group_id = :group AND incarnation = :incarnation
  AND left_generation >= :from AND left_generation <= :generation
ORDER BY member_id
"""
_FACT = ["source", "at", "record_partition", "record_offset", "shows"]


def show_why(warehouse: Warehouse, group_id: str, generation: int, *, format: RowsFormat, out: TextIO) -> None:
    """Print why a group came to a generation: cause, certainty, evidence, what that rules out, and how members left.

    JSON is one object; CSV has the evidence. Raises QueryError where no such rebalance is known."""
    tables = SqlSnapshot(warehouse, ("rebalances", "memberships", "generations", "ingest_progress"))
    tables.require_group(group_id, "generations")
    values: dict[str, Value] = {"cluster": warehouse.cluster, "group": group_id, "generation": generation}
    rows = tables.rows(filled(_REBALANCE, values))
    if not rows:
        raise QueryError(
            f"no rebalance to generation {generation} of {group_id} is known: "
            "grouptrail show group lists its latest ones, the first of its history is none"
        )
    [row] = rows
    row = {"cluster": warehouse.cluster, **row, "endings": _endings(tables, row, values)}
    write_proof(row, _described(row), out, format=format)


def endings_of(rebalance: Row, memberships: Mapping[str, Sequence[Row]]) -> list[Row]:
    """Return the rows of `memberships`, by member, that a rebalance shows to have ended.

    A member of a KIP-848 group may be gone in the epoch before."""
    generations = (rebalance["from_generation"], rebalance["to_generation"])
    return [
        row
        for member in rebalance["members_left"] or ()
        for row in memberships.get(member, ())
        if row["left_generation"] is not None and row["left_generation"] in generations
    ]


def _endings(tables: SqlSnapshot, rebalance: Row, values: dict[str, Value]) -> list[Row]:
    if "memberships" not in tables.versions or not rebalance["members_left"]:
        return []
    first = rebalance["from_generation"]
    values = {**values, "from": rebalance["to_generation"] if first is None else first}
    ended: dict[str, list[Row]] = {}
    for row in tables.rows(filled(_MEMBERS, {**values, "incarnation": rebalance["incarnation"]})):
        ended.setdefault(row["member_id"], []).append(row)
    return [{name: one[name] for name in one if name != "left_generation"} for one in endings_of(rebalance, ended)]


def _described(row: Row) -> Iterator[Block]:
    word = "generation" if row["group_kind"] == "classic" else "epoch"
    from_ = "" if row["from_generation"] is None else f" after {row['from_generation']}"
    yield Line(f"{row['group_id']}: {word} {row['to_generation']}{from_}, {to_the_second(row['at'])} UTC")
    yield Line(f"{row['cause']} ({row['certainty']}){': ' if row['cause_note'] else ''}{row['cause_note'] or ''}")
    if row["rule"] is None:
        yield Line("its evidence was not kept by the grouptrail that wrote this: run grouptrail rebuild history")
        return
    yield from proof(row)
    if row["endings"]:
        yield Line()
        yield Grid(
            ("member that is gone", "client", "how", "rule", "because"),
            [
                (
                    one["member_id"],
                    f"{one['client_id']} {one['client_host']}",
                    one["ended"],
                    one["rule"] or "-",
                    f"{one['ended_because']}{'; ruled out: ' if one['ruled_out'] else ''}{one['ruled_out'] or ''}",
                )
                for one in row["endings"]
            ],
            (),
            ("because",),
            (),
        )


def proof(row: Row) -> Iterator[Block]:
    """Return what a row rests on, by its columns `rule`, `ruled_out` and `evidence`."""
    yield Line(f"rule: {row['rule']}")
    yield Line(f"ruled out: {row['ruled_out'] or 'nothing more than the note says'}")
    yield Line()
    yield Grid(
        ("evidence", "at (UTC)", "partition", "offset", "shows"),
        [
            (
                one["source"],
                to_the_second(one["at"]),
                "-" if one["record_partition"] is None else str(one["record_partition"]),
                "-" if one["record_offset"] is None else f"{one['record_offset']:,}",
                one["shows"],
            )
            for one in row["evidence"]
        ],
        ("partition", "offset"),
        ("shows",),
        (),
    )


def write_proof(row: Row, blocks: Iterable[Block], out: TextIO, *, format: RowsFormat) -> None:
    """Print a row as one JSON object, its `evidence` as CSV, or `blocks` as text."""
    if format == "json":
        out.write(harmless_json(json.dumps(row, ensure_ascii=False)) + "\n")
    elif format == "csv":
        write_rows(_FACT, ([one[name] for name in _FACT] for one in row["evidence"] or ()), out, format="csv")
    else:
        write_document(blocks, out, format=format)

"""`grouptrail show group --why`: what the cause of one rebalance rests on, and what it rules out."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
  evidence
FROM rebalances
WHERE cluster = :cluster AND group_id = :group AND to_generation = :generation
ORDER BY record_offset DESC
LIMIT 1
"""
_FACT = ["source", "at", "record_partition", "record_offset", "shows"]


def show_why(warehouse: Warehouse, group_id: str, generation: int, *, format: RowsFormat, out: TextIO) -> None:
    """Print why a group came to a generation: cause, certainty, evidence and what that rules out.

    JSON is one object; CSV has the evidence. Raises QueryError where no such rebalance is known."""
    tables = SqlSnapshot(warehouse, ("rebalances", "generations", "ingest_progress"))
    tables.require_group(group_id, "generations")
    values: dict[str, Value] = {"cluster": warehouse.cluster, "group": group_id, "generation": generation}
    rows = tables.rows(filled(_REBALANCE, values))
    if not rows:
        raise QueryError(
            f"no rebalance to generation {generation} of {group_id} is known: "
            "grouptrail show group lists its latest ones, the first of its history is none"
        )
    row = {"cluster": warehouse.cluster, **rows[0]}
    if format == "json":
        out.write(harmless_json(json.dumps(row, ensure_ascii=False)) + "\n")
    elif format == "csv":
        write_rows(_FACT, ([one[name] for name in _FACT] for one in row["evidence"] or ()), out, format="csv")
    else:
        write_document(_described(row), out, format=format)


def _described(row: Row) -> Iterator[Block]:
    word = "generation" if row["group_kind"] == "classic" else "epoch"
    from_ = "" if row["from_generation"] is None else f" after {row['from_generation']}"
    yield Line(f"{row['group_id']}: {word} {row['to_generation']}{from_}, {to_the_second(row['at'])} UTC")
    yield Line(f"{row['cause']} ({row['certainty']}){': ' if row['cause_note'] else ''}{row['cause_note'] or ''}")
    if row["rule"] is None:
        yield Line("its evidence was not kept by the grouptrail that wrote this: run grouptrail rebuild history")
        return
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

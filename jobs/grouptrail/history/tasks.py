"""The fold as Spark's Python workers run it: from records of groups to changed rows of the history tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain, groupby
from typing import Any

import pyarrow as pa

from grouptrail import contracts
from grouptrail.history.fold import fold_group
from grouptrail.history.operations import Record
from grouptrail.history.rows import TABLES, Row, Values
from grouptrail.history.state import decode_state, encode_state
from grouptrail.storage.buckets import bucket_of
from grouptrail.storage.schema import arrow_type, ddl_schema

POSITIONS = "history_positions"

CHECKS = "tombstone_checks"

REBUILDING = -1
"""The partition in `history_positions` whose row marks a rebuild that is running or was interrupted."""

INPUT_DDL = (
    "record_partition int, group_id string, record_offset bigint, at bigint, type string, name string, body string, "
    "is_polled boolean, not_before bigint, read_late_at bigint, read_at_once boolean, "
    "leader_epoch int"
)
"""One record of a group; its saved state comes first, at offset -1, in `body`."""

INPUT_SCHEMA = ddl_schema(INPUT_DDL)

STATE_OFFSET = -1

Fold = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_ROWS_A_BATCH = 4096

# Added when the rows are written.
_ADDED_LATER = ("cluster",)


def fold_groups(complete_to: dict[int, int], names: Mapping[str, str], retention_ms: int) -> Fold:
    """Return a function for `DataFrame.mapInArrow` over `INPUT_DDL` that yields changed rows in `output_ddl()`.

    The input is sorted by its first three columns, with a group in one task. `complete_to` is by partition; the
    arguments are as for `fold_group`.
    """

    def fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: list[Values] = []
        for (partition, group_id), lines in groupby(_lines(batches), key=lambda line: (line[0], line[1])):
            records = (_record(line) for line in lines)
            first = next(records)
            has_state = first.offset == STATE_OFFSET
            saved: Any = first.body if has_state else None
            result = fold_group(
                decode_state(group_id, partition, saved, names),
                records if has_state else chain((first,), records),
                complete_to=complete_to.get(partition, 0),
                names=names,
                retention_ms=retention_ms,
            )
            bucket = bucket_of(group_id)
            whose = {"group_id": group_id, "open_bucket": bucket}
            rows += [{"of": row.table, **whose, row.table: table_row(row, bucket)} for row in result.rows]
            position = {
                **whose,
                "record_partition": partition,
                "processed_to": result.state.processed_to,
                "waits": result.waits,
                "state": encode_state(result.state),
            }
            rows.append({"of": POSITIONS, **whose, POSITIONS: position})
            while len(rows) >= _ROWS_A_BATCH:
                yield pa.RecordBatch.from_pylist(rows[:_ROWS_A_BATCH], schema=output_schema())
                rows = rows[_ROWS_A_BATCH:]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=output_schema())

    return fold


def _lines(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _record(line: tuple[Any, ...]) -> Record:
    _, _, offset, at, type_, name, text, is_polled, not_before, read_late_at, read_at_once, leader_epoch = line
    body = text if offset == STATE_OFFSET or text is None else json.loads(text)
    of_reading = (bool(is_polled), not_before, read_late_at, bool(read_at_once), leader_epoch)
    return Record(offset, at, type_, name, body, *of_reading)


def output_ddl() -> str:
    """Return the Spark DDL of the output of `fold_groups`.

    `of` names the table, and the column of that name holds the row; `open_bucket` is the group's, also for rows that
    are not open.
    """
    output = "of string, group_id string, open_bucket int"
    for table in (*TABLES, POSITIONS):
        fields = ", ".join(f"`{column.name}`: {column.type}" for column in _columns(table))
        output += f", `{table}` struct<{fields}>"
    return output


def _columns(table: str) -> list[contracts.Column]:
    return [column for column in contracts.tables()[table].columns if column.name not in _ADDED_LATER]


@cache
def output_schema() -> pa.Schema:
    """Return `output_ddl` as an Arrow schema."""
    structs = [
        pa.field(table, pa.struct([pa.field(column.name, arrow_type(column.type)) for column in _columns(table)]))
        for table in (*TABLES, POSITIONS)
    ]
    own = [pa.field("of", pa.string()), pa.field("group_id", pa.string()), pa.field("open_bucket", pa.int32())]
    return pa.schema([*own, *structs])


@cache
def _time_columns(table: str) -> tuple[str, ...]:
    return tuple(column.name for column in _columns(table) if column.type == "timestamp")


# The times in lists.
_MOMENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "rebalances": {
        "handed_over": ("given_up_at", "taken_at"),
        "departed": ("joined_at", "left_at"),
        "evidence": ("at",),
    },
    "memberships": {"evidence": ("at",)},
}


def table_row(row: Row, bucket: int | None) -> Values:
    """Return a row with its `open_bucket`, and its times in the microseconds of Arrow's timestamps instead of ms."""
    values = row.values()
    times = {name: None if values[name] is None else values[name] * 1000 for name in _time_columns(row.table)}
    for name, moments in _MOMENTS.get(row.table, {}).items():
        # States of earlier versions lack some of them.
        listed = values.get(name)
        times[name] = listed and [
            {**one, **{moment: one[moment] * 1000 for moment in moments if one.get(moment) is not None}}
            for one in listed
        ]
    return {**values, **times, "open_bucket": bucket if row.is_open else None}

"""Read the fold's input (`tasks.INPUT_DDL`): the groups' records in ranges of offsets, and saved states of groups.

The driver reads a few as Arrow tables, Spark any number as DataFrames; both convert rows by `records.converter`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.history.names import REFERENCES_DDL, topic_references
from grouptrail.history.records import COLUMNS, converter
from grouptrail.history.tasks import CHECKS, INPUT_DDL, INPUT_SCHEMA, POSITIONS
from grouptrail.storage.buckets import bucket_of, in_buckets
from grouptrail.storage.progress import OffsetRanges, in_ranges
from grouptrail.storage.sql import Value, datafusion_literal, spark_literal
from grouptrail.storage.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORDS_AT_A_TIME = 256
"""How many rows to read at a time: a record of a classic group has all its members."""

_RECORDS = ("group_metadata", "group_records", "offset_commits", "undecodable_records", CHECKS)
# What the history needs of a table that has other records, too: commits are of types 0 and 1.
_OF_GROUPS = {
    "offset_commits": "is_tombstone AND ",
    "undecodable_records": "group_id IS NOT NULL AND key_type > 1 AND ",
    CHECKS: "is_gone AND topic = '' AND ",
}
# A worker of Spark converts and folds as many at a time; Spark's default would fill its memory.
_RECORDS_A_BATCH = 2_048


def read_records(warehouse: Warehouse, covered: OffsetRanges) -> pa.Table | None:
    """Return the groups' records in these ranges; None if the driver has no room for them."""
    batches: list[pa.RecordBatch] = []
    size = 0
    for table in _tables(covered):
        for records in _read(warehouse, table, f"({_condition(table, covered, datafusion_literal)})"):
            batches.append(records)
            size += records.nbytes
            if warehouse.choose(size_bytes=size) != "delta-rs":
                return None
    return pa.Table.from_batches(batches, INPUT_SCHEMA)


def read_states(warehouse: Warehouse, records: pa.Table, covered: OffsetRanges) -> pa.Table:
    """Return the saved states of the groups of these records, and of those that wait for more."""
    groups = pc.unique(records["group_id"])
    of_groups = in_buckets(set(map(bucket_of, groups.to_pylist())))
    of_records = (rows.filter(pc.is_in(rows["group_id"], groups)) for rows in _read(warehouse, POSITIONS, of_groups))
    of_others = (
        rows.filter(pc.invert(pc.is_in(rows["group_id"], groups)))
        for rows in _read(warehouse, POSITIONS, is_waiting(covered))
    )
    return pa.Table.from_batches([*of_records, *of_others], INPUT_SCHEMA)


def scan_records(warehouse: Warehouse, covered: OffsetRanges) -> DataFrame:
    """Return the groups' records in these ranges."""
    warehouse.session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _RECORDS_A_BATCH)
    converted = (_converted(rows, table) for table, rows in _frames(warehouse, covered).items())
    return reduce(_union, converted)


def count_records(warehouse: Warehouse, covered: OffsetRanges) -> int:
    """Return how many records `scan_records` returns, without converting them."""
    rows = (rows.select("record_partition") for rows in _frames(warehouse, covered).values())
    return reduce(_union, rows).count()


def scan_states(warehouse: Warehouse, records: DataFrame, covered: OffsetRanges) -> DataFrame:
    """Return the saved states of the groups of these records, and of those that wait for more."""
    from pyspark.sql import functions as F

    key = ["record_partition", "group_id"]
    groups = records.select(*key).distinct().withColumn("has_records", F.lit(True))
    states = warehouse.table(POSITIONS).dataframe().join(F.broadcast(groups), key, "left")
    return _converted(states.where(F.col("has_records").isNotNull() | F.expr(is_waiting(covered))), POSITIONS)


def scan_topic_references(warehouse: Warehouse, covered: OffsetRanges) -> pa.Table:
    """Return the topic ids in the records, and the names that stand beside some (`names.REFERENCES_DDL`)."""
    from pyspark.sql import functions as F

    rows = covered.rows(warehouse.table("group_records").dataframe()).where(F.col("value_json").contains('"topicId"'))
    bodies = rows.select(F.col("record_type").alias("type"), F.col("value_json").alias("body"))
    return bodies.mapInArrow(topic_references, REFERENCES_DDL).distinct().toArrow()


def is_waiting(covered: OffsetRanges) -> str:
    """Return the condition (SQL) on `history_positions` for groups with an incomplete operation."""
    return f"waits AND record_partition IN ({', '.join(map(str, covered.ranges))})"


def _read(warehouse: Warehouse, table: str, condition: str) -> Iterator[pa.RecordBatch]:
    rows = warehouse.table(table).select_arrow(COLUMNS[table], f"AND {condition}", rows_at_a_time=RECORDS_AT_A_TIME)
    return converter(table)(batch for some in rows for batch in some.to_batches())


def _frames(warehouse: Warehouse, covered: OffsetRanges) -> dict[str, DataFrame]:
    """Return the rows of each table that has records of groups."""
    return {
        table: warehouse.table(table).dataframe().where(_condition(table, covered, spark_literal))
        for table in _tables(covered)
    }


def _tables(covered: OffsetRanges) -> list[str]:
    rare = {"group_records": covered.group_records, "undecodable_records": covered.undecodable_records}
    return [table for table in _RECORDS if rare.get(table, 1)]


def _condition(table: str, covered: OffsetRanges, literal: Callable[[Value], str]) -> str:
    # Answers of coordinators are later than the records, and few.
    among = in_ranges(covered.ranges) if table == CHECKS else covered.condition(literal)
    return f"{_OF_GROUPS.get(table, '')}({among})"


def _converted(rows: DataFrame, table: str) -> DataFrame:
    return rows.select(*COLUMNS[table]).mapInArrow(converter(table), INPUT_DDL)


def _union(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionByName(other)

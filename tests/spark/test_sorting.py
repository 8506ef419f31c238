"""Files are sorted while Spark writes to the table: both do not happen to the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from grouptrail.storage.engines.retries import is_conflict, with_retries
from grouptrail.storage.engines.spark import table_in_sql
from grouptrail.storage.table import Table
from grouptrail.storage.warehouse import Warehouse

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)


@pytest.fixture
def table(warehouse: Warehouse) -> Table:
    """A table with three rows in two files."""
    table = warehouse.table("log_offsets")
    table.ensure()
    for topics in ("cb", "a"):
        table.append_rows([row(topic) for topic in topics])
    return table


def row(topic: str) -> dict[str, object]:
    return {"topic": topic, "partition": 0, "asked_at": AT, "sampled_at": AT}


def topics(table: Table) -> list[str]:
    by_spark = sorted(one.topic for one in table.all_clusters().select("topic").collect())
    assert sorted(DeltaTable(table.path).to_pyarrow_table()["topic"].to_pylist()) == by_spark
    return by_spark


def sorted_files(table: Table) -> list[str]:
    paths = DeltaTable(table.path).get_add_actions()["path"].to_pylist()
    return [path for path in paths if path.startswith(("run-", "rest-"))]


def sorting_meanwhile(table: Table, rows: list[dict[str, object]], folder: Path) -> DataFrame:
    """Return rows whose computation sorts the table's files, the first time."""
    location, came = table.location, folder / "came"

    def beaten(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from grouptrail.storage.sorting import sort_new_files

        if not came.exists():
            came.touch()
            sort_new_files(location)
        yield from batches

    ddl = table.contract.ddl()
    whole = [dict.fromkeys(table.schema.names) | {"cluster": table.cluster} | one for one in rows]
    return table.session.createDataFrame(whole, ddl).coalesce(1).mapInArrow(beaten, ddl)


def test_sorting_while_spark_deletes_makes_it_fail_and_the_next_try_delete(table: Table, tmp_path: Path) -> None:
    from delta.tables import DeltaTable as JavaTable

    doomed, errors = sorting_meanwhile(table, [row("b")], tmp_path), list[Exception]()

    def delete() -> None:
        merger = JavaTable.forPath(table.session, table.path).alias("there")
        try:
            merger.merge(doomed.alias("row"), "there.topic = row.topic").whenMatchedDelete().execute()
        except Exception as error:
            errors.append(error)
            raise

    with_retries(delete, 2)
    assert [is_conflict(error) for error in errors] == [True]
    assert topics(table) == ["a", "c"]


def test_sorting_while_spark_appends_keeps_both(table: Table, tmp_path: Path) -> None:
    sorting_meanwhile(table, [row("d")], tmp_path).write.format("delta").mode("append").save(table.path)
    assert topics(table) == ["a", "b", "c", "d"]
    assert len(sorted_files(table)) == 1


def test_optimize_of_spark_after_sorting_and_sorting_after_it_keep_each_row(table: Table) -> None:
    from grouptrail.storage.sorting import sort_new_files

    sort_new_files(table.location)
    table.append_rows([row("d")])
    table.session.sql(f"OPTIMIZE {table_in_sql(table.location)}").collect()
    assert sorted_files(table) == []
    table.append_rows([row("e")])
    sort_new_files(table.location)
    assert len(sorted_files(table)) == 1
    assert topics(table) == ["a", "b", "c", "d", "e"]

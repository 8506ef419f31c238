"""A table with liquid clustering, as version 0.1 made it, becomes one without: once, beside any other writer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from grouptrail.storage import reader
from grouptrail.storage.datafusion import DataFusion
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.engines.retries import is_conflict
from grouptrail.storage.engines.spark import table_in_sql
from grouptrail.storage.layout import STATS_COLUMNS
from grouptrail.storage.layout import properties as layout_of
from grouptrail.storage.table import Table
from grouptrail.storage.upkeep import optimize
from grouptrail.storage.warehouse import Warehouse

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
COLUMNS = ("topic", "partition", "log_end_offset", "asked_at", "sampled_at")


@pytest.fixture
def clustered(warehouse: Warehouse) -> Table:
    return make_clustered(warehouse, "")


def make_clustered(warehouse: Warehouse, properties: str) -> Table:
    table = warehouse.table("log_offsets")
    name, contract = table_in_sql(table.location), table.contract
    warehouse.session.sql(
        f"CREATE TABLE {name} ({contract.ddl()}) USING delta CLUSTER BY ({', '.join(contract.cluster_by)}) "
        f"TBLPROPERTIES ('{STATS_COLUMNS}' = '{layout_of(contract)[STATS_COLUMNS]}' {properties})"
    )
    return table


def insert(table: Table, *offsets: int) -> None:
    """Append rows by Spark, each in a commit."""
    columns = ", ".join(("cluster", *COLUMNS))
    for offset in offsets:
        values = f"'test', 'orders', 0, {offset}, timestamp '{AT}', timestamp '{AT}'"
        table.session.sql(f"INSERT INTO {table_in_sql(table.location)} ({columns}) VALUES ({values})")


def rows_of(*offsets: int) -> pa.Table:
    rows = [dict(zip(COLUMNS, ("orders", 0, offset, AT, AT), strict=True)) for offset in offsets]
    return pa.Table.from_pylist(rows)


def by_spark(table: Table, version: int | None = None) -> list[int]:
    return sorted(row.log_end_offset for row in table.all_clusters(version).select("log_end_offset").collect())


def by_delta_rs(table: Table, version: int | None = None) -> list[int]:
    rows = DataFusion({"rows": DeltaTable(table.path, version=version)}).rows("SELECT log_end_offset FROM rows")
    return sorted(pa.table(rows)["log_end_offset"].to_pylist())


def copied(table: Table, warehouse: Warehouse) -> Table:
    """Return a copy of the table, which Spark has not read yet."""
    copy = replace(warehouse, location=f"{warehouse.location}-copy").table(table.name)
    shutil.rmtree(copy.path, ignore_errors=True)
    shutil.copytree(table.path, copy.path)
    return copy


def is_clustered(table: Table) -> bool:
    return reader.is_clustered(DeltaTable(table.path))


CHECKPOINTS = {
    "only commits": ", 'delta.checkpointInterval' = '1000000000'",
    "checkpoints": ", 'delta.checkpointInterval' = '2'",
    "checkpoints of version 2": ", 'delta.checkpointInterval' = '2', 'delta.checkpointPolicy' = 'v2'",
}


@pytest.mark.parametrize(
    "log", [pytest.param(log, marks=[] if log == "checkpoints" else pytest.mark.full) for log in CHECKPOINTS]
)
def test_unclustered_table_is_used_by_both_engines_and_by_streams(warehouse: Warehouse, log: str) -> None:
    """Whatever its log has; a second time changes nothing."""
    table = make_clustered(warehouse, CHECKPOINTS[log])
    name, seen = table_in_sql(table.location), list[int]()

    def follow() -> list[int]:
        seen.clear()
        table.follow(
            warehouse.checkpoint("reader"),
            process=lambda rows, _: seen.extend(rows["log_end_offset"].to_pylist()),
            once=True,
            is_written_here=False,
            every_seconds=1,
        ).awaitTermination()
        return sorted(seen)

    insert(table, 1, 2, 3)
    warehouse.session.sql(f"OPTIMIZE {name}").collect()
    insert(table, 4)
    assert follow() == [1, 2, 3, 4]
    insert(table, 5)
    before = DeltaTable(table.path)
    assert is_clustered(table)
    assert bool(list(Path(table.path, "_delta_log").glob("*.checkpoint.*"))) == (log != "only commits")
    assert list(Path(table.path, "_delta_log").glob("*.crc"))

    table.ensure()
    table.ensure()
    after = DeltaTable(table.path)
    assert after.version() == before.version() + 1
    assert reader.table_id(after) == reader.table_id(before)
    assert after.metadata().configuration == before.metadata().configuration
    assert set(after.file_uris()) == set(before.file_uris())
    assert not {"clustering", "domainMetadata"} & set(after.protocol().writer_features or ())
    for one in (table, copied(table, warehouse)):
        assert by_spark(one) == by_delta_rs(one) == [1, 2, 3, 4, 5]
        assert by_spark(one, before.version()) == by_delta_rs(one, before.version()) == [1, 2, 3, 4, 5]
        assert by_spark(one, 2) == by_delta_rs(one, 2) == [1, 2]
        detail = warehouse.session.sql(f"DESCRIBE DETAIL {table_in_sql(one.location)}").collect()[0]
        assert detail.clusteringColumns == []
    assert follow() == [5]

    table.append(rows_of(6), Once("job", 0))
    table.append(rows_of(6), Once("job", 0))
    insert(table, 7, 8)
    assert follow() == [6, 7, 8]
    warehouse.session.sql(f"OPTIMIZE {name}").collect()
    insert(table, 9)
    optimize(table)
    assert follow() == [9]
    warehouse.session.sql(f"DELETE FROM {name} WHERE log_end_offset = 1").collect()
    warehouse.session.sql(f"UPDATE {name} SET error = 'x' WHERE log_end_offset = 2").collect()
    warehouse.session.sql(
        f"MERGE INTO {name} AS there USING (SELECT 3 AS log_end_offset) AS one "
        "ON there.log_end_offset = one.log_end_offset WHEN MATCHED THEN DELETE"
    ).collect()
    table.append(rows_of(10), Once("job", 1))
    warehouse.session.sql(f"VACUUM {name}").collect()
    assert follow() == [10]
    assert table.versions()[0][0] == DeltaTable(table.path).version()
    for one in (table, copied(table, warehouse)):
        assert by_spark(one) == by_delta_rs(one) == [2, 4, 5, 6, 7, 8, 9, 10]
    if log != "checkpoints of version 2":  # delta-rs writes none of those
        DeltaTable(table.path).create_checkpoint()
    for one in (table, copied(table, warehouse)):
        insert(one, 11)
        assert by_spark(one) == by_delta_rs(one) == [2, 4, 5, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_unclustering_while_spark_writes_fails_the_write(warehouse: Warehouse, clustered: Table, mode: str) -> None:
    """What began before the protocol was lowered does not commit after it, and is done by the next try."""
    insert(clustered, 1)
    path, ddl = clustered.path, clustered.contract.ddl()
    location = clustered.location

    def beaten(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from grouptrail.storage.unclustering import remove_clustering

        remove_clustering(location, DeltaTable(path), None)
        yield from batches

    row: dict[str, Any] = dict.fromkeys(clustered.schema.names) | {"cluster": "test", "log_end_offset": 2}
    rows = warehouse.session.createDataFrame([row], ddl).coalesce(1).mapInArrow(beaten, ddl)
    writer = rows.write.format("delta").mode(mode)
    with pytest.raises(Exception, match="DELTA_PROTOCOL_CHANGED") as error:
        writer.save(path)
    assert is_conflict(error.value)
    assert not is_clustered(clustered)
    assert by_spark(clustered) == by_delta_rs(clustered) == [1]
    writer.save(path)
    assert by_spark(clustered) == by_delta_rs(clustered) == ([1, 2] if mode == "append" else [2])


def test_unclustering_beside_another_commit_comes_after_it(clustered: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from grouptrail.storage import unclustering

    insert(clustered, 1)
    create = unclustering._create

    def beaten(*given: Any) -> None:
        monkeypatch.setattr(unclustering, "_create", create)
        insert(clustered, 2)
        create(*given)

    monkeypatch.setattr(unclustering, "_create", beaten)
    clustered.ensure()
    assert not is_clustered(clustered)
    assert by_spark(clustered) == by_delta_rs(clustered) == [1, 2]


def test_unclustering_interrupted_before_its_commit_leaves_the_table_as_it_was(
    warehouse: Warehouse, clustered: Table
) -> None:
    """A kill may leave a file in the log's folder that is no commit."""
    insert(clustered, 1)
    Path(clustered.path, "_delta_log", ".unclustering-killed").write_text('{"protocol":')
    for one in (clustered, copied(clustered, warehouse)):
        assert by_spark(one) == by_delta_rs(one) == [1]
        insert(one, 2)
        one.ensure()
        assert not is_clustered(one)
        assert by_spark(one) == by_delta_rs(one) == [1, 2]


def test_unclustering_keeps_what_row_tracking_needs(warehouse: Warehouse) -> None:
    table = make_clustered(warehouse, ", 'delta.enableRowTracking' = 'true'")
    insert(table, 1)
    table.ensure()
    features = set(DeltaTable(table.path).protocol().writer_features or ())
    assert "clustering" not in features
    assert {"rowTracking", "domainMetadata"} <= features
    insert(table, 2)
    assert by_spark(table) == by_delta_rs(table) == [1, 2]

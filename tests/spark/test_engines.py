"""What an engine does with a table: the same whichever of the two does it, and the rule that chooses one."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from grouptrail.storage.buckets import bucket_of
from grouptrail.storage.creation import create_table
from grouptrail.storage.engines import spark as spark_engine
from grouptrail.storage.engines.choice import MOST_BYTES, MOST_ROWS, WITHOUT_SESSION, choose, rule
from grouptrail.storage.engines.delta_rs import DeltaRs
from grouptrail.storage.engines.engine import Once, TaskRows
from grouptrail.storage.engines.retries import is_conflict
from grouptrail.storage.files import write
from grouptrail.storage.layout import STATS_COLUMNS, properties
from grouptrail.storage.schema import table_schema
from grouptrail.storage.table import Table
from grouptrail.storage.upkeep import vacuum
from grouptrail.storage.warehouse import Warehouse

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
APPENDED, UPSERTED = "log_offsets", "history_positions"


@pytest.fixture(params=["delta-rs", "spark"])
def engine(request: pytest.FixtureRequest, warehouse: Warehouse) -> Warehouse:
    """A warehouse in which one of the engines does everything, with tables that both may write."""
    for table in warehouse.tables((APPENDED, UPSERTED)):
        create_table(table.location)
    return replace(warehouse, only=request.param)


def samples(*offsets: int) -> pa.Table:
    columns = ("topic", "partition", "log_end_offset", "asked_at", "sampled_at")
    rows = [dict(zip(columns, ("orders", 0, offset, AT, AT), strict=True)) for offset in offsets]
    return pa.Table.from_pylist(rows, pa.schema([table_schema(APPENDED).field(name) for name in columns]))


def offsets(table: Table) -> list[int]:
    return sorted(row["log_end_offset"] for row in stored(table))


def stored(table: Table) -> list[dict[str, Any]]:
    """Return the cluster's rows, read by neither engine's code."""
    rows = DeltaTable(table.path).to_pyarrow_table().to_pylist()
    return [row for row in rows if row["cluster"] == table.cluster]


def positions(**processed_to: int) -> pa.Table:
    rows = [
        {"record_partition": 1, "group_id": group, "processed_to": offset, "waits": False, "state": "{}"}
        | {"open_bucket": bucket_of(group)}
        for group, offset in processed_to.items()
    ]
    return pa.Table.from_pylist(rows)


def test_engine_append_is_done_once_for_an_application_and_version(engine: Warehouse) -> None:
    """Later versions of the same application, and those of others, are appended."""
    table = engine.table(APPENDED)
    table.append(samples(1, 2), Once("job", 0))
    table.append(samples(1, 2), Once("job", 0))
    table.append(samples(3), Once("job", 1))
    table.append(samples(4), Once("job", 0))
    table.append(samples(5), Once("another", 0))
    table.append(samples(6))
    assert offsets(table) == [1, 2, 3, 5, 6]
    assert [table.last_version(app) for app in ("job", "another", "none")] == [1, 0, -1]


def test_engine_append_gives_rows_the_cluster_and_shared_values(engine: Warehouse) -> None:
    """Columns that may be null are null."""
    table = engine.table(APPENDED)
    table.append(samples(1), shared={"error": "no broker answered"})
    [row] = stored(table)
    assert (row["cluster"], row["error"], row["topic_id"]) == ("test", "no broker answered", None)


def test_engine_append_of_what_tasks_compute_and_of_written_files(
    engine: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tasks compute may be more than the driver has room for."""
    table = engine.table(APPENDED)
    records = engine.session.createDataFrame(samples(1, 2, 3)).repartition(2)
    monkeypatch.setattr(type(records), "toArrow", lambda _: pytest.fail("rows are collected"))
    table.append(TaskRows(records, plus_ten, table.contract.ddl(without=NOT_SAMPLED)), Once("tasks", 0))
    assert offsets(table) == [11, 12, 13]
    table.append(lambda location: write(samples(7, 8).to_batches(), location), Once("files", 0))
    table.append(lambda _location: pytest.fail("these files are in the table"), Once("files", 0))
    assert offsets(table) == [7, 8, 11, 12, 13]


NOT_SAMPLED = ("cluster", "topic_id", "error", "log_start_offset", "last_stable_offset")


def plus_ten(batches: Any) -> Iterator[pa.RecordBatch]:
    columns = [name for name in table_schema(APPENDED).names if name not in NOT_SAMPLED]
    for batch in batches:
        rows = pa.Table.from_batches([batch]).select(columns)
        at = rows.column_names.index("log_end_offset")
        yield from rows.set_column(at, "log_end_offset", pc.add(rows["log_end_offset"], 10)).to_batches()


def test_engine_upsert_replaces_open_rows_of_its_cluster_by_key_once(engine: Warehouse) -> None:
    ours, theirs = (engine.of_cluster(name).table(UPSERTED) for name in ("o'clock", "production"))

    def upsert(table: Table, version: int, **processed_to: int) -> None:
        buckets = {bucket_of(group) for group in processed_to}
        table.upsert(positions(**processed_to), buckets, Once("job", version))

    upsert(ours, 0, billing=1, audit=2)
    upsert(theirs, 0, billing=5)  # of the same application, whose version has been written
    upsert(theirs, 1, billing=6)
    upsert(ours, 2, billing=3, orders=4)
    upsert(ours, 2, billing=9)
    assert {row["group_id"]: row["processed_to"] for row in stored(ours)} == {"billing": 3, "audit": 2, "orders": 4}
    assert {row["group_id"]: row["processed_to"] for row in stored(theirs)} == {"billing": 6}


def test_engine_update_replaces_rows_by_key_also_closed_ones_and_adds_none(engine: Warehouse) -> None:
    ours, theirs = (engine.of_cluster(name).table(UPSERTED) for name in ("o'clock", "production"))
    for table in (theirs, ours):
        table.replace(positions(billing=1, audit=2))
    closed = positions(orders=3)
    closed = closed.set_column(closed.column_names.index("open_bucket"), "open_bucket", pa.array([None], pa.int32()))
    ours.append(closed)
    changed = with_cluster("o'clock", positions(billing=10, unknown=99))
    of_closed = with_cluster("o'clock", closed.set_column(2, "processed_to", pa.array([30], pa.int64())))
    ours.update(pa.concat_tables([changed, of_closed]), version(ours))
    found = {row["group_id"]: (row["processed_to"], row["open_bucket"]) for row in stored(ours)}
    assert found == {
        "billing": (10, bucket_of("billing")),
        "audit": (2, bucket_of("audit")),
        "orders": (30, None),
    }
    assert {row["group_id"]: row["processed_to"] for row in stored(theirs)} == {"billing": 1, "audit": 2}


def test_engine_update_of_an_earlier_version_is_a_conflict_and_changes_nothing(engine: Warehouse) -> None:
    table = engine.of_cluster("a").table(UPSERTED)
    table.replace(positions(billing=1))
    read = version(table)
    table.upsert(positions(billing=2), [bucket_of("billing")], Once("job", 0))
    with pytest.raises(Exception) as raised:  # noqa: PT011
        table.update(with_cluster("a", positions(billing=3)), read)
    assert is_conflict(raised.value)
    assert [row["processed_to"] for row in stored(table)] == [2]


def version(table: Table) -> int:
    opened = table.open()
    assert opened is not None
    return opened.version()


def with_cluster(cluster: str, rows: pa.Table) -> pa.Table:
    schema = table_schema(UPSERTED)
    return pa.Table.from_pylist([{**row, "cluster": cluster} for row in rows.to_pylist()], schema)


def test_engine_replace_replaces_all_rows_of_its_cluster_only(engine: Warehouse) -> None:
    ours, theirs = (engine.of_cluster(name).table(UPSERTED) for name in ("a", "b"))
    for table in (ours, theirs):
        table.replace(positions(billing=1, audit=2))
    ours.replace(positions(orders=3))
    assert [row["group_id"] for row in stored(ours)] == ["orders"]
    assert sorted(row["group_id"] for row in stored(theirs)) == ["audit", "billing"]


def test_engine_select_returns_rows_of_its_cluster(engine: Warehouse) -> None:
    """Conditions are written with the warehouse's literals."""
    table = engine.table(APPENDED)
    table.append(samples(1, 2, 3))
    engine.of_cluster("another").table(APPENDED).append(samples(9))
    since = f"AND sampled_at >= {engine.literal(AT)} AND topic = {engine.literal('orders')}"
    rows = table.select("MAX(log_end_offset) AS newest, COUNT(*) AS rows", since)
    assert rows == [{"newest": 3, "rows": 3}]
    assert table.has_rows("log_end_offset = 2")
    assert not table.has_rows("log_end_offset = 9")
    assert table.exists()
    assert not engine.table("rebalances").exists()


FORMERLY = {"processed_to": "told_to", "learned_from": "told_by", "learned_at": "told_at"}


@pytest.mark.parametrize("name", ["history_positions", "topic_names"])
def test_ensure_renames_columns_of_an_earlier_version_and_keeps_rows_and_layout(
    warehouse: Warehouse, name: str
) -> None:
    """Commands read the table before that, too, by the new names."""
    table = warehouse.table(name)
    earlier = ", ".join(f"{FORMERLY.get(one.name, one.name)} {one.type}" for one in table.contract.columns)
    layout = {"history_positions": "PARTITIONED BY (cluster, open_bucket)", "topic_names": "CLUSTER BY (topic_id)"}
    stats = {"history_positions": "record_partition,group_id", "topic_names": "cluster,topic_id,told_at"}
    warehouse.session.sql(
        f"CREATE TABLE delta.`{table.path}` ({earlier}) USING delta {layout[name]} "
        f"TBLPROPERTIES ('{STATS_COLUMNS}' = '{stats[name]}')"
    )
    values = {
        "history_positions": "('test', 1, 'billing', 7, false, '{}', 3), ('other', 1, 'audit', 8, false, '{}', 4)",
        "topic_names": f"('test', 'id', 'orders', 'broker', timestamp '{AT}')",
    }
    warehouse.session.sql(f"INSERT INTO delta.`{table.path}` VALUES {values[name]}")
    column, value = {"history_positions": ("processed_to", 7), "topic_names": ("learned_from", "broker")}[name]
    assert table.select(column) == [{column: value}]
    table.ensure()
    table.ensure()
    assert table.select(column) == [{column: value}]
    opened = DeltaTable(table.path)
    assert [field.name for field in opened.schema().fields] == table.schema.names
    assert len(opened.to_pyarrow_table()) == values[name].count("(") - values[name].count("((")
    assert opened.metadata().partition_columns == list(table.contract.partition_by)
    assert opened.metadata().configuration[STATS_COLUMNS] == properties(table.contract)[STATS_COLUMNS]


def age(logs: Path) -> None:
    """Make a table's log forty days old; each version is a second younger than the one before."""
    for one in logs.glob("0*"):
        written_at = time.time() - 40 * 86_400 + int(one.name[:20])
        os.utime(one, (written_at, written_at))


def test_delta_rs_leaves_the_removal_of_old_logs_to_maintain(warehouse: Warehouse) -> None:
    """Its own may remove too many (delta-rs#3692); Delta's keeps all from the newest checkpoint on."""
    table = replace(warehouse, only="delta-rs").table(UPSERTED)
    create_table(table.location)
    logs = Path(table.path, "_delta_log")
    for version in range(25):
        table.upsert(positions(billing=version), [bucket_of("billing")], Once("job", version))
        age(logs)
    table.replace(positions(billing=25))
    assert list(logs.glob("*.checkpoint.parquet"))
    assert sorted(int(one.stem) for one in logs.glob("*.json")) == list(range(27))
    age(logs)
    vacuum(warehouse.table(UPSERTED))
    left = [int(one.stem) for one in logs.glob("*.json")]
    assert min(left) > 15
    assert max(left) >= 26
    assert stored(table)[0]["processed_to"] == 25


def test_choose_is_delta_rs_where_it_can_and_the_driver_has_room(warehouse: Warehouse) -> None:
    spark = warehouse.session
    for location in ("/lake", "file:///lake", "s3://lake", "abfss://lake@account/x", "gs://lake"):
        assert choose(location, spark, rows=MOST_ROWS, size_bytes=MOST_BYTES) == "delta-rs"
    assert choose("hdfs://lake", spark) == "spark"
    assert choose("/lake", spark, rows=MOST_ROWS + 1) == "spark"
    assert choose("/lake", spark, size_bytes=MOST_BYTES + 1) == "spark"
    # Starting a session takes longer than so many rows.
    assert choose("/lake", None, rows=WITHOUT_SESSION * MOST_ROWS) == "delta-rs"
    assert choose("/lake", None, rows=WITHOUT_SESSION * MOST_ROWS + 1) == "spark"
    assert rule() == "delta-rs for up to 200,000 rows and 256 MB at a time, Spark for more"


def test_choose_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "grouptrail.engine"):
        choose("/lake", None, rows=1_000)
    assert caplog.messages == ["/lake: 1,000 rows, 0 bytes: delta-rs"]


def test_spark_finds_the_last_version_of_an_application_where_delta_rs_does_not(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In commits, and in checkpoints if the log has no longer those."""
    table = warehouse.table(APPENDED)
    monkeypatch.setattr(spark_engine, "supports", lambda *_: False)
    in_session = spark_engine.Spark(warehouse.session)
    assert in_session.last_version(table.location, "job") == -1
    create_table(table.location)
    for version in range(3):
        DeltaRs().append(table.location, samples(version), Once("job", version))
    assert [in_session.last_version(table.location, app) for app in ("job", "jo", "another")] == [2, -1, -1]
    DeltaTable(table.path).create_checkpoint()
    for commit in Path(table.path, "_delta_log").glob("*.json"):
        if int(commit.stem) < 3:
            commit.unlink()
    DeltaRs().append(table.location, samples(3), Once("another", 7))
    assert [in_session.last_version(table.location, app) for app in ("job", "another")] == [2, 7]

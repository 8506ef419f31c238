"""Landing micro-batches in Delta, with a batch that fails in the middle, and decoding again."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.decode import limits, tasks
from grouptrail.decode import redecode as decode_again
from grouptrail.decode.redecode import redecode
from grouptrail.decode.rows import decode_row
from grouptrail.decode.schema import TABLES
from grouptrail.decode.writer import DecodeBatchWriter
from grouptrail.errors import GrouptrailError
from grouptrail.kafka.errors import KafkaUnreachableError
from grouptrail.kafka.log import LogBounds
from grouptrail.storage import files, reader, upkeep
from grouptrail.storage.buckets import bucket_of
from grouptrail.storage.engines import spark as spark_engine
from grouptrail.storage.engines.delta_rs import own_files
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.layout import CHECKPOINT_INTERVAL
from grouptrail.storage.progress import PROGRESS
from grouptrail.storage.warehouse import Warehouse
from grouptrail.wire.records import decode_record, encode_value
from support import landed
from support.records_in_memory import RecordsInMemory
from support.wire_vectors import RECORDS as RECORD_VECTORS

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)

# Keys and values of every vector, in two partitions, with a hole after every third record.
RECORDS = [
    (index % 2, index // 2 + index // 6, AT, vector.key, vector.value) for index, vector in enumerate(RECORD_VECTORS)
]
WHOLE = {(partition, offset): (key, value) for partition, offset, _, key, value in RECORDS}
ENDS = {partition: 1 + max(row[1] for row in RECORDS if row[0] == partition) for partition in (0, 1)}


EITHER_WAY = pytest.mark.parametrize("writer", ["on the driver", "in tasks"], indirect=True)


MAX_RECORD_BYTES = 10_000_000


@pytest.fixture
def writer(request: pytest.FixtureRequest, warehouse: Warehouse) -> DecodeBatchWriter:
    warehouse.ensure((*TABLES, PROGRESS))
    return DecodeBatchWriter(
        replace(warehouse, only="spark") if getattr(request, "param", None) == "in tasks" else warehouse,
        records=RecordsInMemory(RECORDS),
        app=lambda: "query",
        end_offsets=lambda batch: {} if batch < 0 else {p: (batch + 1) * end for p, end in ENDS.items()},
        bounds=lambda: {p: LogBounds(0, end, end) for p, end in ENDS.items()},
        max_record_bytes=lambda _batch: MAX_RECORD_BYTES,
        log=lambda _line: None,
    )


@EITHER_WAY
@pytest.mark.parametrize("is_supported", [True, False])
def test_landing_records_of_every_type_land_once_and_reencode_to_the_same_bytes(
    writer: DecodeBatchWriter,
    config: Config,
    warehouse: Warehouse,
    monkeypatch: pytest.MonkeyPatch,
    is_supported: bool,
) -> None:
    """Each record is in exactly one table and can be encoded from it again; `ingest_progress` accounts for every
    offset. Also in a store that only Spark supports."""
    if not is_supported:
        monkeypatch.setattr("grouptrail.storage.reader._SCHEMES", ())
    writer.write(0)
    monkeypatch.undo()
    assert landed.records(config) == WHOLE
    assert {table for table in TABLES if landed.rows(config, table)} == set(TABLES)
    landed.assert_progress_adds_up(config)
    commits = [table.newest_commit() for table in warehouse.tables((*TABLES, PROGRESS))]
    assert all(commit is not None and commit.written_at_ms for commit in commits)


@EITHER_WAY
def test_landing_commits_keep_whether_they_were_written_in_a_transaction(
    writer: DecodeBatchWriter, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactional = {place for number, place in enumerate(WHOLE) if number % 3}
    monkeypatch.setattr(writer, "_records", RecordsInMemory(RECORDS, transactional))
    writer.write(0)
    rows = landed.rows(config, "offset_commits")
    places = {(row["record_partition"], row["record_offset"]): row["is_transactional"] for row in rows}
    assert places == {place: place in transactional for place in places}
    assert set(places.values()) == {True, False}


@pytest.mark.parametrize(
    "table", [pytest.param(one, marks=[] if one == "offset_commits" else pytest.mark.full) for one in TABLES]
)
def test_decoded_table_filter_on_columns_with_statistics_finds_every_row(
    writer: DecodeBatchWriter, config: Config, warehouse: Warehouse, table: str
) -> None:
    """Filter by the minimum and maximum of each column with statistics."""
    writer.write(0)
    there = landed.rows(config, table)
    for column in (column.name for column in contracts.tables()[table].columns if column.stats):
        values = sorted({row[column] for row in there} - {None})
        for value in values[:1] + values[-1:]:
            count = warehouse.table(table).dataframe().where(F.col(column) == value).count()
            assert count == sum(row[column] == value for row in there), (column, value)


@EITHER_WAY
@pytest.mark.parametrize("fails_at", [*TABLES, PROGRESS])
def test_landing_batch_fails_before_an_append_lands_once_when_retried(
    writer: DecodeBatchWriter, config: Config, fails_at: str
) -> None:
    """Whichever append a batch dies before, the next try lands what is missing and nothing twice."""
    with landed.dying_before(fails_at):
        writer.write(0)
    writer.write(0)
    assert landed.records(config) == WHOLE
    assert len(landed.rows(config, PROGRESS)) == len(ENDS)
    landed.assert_progress_adds_up(config)


@EITHER_WAY
def test_landing_rare_records_above_the_task_report_limit_all_land(
    writer: DecodeBatchWriter, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records other than commits that are too large for the tasks' reports land like any others."""
    padding = bytes(200_000)
    vector = next(vector for vector in RECORD_VECTORS if vector.name == "group-metadata/v3")
    record = decode_record(vector.key, vector.value)
    assert record.key is not None
    assert record.value is not None
    record.value.data["members"][0]["subscription"] = padding
    either = [(b"\x00\x63", padding), (vector.key, encode_value(record.key, record.value))]
    count = tasks.MOST_RARE_BYTES // len(padding) * 2 + 20
    monkeypatch.setattr(writer, "_end_offsets", lambda batch: {} if batch < 0 else {0: count})
    rows = [(0, offset, AT, *either[offset % 2]) for offset in range(count)]
    monkeypatch.setattr(writer, "_records", RecordsInMemory(rows))
    writer.write(0)
    undecodable, groups = (landed.rows(config, table) for table in ("undecodable_records", "group_metadata"))
    assert sorted(row["record_offset"] for row in (*undecodable, *groups)) == list(range(count))
    assert len(undecodable) - len(groups) in (0, 1)
    assert all(row["read_at"] and row["is_gapless"] for row in groups)


def test_landing_records_of_groups_keep_whether_compaction_can_have_taken_others(
    writer: DecodeBatchWriter, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every offset of partition 0 has a record; one of partition 1 has none."""
    vector = next(vector for vector in RECORD_VECTORS if vector.name == "group-metadata/v3")
    rows = [(partition, offset, AT, vector.key, vector.value) for partition in (0, 1) for offset in (0, 1)]
    monkeypatch.setattr(writer, "_end_offsets", lambda batch: {0: 0, 1: 0} if batch < 0 else {0: 2, 1: 3})
    monkeypatch.setattr(writer, "_records", RecordsInMemory(rows))
    writer.write(0)
    groups = landed.rows(config, "group_metadata")
    assert {(row["record_partition"], row["is_gapless"]) for row in groups} == {(0, True), (1, False)}


def test_landing_broker_unreachable_lands_records_without_log_end_offset(
    writer: DecodeBatchWriter, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that were read land; only the offsets that the broker would have returned are unknown."""

    def no_answer() -> Mapping[int, LogBounds]:
        raise KafkaUnreachableError("gone")

    monkeypatch.setattr(writer, "_bounds", no_answer)
    monkeypatch.setattr(writer, "_end_offsets", lambda batch: dict.fromkeys(ENDS, 0) if batch < 0 else ENDS)
    writer.write(0)
    assert landed.records(config) == WHOLE
    assert {row["log_end_offset"] for row in landed.rows(config, PROGRESS)} == {None}


def test_redecode_newly_decodable_record_moves_to_its_table_once(
    writer: DecodeBatchWriter, config: Config, warehouse: Warehouse
) -> None:
    """A record that was undecodable when it landed ends in its own table, once, and leaves the other."""
    writer.write(0)
    readable = next(vector for vector in RECORD_VECTORS if vector.name == "group-metadata/v3")
    table, _ = decode_row(readable.key, readable.value)
    warehouse.session.sql(
        f"INSERT INTO delta.`{warehouse.table('undecodable_records').path}` "
        "SELECT 'test', 9, 7, timestamp'2026-11-01 00:00:00', null, null, "
        f"X'{(readable.key or b'').hex()}', X'{(readable.value or b'').hex()}', "
        "2, null, 'value', 'unknown_version', 0, '0'"
    )
    before = len(landed.rows(config, table))
    lines: list[str] = []
    redecode(warehouse, MAX_RECORD_BYTES, lines.append)
    assert len(landed.rows(config, table)) == before + 1
    assert landed.records(config) == {**WHOLE, (9, 7): (readable.key, readable.value)}
    assert lines[-1].startswith("1 records decoded")
    redecode(warehouse, MAX_RECORD_BYTES, lines.append)
    assert lines[-1].startswith("0 records decoded")


@pytest.mark.parametrize(
    "cuts", [pytest.param((3,), id="before a deletion"), pytest.param((1, 3, 4), id="thrice", marks=pytest.mark.full)]
)
def test_redecode_cut_off_at_any_step_moves_each_record_once(
    config: Config, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, cuts: tuple[int, ...]
) -> None:
    """In two parts, each of which has its line: cut off between insertions, before a deletion, and after one."""
    table = warehouse.table("undecodable_records")
    table.ensure()
    names = ("record_partition", "record_offset", "record_at", "record_key", "record_value")
    fault = {"fault_in": "value", "reason": "unknown_version", "fault_position": 0, "decoder_version": "0"}
    table.append_rows({**dict(zip(names, row, strict=True)), **fault} for row in RECORDS)
    undecodable = sum(decode_row(key, value)[0] == table.name for *_, key, value in RECORDS)

    monkeypatch.setattr(decode_again, "_LEAST_RECORDS", len(RECORDS) // 2)
    lines: list[str] = []
    with monkeypatch.context() as cut:
        for most in cuts:
            merges = itertools.count()
            cut.setattr(upkeep, "_merger", partial(_cut_off, upkeep._merger, merges, most))
            with pytest.raises(KeyboardInterrupt):
                redecode(warehouse, MAX_RECORD_BYTES, lines.append)
            cut.undo()
    redecode(warehouse, MAX_RECORD_BYTES, lines.append)
    assert landed.records(config) == WHOLE
    assert len(landed.rows(config, table.name)) == undecodable
    assert lines[0] == f"decoding {len(RECORDS)} records again"
    assert lines[-1].endswith(f" records decoded, {undecodable} still undecodable")


def _cut_off(merger: Callable[..., Any], merges: Iterator[int], most: int, *arguments: Any) -> Any:
    if next(merges) == most:
        raise KeyboardInterrupt
    return merger(*arguments)


def test_ensure_table_column_type_differs_from_contract_raises(warehouse: Warehouse) -> None:
    """A table whose column has another type than its contract says is not written to."""
    table = warehouse.table("offset_commits")
    warehouse.session.sql(f"CREATE TABLE delta.`{table.path}` (group_id int) USING delta")
    with pytest.raises(GrouptrailError, match="group_id is int, should be string"):
        table.ensure()


def test_ensure_table_older_table_gains_missing_columns_and_keeps_rows(config: Config, warehouse: Warehouse) -> None:
    """An older table is brought up to its contract without losing a row."""
    spark, table = warehouse.session, warehouse.table("offset_commits")
    spark.sql(f"CREATE TABLE delta.`{table.path}` (cluster string, group_id string) USING delta")
    spark.sql(f"INSERT INTO delta.`{table.path}` VALUES ('test', 'billing')")
    table.ensure()
    (row,) = landed.rows(config, "offset_commits")
    assert row["group_id"] == "billing"
    assert "committed_offset" in row


@pytest.mark.parametrize("times", [1, 100])
def test_replace_concurrent_append_is_retried_up_to_five_times(
    config: Config, warehouse: Warehouse, tmp_path: Path, times: int
) -> None:
    """The other writer may be another job or `grouptrail maintain`."""
    table = warehouse.table("generations")
    table.ensure()
    row = dict.fromkeys(table.schema.names) | {"cluster": config.cluster}
    theirs = pa.Table.from_pylist([row | {"group_id": "theirs"}], table.schema)
    path, came = table.path, tmp_path / "came"
    came.touch()

    def beaten(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if came.stat().st_size < times:
            write_deltalake(path, theirs, mode="append")
            with came.open("a") as marks:
                marks.write("x")
        yield from batches

    ddl = table.contract.ddl()
    ours = warehouse.session.createDataFrame([row | {"group_id": "ours"}], ddl).coalesce(1).mapInArrow(beaten, ddl)
    if times == 1:
        table.replace(ours)
        assert came.read_text() == "x"
        assert [row["group_id"] for row in landed.rows(config, table.name)] == ["ours"]
    else:
        with pytest.raises(Exception, match="DELTA_CONCURRENT_APPEND"):
            table.replace(ours)
        assert [row["group_id"] for row in landed.rows(config, table.name)] == ["theirs"] * 5


COMMITTED = "committed_offsets"


def committed(warehouse: Warehouse, *offsets: int) -> pa.Table:
    schema = warehouse.table(COMMITTED).schema
    row: dict[str, Any] = dict.fromkeys(schema.names) | {"cluster": warehouse.cluster, "topic": "orders"}
    row |= {"record_partition": 0, "record_offset": 0, "record_at": AT, "source": "topic", "group_id": "billing"}
    rows = [row | {"partition": number, "committed_offset": offset} for number, offset in enumerate(offsets)]
    return pa.Table.from_pylist(rows, schema)


def append(warehouse: Warehouse, offset: int, version: int | None = None) -> None:
    once = Once("test", offset if version is None else version)
    warehouse.table(COMMITTED).append(committed(warehouse, offset), once)


def replace_files(warehouse: Warehouse, rows: pa.Table) -> None:
    warehouse.table(COMMITTED).replace(partial(files.write, rows.to_batches()))


def optimize(warehouse: Warehouse) -> None:
    warehouse.session.sql(f"OPTIMIZE {spark_engine.table_in_sql(warehouse.table(COMMITTED).location)}")


def copied(warehouse: Warehouse, **options: Any) -> Warehouse:
    """Return a copy of the table, which Spark has not read yet."""
    copy = replace(warehouse, location=f"{warehouse.location}-copy")
    shutil.copytree(warehouse.table(COMMITTED).path, copy.table(COMMITTED).path, **options)
    return copy


def stored(warehouse: Warehouse) -> dict[str, list[int]]:
    rows = DeltaTable(warehouse.table(COMMITTED).path).to_pyarrow_table().to_pylist()
    return {
        cluster: sorted(row["committed_offset"] for row in rows if row["cluster"] == cluster)
        for cluster in {row["cluster"] for row in rows}
    }


def test_replace_files_replaces_only_rows_of_its_cluster_also_in_files_with_other_clusters(
    warehouse: Warehouse,
) -> None:
    """A short cluster name may lie between others; `maintain` writes rows of several clusters into one file."""
    warehouse.table(COMMITTED).ensure()
    clusters = [replace(warehouse, cluster=name) for name in ("a", "test", "z")]
    ours = clusters[1]
    for number, cluster in enumerate(clusters):
        replace_files(cluster, committed(cluster, number))
    assert stored(warehouse) == {"a": [0], "test": [1], "z": [2]}
    replace_files(ours, committed(ours, 3, 4))
    assert stored(warehouse) == {"a": [0], "test": [3, 4], "z": [2]}
    assert own_files(DeltaTable(ours.table(COMMITTED).path), "test")
    optimize(warehouse)
    assert own_files(DeltaTable(ours.table(COMMITTED).path), "test") is None
    replace_files(ours, committed(ours, 5))
    assert stored(warehouse) == {"a": [0], "test": [5], "z": [2]}
    replace_files(ours, committed(ours))
    assert stored(warehouse) == {"a": [0], "z": [2]}


def test_replace_files_rewritten_by_another_writer_meanwhile_is_retried(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by `grouptrail maintain`: removing files that are gone would leave their rows in the table twice."""
    warehouse.table(COMMITTED).ensure()
    for number in range(2):
        append(warehouse, number)
    write, times = files.write, []

    def beaten(*given: Any) -> Any:
        times.append(1)
        if len(times) == 1:
            optimize(warehouse)
        return write(*given)

    monkeypatch.setattr(files, "write", beaten)
    replace_files(warehouse, committed(warehouse, 7))
    assert len(times) == 2
    assert stored(warehouse) == {warehouse.cluster: [7]}


@pytest.mark.parametrize(
    "name",
    ["offset_commits", "generations"]
    + [
        pytest.param(name, marks=pytest.mark.full)
        for name in sorted(contracts.tables().keys() - {"offset_commits", "generations"})
    ],
)
def test_ensure_table_creates_what_spark_would(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Column by column, with the same properties and protocol: Spark creates it in stores that delta-rs lacks."""

    def created(by: str) -> Any:
        table = replace(warehouse, location=f"{warehouse.location}-{by}").table(name)
        table.ensure()
        log = Path(table.path, "_delta_log", f"{0:020}.json").read_text().splitlines()
        actions: dict[str, Any] = {}
        for line in log:
            actions |= json.loads(line)
        assert "domainMetadata" not in actions
        metadata = {**actions["metaData"], "id": "", "createdTime": 0, "name": None}
        schema = json.loads(metadata.pop("schemaString"))
        described = warehouse.session.sql(f"DESCRIBE DETAIL {spark_engine.table_in_sql(table.location)}")
        detail = described.collect()[0].asDict()
        changing = {"id", "location", "createdAt", "lastModified"}
        return metadata, schema, {key: value for key, value in detail.items() if key not in changing}

    ours = created("ours")
    monkeypatch.setattr(spark_engine, "supports", lambda *_: False)
    assert ours == created("spark's")


def test_ensure_table_by_several_jobs_at_once_creates_it_once(warehouse: Warehouse) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: warehouse.table("rebalances").ensure(), range(4)))
    assert DeltaTable(warehouse.table("rebalances").path).version() == 0


def test_upsert_replaces_open_rows_of_its_cluster_once_despite_a_concurrent_delete(
    config: Config, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only rows with the same key and cluster are replaced, also after a conflict with another writer."""
    ours, other = (replace(warehouse, cluster=name) for name in ("o'clock", "production"))
    name = "history_positions"
    ours.table(name).ensure()
    beaten = []

    class Beaten(DeltaTable):
        def merge(self, *arguments: Any, **options: Any) -> Any:
            merger = super().merge(*arguments, **options)
            if not beaten:
                beaten.append(DeltaTable(self.table_uri).delete("cluster LIKE 'o%' AND group_id = 'billing'"))
            return merger

    def upsert(warehouse: Warehouse, version: int, **processed_to: int) -> None:
        rows = [
            {"record_partition": 0, "group_id": group, "processed_to": offset, "waits": False, "state": "{}"}
            | {"open_bucket": bucket_of(group)}
            for group, offset in processed_to.items()
        ]
        buckets = {bucket_of(group) for group in processed_to}
        warehouse.table(name).upsert(pa.Table.from_pylist(rows), buckets, Once("test", version))

    def processed(warehouse: Warehouse) -> dict[str, int]:
        of_cluster = config.model_copy(update={"cluster": warehouse.cluster})
        return {row["group_id"]: row["processed_to"] for row in landed.rows(of_cluster, name)}

    upsert(other, 0, billing=1)
    upsert(ours, 1, billing=2, audit=2)
    upsert(ours, 1, billing=3)
    assert (processed(ours), processed(other)) == ({"billing": 2, "audit": 2}, {"billing": 1})
    monkeypatch.setattr(reader, "DeltaTable", Beaten)
    upsert(ours, 2, billing=4, orders=4)
    assert beaten
    assert (processed(ours), processed(other)) == ({"billing": 4, "audit": 2, "orders": 4}, {"billing": 1})


def test_landing_record_above_the_limit_is_kept_and_redecoded_with_a_higher_one(
    writer: DecodeBatchWriter, config: Config, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector = next(vector for vector in RECORD_VECTORS if vector.name == "group-metadata/v3")
    table, _ = decode_row(vector.key, vector.value)
    size = len(vector.value or b"")
    monkeypatch.setattr(writer, "_end_offsets", lambda batch: {} if batch < 0 else {0: 1})
    monkeypatch.setattr(writer, "_max_record_bytes", lambda _batch: size - 1)
    monkeypatch.setattr(writer, "_records", RecordsInMemory([(0, 0, AT, vector.key, vector.value)]))
    writer.write(0)
    [row] = landed.rows(config, "undecodable_records")
    assert (row["reason"], row["record_key"], row["record_value"]) == ("too_large", vector.key, vector.value)
    landed.assert_progress_adds_up(config)
    for limit, expected in ((size - 1, 0), (size, 1)):
        redecode(warehouse, limit, lambda _line: None)
        assert len(landed.rows(config, table)) == expected
        assert landed.records(config) == {(0, 0): (vector.key, vector.value)}


@pytest.mark.parametrize("interval", [10, 1_000_000_000])
def test_append_every_tenth_commit_has_a_checkpoint_that_spark_reads(warehouse: Warehouse, interval: int) -> None:
    """Also in a table of an earlier version, where Spark was to write none; its properties stay as they were."""
    spark, table = warehouse.session, warehouse.table(COMMITTED)
    logs = Path(table.path, "_delta_log")
    table.ensure()
    spark.sql(
        f"ALTER TABLE {spark_engine.table_in_sql(table.location)} "
        f"SET TBLPROPERTIES ('{CHECKPOINT_INTERVAL}' = '{interval}')"
    )
    for number in range(20):
        append(warehouse, number)
    assert sorted(int(one.name[:20]) for one in logs.glob("*.checkpoint.parquet")) == [10, 20]
    for one in logs.glob("*.json"):
        if int(one.stem) <= 20:
            one.unlink()
    copy = copied(warehouse)
    copied_table = copy.table(COMMITTED)
    detail = spark.sql(f"DESCRIBE DETAIL {spark_engine.table_in_sql(copied_table.location)}").collect()[0]
    assert detail.properties[CHECKPOINT_INTERVAL] == str(interval)
    assert copied_table.all_clusters().count() == 20
    append(copy, 99, version=19)
    assert copied_table.all_clusters().count() == 20


def test_limits_new_limit_applies_to_batches_that_were_not_tried(warehouse: Warehouse) -> None:
    """A batch that is repeated puts each record into the same table as before."""
    checkpoint = warehouse.checkpoint("decode")

    def limit_of(limit: int, *batches: int) -> list[int]:
        return [limits.apply(checkpoint, limit)(batch) for batch in batches]

    folder = Path(checkpoint.folder)
    (folder / "offsets").mkdir(parents=True)
    assert limit_of(100, 0, 7) == [100, 100]
    assert limit_of(200, 0, 7) == [200, 200]
    (folder / "offsets" / "0").touch()
    (folder / "offsets" / "1").touch()
    assert limit_of(300, 0, 1, 2) == [200, 200, 300]
    (folder / "limits" / "2").write_text("")  # a write that was interrupted
    assert limit_of(300, 0, 1, 2) == [200, 200, 300]
    (folder / "offsets" / "2").touch()
    assert limit_of(200, 1, 2, 3) == [200, 300, 200]


def test_limits_batch_tried_by_a_version_without_limit_has_none(warehouse: Warehouse) -> None:
    checkpoint = warehouse.checkpoint("decode")
    offsets = Path(checkpoint.folder, "offsets")
    offsets.mkdir(parents=True)
    (offsets / "4").touch()
    limit_of = limits.apply(checkpoint, MAX_RECORD_BYTES)
    assert [limit_of(4), limit_of(5)] == [(1 << 31) - 1, MAX_RECORD_BYTES]

"""The history job on Spark: micro-batches, some of which die and are repeated, and a rebuild."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.decode.writer import DecodeBatchWriter
from grouptrail.exporter.families import group_families, pipeline_families
from grouptrail.history import job as history_job
from grouptrail.history import rebuild as history_rebuild
from grouptrail.history import records, without_spark
from grouptrail.history.batch import ensure_tables
from grouptrail.history.job import HistoryBatchWriter, HistoryError, refuse_half_rebuilt
from grouptrail.history.rebuild import rebuild
from grouptrail.history.rows import TABLES
from grouptrail.history.tasks import POSITIONS
from grouptrail.history.without_spark import fold_few
from grouptrail.kafka.log import LogBounds
from grouptrail.quality.snapshot import take
from grouptrail.snapshot.reader import SnapshotReader
from grouptrail.spark.jars import silent
from grouptrail.storage import tables
from grouptrail.storage.buckets import OPEN_BUCKETS, bucket_of
from grouptrail.storage.progress import PROGRESS, RANGE_COLUMNS
from grouptrail.storage.rows import select_arrow
from grouptrail.storage.schema import ADMIN
from support import landed
from support.exporter_tables import figures
from support.frozen_warehouse import ORDERS, thaw
from support.history_batches import BATCHES, NOON, Raw, commit, gone, metadata
from support.records_in_memory import RecordsInMemory
from support.small_tables import lay
from support.wire_vectors import RECORDS as RECORD_VECTORS

pytestmark = pytest.mark.spark

WRITES = (*TABLES, POSITIONS)


class Log:
    """A log of records in the decoded tables of a warehouse."""

    def __init__(self, spark: SparkSession, config: Config, batches: Sequence[Sequence[Raw]] = BATCHES) -> None:
        ensure_tables(spark, config)
        tables.ensure_table(spark, config, "undecodable_records")
        self._spark = spark
        self._config = config
        self._batches = batches
        self.end = 0

    def land(self, batch: int) -> pa.Table:
        """Decode a batch and return its rows of `ingest_progress`."""
        start, self.end = self.end, self.end + len(self._batches[batch])
        rows = [
            (0, start + index, NOON + timedelta(seconds=10 * (start + index)), *record)
            for index, record in enumerate(self._batches[batch])
        ]
        DecodeBatchWriter(
            self._spark,
            self._config,
            records=RecordsInMemory(rows),
            app=lambda: "decode",
            end_offsets=lambda number: {0: start if number < batch else self.end},
            bounds=lambda: {0: LogBounds(0, self.end, self.end)},
            report=silent,
        ).land(batch)
        progress = tables.read(self._spark, self._config, PROGRESS).where(F.col("batch_id") == batch)
        return progress.select(*RANGE_COLUMNS).toArrow()


def history(config: Config) -> dict[str, list[dict[str, Any]]]:
    """Return each table's rows sorted by key, with `open_bucket`."""
    return {
        table: sorted(
            landed.rows(config, table), key=lambda row: [row[column] for column in contracts.tables()[table].key]
        )
        for table in WRITES
    }


def no_spark() -> SparkSession:
    pytest.fail("Spark was started")


@pytest.mark.parametrize(
    ("few_records", "few_rows"),
    [
        pytest.param(0, 0, id="Spark", marks=pytest.mark.full),
        pytest.param(0, 1_000, id="folded by Spark, written by delta-rs"),
        pytest.param(100, 1_000, id="without Spark"),
    ],
)
def test_history_job_batches_failed_and_retried_match_a_rebuild(
    spark: SparkSession, config: Config, monkeypatch: pytest.MonkeyPatch, few_records: int, few_rows: int
) -> None:
    """Whichever write fails, the retry writes what is missing and nothing twice, with Spark and with delta-rs."""
    monkeypatch.setattr(history_job, "_FEW_RECORDS", few_records)
    monkeypatch.setattr(tables, "_FEW_ROWS", few_rows)
    log = Log(spark, config)
    writer = HistoryBatchWriter(spark, config, app=lambda: "history", report=silent)
    for batch, table in enumerate((None, "generations", "rebalances", POSITIONS)):
        progress = log.land(batch)
        if table:
            with landed.dying_before(table):
                writer.land(spark, progress, batch)
        writer.land(spark, progress, batch)
    streamed = history(config)
    written = take(config, patience_seconds=0).versions
    assert all(written[table].written_at_ms for table in WRITES)
    rebuild(no_spark, config, silent)
    assert history(config) == streamed
    monkeypatch.setattr(history_rebuild, "_FEW_RECORDS", 0)
    rebuild(lambda: spark, config, silent)
    assert history(config) == streamed

    billing = [row for row in streamed["rebalances"] if row["group_id"] == "billing"]
    assert [(row["to_generation"], row["cause"]) for row in billing] == [
        (1, "group_started"),
        (2, "member_joined"),
        (3, "member_left_or_expired"),
        (4, "member_joined"),
    ]
    assert {row["incarnation"] for row in streamed["generations"] if row["group_id"] == "audit"} == {1, 2}
    (handed,) = [one for one in billing[1]["handed_over"] if one["partition"] == 1]
    assert (handed["committed_offset"], handed["commit_age_ms"], handed["may_be_read_twice"]) == (150, 10_000, 25)
    assert [one["committed_offset"] for one in billing[1]["handed_over"] if one["partition"] == 3] == [None]


def test_history_job_batches_of_commits_only_are_not_folded(
    spark: SparkSession, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit's tombstone is folded: it shows that a removed group had offsets."""
    tombstone = (commit("billing", 1, 0)[0], None)
    batches = [[metadata("billing", 1, {"a": [0]})], [commit("billing", 0, 1)], [tombstone], [gone("billing")]]
    log = Log(spark, config, batches)
    writer = HistoryBatchWriter(spark, config, app=lambda: "history", report=silent)
    folded = []
    monkeypatch.setattr(history_job, "fold_few", lambda *given: folded.append(batch) or fold_few(*given))
    for batch in range(len(batches)):
        writer.land(spark, log.land(batch), batch)
    assert folded == [0, 2, 3]


def test_rebuild_warehouse_of_version_0_1_is_same_with_and_without_spark(spark: SparkSession, config: Config) -> None:
    """Spark adds the columns that its tables lack, and looks for the name of a topic id; then it is not needed."""
    thaw(config)
    started = []
    rebuild(lambda: started.append(1) or spark, config, silent)  # type: ignore[func-returns-value]
    with_spark = history(config)
    assert started
    name = {"topic_id": ORDERS, "topic": "orders", "told_by": "broker", "told_at": NOON}
    tables.append_new(spark, [{"cluster": config.cluster, **name}], config, "topic_names")
    rebuild(no_spark, config, silent)
    owned = [row for row in history(config)["partition_ownership"] if row["group_id"] == "search"]
    assert {row["topic"] for row in owned} == {"orders"}
    named = {table: [row for row in rows if row["group_id"] != "search"] for table, rows in history(config).items()}
    assert named == {
        table: [row for row in rows if row["group_id"] != "search"] for table, rows in with_spark.items()
    }


def test_rebuild_without_spark_replaces_only_rows_of_its_cluster(spark: SparkSession, config: Config) -> None:
    log = Log(spark, config)
    log.land(0)
    other = config.model_copy(update={"cluster": "o'clock"})
    for table in WRITES:
        lay(other, table, {"cluster": other.cluster, "group_id": "theirs"})
        lay(config, table, {"cluster": config.cluster, "group_id": "outdated"})
    theirs = history(other)
    rebuild(no_spark, config, silent)
    assert history(other) == theirs
    assert {row["group_id"] for rows in history(config).values() for row in rows} == {"billing"}


def test_rebuild_fed_more_than_fits_in_memory_starts_spark(
    spark: SparkSession, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    Log(spark, config).land(0)
    for module, limit in (
        (history_rebuild, "_FEW_RECORDS"),
        (history_rebuild, "_FEW_COMMITS"),
        (without_spark, "_MOST_BYTES"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, limit, 0)
            assert history_rebuild.FewRecords.read(config) is None, limit
    assert history_rebuild.FewRecords.read(config) is not None


def test_records_of_all_kinds_are_read_alike_with_and_without_spark(spark: SparkSession, config: Config) -> None:
    """Records written by Kafka's own classes, and rows with nulls, empty lists and names that need escapes."""
    log = Log(spark, config, [[(vector.key, vector.value) for vector in RECORD_VECTORS]])
    log.land(0)
    hostile = 'a"b\\c\n\u2028\u00e9\U0001f600$.x'
    member = {"member_id": hostile, "client_id": "", "subscription": None, "assignment": {"partitions": []}}
    partitions = [{"topic": hostile, "partitions": []}, {"topic": None, "partitions": None}]
    connect = {"subscription": {"connect": '{"a": "\\u00e9"}', "owned_partitions": partitions}, "assignment": None}
    polled = {"cluster": config.cluster, "source": ADMIN, "not_before": NOON, "record_at": NOON}
    groups = [
        {**polled, "is_tombstone": False, "members": [member, connect], "state_at": NOON},
        {**polled, "is_tombstone": False, "members": [], "state_at": None, "source": None, "not_before": None},
        {**polled, "is_tombstone": False, "members": None, "protocol": hostile},
        *({**polled, "source": None, "is_tombstone": True, "read_at": NOON + delay} for delay in READ_AFTER),
    ]
    tables.append_new(spark, groups, config, "group_metadata")
    pattern = '{"groupId": "g", "regularExpression": "^\\"\\\\d+\\u00e9$"}'
    kind = {**polled, "record_type": "ConsumerGroupRegularExpression", "value_json": None}
    others = [{**kind, "member_id": None, "key_json": pattern}, {**kind, "key_json": "{}"}]
    tables.append_new(spark, others, config, "group_records")
    for table, convert in (
        ("group_metadata", records.classic_records),
        ("group_records", records.other_records),
        ("offset_commits", records.commit_tombstones),
    ):
        with_spark = convert(tables.read(spark, config, table)).toArrow().to_pylist()
        rest = "AND is_tombstone" if table == "offset_commits" else ""
        columns = records.COLUMNS[table]
        found = [
            row
            for rows in select_arrow(config, table, columns, rest, rows_at_a_time=2)
            for row in records.from_rows(table, rows).to_pylist()
        ]
        assert found
        assert in_order(found) == in_order(with_spark)


READ_AFTER = (timedelta(seconds=60), timedelta(seconds=60, milliseconds=1))


def in_order(rows: list[dict[str, Any]]) -> list[Any]:
    """Return the rows of records sorted, with their bodies as values."""
    read = ({**row, "body": row["body"] and json.loads(row["body"])} for row in rows)
    return sorted(read, key=lambda row: json.dumps(row, sort_keys=True))


def test_bucket_of_hostile_names_is_sparks_hash(spark: SparkSession) -> None:
    """Names of all lengths modulo 4, with bytes above 127 in whole words and in the rest."""
    odd = ["", "\0", "\x7f", "\x80", "\u00ff", "\u65e5\u672c", "\U0001f600", "\U0010ffff", "o'clock", '"', "\n"]
    names = [prefix * times + name for name in odd for prefix in ("a", "\u00e9", "\U0001f600") for times in range(6)]
    names += [f"group-{number}" for number in range(500)] + ["x" * 249]
    hashed = spark.createDataFrame([(name,) for name in names], "group_id string").select(
        "group_id", F.pmod(F.hash("group_id"), F.lit(OPEN_BUCKETS)).alias("bucket")
    )
    wanted = {row.group_id: row.bucket for row in hashed.collect()}
    assert {name: bucket_of(name) for name in names} == wanted
    assert set(wanted.values()) == set(range(OPEN_BUCKETS))


@pytest.mark.parametrize("few_records", [pytest.param(0, marks=pytest.mark.full), 1_000])
def test_history_job_after_interrupted_rebuild_is_refused_until_rebuilt(
    spark: SparkSession, config: Config, monkeypatch: pytest.MonkeyPatch, few_records: int
) -> None:
    """The job refuses tables that are only partly rebuilt, and accepts them after a complete rebuild."""
    monkeypatch.setattr(history_rebuild, "_FEW_RECORDS", few_records)
    log = Log(spark, config)
    log.land(0)
    with landed.dying_before("memberships"):
        rebuild(lambda: spark, config, silent)
    with pytest.raises(HistoryError, match="run grouptrail rebuild history"):
        refuse_half_rebuilt(spark, config)
    rebuild(lambda: spark, config, silent)
    refuse_half_rebuilt(spark, config)
    assert [row["member_id"] for row in history(config)["memberships"]] == ["a"]


@pytest.mark.full
def test_exporter_counters_match_history_tables_also_after_optimize_and_rebuild(
    spark: SparkSession, config: Config
) -> None:
    """Compare after each batch, after OPTIMIZE, and after a rebuild, which must not increase any counter."""
    log, reader = Log(spark, config), SnapshotReader(config)
    writer = HistoryBatchWriter(spark, config, app=lambda: "history", report=silent)
    for batch in range(len(BATCHES)):
        writer.land(spark, log.land(batch), batch)
        found = [*group_families(reader.read()), *pipeline_families(reader.read(), dropped={})]
        rows = history(config)
        causes = Counter((row["group_id"], row["cause"]) for row in rows["rebalances"])
        assert figures(found, "kafka_consumer_group_rebalances_total") == causes
        states = figures(found, "kafka_consumer_group_state")
        assert {group for group, value in states.items() if value} == {
            (row["group_id"], row["state"]) for row in rows["group_states"] if row["is_open"]
        }
        assert figures(found, "grouptrail_records_total")[("offset_commit", "decoded")] == len(
            landed.rows(config, "offset_commits")
        )
        assert figures(found, "grouptrail_source_backlog_records") == {("0",): 0}
    assert figures(found, "kafka_consumer_group_generation") == {("billing",): 4, ("audit",): 1}
    assert figures(found, "kafka_consumer_group_offset_commits_total") == {("billing",): 2}
    spark.sql(f"OPTIMIZE delta.`{config.table_path('offset_commits')}`").collect()
    rebuild(lambda: spark, config, silent)
    after = group_families(reader.read())
    for name in ("rebalances_total", "partitions_moved_total", "offset_commits_total", "members", "state"):
        metric = f"kafka_consumer_group_{name}"
        assert figures(after, metric) == figures(found, metric)
    assert reader.read().not_ready is None

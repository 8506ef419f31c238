"""The history job on Spark: micro-batches, some of which die and are repeated, and a rebuild."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.decode.writer import DecodeBatchWriter
from grouptrail.exporter.families import group_families, pipeline_families
from grouptrail.exporter.snapshot import SnapshotReader
from grouptrail.history import job as history_job
from grouptrail.history.batch import ensure_tables, fold
from grouptrail.history.job import HistoryBatchWriter, HistoryError, refuse_half_rebuilt
from grouptrail.history.rebuild import rebuild
from grouptrail.history.rows import TABLES
from grouptrail.history.tasks import POSITIONS
from grouptrail.kafka.log import LogBounds
from grouptrail.quality.snapshot import take
from grouptrail.spark.jars import silent
from grouptrail.storage import tables
from grouptrail.storage.progress import PROGRESS
from support import landed
from support.exporter_tables import figures
from support.history_batches import BATCHES, COLUMNS, NOON, Raw, commit, gone, metadata

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

    def land(self, batch: int) -> DataFrame:
        """Decode a batch and return its rows of `ingest_progress`."""
        start, self.end = self.end, self.end + len(self._batches[batch])
        rows = [
            (0, start + index, NOON + timedelta(seconds=10 * (start + index)), *record)
            for index, record in enumerate(self._batches[batch])
        ]
        DecodeBatchWriter(
            self._spark,
            self._config,
            app=lambda: "decode",
            end_offsets=lambda number: {0: start if number < batch else self.end},
            bounds=lambda: {0: LogBounds(0, self.end, self.end)},
            report=silent,
        ).land(self._spark.createDataFrame(rows, COLUMNS).coalesce(1), batch)
        return tables.read(self._spark, self._config, PROGRESS).where(F.col("batch_id") == batch)


def history(config: Config) -> dict[str, list[dict[str, Any]]]:
    """Return each table's rows sorted by key, with `open_bucket`."""
    return {
        table: sorted(
            landed.rows(config, table), key=lambda row: [row[column] for column in contracts.tables()[table].key]
        )
        for table in WRITES
    }


@pytest.mark.parametrize("few_rows", [pytest.param(0, marks=pytest.mark.full), 1_000])
def test_history_job_batches_failed_and_retried_match_a_rebuild(
    spark: SparkSession, config: Config, monkeypatch: pytest.MonkeyPatch, few_rows: int
) -> None:
    """Whichever write fails, the retry writes what is missing and nothing twice, with Spark and with delta-rs."""
    monkeypatch.setattr(tables, "_FEW_ROWS", few_rows)
    log = Log(spark, config)
    writer = HistoryBatchWriter(spark, config, app=lambda: "history", report=silent)
    for batch, table in enumerate((None, "generations", "rebalances", POSITIONS)):
        progress = log.land(batch)
        if table:
            with landed.dying_before(table):
                writer.land(progress, batch)
        writer.land(progress, batch)
    streamed = history(config)
    written = take(config, patience_seconds=0).versions
    assert all(written[table].written_at_ms for table in WRITES)
    rebuild(spark, config, silent)
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
    monkeypatch.setattr(history_job, "fold", lambda *given: folded.append(batch) or fold(*given))
    for batch in range(len(batches)):
        writer.land(log.land(batch), batch)
    assert folded == [0, 2, 3]


@pytest.mark.full
def test_history_job_after_interrupted_rebuild_is_refused_until_rebuilt(spark: SparkSession, config: Config) -> None:
    """The job refuses tables that are only partly rebuilt, and accepts them after a complete rebuild."""
    log = Log(spark, config)
    log.land(0)
    with landed.dying_before("memberships"):
        rebuild(spark, config, silent)
    with pytest.raises(HistoryError, match="run grouptrail rebuild history"):
        refuse_half_rebuilt(spark, config)
    rebuild(spark, config, silent)
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
        writer.land(log.land(batch), batch)
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
    rebuild(spark, config, silent)
    after = group_families(reader.read())
    for name in ("rebalances_total", "partitions_moved_total", "offset_commits_total", "members", "state"):
        metric = f"kafka_consumer_group_{name}"
        assert figures(after, metric) == figures(found, metric)
    assert reader.read().not_ready is None

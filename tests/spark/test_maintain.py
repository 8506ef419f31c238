"""`grouptrail maintain`: what it deletes and what it leaves."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from grouptrail.config import Config, MaintainConfig
from grouptrail.history.rebuild import rebuild
from grouptrail.history.rows import TABLES as HISTORY
from grouptrail.jobs import HISTORY as HISTORY_JOB
from grouptrail.maintenance import maintain, retention
from grouptrail.maintenance.queries import DeltaRsQueries, SparkQueries
from grouptrail.quality import check
from grouptrail.spark.jars import silent
from grouptrail.storage import upkeep
from grouptrail.storage.progress import PROGRESS
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.table import Table
from grouptrail.storage.warehouse import Warehouse
from support.contexts import context
from support.frozen_warehouse import NOON as WRITTEN
from support.frozen_warehouse import thaw
from support.small_tables import NOON, lay

LATER = WRITTEN + timedelta(days=30)


def rows(warehouse: Warehouse, query: str) -> list[dict[str, Any]]:
    names = [name for name in maintain.contracts.tables() if name in query]
    return SqlSnapshot(warehouse, names).rows(query)


def counts(warehouse: Warehouse) -> dict[str, int]:
    return {
        name: rows(warehouse, f"SELECT count(*) AS rows FROM {name}")[0]["rows"]
        for name in maintain.contracts.tables()
        if warehouse.table(name).exists()  # a warehouse of 0.1 lacks those of later jobs
    }


def lay_samples(config: Config, statuses: Callable[[int], str], minutes: int = 60) -> None:
    """Write a sample of one partition for every ten seconds from noon on."""
    lay(
        config,
        "consumer_lag",
        *(
            {
                "cluster": config.cluster,
                "topic": "orders",
                "partition": 1,
                "sampled_at": NOON + timedelta(seconds=10 * number),
                "status": statuses(number),
            }
            for number in range(minutes * 6)
        ),
    )


def sampled(warehouse: Warehouse) -> list[tuple[int, str]]:
    """Return (tens of seconds after noon, status) of the remaining samples."""
    samples = rows(warehouse, "SELECT to_unixtime(sampled_at) AS at, status FROM consumer_lag ORDER BY sampled_at")
    return [(round(row["at"] - NOON.timestamp()) // 10, row["status"]) for row in samples]


def test_maintain_thin_samples_keeps_one_per_minute_and_every_status_change(
    warehouse: Warehouse, config: Config
) -> None:
    """Only samples older than a day are thinned; a second run removes nothing."""
    keep = MaintainConfig(thin_samples=["1:60", "7:600"])
    lay_samples(config, lambda number: "STOP" if 97 <= number < 101 else "OK")
    now = NOON + timedelta(days=1, minutes=30)
    maintain.maintain(warehouse, keep, ("consumer_lag",), log=silent, now=now)
    left = sampled(warehouse)
    old, young = [one for one in left if one[0] < 180], [one for one in left if one[0] >= 180]
    assert young == [(number, "OK") for number in range(180, 360)]
    last_of_minute = set(range(5, 180, 6))
    assert [number for number, _ in old] == sorted(last_of_minute | {96, 97, 100, 101})
    assert [number for number, status in old if status == "STOP"] == [97, 100]

    before = SqlSnapshot(warehouse, ["consumer_lag"]).rows("SELECT count(*) AS rows FROM consumer_lag")
    (again,) = list(retention.removals(warehouse, keep, "consumer_lag", now))
    assert again.count == 0
    maintain.maintain(warehouse, keep, ("consumer_lag",), log=silent, now=now + timedelta(days=10))
    assert [number for number, _ in sampled(warehouse)][-1] == 359
    assert len(sampled(warehouse)) == 6 + 4 < before[0]["rows"]


@pytest.mark.full
def test_maintain_dry_run_says_what_a_run_deletes_on_both_engines(warehouse: Warehouse, config: Config) -> None:
    """It lists rows, files and bytes of each table that would lose rows, and deletes nothing."""
    thaw(config)
    keep = MaintainConfig(decoded_days=7, history_days=7, samples_days=7)
    before = counts(warehouse)
    shown = []
    for source in (SparkQueries(warehouse), DeltaRsQueries(warehouse)):
        out = io.StringIO()
        maintain.write_removals(maintain.removals_found(source, keep, (), LATER), out, "table")
        assert "nothing was deleted" in out.getvalue()
        shown.append([line.split() for line in out.getvalue().splitlines() if line and line.split()[0] in before])
    assert shown[0] == shown[1]
    assert [line[1] for line in shown[0] if line[0] == "consumer_lag"] == ["12", "0"]
    assert [int(line[1]) > 0 for line in shown[0] if line[0] in ("offset_commits", "generations")] == [True, True]
    assert counts(warehouse) == before
    removed = {line[0]: 0 for line in shown[0]}
    for line in shown[0]:
        removed[line[0]] += int(line[1])
    maintain.maintain(warehouse, keep, (), log=silent, now=LATER)
    after = counts(warehouse)
    replaced = {PROGRESS: 1}  # by one row for all of its batches
    assert {name: before[name] - after[name] + replaced.get(name, 0) for name in removed} == removed


@pytest.mark.full
def test_maintain_retention_keeps_open_rows_and_passes_check(warehouse: Warehouse, config: Config) -> None:
    """Open rows and the newest record of each key are kept, and counts still add up; a rebuild gives the same open
    rows."""
    thaw(config)
    keep = MaintainConfig(decoded_days=7, history_days=7, samples_days=7)
    before = counts(warehouse)
    live = {name: rows(warehouse, f"SELECT * FROM {name} WHERE is_open ORDER BY record_offset") for name in HISTORY}
    maintain.maintain(warehouse, keep, (), log=silent, now=LATER)
    after = counts(warehouse)
    assert {
        name: rows(warehouse, f"SELECT * FROM {name} WHERE is_open ORDER BY record_offset") for name in HISTORY
    } == live
    assert after["consumer_lag"] == after["log_offsets"] == 0
    assert len(live["generations"]) <= after["generations"] < before["generations"]
    assert after["group_metadata"] < before["group_metadata"]
    assert rows(warehouse, "SELECT committed_offset FROM offset_commits") == [{"committed_offset": 150}]
    first, *_ = rows(warehouse, "SELECT * FROM ingest_progress ORDER BY start_offset")
    assert (first["query_id"], first["start_offset"], first["offset_commits"]) == ("maintain", 0, 1)

    healthy = check.run(warehouse, patience_seconds=0)
    assert [(one.table, result) for one in healthy for result in one.failures] == []
    rebuild(context(HISTORY_JOB, config), lambda: warehouse)
    open_groups = rows(warehouse, "SELECT DISTINCT group_id FROM generations WHERE is_open ORDER BY group_id")
    assert [row["group_id"] for row in open_groups] == sorted({row["group_id"] for row in live["generations"]})


@pytest.mark.full
def test_retention_bound_is_first_record_missing_from_history_and_counts_add_up(
    warehouse: Warehouse, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was interrupted is completed by the next one."""
    thaw(config)
    keep = MaintainConfig(decoded_days=7)
    with monkeypatch.context() as patch:
        patch.setattr(retention, "_first_unprocessed", lambda *_: UNPROCESSED.format(0))
        assert retention.processed_bounds(SparkQueries(warehouse), LATER) == {}
        patch.setattr(retention, "_first_unprocessed", lambda *_: UNPROCESSED.format(5))
        assert retention.processed_bounds(SparkQueries(warehouse), LATER) == {0: 5}
    for name in ("group_metadata", "offset_commits"):
        maintain.maintain(warehouse, keep, (name,), log=silent, now=LATER)
    maintain.maintain(warehouse, keep, (), log=silent, now=LATER)
    every = " + ".join(retention.DECODED)
    tally = f"SELECT sum({every}) AS records FROM ingest_progress"
    assert rows(warehouse, tally)[0]["records"] == sum(counts(warehouse)[name] for name in retention.DECODED)


UNPROCESSED = "SELECT 0 AS record_partition, CAST({} AS BIGINT) AS first_unprocessed"


def test_maintain_concurrent_writer_fails_the_table_after_three_tries_and_continues(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is one line with the table's name; the other tables are still maintained."""
    warehouse.ensure(("topic_names", "log_offsets"))
    tries: list[str] = []

    def optimize(table: Table) -> None:
        tries.append(table.name)
        if table.name == "log_offsets":
            raise RuntimeError("[DELTA_CONCURRENT_APPEND] Files were added by a concurrent update")

    monkeypatch.setattr(upkeep, "optimize", optimize)
    with pytest.raises(
        maintain.MaintenanceError, match=r"^log_offsets: other writers committed first, 3 times: not maintained"
    ):
        maintain.maintain(warehouse, MaintainConfig(), log=silent)
    assert tries == ["log_offsets"] * 3 + ["topic_names"]


def test_follow_rows_deleted_resumes_without_rereading_rewritten_rows(
    spark: SparkSession, warehouse: Warehouse
) -> None:
    """Rows that were kept are not read twice, although the file that contains them was rewritten."""
    table = warehouse.table(PROGRESS)

    def land(*batches: int) -> None:
        shared = {column.name: 0 for column in table.contract.columns if column.type == "bigint"}
        common = {"record_partition": 0, "query_id": "decode", "landed_at": NOON}
        nothing = dict.fromkeys(("earliest_record_at", "latest_record_at"))
        rows = [{**shared, **common, **nothing, "batch_id": batch} for batch in batches]
        table.append_rows(rows)

    def read_on() -> list[int]:
        seen: list[int] = []
        query = table.follow(
            warehouse.checkpoint("reader"),
            process=lambda rows, _: seen.extend(rows["batch_id"].to_pylist()),
            once=True,
            is_written_here=False,
            every_seconds=1,
        )
        query.awaitTermination()
        return sorted(seen)

    table.ensure()
    land(0, 1)
    assert read_on() == [0, 1]
    spark.sql(f"DELETE FROM delta.`{table.path}` WHERE batch_id = 0")
    land(2)
    assert read_on() == [2]

"""Snapshots: what the tables say at one moment, and what is gone from the next."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from grouptrail import contracts
from grouptrail.broker_log.status import FollowedFile
from grouptrail.config import Config, load_config
from grouptrail.errors import GrouptrailError
from grouptrail.exporter.families import group_families, momentary_families, pipeline_families
from grouptrail.exporter.text import Family
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.snapshot.reader import Snapshot, SnapshotReader
from grouptrail.snapshot.state import JobState
from support.exporter_tables import (
    LONG_TOPIC,
    OPEN,
    STRANGE,
    commit,
    configured,
    figures,
    lag_row,
    lag_table,
    lay_everything,
    note_followed_files,
    now,
    progress,
)
from support.from_config import snapshot_reader
from support.small_tables import lay


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configured(tmp_path)


def families(snapshot: Snapshot) -> list[Family]:
    return [*group_families(snapshot), *pipeline_families(snapshot, dropped={})]


def figure(config: Config, name: str, reader: SnapshotReader | None = None) -> dict[tuple[str, ...], float]:
    return figures(families((reader or snapshot_reader(config)).read()), name)


def test_families_cover_every_registered_metric_in_order(config: Config) -> None:
    """The metrics at the end of the page are added by the scrape itself."""
    lay_everything(config)
    lay(config, "memberships")
    config = configured(config.warehouse, owner_info=True)
    names = [family.name for family in families(snapshot_reader(config).read())]
    jobs = {"lag": JobState(is_running=True, restarts=0)}
    end = {family.name for family in momentary_families(snapshot_reader(config).read(), errors=0, jobs=jobs)}
    assert names == [name for name in contracts.metrics() if name not in end]
    assert len(names) + len(end) == len(contracts.metrics())


def test_families_values_match_the_tables(config: Config) -> None:
    """Sums, maxima and the worst status of a group; null has no series."""
    lay_everything(config)
    served = families(snapshot_reader(config).read())
    assert figures(served, "kafka_consumer_group_lag") == {
        ("billing", "orders", str(number)): 5 * number for number in range(3)
    }
    assert figures(served, "kafka_consumer_group_topic_lag") == {("billing", "orders"): 15}
    assert figures(served, "kafka_consumer_group_sum_lag") == {("billing",): 15}
    assert figures(served, "kafka_consumer_group_max_lag_seconds") == {("billing",): 3.0}
    assert figures(served, "kafka_consumer_group_status")[(STRANGE, LONG_TOPIC, "0", "UNKNOWN")] == 1
    assert figures(served, "kafka_consumer_group_partitions") == {
        ("billing", "OK"): 1,
        ("billing", "WARN"): 2,
        (STRANGE, "UNKNOWN"): 1,
    }
    assert figures(served, "kafka_consumer_group_group_status") == {("billing", "WARN"): 1, (STRANGE, "UNKNOWN"): 1}
    assert figures(served, "kafka_consumer_group_members") == {("billing",): 2}
    states = figures(served, "kafka_consumer_group_state")
    assert {state for state, value in states.items() if value} == {("billing", "Stable")}
    assert len(states) == 7
    assert figures(served, "kafka_consumer_group_rebalances_total") == {
        ("billing", "group_started"): 1,
        ("billing", "member_joined"): 1,
    }
    assert figures(served, "kafka_consumer_group_partitions_moved_total") == {("billing",): 3}
    assert figures(served, "kafka_consumer_group_offset_commits_total") == {("billing",): 4}
    assert figures(served, "kafka_topic_log_start_offset")[("orders", "2")] == 10
    assert figures(served, "grouptrail_records_total")[("offset_commit", "decoded")] == 9
    assert figures(served, "grouptrail_records_total")[("unknown", "hole")] == 1
    assert figures(served, "grouptrail_last_stable_offset_lag") == {("9",): 2}


def test_deliveries_of_share_groups_are_counted_by_outcome_from_what_changed_since_reading_began(
    config: Config,
) -> None:
    """Of a topic whose name is not known yet nothing is served; other groups have none of these series."""
    shared = {"group_id": "queue", "delivery_complete_count": 3}
    lay(
        config,
        "consumer_lag",
        lag_row(0),
        lag_row(0, **shared, awaiting_redelivery=2, most_deliveries=3),
        lag_row(1, **shared, awaiting_redelivery=1, most_deliveries=1),
    )
    lay(config, "topic_names", {"topic_id": "b3JkZXJz", "topic": "orders"})
    change = {"group_id": "queue", "topic_id": "b3JkZXJz", "record_offset": 1, "partition": 0, "is_first": False}
    lay(
        config,
        "share_deliveries",
        {**change, "delivery_state": "archived", "records": 50, "redeliveries": None, "is_first": True},
        {**change, "delivery_state": "acknowledged", "records": 7, "redeliveries": 0},
        {**change, "delivery_state": "available", "records": 2, "redeliveries": 3, "record_offset": 2},
        {**change, "delivery_state": "acknowledged", "records": 1, "redeliveries": 1, "record_partition": 8},
        {**change, "delivery_state": "acknowledged", "records": 9, "redeliveries": 9, "topic_id": "other"},
    )
    served = families(snapshot_reader(config).read())
    assert figures(served, "kafka_consumer_group_deliveries_total") == {
        ("queue", "orders", "acknowledged"): 8,
        ("queue", "orders", "available"): 2,
    }
    assert figures(served, "kafka_consumer_group_redeliveries_total") == {("queue", "orders"): 4}
    assert figures(served, "kafka_consumer_group_awaiting_redelivery") == {("queue",): 3}
    assert figures(served, "kafka_consumer_group_most_deliveries") == {("queue",): 3}


def test_catch_up_seconds_null_with_known_rates_is_infinite(config: Config) -> None:
    """Null in the table means either never at these rates or unknown: only the latter has null rates."""
    unknown = {"catch_up_seconds": None, "consume_rate": None}
    lay(config, "consumer_lag", lag_row(1, catch_up_seconds=None), lag_row(2, **unknown), lag_row(0))
    assert figure(config, "kafka_consumer_group_catch_up_seconds") == {
        ("billing", "orders", "1"): float("inf"),
        ("billing", "orders", "0"): 0,
    }
    assert figure(config, "kafka_consumer_group_max_catch_up_seconds") == {("billing",): float("inf")}


def test_snapshot_contains_only_the_newest_lag_sample(config: Config) -> None:
    """A partition that is only in older samples has no series."""
    for ago in (60, 40, 0):
        lay(config, "consumer_lag", lag_row(1, lag=ago, sampled_at=now() - timedelta(seconds=ago)))
    lay(config, "consumer_lag", lag_row(2, sampled_at=now() - timedelta(seconds=40)))
    lay(config, "consumer_lag", lag_row(3, sampled_at=now() - timedelta(seconds=9)))
    assert set(figure(config, "kafka_consumer_group_lag").items()) == {
        (("billing", "orders", "1"), 0),
        (("billing", "orders", "3"), 15),
    }


@pytest.mark.parametrize(("interval", "is_kept"), [(10, False), (14, True)])
def test_snapshot_partition_only_in_the_sample_before_has_no_lag(
    tmp_path: Path, interval: float, is_kept: bool
) -> None:
    """How far apart the rows of a sample may be follows the interval between samples."""
    config = load_config(None, {"warehouse": str(tmp_path), "log_offsets.interval_seconds": str(interval)}, {})
    newest = now()
    lay(config, "consumer_lag", lag_row(1, sampled_at=newest))
    lay(config, "consumer_lag", lag_row(2, sampled_at=newest - timedelta(seconds=12)))
    partitions = snapshot_reader(config).read().lag["partition"].to_pylist()
    assert sorted(partitions) == ([1, 2] if is_kept else [1])


def test_snapshot_stale_lag_is_omitted_but_its_time_is_kept(config: Config) -> None:
    """If the sampling job has stopped, its values are omitted and their age is kept."""
    lay(config, "consumer_lag", lag_row(1, sampled_at=now() - timedelta(minutes=20)))
    snapshot = snapshot_reader(config).read()
    assert not len(snapshot.lag)
    assert snapshot.made_at - snapshot.newest["consumer_lag"] == pytest.approx(1200, abs=60)


def test_snapshot_lag_age_is_of_its_own_cluster_even_if_others_have_newer_rows_in_the_same_file(
    config: Config,
) -> None:
    old = now() - timedelta(days=3)
    lay(
        config,
        "consumer_lag",
        *(lag_row(cluster=name) for name in ("another", "the-last")),
        lag_row(sampled_at=old),
    )
    assert snapshot_reader(config).read().newest["consumer_lag"] == pytest.approx(old.timestamp(), abs=1)
    absent = config.model_copy(update={"cluster": "nobody"})
    assert snapshot_reader(absent).read().newest == {}


def test_snapshot_of_a_cluster_that_the_tables_lack_has_no_ages(config: Config) -> None:
    """History that waits for nothing is 0 seconds behind; history of nothing is not."""
    lay_everything(config)
    lay(config, "history_positions", {"processed_to": 10})
    assert snapshot_reader(config).read().newest["history_positions"] == math.inf
    assert snapshot_reader(config.model_copy(update={"cluster": "absent"})).read().newest == {}


def test_snapshot_history_age_is_that_of_the_first_unprocessed_batch(config: Config) -> None:
    """Batches with only commits do not count, nor those of another cluster; a rebuild makes all unprocessed."""
    reader = snapshot_reader(config)

    def waits() -> float | None:
        snapshot = reader.read()
        since = snapshot.newest.get("history_positions")
        return None if since is None else round(max(0.0, snapshot.made_at - since) / 60)

    def batch(start: int, minutes_ago: int, **values: Any) -> dict[str, Any]:
        return progress(start, start + 10, landed_at=now() - timedelta(minutes=minutes_ago), **values)

    lay(config, "ingest_progress", batch(0, 50, group_metadata=1))
    assert waits() is None
    lay(
        config,
        "history_positions",
        {"processed_to": 99, "cluster": "other"},
        {"processed_to": 7, "record_partition": 8},
    )
    assert waits() == 50
    lay(config, "history_positions", {"processed_to": 4})
    lay(config, "ingest_progress", batch(10, 40))
    assert waits() == 0
    lay(config, "ingest_progress", batch(20, 30, group_records=2), batch(0, 20, group_records=1, record_partition=3))
    lay(config, "ingest_progress", batch(30, 10, group_metadata=1), batch(90, 45, cluster="other", group_records=1))
    assert waits() == 30
    lay(config, "history_positions", {"processed_to": 25, "group_id": "payments"})
    assert waits() == 20
    lay(config, "history_positions", {"processed_to": 1, "record_partition": 3}, {"processed_to": 31})
    assert waits() == 0
    positions = warehouse_of(config).table("history_positions").path
    write_deltalake(positions, DeltaTable(positions).to_pyarrow_table().slice(0, 0), mode="overwrite")
    lay(config, "history_positions", {"processed_to": 0, "record_partition": -1})
    assert waits() == 50


def test_snapshot_after_a_start_reads_no_batches_that_history_had_processed(config: Config) -> None:
    for number, minutes_ago in enumerate((50, 40)):
        landed_at = now() - timedelta(minutes=minutes_ago)
        lay(config, "ingest_progress", progress(10 * number, 10 * number + 10, landed_at=landed_at, group_metadata=1))
        if not number:
            files = list(Path(warehouse_of(config).table("ingest_progress").path).glob("*.parquet"))
    lay(config, "history_positions", {"processed_to": 20})
    assert snapshot_reader(config).read().newest["history_positions"] == math.inf
    for file in files:
        file.unlink()
    landed_at = now() - timedelta(minutes=5)
    lay(config, "ingest_progress", progress(20, 30, landed_at=landed_at, group_metadata=1))
    assert snapshot_reader(config).read().newest["history_positions"] == pytest.approx(landed_at.timestamp(), abs=1)


def test_snapshot_ignores_rows_of_other_clusters(config: Config) -> None:
    """Even if their samples are newer and in the same file."""
    other = {"cluster": "other", "group_id": "theirs"}
    lay(config, "consumer_lag", lag_row(1, sampled_at=now() - timedelta(seconds=100)), lag_row(**other))
    lay(config, "offset_commits", commit(0), commit(0, **other))
    lay(config, "ingest_progress", progress(0, 10), progress(0, 99, cluster="other"))
    lay(config, "group_states", {**OPEN, **other, "state": "Stable"})
    assert figure(config, "kafka_consumer_group_lag") == {("billing", "orders", "1"): 5}
    assert figure(config, "kafka_consumer_group_offset_commits_total") == {("billing",): 1}
    assert figure(config, "grouptrail_records_total")[("offset_commit", "decoded")] == 9
    assert figure(config, "kafka_consumer_group_state") == {}


def test_snapshot_dead_group_has_no_series_unless_its_lag_is_sampled_later(config: Config) -> None:
    """Its counters disappear too. A client without members may commit to a group of this name afterwards."""
    lay_everything(config)
    reader = snapshot_reader(config)
    assert ("billing",) in figure(config, "kafka_consumer_group_offset_commits_total", reader)
    write_deltalake(warehouse_of(config).table("group_states").path, _dead(config), mode="overwrite")
    later = reader.read(lag_table(lag_row()))
    assert ("billing",) in figures(families(later), "kafka_consumer_group_offset_commits_total")
    served = families(snapshot_reader(config).read())
    for name in (
        "group_status",
        "sum_lag",
        "state",
        "members",
        "info",
        "rebalances_total",
        "offset_commits_total",
        "rebalance_interval_seconds",
    ):
        family = next(family for family in served if family.name == f"kafka_consumer_group_{name}")
        assert "billing" not in family.rows["group"].to_pylist()


def _dead(config: Config) -> pa.Table:
    rows = pa.table(DeltaTable(warehouse_of(config).table("group_states").path).to_pyarrow_table())
    return rows.set_column(rows.column_names.index("state"), "state", pa.array(["Dead"] * len(rows)))


def test_snapshot_published_lag_grows_older_where_records_wait(config: Config) -> None:
    """Also for a position with a single sample, whose lower bound was 0."""
    ago = {"sampled_at": now() - timedelta(seconds=11), "lag_seconds": 0.0, "lag_seconds_error": None}
    caught_up = lag_row(0, sampled_at=ago["sampled_at"], lag_seconds=0.0)
    snapshot = snapshot_reader(config).read(lag_table(lag_row(7, **ago), caught_up))
    seconds = figures(families(snapshot), "kafka_consumer_group_lag_seconds")
    assert seconds == {("billing", "orders", "7"): pytest.approx(11, abs=5), ("billing", "orders", "0"): 0}
    assert figures(families(snapshot), "kafka_consumer_group_lag_error_seconds") == {
        ("billing", "orders", "7"): float("inf"),
        ("billing", "orders", "0"): 1,
    }
    assert figures(families(snapshot), "kafka_consumer_group_max_lag_error_seconds") == {("billing",): float("inf")}
    old = lag_table(lag_row(7, **ago | {"sampled_at": now() - timedelta(seconds=100)}))
    seconds = figures(families(snapshot_reader(config).read(old)), "kafka_consumer_group_lag_seconds")
    assert seconds == {("billing", "orders", "7"): 2 * config.log_offsets.interval_seconds}


def test_snapshot_between_two_reads_of_the_tables_has_the_published_lag(config: Config) -> None:
    lay_everything(config)
    reader = snapshot_reader(config)
    reader.read(lag_table(lag_row(4)))
    lay(config, "group_states", {**OPEN, "group_id": "fresh", "state": "Stable"})
    between = reader.read(lag_table(lag_row(5)), reads_tables=False)
    assert between.lag["partition"].to_pylist() == [5]
    assert "fresh" not in between.groups["group_id"].to_pylist()
    assert "fresh" in reader.read(lag_table(lag_row(5))).groups["group_id"].to_pylist()


def test_snapshot_stored_lag_is_as_of_its_sample(config: Config) -> None:
    """The group may have committed since, which only the lag job knows."""
    lay(config, "consumer_lag", lag_row(2, sampled_at=now() - timedelta(seconds=11)))
    assert figure(config, "kafka_consumer_group_lag_seconds") == {("billing", "orders", "2"): 3.0}


def test_last_stable_offset_lag_is_that_of_the_newest_sample_of_the_logs(config: Config) -> None:
    """Not that of the partition's last batch: behind an open transaction no batch lands."""
    lay(config, "ingest_progress", progress(0, 10), progress(0, 5, record_partition=3))
    offsets = {"topic": "__consumer_offsets", "partition": 9, "asked_at": now(), "log_start_offset": 0}
    held = offsets | {"last_stable_offset": 10, "log_end_offset": 444}
    reader = snapshot_reader(config)

    def held_back(seconds_ago: float, *rows: dict[str, Any]) -> tuple[dict[Any, float], dict[Any, float]]:
        time = {"sampled_at": now() - timedelta(seconds=seconds_ago)}
        lay(config, "log_offsets", *({**row, **time} for row in [{"topic": "orders"}, *rows]))
        served = families(reader.read())
        return tuple(figures(served, f"grouptrail_last_stable_offset{name}") for name in ("_lag", ""))  # type: ignore[return-value]

    assert held_back(3600, held) == ({("9",): 2, ("3",): 2}, {})
    assert held_back(20, held) == ({("9",): 434, ("3",): 0}, {("9",): 10})
    assert held_back(10, held | {"last_stable_offset": None, "error": "silent"}) == ({("3",): 0}, {})
    assert held_back(0) == ({("9",): 0, ("3",): 0}, {})


def log_row(seconds_ago: float, error: str | None = None, **values: Any) -> dict[str, Any]:
    end = None if error else 100
    offsets = dict.fromkeys(("log_start_offset", "last_stable_offset", "log_end_offset"), end)
    return {
        "topic": "orders",
        "sampled_at": now() - timedelta(seconds=seconds_ago),
        "error": error,
        **offsets,
        **values,
    }


SILENT = "broker 1 did not answer"


def test_snapshot_while_no_broker_answers_has_the_age_of_the_last_answer_and_is_not_ready(config: Config) -> None:
    lay(config, "ingest_progress", progress(0, 10))
    lay(config, "log_offsets", log_row(600), log_row(600, SILENT, partition=1))
    lay(config, "consumer_lag", lag_row(sampled_at=now() - timedelta(seconds=600)))
    reader = snapshot_reader(config)
    reader.read()
    for seconds_ago in (20, 10):
        lay(config, "log_offsets", *(log_row(seconds_ago, SILENT, partition=number) for number in range(2)))
        unknown = lag_row(lag=None, lag_seconds=None, log_end_offset=None, status="UNKNOWN")
        lay(config, "consumer_lag", unknown | {"sampled_at": now() - timedelta(seconds=seconds_ago)})
        for silent in (reader.read(), snapshot_reader(config).read()):
            assert silent.made_at - silent.newest["consumer_lag"] == pytest.approx(600, abs=5)
            assert str(silent.not_ready).startswith("no broker has returned log offsets since ")
            assert f"UTC ({SILENT}): " in str(silent.not_ready)
            served = families(silent)
            assert figures(served, "grouptrail_last_stable_offset_lag") == {}
            assert figures(served, "kafka_consumer_group_lag_seconds") == {}
            assert figures(served, "grouptrail_ready") == {(): 0}
    lay(config, "log_offsets", log_row(0, partition=1), log_row(0, SILENT))
    lay(config, "consumer_lag", lag_row())
    answered = reader.read()
    assert answered.not_ready is None
    assert answered.made_at - answered.newest["consumer_lag"] == pytest.approx(0, abs=5)


def test_snapshot_before_any_broker_has_answered_has_no_age_of_lag(config: Config) -> None:
    lay(config, "ingest_progress", progress(0, 10))
    lay(config, "log_offsets", log_row(10, "the brokers refuse this principal"))
    lay(config, "consumer_lag", lag_row(lag=None, status="UNKNOWN"))
    snapshot = snapshot_reader(config).read()
    assert "consumer_lag" not in snapshot.newest
    assert str(snapshot.not_ready).startswith("no broker has returned log offsets yet (the brokers refuse")


def test_snapshot_while_the_jobs_wait_for_a_broker_has_the_past_but_no_lag(config: Config) -> None:
    """Absent rather than zero, however new the last sample is; the age of the last answer rises."""
    lay_everything(config)
    lay(config, "log_offsets", log_row(30))
    reader = snapshot_reader(config)
    assert reader.read().not_ready is None
    waiting = reader.read(outage="no Kafka broker answers at k:9092: start it")
    assert str(waiting.not_ready).startswith(
        "no Kafka broker answers at k:9092: start it; no broker has returned log offsets since "
    )
    assert waiting.made_at - waiting.newest["consumer_lag"] == pytest.approx(30, abs=5)
    served = families(waiting)
    for name in ("kafka_consumer_group_lag", "kafka_consumer_group_sum_lag", "kafka_consumer_group_group_status"):
        assert figures(served, name) == {}
    assert figures(served, "grouptrail_last_stable_offset_lag") == {}
    assert figures(served, "grouptrail_ready") == {(): 0}
    assert figures(served, "kafka_consumer_group_members") == {("billing",): 2}
    again = reader.read()
    assert again.not_ready is None
    assert figures(families(again), "kafka_consumer_group_sum_lag") == {("billing",): 15}


def test_snapshot_of_topics_that_brokers_say_were_deleted_is_ready(config: Config) -> None:
    lay(config, "ingest_progress", progress(0, 10))
    lay(config, "log_offsets", log_row(10, "no such topic"), log_row(10, "topic deleted", partition=1))
    lay(config, "consumer_lag", lag_row(lag=None, status="UNKNOWN"))
    snapshot = snapshot_reader(config).read()
    assert snapshot.not_ready is None
    assert "consumer_lag" in snapshot.newest


def test_snapshot_lag_argument_replaces_the_table(config: Config) -> None:
    """The other tables are read as usual."""
    lay_everything(config)
    snapshot = snapshot_reader(config).read(lag_table(lag_row(7)))
    assert figures(families(snapshot), "kafka_consumer_group_lag") == {("billing", "orders", "7"): 35}
    assert figures(families(snapshot), "kafka_consumer_group_members") == {("billing",): 2}
    with pytest.raises(GrouptrailError, match="without status: hand over all columns"):
        snapshot_reader(config).read(lag_table(lag_row()).drop_columns("status"))


def test_counters_rise_with_the_tables_and_are_equal_after_restart(config: Config) -> None:
    """A reader reads each file once; a new reader counts all of them."""
    name = "kafka_consumer_group_offset_commits_total"
    lay_everything(config)
    reader = snapshot_reader(config)
    assert figure(config, name, reader) == {("billing",): 4}
    lay(config, "offset_commits", *(commit(offset) for offset in (6, 7)))
    lay(config, "ingest_progress", progress(10, 20))
    assert figure(config, name, reader) == figure(config, name) == {("billing",): 6}
    assert figure(config, "grouptrail_records_total", reader)[("offset_commit", "decoded")] == 18


def test_commits_counter_optimize_and_delete_do_not_change_it(config: Config) -> None:
    """OPTIMIZE combines files, and rows deleted by retention do not lower the counter."""
    name = "kafka_consumer_group_offset_commits_total"
    lay_everything(config)
    reader = snapshot_reader(config)
    assert figure(config, name, reader) == {("billing",): 4}
    table = DeltaTable(warehouse_of(config).table("offset_commits").path)
    table.optimize.compact()
    assert figure(config, name, reader) == {("billing",): 4}
    table.delete("record_offset < 2")
    lay(config, "offset_commits", commit(6))
    assert figure(config, name, reader) == {("billing",): 5}


def test_records_counter_batch_with_earlier_landed_at_is_counted(config: Config) -> None:
    """New batches are recognized by their offsets, not by `landed_at`."""
    lay(config, "ingest_progress", progress(0, 10))
    reader = snapshot_reader(config)
    reader.read()
    lay(config, "ingest_progress", progress(10, 20, landed_at=now() - timedelta(hours=1)))
    assert figure(config, "grouptrail_records_total", reader)[("offset_commit", "decoded")] == 18


def test_rebalances_counter_deleted_rows_do_not_lower_it(config: Config) -> None:
    """As long as the process runs; new rows are added to the count."""
    name = "kafka_consumer_group_rebalances_total"
    lay_everything(config)
    reader = snapshot_reader(config)
    before = figure(config, name, reader)
    DeltaTable(warehouse_of(config).table("rebalances").path).delete("cause = 'group_started'")
    assert figure(config, name, reader) == before
    lay(config, "rebalances", {"cause": "group_started"}, {"cause": "member_left", "at": now()})
    assert figure(config, name, reader) == {**before, ("billing", "group_started"): 2, ("billing", "member_left"): 1}


def test_commits_counter_recreated_table_is_counted_from_zero(config: Config, tmp_path: Path) -> None:
    """Its records begin at offset 0 again."""
    name = "kafka_consumer_group_offset_commits_total"
    lay_everything(config)
    reader = snapshot_reader(config)
    figure(config, name, reader)
    lay(configured(tmp_path / "new"), "offset_commits", commit(0))
    (tmp_path / "offset_commits").rename(tmp_path / "before")
    (tmp_path / "new" / "offset_commits").rename(tmp_path / "offset_commits")
    figures: dict[tuple[str, ...], float] = {}
    for _ in range(3):
        try:
            figures = figure(config, name, reader)
        except GrouptrailError:
            continue
    assert figures == {("billing",): 1}


def test_rebalance_interval_histogram_bounds_are_inclusive(config: Config) -> None:
    intervals = [0.5, 10.0, 11.0, 60.0, 86401.0, None]
    lay(config, "group_states", {**OPEN, "state": "Stable"})
    lay(config, "rebalances", *({"cause": "unknown", "seconds_since_previous": apart} for apart in intervals))
    served = families(snapshot_reader(config).read())
    rows = next(family.rows for family in served if family.buckets).to_pylist()
    assert rows == [
        {"group": "billing", "le_0": 2, "le_1": 2, "le_2": 0, "le_3": 0, "le_4": 0, "le_5": 1, "seconds": 86482.5}
    ]


def test_expectation_failures_are_those_of_the_newest_check(config: Config) -> None:
    """`grouptrail check` writes check_results; without the table there is no series."""
    assert figure(config, "grouptrail_expectation_failures") == {}
    rows = [("a", 5, False), ("a", 0, True), ("a", 0, False), ("b", 0, True)]
    table = {
        "cluster": ["default"] * len(rows),
        "table_name": [name for name, _, _ in rows],
        "success": [success for _, _, success in rows],
        "checked_at": [now().replace(microsecond=0) - timedelta(hours=ago) for _, ago, _ in rows],
    }
    table["checked_at"][1:] = [max(table["checked_at"])] * 3  # type: ignore[type-var]
    write_deltalake(warehouse_of(config).table("check_results").path, pa.table(table))
    assert figure(config, "grouptrail_expectation_failures") == {("a",): 1, ("b",): 0}


# --- ready --------------------------------------------------------------------------------------------------


def test_snapshot_not_ready_until_the_initial_backlog_is_read(config: Config) -> None:
    """Records written in the meantime do not make it unready again."""
    reader = snapshot_reader(config)
    assert "nothing of __consumer_offsets has landed" in str(reader.read().not_ready)
    lay(config, "ingest_progress", progress(0, 10, stable=1_500), progress(0, 5, record_partition=3))
    assert reader.read().not_ready == "1,490 records of __consumer_offsets have not been read"
    lay(config, "ingest_progress", progress(10, 1_499, stable=2_000))
    assert reader.read().not_ready == "1 records of __consumer_offsets have not been read"
    lay(config, "ingest_progress", progress(1_499, 1_600, stable=2_000))
    assert reader.read().not_ready is None
    lay(config, "ingest_progress", progress(1_600, 1_700, stable=900_000))
    snapshot = reader.read()
    assert snapshot.not_ready is None
    assert figures(families(snapshot), "grouptrail_source_backlog_records") == {("9",): 898_300, ("3",): 0}


def test_snapshot_of_an_absent_cluster_is_not_ready_and_names_the_others_unless_it_is_being_read(
    config: Config,
) -> None:
    lay(config, "ingest_progress", progress(0, 10))
    absent = config.model_copy(update={"cluster": "new"})
    others = 'the warehouse has no cluster "new": it has "default"; set --cluster'
    assert snapshot_reader(absent).read().not_ready == others
    assert "has landed" in str(snapshot_reader(absent, lag_since=now()).read().not_ready)


def test_snapshot_is_not_ready_until_lag_is_sampled_since_the_start(config: Config) -> None:
    """The previous run's lag is served in the meantime; without any commit there is no lag to wait for."""
    reader = snapshot_reader(config, lag_since=now())
    lay(config, "ingest_progress", progress(0, 10))
    assert snapshot_reader(config, lag_since=now()).read().not_ready is None
    lay(config, "offset_commits", commit(0))
    why = "lag is not sampled yet since the start: what is served is of the run before"
    assert reader.read().not_ready == why
    lay(config, "consumer_lag", lag_row(1, sampled_at=now() - timedelta(seconds=25)))
    snapshot = reader.read()
    assert (len(snapshot.lag), snapshot.not_ready) == (1, why)
    assert reader.read(lag_table(lag_row(1, sampled_at=now() - timedelta(seconds=9)))).not_ready == why
    assert reader.read(lag_table(lag_row(1))).not_ready is None


def test_snapshot_with_only_stale_lag_samples_is_not_ready(config: Config) -> None:
    """The pipeline was stopped for hours: that it had read everything then does not make it current."""
    lay(config, "ingest_progress", progress(0, 10))
    lay(config, "consumer_lag", lag_row(sampled_at=now() - timedelta(hours=3)))
    reader = snapshot_reader(config)
    assert "start `grouptrail run`" in str(reader.read().not_ready)
    lay(config, "consumer_lag", lag_row())
    assert reader.read().not_ready is None


def test_snapshot_partition_seen_later_is_part_of_the_initial_backlog(config: Config) -> None:
    """A first batch that is limited in size may omit whole partitions."""
    reader = snapshot_reader(config)
    lay(config, "ingest_progress", progress(0, 10, stable=20))
    assert reader.read().not_ready is not None
    lay(config, "ingest_progress", progress(10, 20), progress(0, 5, stable=50, record_partition=3))
    assert reader.read().not_ready == "45 records of __consumer_offsets have not been read"


def test_snapshot_unknown_log_end_is_ready_without_backlog_series(config: Config) -> None:
    """The backlog is unknown, not 0, and does not delay readiness."""
    unknown: dict[str, Any] = {"last_stable_offset": None, "log_end_offset": None}
    lay(config, "ingest_progress", progress(0, 10, **unknown))
    snapshot = snapshot_reader(config).read()
    assert snapshot.not_ready is None
    assert figures(families(snapshot), "grouptrail_source_backlog_records") == {}


# --- bad input ----------------------------------------------------------------------------------------------


def test_snapshot_without_tables_has_no_group_series(config: Config) -> None:
    """Every family is present, but without series of groups."""
    snapshot = snapshot_reader(config).read()
    assert sum(family.series for family in group_families(snapshot)) == 0
    assert {family.name for family in families(snapshot)} < set(contracts.metrics())


@pytest.mark.parametrize("name", ["consumer_lag", "group_states", "generations", "rebalances", "offset_commits"])
def test_snapshot_table_lacking_a_column_raises_one_line_error(config: Config, name: str) -> None:
    """The message names the missing column and what adds it."""
    write_deltalake(
        warehouse_of(config).table(name).path, pa.table({"cluster": ["default"], "group_id": ["billing"]})
    )
    with pytest.raises(
        GrouptrailError, match=rf"{name} cannot be read \(it has no column \w+\): `grouptrail run`"
    ) as caught:
        snapshot_reader(config).read()
    assert "\n" not in str(caught.value)


def test_snapshot_unreadable_table_raises_one_line_error_and_is_retried(config: Config, tmp_path: Path) -> None:
    """It is read again once it is a table."""
    log = tmp_path / "consumer_lag" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("{no json")
    reader = snapshot_reader(config)
    with pytest.raises(GrouptrailError, match="cannot be read") as caught:
        reader.read()
    assert "\n" not in str(caught.value)
    (log / "00000000000000000000.json").unlink()
    lay(config, "consumer_lag", lag_row(1))
    assert figure(config, "kafka_consumer_group_lag", reader) == {("billing", "orders", "1"): 5}


def test_followed_files_have_figures_while_the_job_runs(config: Config) -> None:
    """What is not known of a file has no series: it is never 0."""
    lay_everything(config)
    gone = FollowedFile("/logs/gone.log", lines=4, events=2, unmatched=1, malformed=1, problem="the file is gone")
    note_followed_files(config, FollowedFile(STRANGE, 9, 3, 2, 1, 77, 10.5), gone)
    log = {
        name: figure(config, f"grouptrail_broker_log_{name}")
        for name in (
            "readable",
            "lines_total",
            "unmatched_lines_total",
            "unread_bytes",
            "last_line_timestamp_seconds",
        )
    }
    assert log == {
        "readable": {(STRANGE,): 1, ("/logs/gone.log",): 0},
        "lines_total": {(STRANGE,): 9, ("/logs/gone.log",): 4},
        "unmatched_lines_total": {(STRANGE,): 2, ("/logs/gone.log",): 1},
        "unread_bytes": {(STRANGE,): 77},
        "last_line_timestamp_seconds": {(STRANGE,): 10.5},
    }
    note_followed_files(config, gone, at=now() - timedelta(minutes=10))
    names = {family.name for family in families(snapshot_reader(config).read())}
    assert not any(name.startswith("grouptrail_broker_log_") for name in names)

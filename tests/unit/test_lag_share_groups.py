"""Lag of share groups, from the records of their state: what was read, of which topics, also after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.config import Config
from grouptrail.kafka.coordinator import coordinator_partition
from grouptrail.lag.positions import from_progress
from grouptrail.lag.shard import Shard
from grouptrail.lag.state import LagState
from grouptrail.log_offsets.committed import SharedPartitions
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.share_progress import PROGRESS, ShareProgress
from grouptrail.storage.warehouse import Warehouse
from support import lag_samples, small_tables
from support.contexts import lag_inputs
from support.lag_cluster import empty_tables
from support.lag_samples import LOGS, Row, add_sample, at, commit, new_calculator

ORDERS, ORDERS_AGAIN, PAYMENTS = "b3JkZXJzb3JkZXJzb3JkZQ", "YWdhaW5hZ2FpbmFnYWluYQ", "cGF5bWVudHNwYXltZW50cw"
NO_COUNT = (
    "the share coordinator does not count the records that are complete: upgrade the brokers to Kafka 4.2 or later"
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = empty_tables(tmp_path)
    name(config, ORDERS, "orders")
    return config


def name(config: Config, topic_id: str, topic: str, seconds: float = 0) -> None:
    """Let the name of a topic be known."""
    row = {"topic_id": topic_id, "topic": topic, "learned_from": "broker", "learned_at": at(seconds)}
    small_tables.lay(config, "topic_names", row)


def state(config: Config, seconds: float, start_offset: int | None, complete: int | None = 0, **more: Any) -> None:
    """Store a record of the state of group queue in orders-0."""
    row = {
        "group_id": "queue",
        "topic_id": ORDERS,
        "partition": 0,
        "record_partition": 3,
        "record_offset": round(seconds * 10) + 10_000,
        "record_at": at(seconds),
        "read_at": at(seconds),
        "record_type": "update",
        "start_offset": start_offset,
        "delivery_complete_count": complete,
        "is_tombstone": False,
    }
    small_tables.lay(config, "share_group_state", row | more)


def polled(config: Config, seconds: float, start_offset: int | None, *complete: int, **more: Any) -> None:
    """Store what a poll found of group queue in orders-0: what is complete, at least and at most."""
    least, most = complete or (None, None)
    row = {
        "group_id": "queue",
        "topic": "orders",
        "partition": 0,
        "polled_at": at(seconds),
        "outcome": "returned",
        "topic_id": ORDERS,
        "start_offset": start_offset,
        "delivery_complete_count": least,
        "delivery_complete_most": most,
        "changed_at": at(seconds),
    }
    small_tables.lay(config, "share_group_offsets", row | more)


def log(seconds: float, end: int, **more: Any) -> Row:
    return lag_samples.log(seconds, end, cluster="default", **more)


def new_state(config: Config, shard: Shard | None = None) -> LagState:
    return LagState(lag_inputs(config), lambda _: None, *([shard] if shard else []))


def lag_of(lag: LagState, config: Config, *logs: Row) -> list[Row]:
    """Return the rows of a batch of these samples, and store both as the jobs do."""
    rows = pa.Table.from_pylist(list(logs), LOGS)
    write_deltalake(warehouse_of(config).table("log_offsets").path, rows, mode="append")
    computed = lag.lag(rows)
    write_deltalake(warehouse_of(config).table("consumer_lag").path, computed, mode="append")
    return [dict(row) for row in computed.to_pylist()]


def progress_of(config: Config) -> ShareProgress:
    return ShareProgress(warehouse_of(config))


def said(progress: ShareProgress) -> list[tuple[Any, ...]]:
    rows = progress.fresh().to_pylist()
    return [(row["topic"], row["partition"], row["start_offset"], row["is_tombstone"]) for row in rows]


# --- what the records say ----------------------------------------------------------------------------------------


def test_progress_has_each_record_once_in_their_order_with_the_start_offset_in_effect(config: Config) -> None:
    progress = progress_of(config)
    state(config, 2, 60)
    state(config, 1, 50)
    state(config, 3, None)
    assert said(progress) == [("orders", 0, 50, False), ("orders", 0, 60, False), ("orders", 0, 60, False)]
    assert said(progress) == []
    state(config, 4, None, is_tombstone=True)
    assert said(progress) == [("orders", 0, None, True)]
    assert progress.partitions() == {}
    state(config, 5, None)  # a new state, of which nothing has been read yet
    assert said(progress) == []


def test_progress_of_a_topic_waits_for_its_name(config: Config) -> None:
    progress = progress_of(config)
    state(config, 1, 7, topic_id=PAYMENTS)
    state(config, 2, 9, topic_id=PAYMENTS)
    assert (said(progress), progress.partitions()) == ([], {})
    name(config, PAYMENTS, "payments")
    assert said(progress) == [("payments", 0, 7, False), ("payments", 0, 9, False)]
    assert progress.partitions() == {"payments": [0]}


def test_progress_of_a_topic_that_was_created_again_is_not_deleted_with_the_state_of_the_old_one(
    config: Config,
) -> None:
    """Their keys differ, and may be in other partitions of the topic."""
    progress = progress_of(config)
    name(config, ORDERS_AGAIN, "orders", 1)
    state(config, 1, 50)
    state(config, 2, 0, topic_id=ORDERS_AGAIN, record_partition=1, record_offset=4)
    state(config, 3, None, is_tombstone=True)
    assert said(progress) == [("orders", 0, 50, False), ("orders", 0, 0, False)]
    assert progress.partitions() == {"orders": [0]}


def test_progress_has_nothing_of_other_clusters_or_of_a_place_of_which_no_record_could_be_decoded(
    config: Config,
) -> None:
    state(config, 1, None, reason="truncated", fault_in="value", fault_position=3)
    state(config, 1, None, reason="truncated", fault_in="key", fault_position=3, topic_id=None)
    state(config, 2, 50, cluster="another")
    assert said(progress_of(config)) == []


def test_start_offset_after_a_record_that_could_not_be_decoded_is_that_of_the_next_one_that_has_it(
    config: Config,
) -> None:
    """An update without one leaves the offset of the record before, which is not known."""
    progress = progress_of(config)
    state(config, 1, 50)
    state(config, 2, None, None, reason="unknown_version")
    state(config, 3, None)
    state(config, 4, 70)
    counts = [(row["start_offset"], row["delivery_complete_count"]) for row in progress.fresh().to_pylist()]
    assert counts == [(50, 0), (50, None), (70, 0)]


def test_progress_is_that_of_polls_until_they_are_superseded_also_after_a_restart(config: Config) -> None:
    """Records that were written while they could not be read count then, of which only the last does."""
    progress = progress_of(config)
    state(config, 1, 50)
    assert said(progress) == [("orders", 0, 50, False)]
    polled(config, 5, 70, 0, 0)
    assert said(progress) == [("orders", 0, 70, False)]
    state(config, 2, 60)
    state(config, 4, 70)
    assert said(progress) == []
    assert said(progress_of(config))[-1] == ("orders", 0, 70, False)
    state(config, 6, 80)
    polled(config, 7, None, outcome="superseded")
    assert said(progress) == [("orders", 0, 80, False)]
    assert said(progress_of(config))[-1] == ("orders", 0, 80, False)
    state(config, 8, 90)
    assert said(progress) == [("orders", 0, 90, False)]


def test_progress_of_a_group_that_polls_do_not_find_any_more_is_gone_whatever_records_said_before(
    config: Config,
) -> None:
    state(config, 1, 50)
    polled(config, 5, 70, 0, 0)
    polled(config, 6, None, outcome="gone")
    progress = progress_of(config)
    assert said(progress)[-1] == ("orders", 0, None, True)
    assert progress.partitions() == {}
    polled(config, 7, 0, 0, 0)
    assert said(progress) == [("orders", 0, 0, False)]
    assert progress.partitions() == {"orders": [0]}
    polled(config, 8, None, outcome="gone")
    polled(config, 9, None, outcome="superseded")
    assert said(progress) == [("orders", 0, None, True), ("orders", 0, 50, False)]


def test_partitions_of_share_groups_are_sampled_once_there_are_tables(config: Config, tmp_path: Path) -> None:
    assert SharedPartitions(Warehouse(str(tmp_path / "new"), "default")).partitions() == {}
    shared = SharedPartitions(warehouse_of(config))
    state(config, 1, 50)
    state(config, 1, 50, partition=2, record_partition=0)
    assert shared.partitions() == {"orders": [0, 2]}
    state(config, 2, None, is_tombstone=True)
    assert shared.partitions() == {"orders": [2]}


# --- lag ---------------------------------------------------------------------------------------------------------


def test_lag_of_a_share_group_is_what_is_neither_before_the_start_offset_nor_complete(config: Config) -> None:
    """As Kafka's own tool computes it (KIP-1226)."""
    state(config, -5, 50, 30)
    [row] = lag_of(new_state(config), config, log(0, 110))
    assert (row["group_id"], row["committed_offset"], row["delivery_complete_count"]) == ("queue", 50, 30)
    assert (row["lag"], row["lost_records"], row["problem"]) == (30, 0, None)


def test_lag_of_a_share_group_whose_coordinator_counts_nothing_is_unknown(config: Config) -> None:
    state(config, -5, 50, None)
    [row] = lag_of(new_state(config), config, log(0, 110))
    assert (row["lag"], row["status"], row["problem"]) == (None, "UNKNOWN", NO_COUNT)
    assert (row["committed_offset"], row["delivery_complete_count"]) == (50, None)


def test_lag_of_a_share_group_whose_newest_record_could_not_be_decoded_is_unknown(config: Config) -> None:
    """As when upgraded brokers write a newer version: it must not look as if the group had stopped."""
    lag = new_state(config)
    state(config, -5, 50, 30)
    state(config, -4, None, None, reason="unknown_version", fault_in="value", fault_position=0)
    [row] = lag_of(lag, config, log(0, 110))
    assert (row["lag"], row["status"], row["delivery_complete_count"]) == (None, "UNKNOWN", None)
    assert row["problem"].startswith(
        "the newest record of __share_group_state about it could not be decoded: upgrade"
    )
    state(config, 5, 60, 40)
    [row] = lag_of(lag, config, log(10, 110))
    assert (row["lag"], row["problem"]) == (10, None)


def test_lag_of_a_polled_share_group_is_kafkas_and_says_by_how_much_it_may_be_too_high(config: Config) -> None:
    """What came back is not known; the age may be off by the interval of polls, too."""
    polled(config, 0, 50, 20, 20)
    polled(config, 0, 10, 0, 7, partition=1)
    rows = lag_of(new_state(config), config, log(1, 100), log(1, 100, partition=1))
    names = ("lag", "lag_error", "delivery_complete_count", "awaiting_redelivery", "most_deliveries", "problem")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (30, 0, 20, None, None, None),
        (90, 7, 0, None, None, None),
    ]


def test_lag_of_a_share_group_of_records_has_no_error_of_polls(config: Config) -> None:
    state(config, 0, 50, 20)
    [row] = lag_of(new_state(config), config, log(1, 100))
    assert (row["lag"], row["lag_error"]) == (30, None)


def test_lag_of_a_polled_share_group_without_a_count_is_unknown(config: Config) -> None:
    polled(config, 0, 50)
    [row] = lag_of(new_state(config), config, log(1, 100))
    assert (row["committed_offset"], row["lag"], row["lag_error"], row["problem"]) == (50, None, None, NO_COUNT)


def test_lag_in_seconds_of_a_polled_share_group_may_be_off_by_the_interval_of_its_polls(config: Config) -> None:
    lag = new_state(config)
    for seconds, end in ((0, 100), (10, 101), (20, 200)):
        lag_of(lag, config, log(seconds, end), log(seconds, end, partition=1))
    state(config, 25, 100, 99)
    polled(config, 25, 100, 99, 99, partition=1)
    recorded, of_poll = lag_of(lag, config, log(40, 200), log(40, 200, partition=1))
    assert of_poll["lag_seconds"] == recorded["lag_seconds"]
    assert of_poll["lag_seconds_error"] == recorded["lag_seconds_error"] + 10


def test_status_of_a_polled_share_group_is_stop_although_polls_of_a_busy_log_differ(config: Config) -> None:
    """Rows come with each poll; the time at which the group got further stays the same."""
    lag = new_state(config)
    for seconds in range(0, 400, 10):
        polled(config, seconds, 50, 20, 20 + seconds % 30, changed_at=at(0))
        [row] = lag_of(lag, config, log(seconds, 100 + seconds))
    assert (row["status"], row["commit_at"]) == ("STOP", at(0))


def test_lag_of_a_share_group_beside_a_consumer_group_leaves_that_as_it_is(config: Config) -> None:
    offset = {"topic": "orders", "partition": 0, "committed_offset": 100, "is_tombstone": False}
    small_tables.lay(config, "offset_commits", {**offset, "record_at": at(-5), "commit_at": at(-5)})
    alone = lag_of(new_state(config), config, log(0, 150))
    state(config, -5, 50, 30)
    rows = lag_of(new_state(config), config, log(10, 150))
    assert [(row["group_id"], row["lag"]) for row in rows] == [("billing", 50), ("queue", 70)]
    same = alone[0].keys() - {"sampled_at"}
    assert {name: rows[0][name] for name in same if "rate" not in name and "seconds" not in name} == {
        name: alone[0][name] for name in same if "rate" not in name and "seconds" not in name
    }


def test_lag_in_seconds_of_a_share_group_is_the_age_of_the_record_at_its_start_offset(config: Config) -> None:
    """Records after it may have been processed long before it."""
    lag = new_state(config)
    state(config, -5, 100, 0)
    lag_of(lag, config, log(0, 100))
    lag_of(lag, config, log(10, 101))
    lag_of(lag, config, log(20, 200))
    state(config, 25, 100, 99)
    [row] = lag_of(lag, config, log(40, 200))
    assert (row["lag"], row["lag_seconds_method"]) == (1, "observed")
    assert abs(row["lag_seconds"] - 35) <= row["lag_seconds_error"]


def test_status_of_a_share_group_is_stop_where_nothing_is_acknowledged_while_records_wait(config: Config) -> None:
    lag = new_state(config)
    state(config, -5, 50, 0)
    found = [lag_of(lag, config, log(seconds, 100 + seconds))[0]["status"] for seconds in range(0, 700, 20)]
    assert (found[0], found[-1]) == ("OK", "STOP")


def test_status_of_a_share_group_is_warn_while_a_record_comes_back_again_and_others_are_done(config: Config) -> None:
    lag, found = new_state(config), []
    for number in range(20):
        came_back = {"awaiting_redelivery": 1, "most_deliveries": 1 + number // 5, "most_delivered_offset": 57}
        state(config, number * 20 - 1, 50, 7 + number, **came_back)
        [row] = lag_of(lag, config, log(number * 20, 58 + number))
        found.append((row["most_deliveries"], row["status"], row["rule"]))
    assert found[4] == (1, "OK", "KEPT_UP")
    assert set(found[5:]) == {(count, "WARN", "REDELIVERED") for count in (2, 3, 4)}
    assert (row["awaiting_redelivery"], row["most_delivered_offset"], row["status_reason"]) == (
        1,
        57,
        "offset 57 was delivered 4 times and came back each time; 1 wait for another delivery, 1 unread",
    )


def test_status_of_a_share_group_whose_records_all_come_back_is_stall_once_nothing_was_done_for_long(
    config: Config,
) -> None:
    lag, found = new_state(config), []
    for number in range(20):
        came_back = {"awaiting_redelivery": 9, "most_deliveries": number, "most_delivered_offset": 50}
        state(config, number * 20 - 1, 50, 0, **came_back)
        [row] = lag_of(lag, config, log(number * 20, 59))
        found.append(row["status"])
    assert (found[2], found[-1]) == ("WARN", "STALL")
    assert row["status_reason"] == "nothing completed from offset 50 for 380 s, 9 unread"


def test_reason_of_a_share_group_speaks_of_acknowledgements(config: Config) -> None:
    lag = new_state(config)
    state(config, -5, 50, 0)
    rows = [lag_of(lag, config, log(seconds, 100 + seconds))[0] for seconds in range(0, 700, 20)]
    assert rows[-1]["status_reason"].startswith("nothing acknowledged or returned for 685 s, 730 unread")


def test_status_of_a_share_group_with_a_record_that_nobody_can_process_is_not_a_clients_habit(config: Config) -> None:
    """One record is left at every pause: it waits, and is no commit of the last offset."""
    lag, statuses = new_state(config), []
    for number in range(8):
        begin = number * 120
        state(config, begin, 50, 10 * number)
        for seconds in range(0, 120, 20):
            [row] = lag_of(lag, config, log(begin + seconds + 1, 51 + 10 * number))
            statuses.append((row["pauses_with_one_left"], row["readable_lag"]))
    assert set(statuses) == {(None, 1)}


def test_rates_and_verdicts_after_a_restart_are_the_same(config: Config) -> None:
    steady = new_state(config)
    for number in range(40):
        state(config, number * 10 - 1, 50, 2 * number)
        lag_of(steady, config, log(number * 10, 150 + 3 * number))
    again, rows = new_state(config), pa.Table.from_pylist([log(400, 280)], LOGS)
    expected = steady.lag(rows).to_pylist()
    assert again.lag(rows).to_pylist() == expected
    assert expected[0]["consume_rate"] == pytest.approx(0.2, rel=0.1)
    assert steady.commits()[0].num_rows == 0  # committed_offsets has none of it


def test_shards_have_each_share_group_once(config: Config) -> None:
    """By the partition of the offsets topic that has the group's other records."""
    small_tables.lay(config, "ingest_progress", {"record_partition": 49, "end_offset": 10, "start_offset": 0})
    groups = [f"queue-{number}" for number in range(12)]
    for number, group in enumerate(groups):
        state(config, number, 50, group_id=group, record_partition=number % 3)
    found: list[str] = []
    for number in range(4):
        rows = new_state(config, Shard(number, 4)).lag(pa.Table.from_pylist([log(30, 110)], LOGS)).to_pylist()
        assert all(coordinator_partition(row["group_id"], 50) % 4 == number for row in rows)
        found += [row["group_id"] for row in rows]
    assert sorted(found) == sorted(groups)


SPANS = st.integers(0, 50)


@given(start=SPANS, done=SPANS, left=SPANS, log_start=st.integers(0, 160))
def test_lag_of_any_share_group_is_kafkas_and_loses_nothing_that_is_not_known(
    start: int, done: int, left: int, log_start: int
) -> None:
    end = start + done + left
    row = {"group_id": "queue", "topic_id": ORDERS, "topic": "orders", "partition": 0, "record_at": at(0)}
    row |= {"start_offset": start, "delivery_complete_count": done, "is_tombstone": False}
    calculator = new_calculator(commit(-5, 3))
    calculator.positions.add(from_progress(pa.Table.from_pylist([row], PROGRESS), 0))
    add_sample(calculator, lag_samples.log(5, end, min(log_start, end), topic_id=ORDERS))
    of_group = {found["group_id"]: found for found in calculator.compute({}).to_pylist()}
    assert of_group["queue"]["lag"] == left
    assert of_group["queue"]["lost_records"] == (None if start < min(log_start, end) else 0)
    assert of_group["billing"]["lag"] == end - 3 if end >= 3 else True

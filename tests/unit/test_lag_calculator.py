"""`LagCalculator`: every figure of a row of `consumer_lag`, and the reason where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.kafka.log import FirstRecord, RecordRequest
from grouptrail.lag.calculator import COLUMNS, LagCalculator, Rules
from grouptrail.lag.group_status import OWNED, GroupStatus
from support.lag_samples import Row, add_commits, add_sample, at, commit, log, new_calculator, row_at

TOPICS = ("orders", "payments")
THIS_TOPIC, OTHER_TOPIC = "dGhpcwAAAAAAAAAAAAAAAA", "b3RoZXIAAAAAAAAAAAAAAA"


def test_lag_is_log_end_minus_committed_offset() -> None:
    """The row also holds the figures it was computed from."""
    calculator = new_calculator(commit(-5, 120))
    row = row_at(calculator, log(0, 150, start=30))
    assert list(row) == COLUMNS.names
    assert (row["lag"], row["lost_records"], row["problem"], row["status"]) == (30, 0, None, "OK")
    assert (row["committed_offset"], row["commit_at"], row["sampled_at"]) == (120, at(-5), at(0))
    assert (row["log_start_offset"], row["log_end_offset"], row["last_stable_offset"]) == (30, 150, 150)
    assert (row["lag_seconds"], row["lag_seconds_method"], row["lag_seconds_error"]) == (0, "bounded", None)


def test_lag_seconds_without_lag_is_exactly_zero() -> None:
    """Also long after the last record."""
    calculator = new_calculator(commit(-5, 150))
    row_at(calculator, log(0, 150))
    row = row_at(calculator, log(9000, 150))
    assert (row["lag"], row["lag_seconds"], row["lag_seconds_error"], row["catch_up_seconds"]) == (0, 0.0, 0.0, 0.0)


def test_lag_commit_newer_than_the_sample_is_zero_not_negative() -> None:
    """The log has grown between the sample and the commit."""
    row = row_at(new_calculator(commit(1, 160)), log(0, 150))
    assert (row["lag"], row["problem"], row["lag_seconds"]) == (0, None, 0)


def test_lag_older_commit_above_the_log_end_is_unknown() -> None:
    """The log was sampled well after the commit, so the commit is to another log."""
    row = row_at(new_calculator(commit(-6, 160)), log(0, 20))
    assert (row["lag"], row["lag_seconds"], row["status"]) == (None, None, "UNKNOWN")
    assert row["problem"] == (
        "committed 160 above the log's end 20: the log was truncated or recreated, "
        "or the offset was copied from another cluster or committed too far"
    )


def test_lag_topic_id_differs_from_the_commits_is_unknown() -> None:
    """Also if the new log is long enough by now; a commit without an id is taken as one to this topic."""
    row = row_at(new_calculator(commit(-5, 10, topic_id=OTHER_TOPIC)), log(0, 150, topic_id=THIS_TOPIC))
    assert (row["lag"], row["problem"]) == (None, "the topic was deleted and recreated since the commit")
    assert row_at(new_calculator(commit(-5, 10, topic_id=THIS_TOPIC)), log(0, 150, topic_id=THIS_TOPIC))["lag"] == 140
    assert row_at(new_calculator(commit(-5, 10)), log(0, 150, topic_id=THIS_TOPIC))["lag"] == 140


def test_lag_seconds_ignores_samples_before_the_topic_was_recreated() -> None:
    """A new topic id shows that, or a log end that went back."""
    for new in ({"topic_id": OTHER_TOPIC}, {}):
        calculator = new_calculator(commit(-5, 3))
        old = {"topic_id": THIS_TOPIC} if new else {}
        row_at(calculator, log(0, 2, **old))
        row_at(calculator, log(10, 200 if new else 300, **old))
        row = row_at(calculator, log(20, 201, **new))
        assert (row["lag_seconds"], row["lag_seconds_method"]) == (0, "bounded")


def test_lag_committed_offset_below_log_start_counts_lost_records() -> None:
    """They are part of the lag, as in `kafka-consumer-groups.sh`."""
    row = row_at(new_calculator(commit(-5, 100)), log(0, 150, start=130))
    assert (row["lag"], row["lost_records"]) == (50, 30)


def test_lag_broker_without_answer_is_unknown() -> None:
    """Figures of earlier samples are not repeated."""
    calculator = new_calculator(commit(-5, 100))
    row_at(calculator, log(0, 150))
    row = row_at(calculator, log(10, None))
    figures = {
        name: row[name] for name in ("lag", "lost_records", "lag_seconds", "log_end_offset", "catch_up_seconds")
    }
    assert set(figures.values()) == {None}
    assert (row["problem"], row["status"]) == ("broker 1 did not answer", "UNKNOWN")
    assert row_at(calculator, log(20, 151))["lag"] == 51


def test_lag_deleted_offset_has_no_row_until_the_next_commit() -> None:
    """A tombstone stands for a deleted or an expired offset."""
    calculator = new_calculator(commit(-9, 100), commit(-5, None))
    add_sample(calculator, log(0, 150))
    assert len(calculator.compute({})) == 0
    add_commits(calculator, commit(3, 110))
    assert row_at(calculator, log(10, 150))["lag"] == 40


def test_lag_unordered_and_duplicate_commits_uses_the_latest_record() -> None:
    """OPTIMIZE rewrites files: the order of the records in the offsets topic counts."""
    calculator = new_calculator(commit(-1, 140), commit(-5, 120))
    add_commits(calculator, commit(-5, 120), commit(-9, None))
    assert row_at(calculator, log(0, 150))["committed_offset"] == 140


def test_lag_owned_partition_without_commit_has_a_row_without_lag() -> None:
    """As in `kafka-consumer-groups.sh`; after its first commit it still has one row."""
    calculator = new_calculator()
    owned = pa.Table.from_pylist([{"group_id": "billing", "topic": "orders", "partition": 0}], OWNED)
    row = row_at(calculator, log(0, 150), owned=owned)
    assert (row["group_id"], row["committed_offset"], row["lag"]) == ("billing", None, None)
    assert row["problem"] == "no commit yet: of 150 records, auto.offset.reset says how many are to be read"
    assert row["status"] == "UNCOMMITTED"
    assert row["status_reason"] == "no commit yet: between 0 and 150 records are unread, by auto.offset.reset"
    add_commits(calculator, commit(3, 110))
    assert row_at(calculator, log(10, 150), owned=owned)["lag"] == 40


def test_lag_owned_partition_without_commit_whose_log_is_empty_is_zero() -> None:
    """Clients commit only where they have read, and there is nothing to read."""
    calculator = new_calculator()
    owned = pa.Table.from_pylist([{"group_id": "billing", "topic": "orders", "partition": 0}], OWNED)
    for start, end in ((0, 0), (70, 70)):
        row = row_at(calculator, log(end, end, start=start), owned=owned)
        assert (row["committed_offset"], row["lag"], row["lost_records"], row["lag_seconds"]) == (None, 0, 0, 0)
        assert (row["problem"], row["status"]) == (None, "OK")
    row = row_at(calculator, log(80, 71, start=70), owned=owned)
    assert (row["lag"], row["status"]) == (None, "UNCOMMITTED")


def test_lag_topic_without_subscribed_member_is_unsubscribed() -> None:
    """Only if the group has members and all their topics are known."""
    calculator = new_calculator(commit(-5, 100))
    row = row_at(calculator, log(0, 150), groups={"billing": GroupStatus("Stable", frozenset({"payments"}))})
    assert (row["lag"], row["status"], row["group_state"]) == (None, "UNSUBSCRIBED", "Stable")
    assert row["problem"] == "no member of the group subscribes to the topic"
    for group in (
        GroupStatus("Empty", frozenset()),
        GroupStatus("Stable"),
        GroupStatus("Stable", frozenset({"orders", "payments"})),
    ):
        assert row_at(calculator, log(10, 150), groups={"billing": group})["lag"] == 50


def test_lag_read_committed_group_ends_at_the_last_stable_offset() -> None:
    """Records of an open transaction are no lag for them."""
    rules = Rules(read_committed_groups=("bill*",))
    open_transaction = {"last_stable_offset": 120}
    assert row_at(new_calculator(commit(-5, 120), rules=rules), log(0, 150, **open_transaction))["lag"] == 0
    assert row_at(new_calculator(commit(-5, 120)), log(0, 150, **open_transaction))["lag"] == 30


def test_catch_up_seconds_is_lag_over_net_rate_or_null_if_falling_behind() -> None:
    """100 unread records, 10 a second consumed and 5 a second produced."""
    calculator = new_calculator(commit(-5, 100))
    row_at(calculator, log(0, 250))
    add_commits(calculator, commit(9, 200))
    row = row_at(calculator, log(10, 300))
    assert (row["consume_rate"], row["produce_rate"], row["catch_up_seconds"]) == (10, 5, 20)
    row = row_at(calculator, log(20, 400))
    assert (row["consume_rate"], row["produce_rate"], row["catch_up_seconds"]) == (5, 7.5, None)


def test_consume_rate_after_rewind_is_null() -> None:
    """A rate would be negative."""
    calculator = new_calculator(commit(-5, 100))
    row_at(calculator, log(0, 250))
    add_commits(calculator, commit(9, 50))
    row = row_at(calculator, log(10, 250))
    assert (row["consume_rate"], row["produce_rate"], row["catch_up_seconds"], row["status"]) == (
        None,
        0,
        None,
        "REWIND",
    )


class Records:
    """Answers queries for first records as brokers would, and records the queries."""

    def __init__(self, records: Mapping[int, FirstRecord | None]) -> None:
        self.records = records
        self.queries: list[list[RecordRequest]] = []

    def __call__(self, wanted: Sequence[RecordRequest]) -> dict[RecordRequest, FirstRecord | None]:
        self.queries.append(list(wanted))
        return {one: self.records[one.offset] for one in wanted if one.offset in self.records}


EXACT = Rules(exact_groups=("billing",))


def micros(seconds: float) -> int:
    return round(at(seconds).timestamp() * 1_000_000)


def test_lag_seconds_exact_group_uses_the_record_timestamp_fetched_once() -> None:
    """It is not fetched again while the committed offset stays the same."""
    calculator, records = new_calculator(commit(-5, 100), rules=EXACT), Records({100: FirstRecord(103, micros(-7))})
    row_at(calculator, log(-10, 100))
    for seconds in (0, 10):
        row = row_at(calculator, log(seconds, 150), fetch_records=records)
        assert (row["lag"], row["lag_seconds_method"], row["lag_seconds_error"]) == (50, "exact", 0)
        assert row["lag_seconds"] == seconds + 7
    assert records.queries == [[RecordRequest("orders", 0, 100)], []]
    assert calculator.compute({}).to_pylist() == [row]


def test_lag_exact_group_without_unread_record_is_zero() -> None:
    """Only a transaction marker follows; the brokers are queried again, because a record may come."""
    calculator, records = new_calculator(commit(-5, 100), rules=EXACT), Records({100: None})
    row = row_at(calculator, log(0, 101), fetch_records=records)
    assert (row["lag"], row["lag_seconds"], row["lag_seconds_method"], row["status"]) == (0, 0, "exact", "OK")
    records.records = {100: FirstRecord(101, micros(8))}
    row = row_at(calculator, log(10, 103), fetch_records=records)
    assert (row["lag"], row["lag_seconds"]) == (3, 2)


def test_lag_seconds_exact_group_without_broker_answer_uses_samples() -> None:
    """The age of the first unread record comes from the samples then."""
    calculator = new_calculator(commit(-5, 100), rules=EXACT)
    row_at(calculator, log(0, 100), fetch_records=Records({}))
    row = row_at(calculator, log(10, 150), fetch_records=Records({}))
    assert (row["lag"], row["lag_seconds_method"]) == (50, "observed")


def test_lag_earlier_sample_uses_only_commits_up_to_its_time() -> None:
    """Later commits count at later samples."""
    calculator = new_calculator(commit(-5, 100), commit(15, 140))
    assert row_at(calculator, log(0, 150), until=micros(0))["lag"] == 50
    assert row_at(calculator, log(10, 150), until=micros(10))["lag"] == 50
    assert row_at(calculator, log(20, 150), until=micros(20))["lag"] == 10


def test_lag_rows_restored_from_storage_match_an_uninterrupted_run() -> None:
    """The first row after a restart is the same as without one."""
    calculator, rows = new_calculator(commit(-5, 100)), []
    for number in range(31):
        add_commits(calculator, commit(number * 10 - 1, 100))
        add_sample(calculator, log(number * 10, 150 + number))
        rows.append(calculator.compute({}))
    again = new_calculator(commit(299, 100))
    for number, row in enumerate(rows[:-1]):
        add_sample(again, log(number * 10, 150 + number))
        again.add_stored_lag(row)
    add_sample(again, log(300, 180))
    assert rows[-1]["status"].to_pylist() == ["STALL"]
    assert again.compute({}).equals(rows[-1])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["billing", "grüße/👋", "a/b"]),
            st.sampled_from(["orders", "payments"]),
            st.integers(0, 3),
            st.one_of(st.none(), st.integers(0, 200)),
        ),
        max_size=30,
    ),
    st.lists(st.one_of(st.none(), st.integers(0, 200)), min_size=8, max_size=8),
    st.integers(1, 5),
)
def test_lag_is_never_negative_and_null_only_with_a_problem(
    commits: list[tuple[str, str, int, int | None]], ends: list[int | None], cuts: int
) -> None:
    """One row for each undeleted commit whose log was sampled, however the commits are cut into batches."""
    rows = [
        commit(number - 100, offset, group_id=group, topic=topic, partition=partition)
        for number, (group, topic, partition, offset) in enumerate(commits)
    ]
    calculator = new_calculator()
    for first in range(cuts):
        add_commits(calculator, *rows[first::cuts])
    places = [(topic, partition) for topic in ("orders", "payments") for partition in range(4)]
    logs = [log(0, end, topic=topic, partition=at_) for (topic, at_), end in zip(places, ends, strict=True)]
    add_sample(calculator, *logs)
    rows_of = {(row["group_id"], row["topic"], row["partition"]): row for row in calculator.compute({}).to_pylist()}
    newest = {row[:3]: row[3] for row in commits}
    assert set(rows_of) == {at for at, offset in newest.items() if offset is not None}
    for (_, topic, partition), row in rows_of.items():
        end = ends[places.index((topic, partition))]
        if row["problem"] is None:
            assert row["lag"] == max(end - row["committed_offset"], 0)  # type: ignore[operator]
            assert row["lag_seconds"] >= 0
        else:
            assert (row["lag"], row["lag_seconds"], row["status"]) == (None, None, "UNKNOWN")
            assert end is None or end < row["committed_offset"]


@given(
    st.dictionaries(
        st.tuples(
            st.sampled_from(["audit", "billing", "exact", "search"]), st.sampled_from(TOPICS), st.integers(0, 2)
        ),
        st.tuples(st.none() | st.integers(90, 101), st.integers(-900, 0)),
        max_size=20,
    ),
    st.sets(st.integers(90, 101)),
    st.integers(1, 3),
)
def test_lag_of_few_entries_at_a_time_is_that_of_all_at_once(
    commits: dict[tuple[str, str, int], tuple[int | None, int]], with_record: set[int], few: int
) -> None:
    """Also what brokers are asked; groups stop, subscribe to one topic, have left, or have not committed."""
    groups = {
        "audit": GroupStatus("Empty", emptied_at=at(-100), endings=frozenset({"left_or_expired"})),
        "billing": GroupStatus("Stable", frozenset({"orders"})),
    }
    records = {
        offset: FirstRecord(offset, micros(-50)) if offset in with_record else None for offset in range(90, 102)
    }
    places = commits.keys() | {("billing", "orders", 1), ("idle", "payments", 0)}
    owned = pa.Table.from_pylist([dict(zip(OWNED.names, place, strict=True)) for place in sorted(places)], OWNED)
    made = []
    for entries_at_a_time in (few, 1000):
        calculator = new_calculator(rules=Rules(exact_groups=("exact",)), entries_at_a_time=entries_at_a_time)
        rows = [
            commit(seconds, offset, **dict(zip(OWNED.names, place, strict=True)))
            for place, (offset, seconds) in commits.items()
        ]
        add_commits(calculator, *rows)
        answers, computed = Records(records), []
        for second in (0, 200, 400):
            logs = [log(second, 100, topic=topic, partition=partition) for topic in TOPICS for partition in range(3)]
            add_sample(calculator, *logs)
            computed += calculator.compute(groups, owned, until=micros(second), fetch_records=answers).to_pylist()
            computed += calculator.compute(groups, owned).to_pylist()
        made.append((computed, answers.queries))
    assert made[0] == made[1]


# --- when only transaction markers are left to read ---------------------------------------------------------


def stopped_group(calculator: LagCalculator, seconds: int, end: int, records: Any, **more: Any) -> Row:
    """Add a sample every 10 s in which the log's end does not move; return the last row."""
    row: Row = {}
    for second in range(0, seconds, 10):
        row = row_at(calculator, log(second, end, **more), fetch_records=records)
    return row


def test_status_with_only_markers_left_is_ok_after_one_query() -> None:
    """`lag` still counts the marker's offset, as `kafka-consumer-groups.sh` does."""
    calculator, records = new_calculator(commit(-900, 100)), Records({100: None})
    row = stopped_group(calculator, 700, 101, records)
    assert (row["lag"], row["status"]) == (1, "OK")
    assert row["status_reason"] == (
        "nothing is left to read: the 1 offsets from the committed one on hold no committed record"
    )
    assert (row["lag_seconds"], row["lag_seconds_method"], row["lag_seconds_error"]) == (0, "exact", 0)
    assert records.queries == [[RecordRequest("orders", 0, 100, is_isolated=True)]]
    assert calculator.compute({}).to_pylist() == [row]


def test_status_with_only_markers_left_is_ok_at_the_sample_of_the_query() -> None:
    """No stored row says STOP."""
    calculator, records = new_calculator(commit(-900, 100)), Records({100: None})
    rows = [row_at(calculator, log(second, 101), fetch_records=records) for second in range(0, 400, 10)]
    assert {row["status"] for row in rows} == {"OK"}
    assert len(records.queries) == 1


def test_status_after_a_record_follows_the_markers_is_stop() -> None:
    calculator, records = new_calculator(commit(-900, 100)), Records({100: None})
    stopped_group(calculator, 400, 101, records)
    records.records = {100: FirstRecord(101, micros(395))}
    for second in range(400, 800, 10):
        row = row_at(calculator, log(second, 102), fetch_records=records)
    assert (row["lag"], row["status"]) == (2, "STOP")
    assert len(records.queries) == 2


def test_status_with_a_record_left_to_read_is_stop_after_one_query() -> None:
    """Also when the log grows: the record is still there."""
    calculator, records = new_calculator(commit(-900, 100)), Records({100: FirstRecord(100, micros(-9))})
    row = stopped_group(calculator, 400, 105, records)
    assert row["status"] == "STOP"
    assert row_at(calculator, log(400, 109), fetch_records=records)["status"] == "STOP"
    assert len(records.queries) == 1


def test_status_without_an_answer_about_unread_records_is_stop_and_queried_again_later() -> None:
    """The principal may lack READ on the topic."""
    calculator, records = new_calculator(commit(-900, 100)), Records({})
    assert stopped_group(calculator, 700, 101, records)["status"] == "STOP"
    assert len(records.queries) == 1
    for second in range(700, 1000, 10):
        row_at(calculator, log(second, 101), fetch_records=records)
    assert len(records.queries) == 2


def test_status_with_much_lag_or_an_open_transaction_causes_no_query() -> None:
    for end, more in ((5_000, {}), (102, {"last_stable_offset": 101})):
        calculator, records = new_calculator(commit(-900, 100)), Records({100: None})
        assert stopped_group(calculator, 400, end, records, **more)["status"] == "STOP"
        assert records.queries == []

"""Records of `__share_group_state` as rows, and which of them are read next."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.jobs import SHARE_STATE
from grouptrail.kafka.errors import ClusterError, TopicMissingError
from grouptrail.kafka.log import LogBounds, Ranges
from grouptrail.kafka.record_schema import RECORD_SCHEMA
from grouptrail.share_state import job
from grouptrail.share_state.job import Landing, ranges_to_read
from grouptrail.share_state.poller import SharePoll
from grouptrail.share_state.polling import SharePolling
from grouptrail.share_state.redecode import redecode_share_state
from grouptrail.share_state.rows import TABLE, decode_row, decoded_rows, encode_row
from grouptrail.storage.positions import CAME_BACK
from grouptrail.storage.schema import table_schema
from grouptrail.storage.warehouse import Warehouse
from grouptrail.wire.records import Key, Value, encode_key, encode_value
from support.wire_vectors import SHARE_RECORDS, Vector

TOPIC_ID = "mZUf7UXWRQ6iMfibqKwJ3A"
NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)


def update(start_offset: int, *, group: str = "queue", epoch: int = 0) -> tuple[bytes, bytes]:
    key = Key(1, {"groupId": group, "topicId": TOPIC_ID, "partition": 0}, "share")
    fields = {"snapshotEpoch": epoch, "leaderEpoch": 3, "startOffset": start_offset, "deliveryCompleteCount": 2}
    batch = {"firstOffset": start_offset, "lastOffset": start_offset + 1, "deliveryState": 2, "deliveryCount": 1}
    value = encode_value(key, Value(0, {**fields, "stateBatches": [batch]}))
    assert value is not None
    return encode_key(key), value


def as_stored(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """Return the row of a record as the table returns it."""
    schema = table_schema(TABLE, without=("cluster", "read_at"))
    [row] = pa.Table.from_pylist(decoded_rows([records((key, value))]), schema).to_pylist()
    return dict(row)


@pytest.mark.parametrize("vector", SHARE_RECORDS, ids=lambda vector: vector.name)
def test_row_of_each_vector_fits_the_table_and_encodes_to_the_same_bytes(vector: Vector) -> None:
    row = decode_row(vector.key, vector.value)
    stored = as_stored(vector.key, vector.value)
    assert encode_row(stored) == encode_row(row) == (vector.key, vector.value)
    if "error" in vector.expected:
        assert stored["reason"] is not None
    else:
        assert stored["reason"] in (None, "not_utf8")  # Kafka's formatters replace such bytes
    assert stored["is_tombstone"] == (vector.value is None)


def test_row_of_an_update_has_its_fields_and_null_for_unknown_ones() -> None:
    row = decode_row(*update(50))
    assert row | {"verbatim_key": None, "verbatim_value": None} == row
    assert (row["group_id"], row["topic_id"], row["partition"], row["record_type"]) == (
        "queue",
        TOPIC_ID,
        0,
        "update",
    )
    assert (row["start_offset"], row["delivery_complete_count"], row["leader_epoch"]) == (50, 2, 3)
    assert row["state_batches"] == [{"first_offset": 50, "last_offset": 51, "delivery_state": 2, "delivery_count": 1}]
    assert (row["state_epoch"], row["created_at"], row["written_at"]) == (None, None, None)
    assert decode_row(*update(-1))["start_offset"] is None


def test_row_of_a_record_that_cannot_be_decoded_keeps_its_bytes_and_what_is_known() -> None:
    key, value = update(50)
    row = decode_row(key, value[:-3])
    assert (row["reason"], row["fault_in"], row["group_id"]) == ("truncated", "value", "queue")
    assert (row["start_offset"], row["state_batches"], row["is_tombstone"]) == (None, None, False)
    assert encode_row(row) == (key, value[:-3])
    assert decode_row(key, value, max_bytes=10)["reason"] == "too_large"
    assert decode_row(None, value)["fault_in"] == "key"


@given(st.binary(max_size=40) | st.none(), st.binary(max_size=60) | st.none())
def test_row_of_any_bytes_encodes_to_them(key: bytes | None, value: bytes | None) -> None:
    assert encode_row(as_stored(key, value)) == (key, value)


LOGS = st.dictionaries(
    st.integers(0, 4),
    st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda at: LogBounds(at[0], sum(at), sum(at))),
    max_size=4,
)


@given(LOGS, st.dictionaries(st.integers(0, 4), st.integers(0, 20)), st.integers(1, 7))
def test_ranges_to_read_one_after_the_other_have_each_unread_offset_once(
    bounds: dict[int, LogBounds], positions: dict[int, int], most: int
) -> None:
    unread = {
        (partition, offset)
        for partition, log in bounds.items()
        for offset in range(max(log.log_start_offset, positions.get(partition, 0)), log.last_stable_offset)
    }
    read: list[tuple[int, int]] = []
    has_more = True
    while has_more:
        ranges, has_more = ranges_to_read(bounds, positions, most=most)
        now = [(partition, offset) for partition, span in ranges.items() for offset in range(*span)]
        assert len(now) <= most
        assert now or not has_more
        read += now
        positions = positions | {partition: end for partition, (_, end) in ranges.items()}
    assert sorted(read) == sorted(unread)


def records(*pairs: tuple[bytes | None, bytes | None], partition: int = 0, first_offset: int = 0) -> pa.RecordBatch:
    rows = [
        {
            "record_partition": partition,
            "record_offset": first_offset + n,
            "record_at": NOW,
            "key": key,
            "value": value,
        }
        for n, (key, value) in enumerate(pairs)
    ]
    return pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA)


class Log:
    """A topic of one partition; `error` is what the brokers answer."""

    def __init__(self, *pairs: tuple[bytes, bytes], start: int = 0, partition: int = 0) -> None:
        self.pairs, self.start, self.partition = list(pairs), start, partition
        self.error: Exception | None = None

    def bounds(self) -> dict[int, LogBounds]:
        if self.error is not None:
            raise self.error
        end = self.start + len(self.pairs)
        return {self.partition: LogBounds(self.start, end, end)}

    def read(self, ranges: Ranges) -> Any:
        for partition, (first, end) in ranges.items():
            read = self.pairs[first - self.start : end - self.start]
            yield records(*read, partition=partition, first_offset=first)


class SilentCoordinators:
    """Coordinators that know no share group."""

    def poll(self, known: Any) -> SharePoll:
        assert not known
        return SharePoll(0.0)


def landing(
    log: Log, warehouse: Warehouse, printed: list[str] | None = None, *, max_record_bytes: int = 1000
) -> Landing:
    write = printed.append if printed is not None else (lambda _: None)
    polling = SharePolling(warehouse, SilentCoordinators(), write)  # type: ignore[arg-type]
    return Landing(warehouse, log, polling, max_record_bytes=max_record_bytes, log=write)  # type: ignore[arg-type]


def landed(warehouse: Warehouse) -> list[tuple[int, int]]:
    rows = warehouse.table("share_group_state").select("record_offset, start_offset", "ORDER BY record_offset")
    return [(row["record_offset"], row["start_offset"]) for row in rows]


def deliveries(warehouse: Warehouse) -> list[tuple[Any, ...]]:
    columns = ("record_offset", "first_offset", "last_offset", "previous_count", "is_first")
    rows = warehouse.table("share_deliveries").select(", ".join(columns), "ORDER BY record_offset, first_offset")
    return [tuple(row[name] for name in columns) for row in rows]


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    warehouse = Warehouse(str(tmp_path), "east")
    warehouse.ensure((*SHARE_STATE.writes, "group_states"))
    return warehouse


def test_landing_each_record_is_written_once_also_after_a_restart_and_a_failed_append(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "RECORDS_A_BATCH", 2)
    log = Log(*(update(offset) for offset in range(5)))
    first = landing(log, warehouse)
    assert [first.process(0), first.process(1)] == [True, True]
    append = first._table.append

    def written_but_not_known(*args: Any, **shared: Any) -> None:
        append(*args, **shared)
        raise OSError("the connection was lost")

    monkeypatch.setattr(first._table, "append", written_but_not_known)
    with pytest.raises(OSError, match="lost"):
        first.process(2)
    monkeypatch.setattr(first._table, "append", append)
    assert not first.process(3)
    log.pairs.append(update(5))
    assert not landing(log, warehouse).process(0)
    assert landed(warehouse) == [(offset, offset) for offset in range(6)]
    # Each update acknowledges an offset that the one before had acknowledged, and one more.
    assert deliveries(warehouse) == [
        (0, 0, 1, None, False),
        *((offset, offset + 1, offset + 1, None, False) for offset in range(1, 6)),
    ]
    assert landed(Warehouse(warehouse.location, "west")) == []


def test_landing_writes_deliveries_once_if_it_is_stopped_before_their_records_are_landed(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(update(0), update(1))
    stopped = landing(log, warehouse)
    stopped.process(0)
    log.pairs.append(update(2))

    def stop(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(stopped._table, "append", stop)
    with pytest.raises(OSError, match="no space"):
        stopped.process(1)
    assert len(landed(warehouse)) == 2
    before = deliveries(warehouse)
    assert [row[0] for row in before] == [0, 1, 2]
    log.pairs.append(update(3))
    landing(log, warehouse).process(0)
    assert [offset for offset, _ in landed(warehouse)] == [0, 1, 2, 3]
    assert deliveries(warehouse) == [*before, (3, 4, 4, None, False)]


def test_landing_fills_the_deliveries_of_records_that_landed_before_there_were_any(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    log = Log(*(update(offset) for offset in range(4)))
    landing(log, warehouse).process(0)
    expected = deliveries(warehouse)
    before = Warehouse(str(tmp_path / "before"), "east")
    before.ensure(("share_group_state",))
    rows = warehouse.table("share_group_state").select("*")
    columns = [name for name in rows[0] if name not in CAME_BACK]
    before.table("share_group_state").append_rows([{name: row[name] for name in columns} for row in rows[:3]])
    before.ensure(("share_deliveries",))
    landing(log, before).process(0)
    assert deliveries(before) == expected
    landing(log, before).process(0)
    assert deliveries(before) == expected


def test_landing_passes_over_records_that_the_coordinator_has_deleted(warehouse: Warehouse) -> None:
    landing(Log(update(0)), warehouse).process(0)
    landing(Log(update(7), start=7), warehouse).process(0)
    assert landed(warehouse) == [(0, 0), (7, 7)]


def test_landing_says_once_what_is_wrong_and_goes_on_when_it_is_not_any_more(warehouse: Warehouse) -> None:
    log, printed = Log(update(0)), list[str]()
    reading = landing(log, warehouse, printed)
    log.error = TopicMissingError("there is no topic __share_group_state")
    assert not reading.process(0)
    assert printed == []
    log.error = ClusterError("broker 2 did not answer")
    assert not reading.process(1)
    assert not reading.process(2)
    log.error = None
    reading.process(3)
    assert printed[0] == "share-state: broker 2 did not answer"
    assert [line.partition(" in ")[0] for line in printed[1:]] == ["share-state batch 3: 1 records"]


def test_landing_of_a_topic_that_was_created_again_is_reported_and_lands_nothing(warehouse: Warehouse) -> None:
    landing(Log(*(update(offset) for offset in range(5))), warehouse).process(0)
    printed = list[str]()
    again = landing(Log(update(9)), warehouse, printed)
    again.process(0)
    again.process(1)
    assert len(landed(warehouse)) == 5
    assert [line.partition(": the log")[0] for line in printed] == ["share-state: __share_group_state-0"]


def rows_of(warehouse: Warehouse, table: str) -> list[dict[str, Any]]:
    order = "first_offset" if table == "share_deliveries" else "group_id"
    rows = warehouse.table(table).select("*", f"ORDER BY record_partition, record_offset, {order}")
    return [{name: value for name, value in row.items() if name != "read_at"} for row in rows]


def snapshot(epoch: int, *delivered: tuple[int, int]) -> tuple[bytes, bytes]:
    """Return a snapshot with offsets that came back, and how often they were delivered."""
    key = Key(0, {"groupId": "queue", "topicId": TOPIC_ID, "partition": 0}, "share")
    fields = {"snapshotEpoch": epoch, "stateEpoch": 0, "leaderEpoch": 3, "startOffset": 0, "deliveryCompleteCount": 0}
    batches = [
        {"firstOffset": offset, "lastOffset": offset, "deliveryState": 0, "deliveryCount": count}
        for offset, count in delivered
    ]
    times = {"createTimestamp": 1, "writeTimestamp": 2}
    value = encode_value(key, Value(0, {**fields, **times, "stateBatches": batches}))
    assert value is not None
    return encode_key(key), value


def test_records_that_can_be_decoded_now_are_as_if_they_had_been_at_once(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    """Here their size was the reason; those of another partition stay as they are."""
    pairs = [snapshot(0), update(0), snapshot(1, (5, 1), (6, 2), (7, 1)), update(5, epoch=1), (b"\x00\x63", b"")]
    expected = Warehouse(str(tmp_path / "expected"), "east")
    expected.ensure(("share_group_state", "share_deliveries"))
    for place, most in ((warehouse, len(pairs[2][1]) - 1), (expected, 1000)):
        landing(Log(*pairs), place, max_record_bytes=most).process(0)
        landing(Log(*pairs[:4], partition=1), place).process(0)
    assert [row["reason"] for row in rows_of(warehouse, "share_group_state")].count("too_large") == 1
    assert rows_of(warehouse, "share_deliveries") != rows_of(expected, "share_deliveries")
    printed = list[str]()
    for most in (10, 1000, 1000):
        redecode_share_state(warehouse, most, printed.append)
    assert printed == [
        "0 records of share groups decoded, 2 still undecodable",
        "1 records of share groups decoded, 1 still undecodable",
        "0 records of share groups decoded, 1 still undecodable",
    ]
    for table in ("share_group_state", "share_deliveries"):
        assert rows_of(warehouse, table) == rows_of(expected, table)

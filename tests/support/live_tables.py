"""Tables of a pipeline at work: a group of every verdict, a damaged file, and a thread that appends a sample each
second.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from grouptrail.broker_log.status import FollowedFile, FollowStatus, write_status
from grouptrail.config import Config
from grouptrail.jobs import BROKER_LOG
from grouptrail.runtime.warehouses import warehouse_of
from support.small_tables import lay

TOPIC = "orders"
# A name with characters that are special in a shell, in regular expressions and in PromQL.
WEIRD = 'we"ird\\g{r}.ou|p*$"} or vector(1) #'
VERDICTS = {
    "fine": "OK",
    WEIRD: "OK",
    "stormy": "OK",
    "late": "WARN",
    "stalled": "STALL",
    "stopped": "STOP",
    "rewound": "REWIND",
    "nightly": "EMPTY",
    "moved": "UNSUBSCRIBED",
    "starting": "UNCOMMITTED",
    "unknown": "UNKNOWN",
}
# Excluded by the exporter's configuration.
HIDDEN = "hidden"
# A group without offsets, which the test deletes.
DELETED = "deleted"
_TOPIC_ID = "b3JkZXJz"
_CAUSES = ("member_joined", "member_left", "member_expired")


@contextlib.contextmanager
def at_work(config: Config) -> Iterator[None]:
    """Write the tables, and append to them until the block ends."""
    began = datetime.now(UTC)
    _lay_groups(config, began)
    stop = threading.Event()

    def append() -> None:
        number = 1
        while not stop.wait(1):
            _append(config, datetime.now(UTC), number)
            number += 1

    _append(config, began, 0)
    writer = threading.Thread(target=append)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def delete(config: Config, group: str) -> None:
    """Delete a group, as a tombstone of its metadata does."""
    gone = {"group_id": group, "state": "Dead", "record_offset": 1_000, "started_at": datetime.now(UTC)}
    lay(config, "group_states", {**gone, "is_open": True, "open_bucket": 0})


def _lay_groups(config: Config, now: datetime) -> None:
    since = {"started_at": now - timedelta(hours=1), "is_open": True, "open_bucket": 0, "group_kind": "classic"}
    states = {"nightly": "Empty", "stormy": "PreparingRebalance"}
    members = {"nightly": 0}
    groups = [*VERDICTS, HIDDEN, DELETED]
    lay(config, "group_states", *({"group_id": it, "state": states.get(it, "Stable"), **since} for it in groups))
    generation = {"generation": 7, **since}
    lay(config, "generations", *({"group_id": it, "member_count": members.get(it, 3), **generation} for it in groups))
    lay(config, "topic_names", {"topic_id": _TOPIC_ID, "topic": TOPIC})
    lay(config, "history_positions", {"record_partition": 7, "processed_to": 0})
    checks = [("consumer_lag", False), ("offset_commits", True)]
    columns = {"cluster": "default", "table_name": "", "success": True, "checked_at": now}
    rows = [columns | {"table_name": table, "success": success} for table, success in checks]
    results = warehouse_of(config).table("check_results").path
    write_deltalake(results, pa.Table.from_pylist(rows))
    write_deltalake(results, pa.Table.from_pylist(rows), mode="append")
    next(Path(results).glob("*.parquet")).write_bytes(b"")


class _Folder:
    """A job's checkpoint, without a Spark session."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def write_text(self, name: str, text: str) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        (self._path / f"{name}.new").write_text(text)
        (self._path / f"{name}.new").rename(self._path / name)


def _note_followed_files(config: Config, now: datetime) -> None:
    """Note a log of a broker that is followed, and one that may not be read."""
    files = (
        FollowedFile("/kafka/server.log", lines=100, events=10, unread_bytes=0, last_line_at=now.timestamp()),
        FollowedFile("/kafka/other.log", problem="it may not be read"),
    )
    write_status(_Folder(warehouse_of(config).checkpoint_path(BROKER_LOG.name)), FollowStatus(now, 5, files))


def _append(config: Config, now: datetime, number: int) -> None:
    """Append the sample of one second and the records that landed in it."""
    _note_followed_files(config, now)
    samples = [_sample(group, partition, now, number) for group in [*VERDICTS, HIDDEN] for partition in (0, 1)]
    lay(config, "consumer_lag", *samples)
    commit = {"record_offset": number, "commit_at": now}
    lay(config, "offset_commits", *({"group_id": group, **commit} for group in VERDICTS))
    change = {"group_id": WEIRD, "topic_id": _TOPIC_ID, "record_offset": number, "is_first": False}
    delivered = {"delivery_state": "available", "records": 2, "redeliveries": 1}
    lay(config, "share_deliveries", {**change, **delivered})
    rebalancing = ("stormy", "fine") if number < 2 else ("stormy",)
    lay(config, "rebalances", *(_rebalance(group, now, number) for group in rebalancing))
    lay(
        config,
        "ingest_progress",
        {
            "record_partition": 7,
            "batch_id": number,
            "start_offset": number * 50,
            "end_offset": number * 50 + 50,
            "offset_commits": 40,
            "group_metadata": 4,
            "group_records": 3,
            "undecodable_records": 1,
            "holes": 1,
            "lost": 1,
            "last_stable_offset": number * 50 + 60,
            "log_end_offset": number * 50 + 5_000,
            "landed_at": now,
        },
    )


def _sample(group: str, partition: int, now: datetime, number: int) -> dict[str, Any]:
    """Return a sample: the topic grows and loses old records; groups keep their lag, except those that have
    stopped."""
    verdict = VERDICTS.get(group, "OK")
    start, end = 1_000 + 10 * number, 5_000 + 10 * number
    row: dict[str, Any] = {
        "group_id": group,
        "topic": "left" if verdict == "UNSUBSCRIBED" else TOPIC,
        "partition": partition,
        "sampled_at": now,
        "status": verdict,
        "status_reason": "as laid",
        "group_state": "Stable",
    }
    if verdict in {"UNKNOWN", "UNCOMMITTED"}:
        return row | {"problem": "broker 2 did not answer"}
    lag = {"OK": 5, "WARN": 800, "STALL": 900}.get(verdict, 3_900)
    committed = 980 if verdict == "STOP" else end - lag
    came_back = {"awaiting_redelivery": 2, "most_deliveries": 3, "delivery_complete_count": 0}
    return row | {
        **(came_back if group == WEIRD else {}),
        "committed_offset": committed,
        "commit_at": now - timedelta(seconds=2),
        "log_start_offset": start,
        "log_end_offset": end,
        "last_stable_offset": end,
        "lag": end - committed,
        "lost_records": max(0, start - committed),
        "lag_seconds": {"OK": 0.5, "WARN": 320.0}.get(verdict, 900.0),
        "lag_seconds_method": "observed",
        "lag_seconds_error": 1.0,
        "consume_rate": 10.0,
        "produce_rate": 10.0,
        "catch_up_seconds": 12.0 if verdict == "OK" else None,
        "time_to_loss_seconds": 600.0 if verdict == "STOP" else None,
    }


def _rebalance(group: str, now: datetime, number: int) -> dict[str, Any]:
    return {
        "group_id": group,
        "record_offset": number,
        "cause": _CAUSES[number % len(_CAUSES)],
        "at": now,
        "partitions_moved": 2,
        "seconds_since_previous": 1.0,
        "to_generation": number,
    }

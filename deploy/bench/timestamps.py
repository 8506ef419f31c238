"""A part of `make bench`: after a first start, how soon the ages of unread records are known by brokers' timestamps.

A real broker has a week of records; groups have committed offsets in them, and no sample is old enough to say how
long the next record has waited. The benchmark fails where an age is wrong.
"""

from __future__ import annotations

import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer
from deltalake import write_deltalake
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from bench.measure import seconds
from grouptrail.config import Config, job_settings, load_config
from grouptrail.lag.shard import LagInputs
from grouptrail.lag.state import LagState
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.creation import create_table
from grouptrail.storage.files import with_all_columns
from grouptrail.storage.schema import table_schema
from grouptrail.storage.share_progress import TABLES as SHARE_TABLES
from servers.kafka import Broker

_PARTITIONS_A_TOPIC = 1_000
_RECORDS, _RECORDS_A_BATCH = 60, 20
_WEEK_MS = 7 * 86_400_000
_DEADLINE_SECONDS = 300.0
_LATER_SAMPLES = 3
_ROUNDED_SECONDS = 0.002
_JUDGED = ["group_id", "topic", "partition", "sampled_at", "lag_seconds", "lag_seconds_error"]


def measure_timestamps(folder: Path, *, partitions: int, groups: int) -> dict[str, Any]:
    """Measure the seconds of the first sample, until half and all positions are dated, and of later samples."""
    config = load_config(None, {"warehouse": str(folder / "warehouse")}, {})
    with Broker(folder / "kafka", heap="1500m") as broker:
        config = config.model_copy(update={"kafka": {"bootstrap.servers": broker.bootstrap}})
        written = _write(broker.bootstrap, partitions)
        committed = _lay_commits(config, partitions, groups)
        inputs = LagInputs(warehouse_of(config), config.kafka_settings(), job_settings.lag(config))
        state = LagState(inputs, print)
        figures: dict[str, Any] = {"positions": partitions * groups}
        started = time.monotonic()
        figures["first sample, s"] = round(seconds(lambda: state.lag(_sample(config, partitions))), 2)
        newest, dated = None, 0
        while dated < partitions * groups:
            if time.monotonic() - started > _DEADLINE_SECONDS:
                raise SystemExit(
                    f"bench: {dated:,} of {partitions * groups:,} positions are dated after {_DEADLINE_SECONDS} s"
                )
            time.sleep(0.5)
            if (rows := state.fresh_rows()) is None:
                continue
            newest = rows
            dated = pc.sum(pc.equal(rows["lag_seconds_method"], "dated")).as_py() or 0
            if 2 * dated >= partitions * groups and "half dated, s" not in figures:
                figures["half dated, s"] = round(time.monotonic() - started, 1)
        figures["all dated, s"] = round(time.monotonic() - started, 1)
        later = [seconds(lambda: state.lag(_sample(config, partitions))) for _ in range(_LATER_SAMPLES)]
        figures["later samples, s"] = [round(one, 2) for one in later]
        state.await_timestamps(_DEADLINE_SECONDS)
    assert newest is not None
    figures |= _judged(newest, written, committed)
    print(f"timestamps: {figures}", flush=True)
    return figures


def _write(bootstrap: str, partitions: int) -> np.ndarray:
    """Write a week's records, evenly at random; return their timestamps (ms) by partition and offset."""
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        for topic, count in _topics(partitions).items():
            admin.create_topics([NewTopic(topic, count, 1)], timeout_ms=120_000)
    now = time.time_ns() // 1_000_000
    times = np.sort(np.random.default_rng(1).integers(now - _WEEK_MS, now, (partitions, _RECORDS)), axis=1)
    in_order = {"enable.idempotence": True, "linger.ms": 5, "batch.num.messages": _RECORDS_A_BATCH}
    producer = Producer({"bootstrap.servers": bootstrap, **in_order})
    for partition, of_partition in enumerate(times):
        topic, number = _place(partition)
        for timestamp in of_partition.tolist():
            producer.produce(topic, b"x" * 50, partition=number, timestamp=timestamp)
        if partition % 100 == 0:
            producer.flush()
    producer.flush()
    return times


def _lay_commits(config: Config, partitions: int, groups: int) -> np.ndarray:
    """Create the tables that lag is computed from, with commits; return the offsets by group and partition."""
    commits, *others = warehouse_of(config).tables(
        ("offset_commits", "log_offsets", "consumer_lag", "committed_offsets", "tombstone_checks", *SHARE_TABLES)
    )
    for table in (commits, *others):
        create_table(table.location)
    offsets = np.random.default_rng(2).integers(0, _RECORDS, (groups, partitions))
    location = commits.location.sharing({"source": "topic", "key_type": 1, "is_tombstone": False})
    typed = table_schema("offset_commits")
    at = pa.repeat(pa.scalar(datetime.now(UTC), typed.field("commit_at").type), partitions)
    places = [_place(partition) for partition in range(partitions)]
    for group, committed in enumerate(offsets):
        columns = {
            "record_partition": np.full(partitions, group),
            "record_offset": np.arange(partitions),
            "record_at": at,
            "commit_at": at,
            "group_id": [f"service-{group}"] * partitions,
            "topic": [topic for topic, _ in places],
            "partition": [number for _, number in places],
            "committed_offset": committed,
        }
        rows = pa.table({name: pa.array(column).cast(typed.field(name).type) for name, column in columns.items()})
        write_deltalake(location.path, with_all_columns(rows, location), mode="append")
    return offsets


def _sample(config: Config, partitions: int) -> pa.Table:
    now = datetime.now(UTC)
    of_all = {"cluster": config.cluster, "asked_at": now, "sampled_at": now}
    ends = {"log_start_offset": 0, "last_stable_offset": _RECORDS, "log_end_offset": _RECORDS}
    places = [dict(zip(("topic", "partition"), _place(partition), strict=True)) for partition in range(partitions)]
    return pa.Table.from_pylist([of_all | ends | place for place in places], table_schema("log_offsets"))


def _judged(rows: pa.Table, written: np.ndarray, committed: np.ndarray) -> dict[str, Any]:
    """Return how many ages are exact, and how much the others are too low at most. Exits if one is wrong."""
    exact, too_low = 0, 0.0
    for row in rows.select(_JUDGED).to_pylist():
        partition = int(row["topic"].removeprefix("events-")) * _PARTITIONS_A_TOPIC + row["partition"]
        group = int(row["group_id"].removeprefix("service-"))
        written_at = written[partition, committed[group, partition]] / 1000
        age = row["sampled_at"].timestamp() - written_at
        is_exact = row["lag_seconds_error"] is not None
        exact += is_exact
        difference = age - row["lag_seconds"]
        if difference < -_ROUNDED_SECONDS or (is_exact and difference > _ROUNDED_SECONDS):
            raise SystemExit(f"bench: {row} is {age} s old")
        too_low = max(too_low, difference - max(1.0, age / 100))
    return {"exact": exact, "too low beyond 1 s or 1 %, s": round(too_low, 3)}


def _topics(partitions: int) -> dict[str, int]:
    names = [_place(partition)[0] for partition in range(partitions)]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def _place(partition: int) -> tuple[str, int]:
    """Return the topic and the number of a partition."""
    return f"events-{partition // _PARTITIONS_A_TOPIC}", partition % _PARTITIONS_A_TOPIC

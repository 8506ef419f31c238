"""The views half of `make bench`: the time of each shipped view, and the files it reads, on a generated warehouse.

The tables are written by the contracts, without Spark: groups of three members whose generations are spread evenly
over the last two days, as many commits in each, and samples of lag of the last minutes. A file holds some groups
after one another, as `grouptrail maintain` leaves them. Each group has a topic, whose partitions had another leader
until the middle of the two days.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from bench.measure import seconds
from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.query.sql import run_query, run_sql
from grouptrail.query.views import expand
from grouptrail.runtime.warehouses import query_context, warehouse_of
from grouptrail.storage.schema import table_schema

PARTITIONS = 50
TOPIC_PARTITIONS = 12
MEMBERS = 3
BROKERS = 6
SAMPLES = 30
ROUNDS = 5
ROWS_A_FILE = 1_000_000

_SPAN_MS = 48 * 3_600_000
_SAMPLES_APART_MS = 10_000
_TOPIC_ID = "mZUf7UXWRQ6iMfibqKwJ3A"

Columns = dict[str, Any]


class GeneratedWarehouse:
    """Tables of `groups` groups, each with the given numbers of generations and of commits per generation."""

    def __init__(self, config: Config, groups: int, generations: int, commits: int) -> None:
        self._config = config
        self._groups = groups
        self._generations = generations
        self._commits = commits
        self._end_ms = int(time.time() * 1000)
        self._apart_ms = _SPAN_MS // generations

    def asked_ms(self, view: contracts.View) -> int:
        """A time in the middle of the tables' data, for views that take one."""
        span = SAMPLES * _SAMPLES_APART_MS if "consumer_lag" in view.tables else _SPAN_MS
        return self._end_ms - span // 2

    def write(self) -> None:
        """Write all tables that the views read."""
        rows_a_group: dict[str, tuple[int, Callable[[np.ndarray, np.ndarray], Columns]]] = {
            "offset_commits": (self._generations * self._commits, self._offset_commits),
            "committed_offsets": (TOPIC_PARTITIONS, self._committed_offsets),
            "generations": (self._generations, self._generation_rows),
            "rebalances": (self._generations, self._rebalances),
            "group_states": (2, self._group_states),
            "memberships": (self._generations, self._memberships),
            "partition_ownership": (self._generations * TOPIC_PARTITIONS // MEMBERS, self._ownership),
            "consumer_lag": (TOPIC_PARTITIONS * SAMPLES, self._consumer_lag),
            "share_deliveries": (self._generations * self._commits, self._share_deliveries),
            "group_configs": (1, self._group_configs),
            "task_assignments": (2 * TOPIC_PARTITIONS, self._task_assignments),
            "streams_topology": (1, self._streams_topology),
        }
        for name, (count, columns) in rows_a_group.items():
            for first, last in _cut(self._groups, max(ROWS_A_FILE // count, 1)):
                group = np.repeat(np.arange(first, last), count)
                self._append(name, group, columns(group, np.tile(np.arange(count), last - first)))
        self._append("ingest_progress", np.arange(PARTITIONS), self._progress(np.arange(PARTITIONS)))
        self._append("topic_names", np.arange(1), {"topic_id": np.full(1, _TOPIC_ID)})
        self._write_cluster()

    def _write_cluster(self) -> None:
        """Write brokers, topics, their partitions and settings, and coordinators."""
        brokers, topics = np.arange(BROKERS), np.arange(self._groups)
        names = {"topic": np.char.mod("orders-%05d", topics)}
        since = {"valid_from": np.full(len(topics), self._end_ms - _SPAN_MS)}
        hosts = {"host": np.char.mod("kafka-%d", brokers), "valid_from": since["valid_from"][:1].repeat(BROKERS)}
        self._append("brokers", brokers, {"broker_id": brokers, **hosts, **self._open(brokers >= 0, brokers)})
        are_open = self._open(topics >= 0, topics)
        self._append("topics", topics, {**names, **since, **are_open, "partition_count": topics * 0 + 12})
        self._append("topic_configs", topics, {**names, **since, **are_open, "min_insync_replicas": topics * 0 + 2})
        for epoch in range(2):
            for name, column, of, count in (
                ("topic_partitions", "leader", topics, TOPIC_PARTITIONS),
                ("coordinators", "broker_id", np.arange(1), PARTITIONS),
            ):
                topic, number = np.repeat(of, count), np.tile(np.arange(count), len(of))
                isr = pa.array([[1, 2]] * len(topic), pa.list_(pa.int32()))
                led = {column: (number + epoch) % BROKERS, "leader_epoch": number * 0 + epoch, "replicas": isr}
                led |= {"topic": np.char.mod("orders-%05d", topic), "partition": number, "record_partition": number}
                self._append(name, topic, {**led, "isr": isr, **self._epoch(epoch, topic)})

    def _epoch(self, epoch: int, topic: np.ndarray) -> Columns:
        ends = topic * 0 + self._end_ms - _SPAN_MS // 2
        since = ends if epoch else ends - _SPAN_MS // 2
        is_open = np.full(len(topic), bool(epoch))
        return {"valid_from": since, "valid_to": _unless(is_open, ends), **self._open(is_open, topic)}

    def _append(self, name: str, group: np.ndarray, given: Columns) -> None:
        """Append rows with the columns that the views read; the others are null."""
        known: Columns = {
            "cluster": np.full(len(group), self._config.cluster),
            "group_id": np.char.mod("service-%05d", group),
            "record_partition": group % PARTITIONS,
            "incarnation": np.ones(len(group), int),
            "topic": np.full(len(group), "orders"),
            **given,
        }
        table = contracts.tables()[name]
        schema = table_schema(name)
        arrays = [
            _array(known[field.name], field.type) if field.name in known else pa.nulls(len(group), field.type)
            for field in schema
        ]
        stats = ",".join(
            column.name for column in table.columns if column.stats and column.name not in table.partition_by
        )
        write_deltalake(
            warehouse_of(self._config).table(name).path,
            pa.Table.from_arrays(arrays, schema=schema),
            mode="append",
            partition_by=list(table.partition_by) or None,
            configuration={"delta.dataSkippingStatsColumns": stats},
        )

    def _started_ms(self, generation: np.ndarray, group: np.ndarray) -> np.ndarray:
        moment: np.ndarray = self._end_ms - _SPAN_MS + generation * self._apart_ms + group % 1000
        return moment

    def _offset_commits(self, group: np.ndarray, index: np.ndarray) -> Columns:
        # Sorted as in maintained files: by partition, then by time.
        partition, turn = np.divmod(index, max(self._generations * self._commits // TOPIC_PARTITIONS, 1))
        at = (
            self._end_ms
            - _SPAN_MS
            + (turn + 1) * (_SPAN_MS * TOPIC_PARTITIONS // (self._generations * self._commits))
        )
        return {
            "record_offset": turn * TOPIC_PARTITIONS + partition,
            "record_at": at + group % 1000,
            "commit_at": at + group % 1000,
            "partition": partition % TOPIC_PARTITIONS,
            # One commit in 5,000 rewinds.
            "committed_offset": turn * 100 - np.where(turn % 5000 == 4999, 1000, 0),
            "metadata": np.full(len(group), ""),
            "is_tombstone": np.zeros(len(group), bool),
        }

    def _committed_offsets(self, group: np.ndarray, index: np.ndarray) -> Columns:
        # Every hundredth group has not committed for a long time.
        at = self._end_ms - np.where(group % 100 == 1, 30 * _SPAN_MS, 1000)
        return {
            "record_offset": index,
            "record_at": at,
            "commit_at": at,
            "partition": index,
            "committed_offset": index,
        }

    def _open(self, is_open: np.ndarray, group: np.ndarray) -> Columns:
        return {"is_open": is_open, "open_bucket": _unless(~is_open, group % 8)}

    def _generation_rows(self, group: np.ndarray, index: np.ndarray) -> Columns:
        is_open = index == self._generations - 1
        return {
            "record_offset": index,
            "generation": index,
            "group_kind": np.full(len(group), "classic"),
            "protocol_type": np.full(len(group), "consumer"),
            "protocol": np.where(group % 2 == 0, "range", "cooperative-sticky"),
            "started_at": self._started_ms(index, group),
            "ended_at": _unless(is_open, self._started_ms(index + 1, group)),
            "member_count": np.full(len(group), MEMBERS),
            "partition_count": np.full(len(group), TOPIC_PARTITIONS),
            "skew": index % 2,
            "is_assignors_own": group % 50 != 0,
            **self._open(is_open, group),
        }

    def _rebalances(self, group: np.ndarray, index: np.ndarray) -> Columns:
        return {
            "record_offset": index,
            "from_generation": index - 1,
            "to_generation": index,
            "at": self._started_ms(index, group),
            "cause": np.where(index % 2 == 0, "member_joined", "member_left"),
            "certainty": np.full(len(group), "recorded"),
            "partitions_moved": np.full(len(group), TOPIC_PARTITIONS // MEMBERS),
            "partitions_kept": np.full(len(group), TOPIC_PARTITIONS - TOPIC_PARTITIONS // MEMBERS),
            **self._open(index == self._generations - 1, group),
        }

    def _group_states(self, group: np.ndarray, index: np.ndarray) -> Columns:
        is_open = index == 1
        return {
            "record_offset": index,
            "state": np.where(is_open, np.where(group % 200 == 0, "Dead", "Stable"), "Empty"),
            "started_at": self._started_ms(index, group),
            "ended_at": _unless(is_open, self._started_ms(index + 1, group)),
            **self._open(is_open, group),
        }

    def _memberships(self, group: np.ndarray, index: np.ndarray) -> Columns:
        """Return memberships: each generation has one new member."""
        is_open = index >= self._generations - MEMBERS
        return {
            "record_offset": index,
            "member_id": np.char.add(np.char.mod("client-%d-", index % MEMBERS), index.astype(str)),
            "instance_id": _unless(group % 10 != 0, np.char.mod("instance-%d", index % MEMBERS)),
            "client_id": np.char.mod("client-%d", index % MEMBERS),
            "client_host": np.char.mod("/10.0.0.%d", index % MEMBERS),
            "joined_at": self._started_ms(index, group),
            "joined_generation": index,
            "began": np.full(len(group), "joined"),
            "left_at": _unless(is_open, self._started_ms(index + MEMBERS, group)),
            "ended": _unless(is_open, np.full(len(group), "expired")),
            **self._open(is_open, group),
        }

    def _ownership(self, group: np.ndarray, index: np.ndarray) -> Columns:
        """Return ownership: each generation's new member gets a third of the partitions some milliseconds later."""
        generation, part = np.divmod(index, TOPIC_PARTITIONS // MEMBERS)
        is_open = generation >= self._generations - MEMBERS
        return {
            "record_offset": generation,
            "partition": part * MEMBERS + generation % MEMBERS,
            "member_id": np.char.add(np.char.mod("client-%d-", generation % MEMBERS), generation.astype(str)),
            "client_id": np.char.mod("client-%d", generation % MEMBERS),
            "owned_from": self._started_ms(generation, group) + 20,
            "owned_until": _unless(is_open, self._started_ms(generation + MEMBERS, group)),
            **self._open(is_open, group),
        }

    def _consumer_lag(self, group: np.ndarray, index: np.ndarray) -> Columns:
        partition, sample = np.divmod(index, SAMPLES)
        lag = np.where(group % 20 == 0, sample * 10, 0)
        return {
            "partition": partition,
            "sampled_at": self._end_ms - (SAMPLES - sample) * _SAMPLES_APART_MS + partition * 10,
            "committed_offset": sample * 100,
            "log_end_offset": sample * 100 + lag,
            "lag": lag,
            "lag_seconds": lag / 10.0,
            "status": np.where(lag > 0, "WARN", "OK"),
            "status_reason": np.full(len(group), "as generated"),
        }

    def _share_deliveries(self, group: np.ndarray, index: np.ndarray) -> Columns:
        # One record in twenty is delivered five times, and given up.
        is_poison = index % 20 == 19
        return {
            "record_offset": index,
            "record_at": self._end_ms - _SPAN_MS + (index + 1) * (_SPAN_MS // (self._generations * self._commits)),
            "topic_id": np.full(len(group), _TOPIC_ID),
            "partition": index % TOPIC_PARTITIONS,
            "first_offset": index,
            "last_offset": index,
            "records": np.ones(len(group), int),
            "delivery_state": np.where(is_poison, "archived", "acknowledged"),
            "delivery_count": np.where(is_poison, 5, 1),
            "redeliveries": np.where(is_poison, 4, 0),
            "is_first": np.zeros(len(group), bool),
        }

    def _group_configs(self, group: np.ndarray, index: np.ndarray) -> Columns:
        return {
            "name": np.full(len(group), "share.delivery.count.limit"),
            "value": np.full(len(group), "5"),
            "valid_from": index + self._end_ms - _SPAN_MS,
            **self._open(index == 0, group),
        }

    def _task_assignments(self, group: np.ndarray, index: np.ndarray) -> Columns:
        """Return tasks: each has a standby task, which the next member has."""
        is_standby, task = np.divmod(index, TOPIC_PARTITIONS)
        client = np.char.mod("client-%d", (task + is_standby) % MEMBERS)
        return {
            "record_offset": index,
            "subtopology": np.full(len(group), "0"),
            "task": task,
            "role": np.where(is_standby == 1, "standby", "active"),
            "member_id": client,
            "client_id": client,
            "assigned_from": self._started_ms(index * 0, group),
            **self._open(index >= 0, group),
        }

    def _streams_topology(self, group: np.ndarray, index: np.ndarray) -> Columns:
        return {
            "record_offset": index,
            "subtopology": np.full(len(group), "0"),
            "usage": np.full(len(group), "source"),
            "known_from": self._started_ms(index, group),
            **self._open(index == 0, group),
        }

    def _progress(self, partition: np.ndarray) -> Columns:
        counts = dict.fromkeys(("group_metadata", "group_records", "undecodable_records"), 0 * partition)
        return {
            **counts,
            "record_partition": partition,
            "offset_commits": partition * 1000,
            "landed_at": np.full(len(partition), self._end_ms),
        }


def _unless(mask: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the values, with None where the mask is true."""
    nullable = values.astype(object)
    nullable[mask] = None
    return nullable


def _cut(count: int, size: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + size, count)) for first in range(0, count, size))


def _array(values: np.ndarray | pa.Array, type_: pa.DataType) -> pa.Array:
    """Return an Arrow array; milliseconds become microseconds, None becomes null."""
    if isinstance(values, pa.Array):
        return values
    if pa.types.is_timestamp(type_):
        milliseconds = pa.array(values.tolist() if values.dtype == object else values, pa.int64())
        return milliseconds.cast(pa.timestamp("ms", "UTC")).cast(type_)
    if values.dtype == object:
        return pa.array(values.tolist(), type_)
    return pa.array(values).cast(type_)


def measure(config: Config, folder: Path, *, groups: int, generations: int, commits: int) -> dict[str, Any]:
    """Seconds of each view, warm, and the files it reads over the files of its tables.

    As `grouptrail sql` answers: all rows are asked for, the first 200 written.
    """
    own = config.model_copy(update={"warehouse": str(folder / "views"), "checkpoints": None})
    warehouse = GeneratedWarehouse(own, groups, generations, commits)
    took = seconds(warehouse.write)
    print(
        f"{groups * generations * commits:,} commits and {groups * generations:,} generations of {groups:,} groups "
        f"are there after {took:.0f} s",
        flush=True,
    )
    figures = {}
    for view in contracts.views().values():
        call = _call(view, f"service-{groups // 2:05d}", warehouse.asked_ms(view))
        _answer(own, call)
        cores_before = time.process_time()
        times = [seconds(lambda call=call: _answer(own, call)) for _ in range(ROUNDS)]  # type: ignore[misc]
        core_seconds = (time.process_time() - cores_before) / ROUNDS
        read, there = _files(own, view, call)
        figures[view.name] = {
            "seconds": round(median(times), 3),
            "core_seconds": round(core_seconds, 3),
            "files_opened": read,
            "files": there,
        }
        print(
            f"{view.name:28} {median(times):7.3f} s ({core_seconds:.3f} of all cores), {read} of {there} files",
            flush=True,
        )
    return figures


def _answer(config: Config, call: str) -> None:
    with query_context(config) as context:
        run_sql(context, call, format="table", out=StringIO())


def _call(view: contracts.View, group: str, time_ms: int) -> str:
    """Return a call of a view for a group, a broker and a time; other parameters have their defaults."""
    moment = pa.scalar(time_ms, pa.timestamp("ms")).as_py()
    values = {
        "broker": "1",
        "group": f"'{group}'",
        "time": f"'{moment.isoformat()}Z'",
        "day": f"'{moment.date()}'",
        "window": "'10 minutes'",
    }
    given = [values[parameter.name] for parameter in view.parameters if parameter.default is None]
    return f"SELECT * FROM {view.name}({', '.join(given)})"


def _files(config: Config, view: contracts.View, call: str) -> tuple[int, int]:
    """Return how many files a query opens, as counted by the engine (one read twice counts twice), and how many
    exist."""
    there = sum(len(DeltaTable(warehouse_of(config).table(name).path).file_uris()) for name in view.tables)
    text = expand(call, config.cluster).text
    with query_context(config) as context:
        _, batches = run_query(context, f"EXPLAIN ANALYZE {text}")
    plan = "\n".join(str(value) for batch in batches for value in batch.column("plan").to_pylist())
    return sum(map(int, re.findall(r"files_opened=(\d+)", plan))), there

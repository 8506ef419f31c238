"""The last hour of each group, which the index of groups shows in addition to the exporter's snapshot."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.query.views import filled
from grouptrail.snapshot.reader import LAG_COLUMNS, ServedCluster
from grouptrail.storage import positions
from grouptrail.storage.rows import OpenTables
from grouptrail.storage.schema import columns_of
from grouptrail.storage.sql import Value, datafusion_literal
from grouptrail.web.answers import LagPoint

TREND_POINTS = 30
TOPIC_POINTS = 120

_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_STEP = _HOUR / TREND_POINTS
_ROUND = timedelta(seconds=30)
"""The partitions of one round of samples are at most this far apart."""

_READ = {
    "consumer_lag": ("cluster", *LAG_COLUMNS),
    "rebalances": ("cluster", "group_id", "at"),
    "log_offsets": ("cluster", "topic", "partition", "sampled_at", "log_start_offset"),
}
_LAST_SAMPLES = f"""
SELECT {", ".join(LAG_COLUMNS)} FROM consumer_lag
WHERE cluster = :cluster AND sampled_at > :newest
"""
_REBALANCES = """
SELECT group_id, count(*) AS rebalances FROM rebalances
WHERE cluster = :cluster AND at > :since AND at <= :until
GROUP BY group_id
"""
_LOG_STARTS = """
SELECT partition, (max(log_start_offset) - min(log_start_offset)) * 1e6
  / (CAST(max(sampled_at) AS BIGINT) - CAST(min(sampled_at) AS BIGINT)) AS rate
FROM log_offsets
WHERE cluster = :cluster AND topic = :topic AND log_start_offset IS NOT NULL AND sampled_at > :since
GROUP BY partition
HAVING max(sampled_at) > min(sampled_at)
"""
_LAG_OF_TOPIC = """
SELECT group_id, slot, count(*) AS partitions, CASE WHEN count(lag) = count(*) THEN sum(lag) END AS lag
FROM (
  SELECT group_id, partition, CAST(sampled_at AS BIGINT) / :step AS slot, max(lag) AS lag
  FROM consumer_lag
  WHERE cluster = :cluster AND topic = :topic AND sampled_at >= :since AND sampled_at <= :until
  GROUP BY group_id, partition, slot
)
GROUP BY group_id, slot
ORDER BY group_id, slot
"""
# Not the sum: a round may have several samples of a partition, and telling them apart takes ten times as long.
_ROUNDS = """
SELECT CAST(sampled_at AS BIGINT) / :step AS slot, group_id, avg(lag) AS lag
FROM consumer_lag
WHERE cluster = :cluster AND ({rounds})
GROUP BY slot, group_id
"""


class Recent:
    """Reads a cluster's recent rows, for one thread at a time. The rounds of trends are kept: each is read once."""

    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        self._reading = threading.Lock()
        self._tables = OpenTables([table.location for table in cluster.warehouse.tables(_READ)], _READ)
        self._rounds: dict[int, pa.Table] = {}

    def refresh(self) -> None:
        """See the newest versions of the tables."""
        with self._reading:
            self._tables.refresh()

    def last_samples(self, column: Literal["group_id", "topic"] | None = None, name: str = "") -> pa.Table:
        """Return the newest sample of each group and partition, however old: of all, or of one group or topic."""
        where = "" if column is None else f"AND {column} = :name"
        with self._reading:
            newest = self._tables.newest("consumer_lag", "sampled_at")
            values = {"name": name} if column else {}
            rows = (
                None if newest is None else self._rows(_LAST_SAMPLES + where, {"newest": newest - _ROUND, **values})
            )
        return NO_SAMPLES if rows is None else positions.newest(rows.cast(NO_SAMPLES.schema), order="sampled_at")

    def rebalances(self, until: datetime) -> pa.Table:
        """Return how many rebalances each group had in the hour before a time: group_id, rebalances."""
        with self._reading:
            if self._tables.get("rebalances") is None:
                return _NO_REBALANCES
            rows = self._rows(_REBALANCES, {"since": until - _HOUR, "until": until})
        return rows.cast(_NO_REBALANCES.schema)

    def delete_rates(self, topic: str) -> dict[int, float]:
        """Return how fast each partition's log start advanced in the last day of samples, in records per second."""
        with self._reading:
            newest = self._tables.newest("log_offsets", "sampled_at")
            if newest is None:
                return {}
            rows = self._rows(_LOG_STARTS, {"topic": topic, "since": newest - _DAY})
        return {row["partition"]: float(row["rate"]) for row in rows.to_pylist()}

    def lag_of_topic(self, topic: str, since: datetime, until: datetime) -> dict[str, list[LagPoint]]:
        """Return the unread offsets in a topic over time, by group.

        A slice has at least one round of samples. One that a round has reached in part has no lag.
        """
        step = max((until - since) / TOPIC_POINTS, timedelta(seconds=2 * self._cluster.sample_seconds))
        values: dict[str, Value] = {"topic": topic, "since": since, "until": until}
        values["step"] = step // timedelta(microseconds=1)
        with self._reading:
            if self._tables.get("consumer_lag") is None:
                return {}
            rows = self._rows(_LAG_OF_TOPIC, values).to_pylist()
        points: dict[str, list[LagPoint]] = {}
        for group_id, of_group in groupby(rows, lambda row: row["group_id"]):
            slices = list(of_group)
            counts = [row["partitions"] for row in slices]
            points[group_id] = [
                LagPoint(at=datetime.fromtimestamp(0, UTC) + row["slot"] * step, lag=row["lag"] if is_whole else None)
                for row, is_whole in zip(slices, _are_whole(counts), strict=True)
            ]
        return points

    def trends(self, partitions: Mapping[str, int], until: datetime | None) -> dict[str, list[int | None]]:
        """Return the lag of some groups in the hour before a time, oldest first.

        It is the average of a group's partitions times their number, which `partitions` has by group."""
        if until is None:
            return {}
        last = (until - datetime.fromtimestamp(0, UTC)) // _STEP
        slots = range(last - TREND_POINTS + 1, last + 1)
        with self._reading:
            if self._tables.get("consumer_lag") is None:
                return {}
            self._read_rounds(slots)
            rounds = {slot: self._rounds[slot] for slot in slots if slot in self._rounds}
        trends: dict[str, list[int | None]] = {name: [None] * len(slots) for name in partitions}
        wanted = pa.array(list(partitions), pa.string())
        for slot, rows in rounds.items():
            for row in rows.filter(pc.is_in(rows["group_id"], wanted)).to_pylist():
                name, average = row["group_id"], row["lag"]
                trends[name][slot - slots.start] = None if average is None else round(average * partitions[name])
        return trends

    def _read_rounds(self, slots: range) -> None:
        """Read the rounds that are not known yet; the last slot may still get its round."""
        missing = [slot for slot in slots if slot not in self._rounds]
        if missing:
            # A sampling interval after a slot has begun, its round is complete.
            length = max(_ROUND.total_seconds(), 1.5 * self._cluster.sample_seconds)
            rounds = " OR ".join(_within(slot, timedelta(seconds=length)) for slot in missing)
            rows = self._rows(_ROUNDS.format(rounds=rounds), {"step": int(_STEP.total_seconds() * 1e6)})
            for slot in missing[:-1] if missing[-1] == slots[-1] else missing:
                self._rounds[slot] = _NO_LAG
            for slot in pc.unique(rows["slot"]).to_pylist():
                self._rounds[slot] = rows.filter(pc.equal(rows["slot"], slot)).select(["group_id", "lag"])
        for slot in [slot for slot in self._rounds if slot not in slots]:
            del self._rounds[slot]

    def _rows(self, sql: str, values: Mapping[str, Value]) -> pa.Table:
        return self._tables.rows(filled(sql, {**values, "cluster": self._cluster.name}))


def _are_whole(counts: Sequence[int]) -> list[bool]:
    """Return of which slices of time the rounds are whole: those with as many partitions as a slice beside them."""
    beside = [[*counts[max(place - 1, 0) : place], *counts[place + 1 : place + 2]] for place in range(len(counts))]
    return [not others or count >= min(others) for count, others in zip(counts, beside, strict=True)]


def _within(slot: int, length: timedelta) -> str:
    since = datetime.fromtimestamp(0, UTC) + slot * _STEP
    until = since + min(length, _STEP)
    return f"(sampled_at >= {datafusion_literal(since)} AND sampled_at < {datafusion_literal(until)})"


NO_SAMPLES = columns_of("consumer_lag", LAG_COLUMNS).empty_table()
_NO_REBALANCES = pa.schema([("group_id", pa.string()), ("rebalances", pa.int64())]).empty_table()
_NO_LAG = pa.schema([("group_id", pa.string()), ("lag", pa.float64())]).empty_table()

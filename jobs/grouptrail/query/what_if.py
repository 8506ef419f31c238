"""What would happen if brokers stopped: read from the tables of the job `cluster` and of the groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail import contracts
from grouptrail.jobs import CLUSTER
from grouptrail.kafka.coordinator import OFFSETS_TOPIC, coordinator_partition
from grouptrail.query.broker_loss import (
    BELOW_MIN_ISR,
    BELOW_MIN_ISR_ALREADY,
    EFFECTS,
    OFFLINE,
    OFFLINE_ALREADY,
    PARTITIONS,
    SETTINGS,
    UNKNOWN,
    loss_effects,
)
from grouptrail.query.errors import QueryError
from grouptrail.query.formats import counted, to_the_second
from grouptrail.query.freshness import stale_seconds
from grouptrail.query.views import LATEST, filled, view_query
from grouptrail.storage.last_sample import LastSample, read_last_sample
from grouptrail.storage.sql import Value
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.warehouse import Warehouse

Row = dict[str, Any]

_FACTS = ("brokers", "topics", "topic_partitions")
TABLES = (*_FACTS, "topic_configs", "group_states", "generations", "consumer_lag", "committed_offsets")

CONSEQUENCES = (
    *("cannot_commit", "cannot_read", "may_not_commit"),
    *("cannot_commit_already", "cannot_read_already", "coordinator_moves", "leaders_move"),
)
"""What a stop means for a group, the worst first."""

_CANNOT_COMMIT = {
    OFFLINE: "cannot_commit",
    BELOW_MIN_ISR: "cannot_commit",
    UNKNOWN: "may_not_commit",
    OFFLINE_ALREADY: "cannot_commit_already",
    BELOW_MIN_ISR_ALREADY: "cannot_commit_already",
}
INTERNAL = {
    OFFSETS_TOPIC: "groups in them cannot commit, nor rebalance",
    "__transaction_state": "transactions coordinated there can be neither begun nor ended",
    "__share_group_state": "share groups whose state is in them get no more records",
}
"""What it means if partitions of Kafka's own topics are offline or refuse writes."""

_DEFAULT_INTERVAL_SECONDS = 60.0
# Older brokers compare the replicas in sync with min.insync.replicas as it is.
_CAPS_SINCE = (3, 7)

_VALID = "cluster = :cluster AND valid_from <= :time AND (valid_to IS NULL OR :time < valid_to)"
_BROKERS = """
SELECT broker_id, host, rack, release_from, valid_from, last_seen_at,
  valid_to IS NULL OR :time < valid_to AS is_listed
FROM (
  SELECT *, row_number() OVER (PARTITION BY broker_id ORDER BY valid_from DESC) AS place
  FROM brokers
  WHERE cluster = :cluster AND valid_from <= :time
)
WHERE place = 1
ORDER BY broker_id
"""
_PARTITIONS = f"SELECT {', '.join(PARTITIONS.names)} FROM topic_partitions WHERE {_VALID}"
_SETTINGS = f"SELECT {', '.join(SETTINGS.names)} FROM topic_configs WHERE {_VALID}"
_TOPICS = """
SELECT topic, max(deleted_at) AS deleted_at,
  max(CASE WHEN valid_to IS NULL OR :time < valid_to THEN partition_count END) AS partition_count
FROM topics
WHERE cluster = :cluster AND valid_from <= :time
GROUP BY topic
"""
_CHANGED = """
SELECT min(valid_from) AS first, max(greatest(valid_from, coalesce(valid_to, valid_from))) AS newest,
  max(CASE WHEN valid_to <= :time THEN valid_to WHEN valid_from <= :time THEN valid_from END) AS changed
FROM (
  SELECT valid_from, valid_to FROM brokers WHERE cluster = :cluster
  UNION ALL
  SELECT valid_from, valid_to FROM topic_partitions WHERE cluster = :cluster
)
"""
_LATEST = """
SELECT * FROM (
  SELECT *, row_number() OVER (PARTITION BY group_id ORDER BY record_offset DESC, started_at DESC) AS place
  FROM {table}
  WHERE cluster = :cluster AND started_at <= :time AND (ended_at IS NULL OR :time < ended_at)
)
WHERE place = 1
"""
_COMMITTED = (
    "SELECT group_id, topic, partition, CAST(NULL AS BIGINT) AS lag FROM committed_offsets WHERE cluster = :cluster"
)
_SAMPLES_AT = """
SELECT group_id, topic, partition, lag
FROM (
  SELECT *, row_number() OVER (PARTITION BY group_id, topic, partition ORDER BY sampled_at DESC) AS place
  FROM consumer_lag
  WHERE cluster = :cluster AND sampled_at <= :time AND sampled_at > :before
)
WHERE place = 1
"""
_POSITIONS = pa.schema({"group_id": pa.string(), "topic": pa.string(), "partition": pa.int32(), "lag": pa.int64()})


class UnknownBrokerError(QueryError):
    """No sample of the cluster shows a broker of this id, or of this rack; `near` are the ids that there are."""

    def __init__(self, message: str, near: Sequence[int]) -> None:
        super().__init__(message)
        self.near = list(near)


class NotSampledError(QueryError):
    """The cluster was not sampled by the time asked for."""


def describe_loss(
    warehouse: Warehouse,
    broker_ids: Collection[int],
    *,
    racks: Collection[str] = (),
    at: datetime | None = None,
    sample_seconds: float,
) -> Row:
    """Return what would happen if brokers, and all of some racks, stopped now or had stopped `at` a time.

    `sample_seconds` is the time between samples of lag. Times are UTC in ISO 8601. The fields are:
    `verdict` (safe, unsafe, unknown) and `summary`, the same as a line; `brokers`; `listed`, the ids of all brokers;
    `counts`, the partitions with a replica there by effect, and `elsewhere`, those without one that are in trouble
    already; `internal`, `topics`, `groups` and `partitions`, the worst first; `notes` on what is not known;
    `changed_at`, the last change of what they follow from, `sampled_at`, when that was last seen to be so, and
    `is_stale`.

    Raises UnknownBrokerError, also if no broker is named, and NotSampledError."""
    tables = SqlSnapshot(warehouse, TABLES)
    facts = _ClusterFacts(tables, at)
    brokers = facts.chosen(broker_ids, racks)
    stopped = {broker["broker_id"] for broker in brokers}
    effects = loss_effects(facts.partitions, facts.settings, stopped)
    own = effects.filter(effects["has_replica"])
    others = effects.filter(pc.invert(effects["has_replica"]))
    groups = _Groups(tables, at, sample_seconds)
    hidden = facts.hidden(groups.topics)
    counts = _counts(own)
    doubts = list(_doubts(own, hidden, facts.sampled_at if facts.is_stale else None))
    is_unsafe = counts[OFFLINE] or counts[BELOW_MIN_ISR]
    offsets_partitions = facts.partitioncounted(OFFSETS_TOPIC)
    listed = groups.affected(own, offsets_partitions)
    coordinated = sum(group["is_coordinated_there"] for group in listed)
    return {
        "cluster": warehouse.cluster,
        "at": None if at is None else _iso(at),
        "verdict": "unsafe" if is_unsafe else "unknown" if doubts else "safe",
        "summary": _summary(counts, doubts),
        "brokers": brokers,
        "listed": facts.listed,
        "counts": counts,
        "partitions_led": pc.sum(own["is_led"]).as_py() or 0,
        "elsewhere": {name: _counts(others)[name] for name in (OFFLINE_ALREADY, BELOW_MIN_ISR_ALREADY)},
        "groups_coordinated": None if offsets_partitions is None else coordinated,
        "notes": list(facts.notes(brokers, hidden)),
        "internal": list(_internal(own)),
        "topics": _topics(own),
        "groups": listed,
        "partitions": _partitions(own),
        "changed_at": _iso(facts.changed_at),
        "sampled_at": _iso(facts.sampled_at),
        "is_stale": facts.is_stale,
    }


class _ClusterFacts:
    """What samples of the cluster showed at a time. Raises NotSampledError if there was none by then."""

    def __init__(self, tables: SqlSnapshot, at: datetime | None) -> None:
        self._cluster = tables.warehouse.cluster
        values: dict[str, Value] = {"cluster": self._cluster, "time": at or LATEST}
        is_there = set(_FACTS) <= tables.versions.keys()
        known: Row = tables.rows(filled(_CHANGED, values))[0] if is_there else {"first": None}
        if known["first"] is None:
            raise NotSampledError(
                f"the brokers of cluster {self._cluster} have not been sampled yet: run `grouptrail run` "
                "(its job cluster does), or check --cluster"
            )
        if known["changed"] is None:
            raise NotSampledError(
                f"the brokers of cluster {self._cluster} were first sampled at {known['first'][:19]}Z: "
                "give a later time"
            )
        self.changed_at = _moment(known["changed"])
        newest = _moment(known["newest"])
        noted = read_last_sample(tables.warehouse, CLUSTER.name)
        last = noted if noted is not None and noted.at >= newest else LastSample(newest, _interval_of(noted))
        self.is_stale = last.is_stale(at)
        self.sampled_at = last.at if at is None else min(last.at, at)
        self._noted = noted if at is None else None
        self.partitions = _arrow(tables, filled(_PARTITIONS, values), PARTITIONS)
        has_settings = "topic_configs" in tables.versions
        self.settings = (
            _arrow(tables, filled(_SETTINGS, values), SETTINGS) if has_settings else SETTINGS.empty_table()
        )
        self._brokers: dict[int, Row] = {row["broker_id"]: row for row in tables.rows(filled(_BROKERS, values))}
        self._topics: dict[str, Row] = {row["topic"]: row for row in tables.rows(filled(_TOPICS, values))}

    def chosen(self, broker_ids: Collection[int], racks: Collection[str]) -> list[Row]:
        """Return the brokers of these ids, and the listed ones of these racks."""
        listed = [row for row in self._brokers.values() if row["is_listed"]]
        there = self.listed
        its_brokers = f"its brokers are {', '.join(map(str, there))}"
        if not broker_ids and not racks:
            raise UnknownBrokerError(f"name brokers of cluster {self._cluster}: {its_brokers}", there)
        of_racks = [row["broker_id"] for row in listed if row["rack"] in racks]
        missing = sorted(set(racks) - {row["rack"] for row in listed})
        if missing:
            known = sorted({row["rack"] for row in listed if row["rack"] is not None})
            hint = f"racks are {', '.join(known)}" if known else "no broker has a rack (broker.rack)"
            raise UnknownBrokerError(f"cluster {self._cluster} has no broker in rack {missing[0]!r}: {hint}", there)
        assigned = set(pc.list_flatten(self.partitions["replicas"]).unique().to_pylist())
        unknown = sorted(set(broker_ids) - self._brokers.keys() - assigned)
        if unknown:
            raise UnknownBrokerError(f"cluster {self._cluster} has no broker {unknown[0]}: {its_brokers}", there)
        return [self._broker(number) for number in sorted({*broker_ids, *of_racks})]

    def _broker(self, number: int) -> Row:
        row = self._brokers.get(number, {})
        return {
            "broker_id": number,
            "host": row.get("host"),
            "rack": row.get("rack"),
            "is_listed": bool(row.get("is_listed")),
            "last_seen_at": row.get("last_seen_at") if not row.get("is_listed") else None,
        }

    @property
    def listed(self) -> list[int]:
        """The ids of all brokers that the cluster listed as alive."""
        return [number for number, row in self._brokers.items() if row["is_listed"]]

    def partitioncounted(self, topic: str) -> int | None:
        """Return how many partitions a topic has; None if no sample shows it."""
        count = self._topics.get(topic, {}).get("partition_count")
        return None if count is None else int(count)

    def hidden(self, topics: Collection[str]) -> list[str]:
        """Return the topics among these of which no sample said anything, not even that they were deleted."""
        return sorted(
            topic
            for topic in topics
            if self.partitioncounted(topic) is None and self._topics.get(topic, {}).get("deleted_at") is None
        )

    def notes(self, brokers: Sequence[Row], hidden: Sequence[str]) -> Iterator[str]:
        """Yield what is not as usual, or not known, a line each."""
        for broker in brokers:
            if not broker["is_listed"]:
                seen = f" since {to_the_second(broker['last_seen_at'])} UTC" if broker["last_seen_at"] else ""
                yield (
                    f"broker {broker['broker_id']} has not been listed as alive{seen}: "
                    "it has stopped already, and its leaders have moved"
                )
        if self.partitioncounted(OFFSETS_TOPIC) is None:
            yield (
                f"which brokers coordinate which groups is not known: no sample shows {OFFSETS_TOPIC} "
                "(it needs DESCRIBE)"
            )
        if hidden:
            yield f"of topics that groups read, no sample shows {_some(hidden)} (they need DESCRIBE, or are deleted)"
        old = sorted(
            number for number, row in self._brokers.items() if row["is_listed"] and _is_older(row["release_from"])
        )
        if old:
            yield (
                f"brokers before Kafka 3.7 ({', '.join(map(str, old))}) refuse acks=all also where "
                "min.insync.replicas is more than the number of replicas"
            )
        if self._noted is not None:
            for problem in self._noted.problems:
                yield f"the last sample lacks something: {problem.removeprefix('cluster: ')}"
            if self._noted.missing:
                yield (
                    f"the last sample did not find {_some(self._noted.missing)}: "
                    "deleted, unless the next one finds them"
                )


class _Groups:
    """The groups at a time: their states, and the partitions that they read."""

    def __init__(self, tables: SqlSnapshot, at: datetime | None, sample_seconds: float) -> None:
        self._tables = tables
        self._values: dict[str, Value] = {"cluster": tables.warehouse.cluster, "time": at or LATEST}
        read = self._read_at(at, sample_seconds) if at else self._read_now()
        self._positions = pa.concat_tables([_POSITIONS.empty_table(), *read]).group_by(
            ["group_id", "topic", "partition"]
        )
        self._positions = self._positions.aggregate([("lag", "max")]).rename_columns(_POSITIONS.names)
        self.topics: list[str] = self._positions["topic"].unique().to_pylist()

    def affected(self, partitions: pa.Table, offsets_partitions: int | None) -> list[Row]:
        """Return the groups that a stop has consequences for, the worst first, those with members before others."""
        coordinated = {
            row["partition"]: row
            for row in partitions.filter(pc.equal(partitions["topic"], OFFSETS_TOPIC)).to_pylist()
        }
        of_group = self._of_partitions(partitions)
        states = {row["group_id"]: row for row in self._latest("group_states")}
        members = {row["group_id"]: row["member_count"] for row in self._latest("generations")}
        totals = self._totals()
        names = totals.keys() | {name for name, row in states.items() if row["state"] != "Dead"}
        groups = []
        for name in names:
            place = None if offsets_partitions is None else coordinator_partition(name, offsets_partitions)
            there = coordinated.get(place, {}) if place is not None else {}
            read = of_group.get(name, {})
            consequences = _consequences(there, read)
            if not consequences:
                continue
            state = states.get(name, {}).get("state")
            count, lag = totals.get(name, (0, None))
            groups.append(
                {
                    "group_id": name,
                    "state": None if state == "Dead" else state,
                    "group_kind": states.get(name, {}).get("group_kind"),
                    "member_count": 0 if state == "Empty" else members.get(name),
                    "lag": lag,
                    "consequences": consequences,
                    "coordinator_partition": place,
                    "is_coordinated_there": bool(there.get("is_led")),
                    "coordinator_effect": there.get("effect"),
                    "partitions": count,
                    "partitions_led": read.get("led", 0),
                    "partitions_offline": read.get(OFFLINE, 0),
                    "partitions_offline_already": read.get(OFFLINE_ALREADY, 0),
                }
            )
        return sorted(groups, key=_urgency)

    def _read_now(self) -> Iterator[pa.Table]:
        versions = self._tables.versions.keys()
        if {"consumer_lag", "group_states"} <= versions:
            lag = view_query(contracts.views()["current_lag"], self._tables.warehouse.cluster, {})
            query = f"SELECT group_id, topic, partition, lag FROM ({lag})"
            yield _arrow(self._tables, query, _POSITIONS)
        if "committed_offsets" in versions:
            yield _arrow(self._tables, filled(_COMMITTED, self._values), _POSITIONS)

    def _read_at(self, at: datetime, sample_seconds: float) -> Iterator[pa.Table]:
        if "consumer_lag" in self._tables.versions:
            before = at - timedelta(seconds=stale_seconds(sample_seconds))
            yield _arrow(self._tables, filled(_SAMPLES_AT, self._values | {"before": before}), _POSITIONS)

    def _latest(self, table: str) -> list[Row]:
        if table not in self._tables.versions:
            return []
        return self._tables.rows(filled(_LATEST.format(table=table), self._values))

    def _totals(self) -> dict[str, tuple[int, int | None]]:
        """Return of each group how many partitions it reads, and their lag."""
        totals = self._positions.group_by("group_id").aggregate([("partition", "count"), ("lag", "sum")])
        columns = (totals[name].to_pylist() for name in ("group_id", "partition_count", "lag_sum"))
        return {name: (count, lag) for name, count, lag in zip(*columns, strict=True)}

    def _of_partitions(self, partitions: pa.Table) -> dict[str, dict[str, int]]:
        """Return of each group how many partitions it reads by effect, and how many are led there."""
        columns = partitions.select(["topic", "partition", "effect", "is_led"])
        joined = self._positions.join(columns, ["topic", "partition"], join_type="inner")
        counted = joined.group_by(["group_id", "effect", "is_led"]).aggregate([("partition", "count")])
        found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for row in counted.to_pylist():
            found[row["group_id"]][row["effect"]] += row["partition_count"]
            found[row["group_id"]]["led"] += row["partition_count"] * row["is_led"]
        return found


def _consequences(there: Row, read: dict[str, int]) -> list[str]:
    """Return what a stop means for a group: `there` is its coordinator's partition, `read` has its partitions."""
    known = {_CANNOT_COMMIT.get(there.get("effect", ""))}
    known |= {"cannot_read"} if read.get(OFFLINE) else set()
    known |= {"cannot_read_already"} if read.get(OFFLINE_ALREADY) else set()
    known |= {"coordinator_moves"} if there.get("is_led") and there["effect"] != OFFLINE else set()
    known |= {"leaders_move"} if read.get("led", 0) > read.get(OFFLINE, 0) else set()
    return [name for name in CONSEQUENCES if name in known]


def _urgency(group: Row) -> tuple[Any, ...]:
    is_idle = group["state"] in (None, "Empty")
    worst = CONSEQUENCES.index(group["consequences"][0])
    return worst, is_idle, -(group["member_count"] or 0), -(group["lag"] or 0), group["group_id"]


def _counts(partitions: pa.Table) -> dict[str, int]:
    counted = {row["values"]: row["counts"] for row in pc.value_counts(partitions["effect"]).to_pylist()}
    return {name: counted.get(name, 0) for name in EFFECTS}


def _doubts(own: pa.Table, hidden: Sequence[str], stale_since: datetime | None) -> Iterator[str]:
    """Yield why a stop may be worse than the figures say."""
    unknown = own.filter(pc.equal(own["effect"], UNKNOWN))
    for row in pc.value_counts(unknown["problem"]).to_pylist():
        topics = sorted(unknown.filter(pc.equal(unknown["problem"], row["values"]))["topic"].unique().to_pylist())
        yield (
            f"{counted(row['counts'], 'partition')} may be below min.insync.replicas, which is unknown "
            f"({row['values']}: {_some(topics)})"
        )
    if hidden:
        yield f"{counted(len(hidden), 'topic')} that groups read cannot be seen"
    if stale_since is not None:
        yield f"the cluster was last sampled at {to_the_second(_iso(stale_since))} UTC"


def _summary(counts: dict[str, int], doubts: Sequence[str]) -> str:
    refused, lost = counts[BELOW_MIN_ISR], counts[OFFLINE]
    bad = []
    if refused:
        bad.append(f"{counted(refused, 'partition')} would refuse acks=all writes: below min.insync.replicas")
    if lost:
        bad.append(
            f"{f'{lost:,}' if bad else counted(lost, 'partition')} would be offline: no replica in sync is left"
        )
    if bad:
        return "; ".join([*bad, *doubts])
    same = "no partition would be offline or below min.insync.replicas"
    if any(counts[name] for name in (OFFLINE_ALREADY, BELOW_MIN_ISR_ALREADY)):
        same = "no partition would be offline or below min.insync.replicas that is not so already"
    return f"not known to be safe: {'; '.join(doubts)}" if doubts else f"safe: {same}"


def _internal(own: pa.Table) -> Iterator[Row]:
    """Yield the partitions of Kafka's own topics that are or would be in trouble, by topic and effect."""
    for topic, meaning in INTERNAL.items():
        rows = own.filter(pc.equal(own["topic"], topic))
        for effect in (OFFLINE, BELOW_MIN_ISR, UNKNOWN, OFFLINE_ALREADY, BELOW_MIN_ISR_ALREADY):
            numbers = sorted(rows.filter(pc.equal(rows["effect"], effect))["partition"].to_pylist())
            if numbers:
                yield {"topic": topic, "effect": effect, "partitions": numbers, "meaning": meaning}


def _topics(own: pa.Table) -> list[Row]:
    """Return the topics with a partition there, the worst first, with the partitions by effect."""
    topics: dict[str, Row] = {}
    columns = (own[name].to_pylist() for name in ("topic", "partition", "effect", "is_led", "min_insync_replicas"))
    for topic, partition, effect, is_led, least in zip(*columns, strict=True):
        row = topics.setdefault(
            topic, {"topic": topic, "min_insync_replicas": least, "partitions_led": 0, "partitions": {}}
        )
        row["partitions_led"] += is_led
        row["partitions"].setdefault(effect, []).append(partition)
    for row in topics.values():
        row["partitions"] = {name: sorted(row["partitions"][name]) for name in EFFECTS if name in row["partitions"]}
    return sorted(topics.values(), key=_severity)


def _severity(topic: Row) -> tuple[Any, ...]:
    worst = next(iter(topic["partitions"]))
    return EFFECTS.index(worst), -len(topic["partitions"][worst]), -topic["partitions_led"], topic["topic"]


def _partitions(own: pa.Table) -> list[Row]:
    ranked = own.append_column("rank", pc.index_in(own["effect"], pa.array(EFFECTS)))
    order = [(name, "ascending") for name in ("rank", "topic", "partition")]
    columns = [column.name for column in contracts.views()["what_if_broker"].columns]
    rows: list[Row] = ranked.sort_by(order).select(columns).to_pylist()
    return rows


def _interval_of(noted: LastSample | None) -> float:
    return _DEFAULT_INTERVAL_SECONDS if noted is None else noted.interval_seconds


def _is_older(release: str | None) -> bool:
    return release is not None and tuple(map(int, release.split(".")[:2])) < _CAPS_SINCE


def _arrow(tables: SqlSnapshot, query: str, schema: pa.Schema) -> pa.Table:
    _, batches = tables.answer(query)
    return pa.concat_tables(
        [schema.empty_table(), *(pa.Table.from_batches([pa.record_batch(batch)]).cast(schema) for batch in batches)]
    )


def _some(names: Sequence[str]) -> str:
    """Return the first of some names and the number of the others."""
    return repr(names[0]) + (f" and {len(names) - 1:,} more" if len(names) > 1 else "")


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _iso(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")

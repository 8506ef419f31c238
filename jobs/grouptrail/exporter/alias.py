"""Other exporters' metrics, by their names and labels, from the families of our own, and from `alias_sources`.

`ALIASES` is the whole mapping; docs/migrate.md shows it. What an exporter has and is not here is in `NOT_SERVED`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.exporter.families import grouped
from grouptrail.exporter.text import Family


@dataclass(frozen=True)
class Alias:
    """A metric of another exporter.

    `labels` is by its label the one of ours. Our series that differ only in labels it does not have are added up.
    `codes` turns our label `status` into its number; a status that has none is not served. `differs` says where its
    meaning is another than in the exporter that the name is of.
    """

    name: str
    source: str
    labels: Mapping[str, str]
    type: str = "gauge"
    codes: Mapping[str, int] | None = None
    factor: int = 1
    differs: str = ""


_PARTITION = {"topic": "topic", "partition": "partition"}
_OURS = "kafka_consumer_group_"

_NEVER_NEGATIVE = "never below 0, and no series where the lag is unknown (theirs: -1)"
_HAD_MEMBERS = "no series for groups that only have commits and never had members"
_CONSUMED_ONLY = "of the partitions that a group commits to"
_NO_MEMBER = (
    "without member_host, consumer_id and client_id: a member id in a label would create new series at each restart"
)

_KAFKA_EXPORTER_GROUP = {"consumergroup": "group"}
_KAFKA_EXPORTER = (
    Alias(
        "kafka_consumergroup_current_offset",
        f"{_OURS}committed_offset",
        {**_KAFKA_EXPORTER_GROUP, **_PARTITION},
        differs="no series for a partition without a commit (theirs: -1)",
    ),
    Alias("kafka_consumergroup_lag", f"{_OURS}lag", {**_KAFKA_EXPORTER_GROUP, **_PARTITION}, differs=_NEVER_NEGATIVE),
    Alias(
        "kafka_consumergroup_current_offset_sum",
        f"{_OURS}committed_offset",
        {**_KAFKA_EXPORTER_GROUP, "topic": "topic"},
        differs="of the partitions with a commit (theirs: lower by 1 for each one without)",
    ),
    Alias(
        "kafka_consumergroup_lag_sum",
        f"{_OURS}topic_lag",
        {**_KAFKA_EXPORTER_GROUP, "topic": "topic"},
        differs="of the partitions whose lag is known",
    ),
    Alias(
        "kafka_consumergroup_members",
        f"{_OURS}members",
        _KAFKA_EXPORTER_GROUP,
        differs=f"also for KIP-848, share and streams groups; {_HAD_MEMBERS}",
    ),
    Alias("kafka_brokers", "kafka_cluster_brokers", {}),
    Alias("kafka_broker_info", "brokers.host", {"id": "broker", "address": "address"}),
    Alias("kafka_topic_partitions", "topics.partition_count", {"topic": "topic"}),
    Alias("kafka_topic_partition_current_offset", "log_offsets.log_end_offset", _PARTITION),
    Alias("kafka_topic_partition_oldest_offset", "log_offsets.log_start_offset", _PARTITION),
    Alias("kafka_topic_partition_leader", "topic_partitions.leader", _PARTITION),
    Alias("kafka_topic_partition_leader_is_preferred", "topic_partitions.leader_is_preferred", _PARTITION),
    Alias("kafka_topic_partition_replicas", "topic_partitions.replicas", _PARTITION),
    Alias("kafka_topic_partition_in_sync_replica", "topic_partitions.isr", _PARTITION),
    Alias("kafka_topic_partition_under_replicated_partition", "topic_partitions.under_replicated", _PARTITION),
)

_KMINION_GROUP = {"group_id": "group"}
_KMINION_TOPIC = {"topic_name": "topic"}
_KMINION_PARTITION = {**_KMINION_TOPIC, "partition_id": "partition"}
_KMINION_BROKER = {"broker_id": "broker", "address": "host", "port": "port", "rack_id": "rack"}
_SIZES = "read every five minutes (`cluster_facts.log_sizes_interval_seconds`), not at each scrape"
_INTERNAL = "also of internal topics"
_OWNED = "also during a rebalance of a classic group, as assigned before it"
_KMINION = (
    Alias("kminion_exporter_up", "grouptrail_build_info", {"version": "version"}, differs="grouptrail's version"),
    Alias(
        "kminion_exporter_offset_consumer_records_consumed_total",
        "grouptrail_records_total",
        {},
        type="counter",
        differs="counts offsets, including those compacted away before they were read; survives a restart",
    ),
    Alias(
        "kminion_kafka_cluster_info",
        "cluster_info.cluster_id",
        {
            "cluster_version": "version",
            "broker_count": "brokers",
            "controller_id": "controller",
            "cluster_id": "cluster_id",
        },
        differs="the active controller, also with KRaft (theirs: any broker); empty if it is not known. "
        "`cluster_version` is the oldest release among the brokers (theirs: of one, as far as it knows releases)",
    ),
    Alias(
        "kminion_kafka_broker_info",
        "brokers.host",
        {**_KMINION_BROKER, "is_controller": "controller"},
        differs="`is_controller` as for `kminion_kafka_cluster_info`",
    ),
    Alias(
        "kminion_kafka_broker_log_dir_size_total_bytes",
        "brokers.log_sizes",
        _KMINION_BROKER,
        differs=_SIZES,
    ),
    Alias(
        "kminion_kafka_topic_log_dir_size_total_bytes",
        "topics.log_sizes",
        _KMINION_TOPIC,
        differs=f"{_SIZES}; no series for a topic of which a replica is missing in them (theirs: for no topic)",
    ),
    Alias(
        "kminion_kafka_topic_info",
        "topics.topic",
        {
            **_KMINION_TOPIC,
            "partition_count": "partition_count",
            "replication_factor": "replication_factor",
            "cleanup_policy": "cleanup_policy",
        },
        differs="only the label of KMinion's default settings, `cleanup_policy`; `replication_factor` is the lowest "
        "of the topic's partitions (theirs: the first one's)",
    ),
    Alias(
        "kminion_kafka_topic_partition_high_water_mark",
        "log_offsets.log_end_offset",
        _KMINION_PARTITION,
        differs=_INTERNAL,
    ),
    Alias(
        "kminion_kafka_topic_partition_low_water_mark",
        "log_offsets.log_start_offset",
        _KMINION_PARTITION,
        differs=_INTERNAL,
    ),
    Alias("kminion_kafka_topic_high_water_mark_sum", "topics.log_end_offset", _KMINION_TOPIC, differs=_INTERNAL),
    Alias("kminion_kafka_topic_low_water_mark_sum", "topics.log_start_offset", _KMINION_TOPIC, differs=_INTERNAL),
    Alias(
        "kminion_kafka_consumer_group_info",
        "coordinators.broker_id",
        {
            **_KMINION_GROUP,
            "protocol": "protocol",
            "protocol_type": "protocol_type",
            "state": "state",
            "coordinator_id": "coordinator",
        },
        differs="includes KIP-848 groups, whose state is derived from their records; `coordinator_id` is empty if it "
        f"is not known; {_HAD_MEMBERS}",
    ),
    Alias(
        "kminion_kafka_consumer_group_empty_members",
        "memberships.member_id",
        _KMINION_GROUP,
        differs="of groups that are Stable",
    ),
    Alias(
        "kminion_kafka_consumer_group_topic_members",
        "partition_ownership.member_id",
        {**_KMINION_GROUP, **_KMINION_TOPIC},
        differs=_OWNED,
    ),
    Alias(
        "kminion_kafka_consumer_group_topic_assigned_partitions",
        "partition_ownership.partition",
        {**_KMINION_GROUP, **_KMINION_TOPIC},
        differs=_OWNED,
    ),
    Alias(
        "kminion_kafka_consumer_group_members",
        f"{_OURS}members",
        _KMINION_GROUP,
        differs=f"also for KIP-848, share and streams groups; {_HAD_MEMBERS}",
    ),
    Alias(
        "kminion_kafka_consumer_group_topic_offset_sum",
        f"{_OURS}committed_offset",
        {**_KMINION_GROUP, **_KMINION_TOPIC},
    ),
    Alias("kminion_kafka_consumer_group_topic_lag", f"{_OURS}topic_lag", {**_KMINION_GROUP, **_KMINION_TOPIC}),
    Alias(
        "kminion_kafka_consumer_group_topic_partition_lag", f"{_OURS}lag", {**_KMINION_GROUP, **_KMINION_PARTITION}
    ),
    Alias(
        "kminion_kafka_consumer_group_offset_commits_total",
        f"{_OURS}offset_commits_total",
        _KMINION_GROUP,
        type="counter",
        differs="survives a restart",
    ),
)

_BURROW_CODES = {
    "OK": 1,
    "EMPTY": 1,
    "UNCOMMITTED": 1,
    "UNSUBSCRIBED": 1,
    "WARN": 2,
    "STOP": 4,
    "STALL": 5,
    "REWIND": 6,
}
_BURROW_GROUP_CODES = {status: min(code, 3) for status, code in _BURROW_CODES.items()}
_BURROW_GROUP = {"cluster": "cluster", "consumer_group": "group"}
_BURROW = (
    Alias("burrow_kafka_consumer_lag_total", f"{_OURS}sum_lag", _BURROW_GROUP),
    Alias(
        "burrow_kafka_consumer_status",
        f"{_OURS}group_status",
        _BURROW_GROUP,
        codes=_BURROW_GROUP_CODES,
        differs="never above 3 (ERR), as in Burrow; an empty group is 1 (OK), not STOP; UNKNOWN has no series",
    ),
    Alias("burrow_kafka_consumer_current_offset", f"{_OURS}committed_offset", {**_BURROW_GROUP, **_PARTITION}),
    Alias("burrow_kafka_consumer_partition_lag", f"{_OURS}lag", {**_BURROW_GROUP, **_PARTITION}),
    Alias(
        "burrow_kafka_topic_partition_status",
        f"{_OURS}status",
        {**_BURROW_GROUP, **_PARTITION},
        codes=_BURROW_CODES,
        differs="the verdict covers a time window, not a number of commits; EMPTY, UNCOMMITTED, UNSUBSCRIBED: 1 (OK)",
    ),
    Alias("burrow_kafka_topic_partition_offset", "kafka_topic_log_end_offset", {"cluster": "cluster", **_PARTITION}),
)

_LAG_EXPORTER_CLUSTER = {"cluster_name": "cluster"}
_LAG_EXPORTER_GROUP = {**_LAG_EXPORTER_CLUSTER, "group": "group"}
_LAG_EXPORTER = (
    Alias(
        "kafka_consumergroup_group_offset",
        f"{_OURS}committed_offset",
        {**_LAG_EXPORTER_GROUP, **_PARTITION},
        differs=_NO_MEMBER,
    ),
    Alias("kafka_consumergroup_group_lag", f"{_OURS}lag", {**_LAG_EXPORTER_GROUP, **_PARTITION}, differs=_NO_MEMBER),
    Alias(
        "kafka_consumergroup_group_lag_seconds",
        f"{_OURS}lag_seconds",
        {**_LAG_EXPORTER_GROUP, **_PARTITION},
        differs=f"the first unread record's age, not an extrapolation; {_NO_MEMBER}",
    ),
    Alias("kafka_consumergroup_group_max_lag", f"{_OURS}max_lag", _LAG_EXPORTER_GROUP),
    Alias("kafka_consumergroup_group_max_lag_seconds", f"{_OURS}max_lag_seconds", _LAG_EXPORTER_GROUP),
    Alias("kafka_consumergroup_group_sum_lag", f"{_OURS}sum_lag", _LAG_EXPORTER_GROUP),
    Alias("kafka_consumergroup_group_topic_sum_lag", f"{_OURS}topic_lag", {**_LAG_EXPORTER_GROUP, "topic": "topic"}),
    Alias(
        "kafka_partition_latest_offset",
        "kafka_topic_log_end_offset",
        {**_LAG_EXPORTER_CLUSTER, **_PARTITION},
        differs=_CONSUMED_ONLY,
    ),
    Alias(
        "kafka_partition_earliest_offset",
        "kafka_topic_log_start_offset",
        {**_LAG_EXPORTER_CLUSTER, **_PARTITION},
        differs=_CONSUMED_ONLY,
    ),
    Alias(
        "kafka_consumergroup_poll_time_ms",
        "grouptrail_refresh_duration_seconds",
        _LAG_EXPORTER_CLUSTER,
        factor=1000,
        differs="how long it took to read the tables; no broker is polled",
    ),
)

ALIASES: Mapping[str, tuple[Alias, ...]] = {
    "kafka_exporter": _KAFKA_EXPORTER,
    "kminion": _KMINION,
    "burrow": _BURROW,
    "kafka-lag-exporter": _LAG_EXPORTER,
}

_OWN_CLIENT = "about KMinion's own client"
NOT_SERVED: Mapping[str, Mapping[str, str]] = {
    "kafka_exporter": {
        "kafka_consumergroupzookeeper_lag_zookeeper": "groups that store their offsets in ZooKeeper",
    },
    "kminion": {
        "kminion_kafka_requests_sent_total": _OWN_CLIENT,
        "kminion_kafka_requests_received_total": _OWN_CLIENT,
        "kminion_kafka_sent_bytes": _OWN_CLIENT,
        "kminion_kafka_received_bytes": _OWN_CLIENT,
        "kminion_log_messages_total": "about KMinion's own log",
        "kminion_end_to_end_messages_produced_total": "grouptrail produces nothing, so it has no end_to_end metrics",
    },
    "burrow": {},
    "kafka-lag-exporter": {},
}


def alias_families(own: Iterable[Family], aliases: Sequence[Alias]) -> Iterator[Family]:
    """Return the aliases whose source families are in `own`."""
    sources = {family.name: family for family in own}
    for alias in aliases:
        if alias.source in sources:
            yield _renamed(sources[alias.source], alias)


def _renamed(source: Family, alias: Alias) -> Family:
    labels = {theirs: ours for theirs, ours in alias.labels.items() if ours in source.labels}
    fixed = {theirs: source.fixed[ours] for theirs, ours in alias.labels.items() if ours in source.fixed}
    rows = source.rows
    if alias.codes is not None:
        rows = _coded(rows, alias.codes)
    if alias.factor != 1:
        rows = rows.set_column(rows.column_names.index("value"), "value", pc.multiply(rows["value"], alias.factor))
    dropped = set(source.labels) - set(labels.values()) - ({"status"} if alias.codes is not None else set())
    if dropped:
        rows = grouped(rows, list(labels.values()), "value", "sum")
    help_ = f"{source.name}{' added up' if dropped else ''}, under another exporter's name."
    return Family(alias.name, alias.type, help_, labels, rows, fixed)


def _coded(rows: pa.Table, codes: Mapping[str, int]) -> pa.Table:
    place = pc.index_in(rows["status"], pa.array(list(codes)))
    code = pc.take(pa.array(list(codes.values()), pa.int64()), place)
    return rows.set_column(rows.column_names.index("value"), "value", code).drop_null()

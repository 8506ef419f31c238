"""A topic: its groups and their lag, its write rate, and unread records that retention may delete."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from grafana.dashboard import Section, grouptrail_dashboard, link_to, query_variable
from grafana.descriptions import LAG_THRESHOLDS, RED_IF_ANY
from grafana.panels import Column, Panel, Query, stat_panel, table_panel, time_series
from grafana.promql import CLUSTER, GROUP_TOPIC, TOPIC, latest, over_window

_END, _START = latest("kafka_topic_log_end_offset", TOPIC), latest("kafka_topic_log_start_offset", TOPIC)
_WRITTEN = f"clamp_min({over_window('deriv', 'kafka_topic_log_end_offset', TOPIC)}, 0)"
_UNREAD_SHARE = (
    f"max by (cluster, group, topic) ({latest('kafka_consumer_group_lag', GROUP_TOPIC)} "
    f"/ on (cluster, topic, partition) group_left () ({_END} - {_START}))"
)


def dashboard() -> models.Dashboard:
    """Build the dashboard of the selected topics."""
    return grouptrail_dashboard(
        "topic",
        "Topic",
        "A topic and its consumer groups: who reads it, how far behind, and unread records that retention may "
        "delete.",
        [
            query_variable("cluster", "Cluster", "grouptrail_ready"),
            query_variable("topic", "Topic", f"kafka_consumer_group_topic_lag{{{CLUSTER}}}", include_all=False),
            query_variable("group", "Group", f"kafka_consumer_group_topic_lag{{{TOPIC}}}"),
        ],
        [
            Section("Now", _now()),
            Section("Groups", _groups()),
            Section("Log", _log()),
        ],
    )


def _now() -> list[Panel]:
    return [
        stat_panel(
            "Groups",
            "Number of groups with committed offsets of the topic.",
            Query(f"count(count by (cluster, group) ({latest('kafka_consumer_group_topic_lag', GROUP_TOPIC)}))"),
            unit="short",
        ),
        stat_panel(
            "Furthest behind",
            "Age of the oldest record that some group has not read.",
            Query(f"max({latest('kafka_consumer_group_topic_lag_seconds', GROUP_TOPIC)})"),
            unit="s",
            thresholds=LAG_THRESHOLDS,
        ),
        stat_panel(
            "Lost records",
            "Records that retention deleted before a group read them, based on the group's current committed offset.",
            Query(f"sum({latest('kafka_consumer_group_topic_lost_records', GROUP_TOPIC)})"),
            unit="short",
            thresholds=RED_IF_ANY,
        ),
        stat_panel(
            "Partitions",
            "Number of partitions of the topic with committed offsets.",
            Query(f"count({_END})"),
            unit="short",
        ),
        stat_panel(
            "Records kept",
            "Offsets between log start and log end, over all partitions. Compacted topics contain fewer records.",
            Query(f"sum({_END} - {_START})"),
            unit="short",
        ),
        stat_panel(
            "Written",
            "Records per second over all partitions.",
            Query(f"sum({_WRITTEN})"),
            unit="cps",
        ),
    ]


def _groups() -> list[Panel]:
    return [
        time_series(
            "Seconds behind",
            "Age of the oldest record that the group has not read. Dashed lines: one minute, five minutes.",
            Query(latest("kafka_consumer_group_topic_lag_seconds", GROUP_TOPIC), "{{group}} {{topic}}"),
            unit="s",
            thresholds=LAG_THRESHOLDS,
        ),
        time_series(
            "Unread records",
            "The lag of each group in the topic.",
            Query(latest("kafka_consumer_group_topic_lag", GROUP_TOPIC), "{{group}} {{topic}}"),
            unit="short",
        ),
        time_series(
            "Unread share of the log",
            "Share of the log that the group has not read, in its worst partition. At 100 % retention deletes "
            "unread records.",
            Query(_UNREAD_SHARE, "{{group}} {{topic}}"),
            unit="percentunit",
            thresholds=((0.8, "red"),),
        ),
        table_panel(
            "Groups",
            "Groups with committed offsets of the topic. Lost: records that retention deleted unread.",
            {"cluster": "Cluster", "topic": "Topic", "group": "Group"},
            [
                Column("Behind", latest("kafka_consumer_group_topic_lag_seconds", GROUP_TOPIC), "s", LAG_THRESHOLDS),
                Column("Unread records", latest("kafka_consumer_group_topic_lag", GROUP_TOPIC), "short"),
                Column("Unread share", _UNREAD_SHARE, "percentunit", ((0.8, "red"),)),
                Column("Lost", latest("kafka_consumer_group_topic_lost_records", GROUP_TOPIC), "short", RED_IF_ANY),
            ],
            sort_by="Behind",
            width=12,
            height=8,
            links={"Group": link_to("group", cluster="Cluster", group="Group", topic="Topic")},
        ),
    ]


def _log() -> list[Panel]:
    return [
        time_series(
            "Written, by partition",
            "Records per second of the ten busiest partitions at each time. One far above the others indicates a "
            "hot key.",
            Query(f"topk(10, {_WRITTEN})", "{{topic}}-{{partition}}"),
            unit="cps",
        ),
        table_panel(
            "Partitions",
            "Log start and log end offset of each partition.",
            {"cluster": "Cluster", "topic": "Topic", "partition": "Partition"},
            [
                Column("Written", _WRITTEN, "cps"),
                Column("Log start", _START, "none"),
                Column("Log end", _END, "none"),
                Column("Kept", f"{_END} - {_START}", "short"),
            ],
            sort_by="Written",
            width=12,
            height=8,
        ),
    ]

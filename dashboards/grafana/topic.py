"""A topic: who reads it, how far behind, what is written to it, and whose offsets retention comes close to."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from grafana.board import Section, board, choice, to
from grafana.house import Column, Panel, Query, figure, lines, listing
from grafana.promql import CLUSTER, GROUP_TOPIC, TOPIC, of, over
from grafana.words import ANY_IS_BAD, LATE

_END, _START = of("kafka_topic_log_end_offset", TOPIC), of("kafka_topic_log_start_offset", TOPIC)
_WRITTEN = f"clamp_min({over('deriv', 'kafka_topic_log_end_offset', TOPIC)}, 0)"
_UNREAD_SHARE = (
    f"max by (cluster, group, topic) ({of('kafka_consumer_group_lag', GROUP_TOPIC)} "
    f"/ on (cluster, topic, partition) group_left () ({_END} - {_START}))"
)


def dashboard() -> models.Dashboard:
    """Of the topics chosen."""
    return board(
        "topic",
        "Topic",
        "A topic, as its consumer groups see it: who reads it, how far behind, and what retention may take unread.",
        [
            choice("cluster", "Cluster", "grouptrail_ready"),
            choice("topic", "Topic", f"kafka_consumer_group_topic_lag{{{CLUSTER}}}", of_all=False),
            choice("group", "Group", f"kafka_consumer_group_topic_lag{{{TOPIC}}}"),
        ],
        [
            Section("Now", _now()),
            Section("Groups", _groups()),
            Section("Log", _log()),
        ],
    )


def _now() -> list[Panel]:
    return [
        figure(
            "Groups",
            "How many groups have committed offsets of the topic.",
            Query(f"count(count by (cluster, group) ({of('kafka_consumer_group_topic_lag', GROUP_TOPIC)}))"),
            unit="short",
        ),
        figure(
            "Furthest behind",
            "How long ago the oldest record was written that one of the groups has not read.",
            Query(f"max({of('kafka_consumer_group_topic_lag_seconds', GROUP_TOPIC)})"),
            unit="s",
            thresholds=LATE,
        ),
        figure(
            "Lost records",
            "Records that retention deleted before a group had read them, by where the group stands now.",
            Query(f"sum({of('kafka_consumer_group_topic_lost_records', GROUP_TOPIC)})"),
            unit="short",
            thresholds=ANY_IS_BAD,
        ),
        figure(
            "Partitions",
            "How many partitions of the topic groups have committed offsets of.",
            Query(f"count({_END})"),
            unit="short",
        ),
        figure(
            "Records kept",
            "Offsets between the log's start and its end, of all partitions. Compacted topics hold fewer records.",
            Query(f"sum({_END} - {_START})"),
            unit="short",
        ),
        figure(
            "Written",
            "Records a second, of all partitions.",
            Query(f"sum({_WRITTEN})"),
            unit="cps",
        ),
    ]


def _groups() -> list[Panel]:
    return [
        lines(
            "Seconds behind",
            "How long ago the oldest record was written that the group has not read. Dashed: a minute, five minutes.",
            Query(of("kafka_consumer_group_topic_lag_seconds", GROUP_TOPIC), "{{group}} {{topic}}"),
            unit="s",
            thresholds=LATE,
        ),
        lines(
            "Unread records",
            "The lag of each group in the topic.",
            Query(of("kafka_consumer_group_topic_lag", GROUP_TOPIC), "{{group}} {{topic}}"),
            unit="short",
        ),
        lines(
            "Unread share of the log",
            "How much of what the log holds the group has not read, of its worst partition. At 100 % retention "
            "deletes what it has not read.",
            Query(_UNREAD_SHARE, "{{group}} {{topic}}"),
            unit="percentunit",
            thresholds=((0.8, "red"),),
        ),
        listing(
            "Groups",
            "The groups that have committed offsets of the topic. Lost: records that retention deleted unread.",
            {"cluster": "Cluster", "topic": "Topic", "group": "Group"},
            [
                Column("Behind", of("kafka_consumer_group_topic_lag_seconds", GROUP_TOPIC), "s", LATE),
                Column("Unread records", of("kafka_consumer_group_topic_lag", GROUP_TOPIC), "short"),
                Column("Unread share", _UNREAD_SHARE, "percentunit", ((0.8, "red"),)),
                Column("Lost", of("kafka_consumer_group_topic_lost_records", GROUP_TOPIC), "short", ANY_IS_BAD),
            ],
            sort_by="Behind",
            width=12,
            height=8,
            links={"Group": to("group", cluster="Cluster", group="Group", topic="Topic")},
        ),
    ]


def _log() -> list[Panel]:
    return [
        lines(
            "Written, by partition",
            "Records a second, of the ten busiest partitions at any time: one far above the others is a hot key.",
            Query(f"topk(10, {_WRITTEN})", "{{topic}}-{{partition}}"),
            unit="cps",
        ),
        listing(
            "Partitions",
            "Where the log of each partition starts and ends.",
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

"""One group, or a few: how far behind, in which state, with how many members, why it rebalanced, each partition."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from grafana.board import Mark, Section, alerts, board, choice, choice_of_groups, to
from grafana.house import Column, Panel, Query, bands, figure, lines, listing
from grafana.promql import GROUP, GROUP_TOPIC, TOPIC, grown, numbered, of, over
from grafana.words import ANY_IS_BAD, LATE, STATES, VERDICTS

_STATE = numbered("kafka_consumer_group_state", "state", STATES, GROUP)
_VERDICT = numbered("kafka_consumer_group_group_status", "status", VERDICTS, GROUP)
_PARTITION_VERDICT = numbered("kafka_consumer_group_status", "status", VERDICTS, GROUP_TOPIC)


def dashboard() -> models.Dashboard:
    """Of the groups chosen."""
    return board(
        "group",
        "Group",
        "A consumer group: its lag in records and in seconds, its state, its members and why it rebalanced.",
        [
            choice("cluster", "Cluster", "grouptrail_ready"),
            choice_of_groups(of_all=False),
            choice("topic", "Topic", f"kafka_consumer_group_topic_lag{{{GROUP}}}"),
        ],
        [
            Section("Now", _now()),
            Section("Lag", _lag()),
            Section("State and members", _state()),
            Section("Rebalances", _rebalances()),
            Section("Partitions", _partitions()),
        ],
        marks=[
            alerts(GROUP, of="ConsumerGroup"),
            Mark(
                "Rebalances",
                "orange",
                f"{grown('kafka_consumer_group_rebalances_total', GROUP, window='1m', by='group, cause')} > 0",
                "{{group}}: {{cause}}",
            ),
        ],
    )


def _now() -> list[Panel]:
    return [
        figure(
            "Verdict",
            "The worst verdict on a partition of the group.",
            Query(_VERDICT, "{{group}}"),
            unit="none",
            names=VERDICTS,
        ),
        figure(
            "State",
            "The group's state, by Kafka's names, as its records tell.",
            Query(_STATE, "{{group}}"),
            unit="none",
            names=STATES,
        ),
        figure(
            "Behind",
            "How long ago the oldest unread record was written.",
            Query(of("kafka_consumer_group_max_lag_seconds", GROUP), "{{group}}"),
            unit="s",
            thresholds=LATE,
        ),
        figure(
            "Unread records",
            "The lag of all partitions of the group.",
            Query(of("kafka_consumer_group_sum_lag", GROUP), "{{group}}"),
            unit="short",
        ),
        figure(
            "Catches up in",
            "Time until the slowest partition has no lag, at the rates of now; infinite where it does not catch up.",
            Query(of("kafka_consumer_group_max_catch_up_seconds", GROUP), "{{group}}"),
            unit="s",
        ),
        figure(
            "Last commit",
            "How long ago the group committed an offset; a group with nothing to read may have nothing to commit.",
            Query(f"time() - {of('kafka_consumer_group_last_commit_timestamp_seconds', GROUP)}", "{{group}}"),
            unit="s",
        ),
    ]


def _lag() -> list[Panel]:
    read = over("deriv", "kafka_consumer_group_committed_offset", GROUP_TOPIC)
    written = over("deriv", "kafka_topic_log_end_offset", TOPIC)
    return [
        lines(
            "Seconds behind",
            "How long ago the oldest unread record of the topic was written. Dashed: a minute, five minutes.",
            Query(of("kafka_consumer_group_topic_lag_seconds", GROUP_TOPIC), "{{group}} {{topic}}"),
            unit="s",
            thresholds=LATE,
        ),
        lines(
            "Unread records",
            "The lag of the topic's partitions.",
            Query(of("kafka_consumer_group_topic_lag", GROUP_TOPIC), "{{group}} {{topic}}"),
            unit="short",
        ),
        lines(
            "Read and written",
            "Records a second that commits went on by, and that the partitions grew by. Where written stays above "
            "read, lag grows. A rewind shows as 0.",
            Query(f"sum by (cluster, group, topic) (clamp_min({read}, 0))", "{{group}} reads {{topic}}"),
            Query(
                f"sum by (cluster, topic) (clamp_min({written}, 0) and on (cluster, topic, partition) {read})",
                "{{topic}} written",
            ),
            unit="cps",
        ),
        lines(
            "Offsets committed",
            "Commits of a partition's offset, a second: how busy the group keeps its coordinator.",
            Query(over("rate", "kafka_consumer_group_offset_commits_total", GROUP), "{{group}}"),
            unit="cps",
        ),
    ]


def _state() -> list[Panel]:
    return [
        bands(
            "State",
            "The group's state over time. A classic group's rebalance is recorded when it ends, so short ones may "
            "not show here: the count below has them all.",
            Query(_STATE, "{{group}}"),
            STATES,
        ),
        lines(
            "Members",
            "How many members the group has.",
            Query(of("kafka_consumer_group_members", GROUP), "{{group}}"),
            unit="short",
        ),
        lines(
            "Generation",
            "The generation of a classic group, the epoch of any other: each step is a rebalance.",
            Query(of("kafka_consumer_group_generation", GROUP), "{{group}}"),
            unit="none",
            from_zero=False,
        ),
    ]


def _rebalances() -> list[Panel]:
    return [
        lines(
            "Rebalances by cause",
            "How many in the five minutes before, by what they were told by. `grouptrail show group` names the "
            "members of each.",
            Query(
                f"{grown('kafka_consumer_group_rebalances_total', GROUP, window='5m', by='cause')} > 0",
                "{{cause}}",
            ),
            unit="short",
            stacked=True,
            nothing="no rebalances",
        ),
        lines(
            "Partitions moved",
            "How many partitions went to another member, in the five minutes before. Many at each rebalance: the "
            "assignor is not sticky.",
            Query(
                grown("kafka_consumer_group_partitions_moved_total", GROUP, window="5m", by="cluster, group"),
                "{{group}}",
            ),
            unit="short",
            nothing="needs five minutes of data",
        ),
        figure(
            "Since the last",
            "How long ago the group last rebalanced.",
            Query(f"time() - {of('kafka_consumer_group_last_rebalance_timestamp_seconds', GROUP)}", "{{group}}"),
            unit="s",
            width=12,
        ),
        figure(
            "Time between rebalances, median",
            "Half of all its rebalances that are known followed the one before sooner than this.",
            Query(
                f"histogram_quantile(0.5, {of('kafka_consumer_group_rebalance_interval_seconds_bucket', GROUP)})",
                "{{group}}",
            ),
            unit="s",
            width=12,
        ),
    ]


def _partitions() -> list[Panel]:
    committed = of("kafka_consumer_group_committed_offset", GROUP_TOPIC)
    log_end = of("kafka_topic_log_end_offset", TOPIC)
    return [
        bands(
            "Verdict by partition",
            "The verdict on each partition over time.",
            Query(_PARTITION_VERDICT, "{{topic}}-{{partition}}"),
            VERDICTS,
            height=10,
        ),
        listing(
            "Partitions",
            "Where the group has committed in each partition, and how far it is behind. Lost: records that retention "
            "deleted unread.",
            {"cluster": "Cluster", "group": "Group", "topic": "Topic", "partition": "Partition"},
            [
                Column("Behind", of("kafka_consumer_group_lag_seconds", GROUP_TOPIC), "s", LATE),
                Column("Verdict", _PARTITION_VERDICT, "none", names=VERDICTS),
                Column("Unread records", of("kafka_consumer_group_lag", GROUP_TOPIC), "short"),
                Column("Committed offset", committed, "none"),
                Column(
                    "Log end",
                    f"{committed} * 0 + on (cluster, topic, partition) group_left () {log_end}",
                    "none",
                ),
                Column("Lost", of("kafka_consumer_group_lost_records", GROUP_TOPIC), "short", ANY_IS_BAD),
            ],
            sort_by="Behind",
            links={"Topic": to("topic", cluster="Cluster", topic="Topic")},
        ),
    ]

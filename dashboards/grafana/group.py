"""One or several groups: lag, state, members, causes of rebalances, and each partition."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from grafana.dashboard import (
    Annotation,
    Section,
    firing_alerts,
    group_variable,
    grouptrail_dashboard,
    link_to,
    query_variable,
)
from grafana.descriptions import LAG_THRESHOLDS, LOSS_THRESHOLDS, RED_IF_ANY, STATES, VERDICTS
from grafana.panels import Column, Panel, Query, stat_panel, state_timeline, table_panel, time_series
from grafana.promql import GROUP, GROUP_TOPIC, TOPIC, counter_increase, latest, over_window, state_number

_STATE = state_number("kafka_consumer_group_state", "state", STATES, GROUP)
_VERDICT = state_number("kafka_consumer_group_group_status", "status", VERDICTS, GROUP)
_REBALANCES_PER_MINUTE = counter_increase(
    "kafka_consumer_group_rebalances_total", GROUP, window="1m", by="group, cause"
)
_PARTITION_VERDICT = state_number("kafka_consumer_group_status", "status", VERDICTS, GROUP_TOPIC)


def dashboard() -> models.Dashboard:
    """Build the dashboard of the selected groups."""
    return grouptrail_dashboard(
        "group",
        "Group",
        "A consumer group: lag in records and seconds, state, members, and causes of rebalances.",
        [
            query_variable("cluster", "Cluster", "grouptrail_ready"),
            group_variable(include_all=False),
            query_variable("topic", "Topic", f"kafka_consumer_group_topic_lag{{{GROUP}}}"),
        ],
        [
            Section("Now", _now()),
            Section("Lag", _lag()),
            Section("Deliveries of share groups", _deliveries()),
            Section("State and members", _state()),
            Section("Rebalances", _rebalances()),
            Section("Partitions", _partitions()),
        ],
        annotations=[
            firing_alerts(GROUP, prefix="Consumer"),
            Annotation(
                "Rebalances",
                "orange",
                f"{_REBALANCES_PER_MINUTE} > 0",
                "{{group}}: {{cause}}",
            ),
        ],
    )


def _now() -> list[Panel]:
    return [
        stat_panel(
            "Verdict",
            "The worst verdict on a partition of the group.",
            Query(_VERDICT, "{{group}}"),
            unit="none",
            names=VERDICTS,
        ),
        stat_panel(
            "State",
            "The group's state, as derived from its records, with Kafka's names.",
            Query(_STATE, "{{group}}"),
            unit="none",
            names=STATES,
        ),
        stat_panel(
            "Behind",
            "Age of the oldest unread record.",
            Query(latest("kafka_consumer_group_max_lag_seconds", GROUP), "{{group}}"),
            unit="s",
            thresholds=LAG_THRESHOLDS,
        ),
        stat_panel(
            "Unread records",
            "The lag of all partitions of the group.",
            Query(latest("kafka_consumer_group_sum_lag", GROUP), "{{group}}"),
            unit="short",
        ),
        stat_panel(
            "Catches up in",
            "Time until the slowest partition has no lag, at the current rates; infinite if it does not catch up.",
            Query(latest("kafka_consumer_group_max_catch_up_seconds", GROUP), "{{group}}"),
            unit="s",
        ),
        stat_panel(
            "Last commit",
            "Time since the group's last commit; a group with nothing to read may not commit.",
            Query(f"time() - {latest('kafka_consumer_group_last_commit_timestamp_seconds', GROUP)}", "{{group}}"),
            unit="s",
        ),
    ]


def _lag() -> list[Panel]:
    read = over_window("deriv", "kafka_consumer_group_committed_offset", GROUP_TOPIC)
    written = over_window("deriv", "kafka_topic_log_end_offset", TOPIC)
    return [
        time_series(
            "Seconds behind",
            "Age of the oldest unread record of the topic. Dashed lines: one minute, five minutes.",
            Query(latest("kafka_consumer_group_topic_lag_seconds", GROUP_TOPIC), "{{group}} {{topic}}"),
            unit="s",
            thresholds=LAG_THRESHOLDS,
        ),
        time_series(
            "Unread records",
            "The lag of the topic's partitions.",
            Query(latest("kafka_consumer_group_topic_lag", GROUP_TOPIC), "{{group}} {{topic}}"),
            unit="short",
        ),
        time_series(
            "Read and written",
            "How fast committed offsets and log end offsets advance, in records per second. While written is "
            "above read, lag grows. A rewind shows as 0.",
            Query(f"sum by (cluster, group, topic) (clamp_min({read}, 0))", "{{group}} reads {{topic}}"),
            Query(
                f"sum by (cluster, topic) (clamp_min({written}, 0) and on (cluster, topic, partition) {read})",
                "{{topic}} written",
            ),
            unit="cps",
        ),
        time_series(
            "Offsets committed",
            "Offset commits per second, counted per partition: the load on the group's coordinator.",
            Query(over_window("rate", "kafka_consumer_group_offset_commits_total", GROUP), "{{group}}"),
            unit="cps",
        ),
        time_series(
            "Time to data loss",
            "When retention deletes a record of the topic that the group has not read, at the earliest, if it goes "
            "on at its rate. No line where none is foreseen. Dashed line: one hour, when the alert fires.",
            Query(latest("kafka_consumer_group_topic_time_to_loss_seconds", GROUP_TOPIC), "{{group}} {{topic}}"),
            unit="s",
            thresholds=LOSS_THRESHOLDS,
            width=24,
        ),
    ]


def _deliveries() -> list[Panel]:
    no_share_group = "no share group"
    return [
        time_series(
            "Deliveries by outcome",
            "What became of a share group's records, per second. Available: they came back, and are delivered again. "
            "Archived: rejected, given up after the last delivery, deleted, or no record to read.",
            Query(
                over_window("rate", "kafka_consumer_group_deliveries_total", GROUP_TOPIC),
                "{{group}} {{topic}} {{outcome}}",
            ),
            unit="cps",
            no_value=no_share_group,
        ),
        time_series(
            "Redeliveries",
            "Deliveries per second that were not the first one of their record.",
            Query(over_window("rate", "kafka_consumer_group_redeliveries_total", GROUP_TOPIC), "{{group}} {{topic}}"),
            unit="cps",
            no_value=no_share_group,
        ),
        time_series(
            "Records that came back",
            "How many records wait for another delivery, or are in it, and how often the one of them was delivered "
            "that was delivered most often.",
            Query(latest("kafka_consumer_group_awaiting_redelivery", GROUP), "{{group}} waiting"),
            Query(latest("kafka_consumer_group_most_deliveries", GROUP), "{{group}} most deliveries"),
            unit="short",
            no_value=no_share_group,
        ),
    ]


def _state() -> list[Panel]:
    return [
        state_timeline(
            "State",
            "The group's state over time. A classic group's rebalance is recorded when it ends, so short ones may "
            "be missing here; the count below includes all of them.",
            Query(_STATE, "{{group}}"),
            STATES,
        ),
        time_series(
            "Members",
            "Number of members of the group.",
            Query(latest("kafka_consumer_group_members", GROUP), "{{group}}"),
            unit="short",
        ),
        time_series(
            "Generation",
            "The generation of a classic group or the epoch of any other group: each step is a rebalance.",
            Query(latest("kafka_consumer_group_generation", GROUP), "{{group}}"),
            unit="none",
            from_zero=False,
        ),
    ]


def _rebalances() -> list[Panel]:
    return [
        time_series(
            "Rebalances by cause",
            "Rebalances in the last five minutes, by cause. `grouptrail show group` lists the members involved.",
            Query(
                f"{counter_increase('kafka_consumer_group_rebalances_total', GROUP, window='5m', by='cause')} > 0",
                "{{cause}}",
            ),
            unit="short",
            stacked=True,
            no_value="no rebalances",
        ),
        time_series(
            "Partitions moved",
            "Partitions assigned to a different member in the last five minutes. If many move at each rebalance, "
            "the assignor is not sticky.",
            Query(
                counter_increase(
                    "kafka_consumer_group_partitions_moved_total", GROUP, window="5m", by="cluster, group"
                ),
                "{{group}}",
            ),
            unit="short",
            no_value="needs five minutes of data",
        ),
        stat_panel(
            "Last rebalance",
            "Time since the group's last rebalance.",
            Query(f"time() - {latest('kafka_consumer_group_last_rebalance_timestamp_seconds', GROUP)}", "{{group}}"),
            unit="s",
            width=12,
        ),
        stat_panel(
            "Time between rebalances, median",
            "Half of the group's known rebalances followed the previous one within this time.",
            Query(
                f"histogram_quantile(0.5, {latest('kafka_consumer_group_rebalance_interval_seconds_bucket', GROUP)})",
                "{{group}}",
            ),
            unit="s",
            width=12,
        ),
    ]


def _partitions() -> list[Panel]:
    committed = latest("kafka_consumer_group_committed_offset", GROUP_TOPIC)
    log_end = latest("kafka_topic_log_end_offset", TOPIC)
    return [
        state_timeline(
            "Verdict by partition",
            "The verdict on each partition over time.",
            Query(_PARTITION_VERDICT, "{{topic}}-{{partition}}"),
            VERDICTS,
            height=10,
        ),
        table_panel(
            "Partitions",
            "The group's committed offset and lag in each partition. Lost: records that retention deleted unread.",
            {"cluster": "Cluster", "group": "Group", "topic": "Topic", "partition": "Partition"},
            [
                Column("Behind", latest("kafka_consumer_group_lag_seconds", GROUP_TOPIC), "s", LAG_THRESHOLDS),
                Column("Verdict", _PARTITION_VERDICT, "none", names=VERDICTS),
                Column("Unread records", latest("kafka_consumer_group_lag", GROUP_TOPIC), "short"),
                Column("Committed offset", committed, "none"),
                Column(
                    "Log end",
                    f"{committed} * 0 + on (cluster, topic, partition) group_left () {log_end}",
                    "none",
                ),
                Column("Lost", latest("kafka_consumer_group_lost_records", GROUP_TOPIC), "short", RED_IF_ANY),
            ],
            sort_by="Behind",
            links={"Topic": link_to("topic", cluster="Cluster", topic="Topic")},
        ),
    ]

"""The overview: groups that are behind, their verdicts, and groups that rebalance too often."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from grafana.dashboard import Section, group_variable, grouptrail_dashboard, link_to, query_variable
from grafana.descriptions import AGE_THRESHOLDS, INACTIVE, LAG_THRESHOLDS, RED_IF_ANY, VERDICT_COLORS, VERDICTS
from grafana.panels import Column, Panel, Query, stat_panel, state_timeline, table_panel, time_series
from grafana.promql import CLUSTER, GROUP, WORST_GROUPS, counter_increase, latest, of_worst_groups, state_number

_LABELS = {"cluster": "Cluster", "group": "Group"}
_TO_GROUP = {"Group": link_to("group", cluster="Cluster", group="Group")}
_ACTIVE = f"unless on (cluster, group) {latest('kafka_consumer_group_group_status', GROUP, INACTIVE)}"
_TROUBLE, _LAG = 'status=~"STOP|STALL|REWIND"', 'table="consumer_lag"'
_VERDICT = state_number("kafka_consumer_group_group_status", "status", VERDICTS, GROUP)
_RECENT_REBALANCES = counter_increase(
    "kafka_consumer_group_rebalances_total", GROUP, window="10m", by="cluster, group"
)
_STORM_PEAK = f"max_over_time(({_RECENT_REBALANCES})[$__range:1m]) > 3"


def dashboard() -> models.Dashboard:
    """Build the dashboard of all groups; each group links to its own dashboard."""
    return grouptrail_dashboard(
        "overview",
        "Overview",
        "Which consumer groups are behind and by how much, their verdicts, and which groups rebalance too often.",
        [query_variable("cluster", "Cluster", "grouptrail_ready"), group_variable(include_all=True)],
        [
            Section("Now", _now()),
            Section("Worst groups", [_furthest_behind(), *_over_time()]),
            Section("Verdicts", _verdicts()),
            Section("Rebalances", _rebalances()),
        ],
    )


def _now() -> list[Panel]:
    members, lag = latest("kafka_consumer_group_members", GROUP), latest("kafka_consumer_group_sum_lag", GROUP)
    return [
        stat_panel(
            "Groups",
            "Number of groups with members or committed offsets.",
            Query(f"count(count by (cluster, group) ({members} or {lag}))"),
            unit="short",
        ),
        stat_panel(
            "Groups in trouble",
            "Groups with a partition that has stopped (STOP: no more commits), stalled (STALL: commits repeat the "
            "same offset) or was rewound (REWIND).",
            Query(f"count({latest('kafka_consumer_group_group_status', GROUP, _TROUBLE)}) or vector(0)"),
            unit="short",
            thresholds=RED_IF_ANY,
        ),
        stat_panel(
            "Furthest behind",
            "Age of the oldest unread record of any group, except groups without members and topics without "
            "subscribers.",
            Query(f"max({latest('kafka_consumer_group_max_lag_seconds', GROUP)} {_ACTIVE})"),
            unit="s",
            no_value="no active group",
            thresholds=LAG_THRESHOLDS,
        ),
        stat_panel(
            "Unread records",
            "The lag of all groups, in records.",
            Query(f"sum({lag})"),
            unit="short",
        ),
        stat_panel(
            "Rebalances, last hour",
            "Number of rebalances of all groups in the last hour.",
            Query(counter_increase("kafka_consumer_group_rebalances_total", GROUP, window="1h")),
            unit="short",
            no_value="needs an hour of data",
        ),
        stat_panel(
            "Age of lag samples",
            "Age of the newest lag sample. If it grows, the lag job is not running. See Pipeline health.",
            Query(f"max({latest('grouptrail_freshness_seconds', CLUSTER, _LAG)})"),
            unit="s",
            thresholds=AGE_THRESHOLDS,
        ),
    ]


def _furthest_behind() -> Panel:
    return table_panel(
        f"The {WORST_GROUPS} groups furthest behind",
        "One row per group. Behind: age of its oldest unread record. Catches up in: at the current rates; "
        "infinite if it does not catch up. Click a group to open its dashboard.",
        _LABELS,
        [
            Column(
                "Behind",
                of_worst_groups(latest("kafka_consumer_group_max_lag_seconds", GROUP)),
                "s",
                LAG_THRESHOLDS,
            ),
            Column("Verdict", of_worst_groups(_VERDICT), "none", names=VERDICTS),
            Column("Unread records", of_worst_groups(latest("kafka_consumer_group_sum_lag", GROUP)), "short"),
            Column("Catches up in", of_worst_groups(latest("kafka_consumer_group_max_catch_up_seconds", GROUP)), "s"),
            Column("Members", of_worst_groups(latest("kafka_consumer_group_members", GROUP)), "short"),
            Column(
                "Last commit",
                of_worst_groups(f"time() - {latest('kafka_consumer_group_last_commit_timestamp_seconds', GROUP)}"),
                "s",
            ),
        ],
        sort_by="Behind",
        links=_TO_GROUP,
    )


def _over_time() -> list[Panel]:
    return [
        time_series(
            "Seconds behind",
            "The ten groups with the oldest unread records at each time. Dashed lines: one minute, five minutes.",
            Query(f"topk(10, {latest('kafka_consumer_group_max_lag_seconds', GROUP)} {_ACTIVE})", "{{group}}"),
            unit="s",
            thresholds=LAG_THRESHOLDS,
        ),
        time_series(
            "Unread records",
            "The ten groups with the most unread records at each time.",
            Query(f"topk(10, {latest('kafka_consumer_group_sum_lag', GROUP)})", "{{group}}"),
            unit="short",
        ),
    ]


def _verdicts() -> list[Panel]:
    bad = f'kafka_consumer_group_group_status{{{GROUP}, status!~"OK|EMPTY"}}'
    return [
        time_series(
            "Partitions by verdict",
            "Number of partitions of all groups with each verdict. UNKNOWN: the lag is unknown.",
            Query(f"sum by (status) ({latest('kafka_consumer_group_partitions', GROUP)})", "{{status}}"),
            unit="short",
            stacked=True,
            colors=VERDICT_COLORS,
        ),
        state_timeline(
            "Groups that were not OK",
            "The worst verdict on a partition of each group that had a verdict other than OK or EMPTY.",
            Query(f"{_VERDICT} and on (cluster, group) last_over_time({bad}[$__range] @ end())", "{{group}}"),
            VERDICTS,
            no_value="all groups were OK",
            width=12,
            height=8,
        ),
    ]


def _rebalances() -> list[Panel]:
    return [
        time_series(
            "Rebalances in ten minutes",
            "Rebalances in the last ten minutes, for the ten groups with the most at each time. Above the dashed "
            "line it is a storm.",
            Query(
                f"topk(10, {_RECENT_REBALANCES} > 0)",
                "{{group}}",
            ),
            unit="short",
            thresholds=((3, "red"),),
            no_value="no rebalances",
        ),
        table_panel(
            "Storms",
            "Groups that rebalanced more than three times within ten minutes in the selected time range. "
            "`grouptrail sql \"SELECT * FROM rebalance_storms('10 minutes')\"` lists their start and main cause.",
            _LABELS,
            [
                Column("Most in ten minutes", _STORM_PEAK, "short", ((4, "red"),)),
                Column(
                    "Last one ago",
                    f"time() - {latest('kafka_consumer_group_last_rebalance_timestamp_seconds', GROUP)} "
                    f"and on (cluster, group) {_STORM_PEAK}",
                    "s",
                ),
            ],
            sort_by="Most in ten minutes",
            no_value="no storms",
            width=12,
            height=8,
            links=_TO_GROUP,
        ),
    ]

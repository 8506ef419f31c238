"""The overview: which groups are behind, what is wrong with them, and which rebalance too often."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from grafana.board import Section, board, choice, choice_of_groups, to
from grafana.house import Column, Panel, Query, bands, figure, lines, listing
from grafana.promql import CLUSTER, GROUP, WORST_GROUPS, grown, numbered, of, worst
from grafana.words import ANY_IS_BAD, AT_REST, LATE, STALE, VERDICT_COLORS, VERDICTS

_LABELS = {"cluster": "Cluster", "group": "Group"}
_TO_GROUP = {"Group": to("group", cluster="Cluster", group="Group")}
_AT_WORK = f"unless on (cluster, group) {of('kafka_consumer_group_group_status', GROUP, AT_REST)}"
_TROUBLE, _LAG = 'status=~"STOP|STALL|REWIND"', 'table="consumer_lag"'
_VERDICT = numbered("kafka_consumer_group_group_status", "status", VERDICTS, GROUP)
_STORMY = grown("kafka_consumer_group_rebalances_total", GROUP, window="10m", by="cluster, group")
_MOST = f"max_over_time(({_STORMY})[$__range:1m]) > 3"


def dashboard() -> models.Dashboard:
    """Of all groups; a click on one leads to its own dashboard."""
    return board(
        "overview",
        "Overview",
        "Which consumer groups are behind, by how much, what is wrong with them, and which rebalance too often.",
        [choice("cluster", "Cluster", "grouptrail_ready"), choice_of_groups(of_all=True)],
        [
            Section("Now", _now()),
            Section("Worst groups", [_furthest_behind(), *_over_time()]),
            Section("Verdicts", _verdicts()),
            Section("Rebalances", _rebalances()),
        ],
    )


def _now() -> list[Panel]:
    members, lag = of("kafka_consumer_group_members", GROUP), of("kafka_consumer_group_sum_lag", GROUP)
    return [
        figure(
            "Groups",
            "How many groups there are, with members or with committed offsets.",
            Query(f"count(count by (cluster, group) ({members} or {lag}))"),
            unit="short",
        ),
        figure(
            "Groups in trouble",
            "Groups with a partition that is stopped (STOP: no commits any more), stalled (STALL: commits go on, the "
            "offset does not) or went backwards (REWIND).",
            Query(f"count({of('kafka_consumer_group_group_status', GROUP, _TROUBLE)}) or vector(0)"),
            unit="short",
            thresholds=ANY_IS_BAD,
        ),
        figure(
            "Furthest behind",
            "How long ago the oldest unread record of any group was written. Groups that nobody is in do not count.",
            Query(f"max({of('kafka_consumer_group_max_lag_seconds', GROUP)} {_AT_WORK})"),
            unit="s",
            nothing="no group at work",
            thresholds=LATE,
        ),
        figure(
            "Unread records",
            "The lag of all groups, in records.",
            Query(f"sum({lag})"),
            unit="short",
        ),
        figure(
            "Rebalances, last hour",
            "How many rebalances all groups had in the last hour.",
            Query(grown("kafka_consumer_group_rebalances_total", GROUP, window="1h")),
            unit="short",
            nothing="needs an hour of data",
        ),
        figure(
            "Age of the figures",
            "How old the newest sample of lag is: where it grows, the lag job does not run. See Pipeline health.",
            Query(f"max({of('grouptrail_freshness_seconds', CLUSTER, _LAG)})"),
            unit="s",
            thresholds=STALE,
        ),
    ]


def _furthest_behind() -> Panel:
    return listing(
        f"The {WORST_GROUPS} groups that are furthest behind",
        "A row for each group. Behind: how long ago its oldest unread record was written. Catches up in: at the "
        "rates of now, infinite where it does not. Click a group for its own dashboard.",
        _LABELS,
        [
            Column("Behind", worst(of("kafka_consumer_group_max_lag_seconds", GROUP)), "s", LATE),
            Column("Verdict", worst(_VERDICT), "none", names=VERDICTS),
            Column("Unread records", worst(of("kafka_consumer_group_sum_lag", GROUP)), "short"),
            Column("Catches up in", worst(of("kafka_consumer_group_max_catch_up_seconds", GROUP)), "s"),
            Column("Members", worst(of("kafka_consumer_group_members", GROUP)), "short"),
            Column(
                "Last commit",
                worst(f"time() - {of('kafka_consumer_group_last_commit_timestamp_seconds', GROUP)}"),
                "s",
            ),
        ],
        sort_by="Behind",
        links=_TO_GROUP,
    )


def _over_time() -> list[Panel]:
    return [
        lines(
            "Seconds behind",
            "The groups whose oldest unread record is the oldest, ten at any time. Dashed: a minute, five minutes.",
            Query(f"topk(10, {of('kafka_consumer_group_max_lag_seconds', GROUP)} {_AT_WORK})", "{{group}}"),
            unit="s",
            thresholds=LATE,
        ),
        lines(
            "Unread records",
            "The groups with the most unread records, ten at any time.",
            Query(f"topk(10, {of('kafka_consumer_group_sum_lag', GROUP)})", "{{group}}"),
            unit="short",
        ),
    ]


def _verdicts() -> list[Panel]:
    bad = f'kafka_consumer_group_group_status{{{GROUP}, status!~"OK|EMPTY"}}'
    return [
        lines(
            "Partitions by verdict",
            "How many partitions of all groups have each verdict. UNKNOWN: lag could not be told.",
            Query(f"sum by (status) ({of('kafka_consumer_group_partitions', GROUP)})", "{{status}}"),
            unit="short",
            stacked=True,
            colors=VERDICT_COLORS,
        ),
        bands(
            "Groups that were not OK",
            "The worst verdict on a partition of the group, of the groups that had another one than OK or EMPTY.",
            Query(f"{_VERDICT} and on (cluster, group) last_over_time({bad}[$__range] @ end())", "{{group}}"),
            VERDICTS,
            nothing="all groups were OK",
            width=12,
            height=8,
        ),
    ]


def _rebalances() -> list[Panel]:
    return [
        lines(
            "Rebalances in ten minutes",
            "How often in the ten minutes before, of the groups that rebalance most, ten at any time. Dashed: "
            "more than that is a storm.",
            Query(
                f"topk(10, {_STORMY} > 0)",
                "{{group}}",
            ),
            unit="short",
            thresholds=((3, "red"),),
            nothing="no rebalances",
        ),
        listing(
            "Storms",
            "Groups that rebalanced more than three times within ten minutes, in the time shown. "
            "`grouptrail sql \"SELECT * FROM rebalance_storms('10 minutes')\"` tells when each began and why.",
            _LABELS,
            [
                Column("Most in ten minutes", _MOST, "short", ((4, "red"),)),
                Column(
                    "Last one ago",
                    f"time() - {of('kafka_consumer_group_last_rebalance_timestamp_seconds', GROUP)} "
                    f"and on (cluster, group) {_MOST}",
                    "s",
                ),
            ],
            sort_by="Most in ten minutes",
            nothing="no storms",
            width=12,
            height=8,
            links=_TO_GROUP,
        ),
    ]

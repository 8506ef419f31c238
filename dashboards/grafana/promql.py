"""The PromQL that the dashboards share. A metric that schemas/metrics.yaml does not list is a KeyError.

Everything is first made one series for each set of the metric's own labels: two exporters over the same tables, for
availability, count once, and rows of a table join.
"""

from __future__ import annotations

from collections.abc import Sequence

from grafana.words import Name
from grouptrail import contracts

# Several values or all of a variable: Grafana escapes them and joins them by |, for =~ and !~ only.
CLUSTER = 'cluster=~"$cluster"'
GROUP = f'{CLUSTER}, group=~"$group"'
TOPIC = f'{CLUSTER}, topic=~"$topic"'
GROUP_TOPIC = f'{GROUP}, topic=~"$topic"'

WORST_GROUPS = 50


def of(metric: str, *matchers: str, offset: str = "") -> str:
    """The metric's value now, or `offset` ago."""
    ago = f" offset {offset}" if offset else ""
    return f"max by ({', '.join(_labels(metric))}) ({metric}{{{', '.join(matchers)}}}{ago})"


def over(function: str, metric: str, *matchers: str, window: str = "$__rate_interval") -> str:
    """rate, deriv, … of the metric over a window."""
    return f"max by ({', '.join(_labels(metric))}) ({function}({metric}{{{', '.join(matchers)}}}[{window}]))"


def numbered(metric: str, label: str, names: Sequence[Name], *matchers: str) -> str:
    """Of a metric that is 1 for one value of `label`: that value's number."""
    others = [other for other in _labels(metric) if other != label]
    each = [f'{metric}{{{", ".join(matchers)}, {label}="{name.text}"}} * {name.value}' for name in names]
    return f"max by ({', '.join(others)}) ({' or '.join(each)})"


def grown(counter: str, *matchers: str, window: str, by: str = "") -> str:
    """By how much a counter of a group grew in `window`.

    Counted, not extrapolated: rebalances are few. The first of a cause counts where the group was seen before.
    """
    now, before = of(counter, *matchers), of(counter, *matchers, offset=window)
    seen = of("kafka_consumer_group_state", *matchers, offset=window)
    return f"sum by ({by}) (clamp_min({now} - {before}, 0) or ({now} and on (cluster, group) {seen}))"


def worst(expr: str) -> str:
    """`expr` of the groups that are the most seconds behind."""
    behind = of("kafka_consumer_group_max_lag_seconds", GROUP)
    return f"{expr} and on (cluster, group) topk({WORST_GROUPS}, {behind})"


def _labels(metric: str) -> tuple[str, ...]:
    name = metric.removesuffix("_bucket")
    return (*contracts.metrics()[name].labels, *(["le"] if name != metric else []))

"""PromQL expressions that the dashboards share. A metric that schemas/metrics.yaml does not list raises a KeyError.

Each expression is first aggregated to one series per set of the metric's own labels. Two exporters on the same
tables, for availability, therefore count once, and the rows of a table join.
"""

from __future__ import annotations

from collections.abc import Sequence

from grafana.descriptions import ValueName
from grouptrail import contracts

# Grafana escapes and joins several values of a variable with |, but only for =~ and !~.
CLUSTER = 'cluster=~"$cluster"'
GROUP = f'{CLUSTER}, group=~"$group"'
TOPIC = f'{CLUSTER}, topic=~"$topic"'
GROUP_TOPIC = f'{GROUP}, topic=~"$topic"'

WORST_GROUPS = 50


def latest(metric: str, *matchers: str, offset: str = "") -> str:
    """Return the metric's value now, or `offset` ago."""
    ago = f" offset {offset}" if offset else ""
    return f"max by ({', '.join(_labels(metric))}) ({metric}{{{', '.join(matchers)}}}{ago})"


def over_window(function: str, metric: str, *matchers: str, window: str = "$__rate_interval") -> str:
    """Return rate, deriv or another function of the metric over a window."""
    return f"max by ({', '.join(_labels(metric))}) ({function}({metric}{{{', '.join(matchers)}}}[{window}]))"


def state_number(metric: str, label: str, names: Sequence[ValueName], *matchers: str) -> str:
    """Return the number in `names` of the `label` value for which the metric is 1."""
    others = [other for other in _labels(metric) if other != label]
    each = [f'{metric}{{{", ".join(matchers)}, {label}="{name.text}"}} * {name.value}' for name in names]
    return f"max by ({', '.join(others)}) ({' or '.join(each)})"


def counter_increase(counter: str, *matchers: str, window: str, by: str = "") -> str:
    """Return the increase of a group's counter in `window`.

    The increase is not extrapolated, because rebalances are rare. A new series counts in full if the group already
    existed at the start of the window.
    """
    now, before = latest(counter, *matchers), latest(counter, *matchers, offset=window)
    seen = latest("kafka_consumer_group_state", *matchers, offset=window)
    return f"sum by ({by}) (clamp_min({now} - {before}, 0) or ({now} and on (cluster, group) {seen}))"


def of_worst_groups(expr: str) -> str:
    """Limit `expr` to the groups with the highest lag in seconds."""
    behind = latest("kafka_consumer_group_max_lag_seconds", GROUP)
    return f"{expr} and on (cluster, group) topk({WORST_GROUPS}, {behind})"


def _labels(metric: str) -> tuple[str, ...]:
    name = metric.removesuffix("_bucket")
    return (*contracts.metrics()[name].labels, *(["le"] if name != metric else []))

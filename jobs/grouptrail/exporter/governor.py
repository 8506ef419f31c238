"""Select the series of a snapshot that are served: by the patterns, the granularity and the budgets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail import contracts
from grouptrail.config.patterns import is_allowed
from grouptrail.exporter.alias import Alias, alias_families
from grouptrail.exporter.alias_sources import CLUSTER_SOURCES, GROUP_SOURCES, cluster_sources, group_sources
from grouptrail.exporter.families import OTHER, STATUSES, group_families, other_families
from grouptrail.exporter.labels import label_values, rows_with_label_values, with_label_values
from grouptrail.exporter.text import Family, row_bytes
from grouptrail.snapshot.reader import Snapshot, most_rows
from grouptrail.snapshot.summary import combine

if TYPE_CHECKING:
    from grouptrail.config import ExporterConfig

_FINER = {"partition": (), "topic": ("partition",), "group": ("partition", "topic")}

_OPT_IN = {"kafka_consumer_group_owner_info": "owner_info", "kafka_consumer_group_readable_lag": "readable_lag"}
"""The settings of families that are served only if they are set."""

# The maximum number of series with `group="other"`, in our metrics and again in their aliases.
_OTHER_SERIES = 16
# Their labels are our own words, and the cluster's name.
_OTHER_SERIES_BYTES = 512


# A group with series of its own is replaced by one with so many times its lag, as lag rises and falls all the time.
_STAYS = 1.5


@dataclass(frozen=True)
class Governed:
    """The families of groups and topics, and how many series were left out by `pattern` and by `budget`.

    `kept`: the groups that have series of their own although the budget does not hold all.
    """

    families: list[Family]
    dropped: Mapping[str, int]
    kept: frozenset[str] = frozenset()


def governed(
    snapshot: Snapshot, config: ExporterConfig, aliases: Sequence[Alias] = (), before: Collection[str] = ()
) -> Governed:
    """Return what is served of a snapshot; `before` are the groups that the previous one kept.

    Groups whose rows of lag the snapshot does not have are left out, as by the budget."""
    # Patterns apply to whole names.
    allowed = _allowed(snapshot, config)
    pattern = 0
    if allowed is not snapshot:
        everything = with_label_values(snapshot, config.label_bytes)
        pattern = _most_series(everything, _families(everything, config, aliases))
    allowed = with_label_values(allowed, config.label_bytes)
    wanted = _families(allowed, config, aliases)
    count = _most_series(allowed, wanted)
    pattern = max(0, pattern - count)
    unread = set() if config.granularity == "group" else set(pc.unique(allowed.extent["group_id"]).to_pylist())
    if not unread and count <= config.series_budget and _bytes(wanted) <= config.page_bytes:
        return Governed(wanted, {"pattern": pattern, "budget": 0})
    kept = _greatest(allowed.of(_groups(allowed) - unread) if unread else allowed, config, aliases, before)
    served = _families(allowed.of(kept), config, aliases)
    rest = _at_granularity(other_families(allowed.of(_groups(allowed) - kept)), config, aliases)
    return Governed(_together(served, rest), {"pattern": pattern, "budget": count - _series(served)}, frozenset(kept))


def groups_to_read(
    snapshot: Snapshot, config: ExporterConfig, aliases: Sequence[Alias] = (), before: Collection[str] = ()
) -> Collection[str]:
    """Return the groups whose rows of lag are needed, given a snapshot without rows.

    They are all groups, or all that the patterns allow, if these have at most `most_rows`; otherwise those that
    `governed` will keep."""
    allowed = _allowed(snapshot, config)
    for one in (snapshot, allowed):
        if (pc.sum(one.extent["positions"]).as_py() or 0) <= most_rows(config):
            return set(pc.unique(one.extent["group_id"]).to_pylist())
    if config.granularity == "group":
        return ()
    # At granularity topic, few series may need many rows.
    kept = _greatest(with_label_values(allowed, config.label_bytes), config, aliases, before, most_rows(config))
    groups = list(_groups(allowed))
    values = label_values(groups, config.label_bytes)
    return {group for group, value in zip(groups, values, strict=True) if value in kept}


def governed_topics(
    snapshot: Snapshot, config: ExporterConfig, aliases: Sequence[Alias], beside: Sequence[Family]
) -> Governed:
    """Return the aliases about the cluster and its topics that fit the budgets, the coarsest first.

    `beside` are the families that are served anyway. All series of an alias are served, or none: a part of them would
    look like a smaller cluster.
    """
    wanted = [alias for alias in aliases if alias.source in CLUSTER_SOURCES]
    if not wanted:
        return Governed([], {"pattern": 0, "budget": 0})
    sources, pattern = [], 0
    is_wanted = {alias.source for alias in wanted}
    for family in cluster_sources(snapshot):
        if family.name in is_wanted:
            rows = family.rows
            if "topic" in family.labels:
                topics = pc.unique(rows["topic"])
                allowed = [is_allowed(name, config.allow_topics, config.deny_topics) for name in topics.to_pylist()]
                if not all(allowed):
                    names = topics.filter(pa.array(allowed, pa.bool_()))
                    rows = rows.filter(pc.is_in(rows["topic"], names))
            pattern += len(family.rows) - len(rows)
            sources.append(replace(family, rows=rows_with_label_values(rows, config.label_bytes)))
    order = {source: place for place, source in enumerate(CLUSTER_SOURCES)}
    wanted.sort(key=lambda alias: order[alias.source])
    left = config.series_budget - _series(beside), config.page_bytes - _bytes(beside)
    families, budget = [], 0
    for family in _fine_enough([*alias_families(sources, wanted)], config):
        cost = family.series, _bytes([family])
        if all(one <= other for one, other in zip(cost, left, strict=True)):
            families.append(family)
            left = left[0] - cost[0], left[1] - cost[1]
        else:
            budget += family.series
    return Governed(families, {"pattern": pattern, "budget": budget})


def _families(snapshot: Snapshot, config: ExporterConfig, aliases: Sequence[Alias]) -> list[Family]:
    is_needed = any(alias.source in GROUP_SOURCES for alias in aliases)
    own = [family for family in group_families(snapshot) if getattr(config, _OPT_IN.get(family.name, ""), True)]
    return _at_granularity(own, config, aliases, [*group_sources(snapshot)] if is_needed else [])


def _at_granularity(
    own: list[Family], config: ExporterConfig, aliases: Sequence[Alias], sources: Sequence[Family] = ()
) -> list[Family]:
    """Return own families and aliases, also those whose `sources` are not served themselves."""
    return _fine_enough([*own, *alias_families([*own, *sources], aliases)], config)


def _fine_enough(families: Iterable[Family], config: ExporterConfig) -> list[Family]:
    finer = _FINER[config.granularity]
    return [family for family in families if not any(name in finer for name in family.labels.values())]


def _allowed(snapshot: Snapshot, config: ExporterConfig) -> Snapshot:
    """Return the snapshot of the allowed groups and topics; the same object if all are allowed."""
    groups = _groups(snapshot)
    of_topics = {name: getattr(snapshot, name) for name in ("lag", "extent", "owners", "deliveries")}
    topics = {topic for rows in of_topics.values() for topic in pc.unique(rows["topic"]).to_pylist()}
    kept_groups = {group for group in groups if is_allowed(group, config.allow_groups, config.deny_groups)}
    kept_topics = {topic for topic in topics if is_allowed(topic, config.allow_topics, config.deny_topics)}
    if kept_topics != topics:
        names = pa.array(sorted(kept_topics), pa.string())
        allowed = {name: rows.filter(pc.is_in(rows["topic"], names)) for name, rows in of_topics.items()}
        snapshot = replace(snapshot, **allowed)
    return snapshot if kept_groups == groups else snapshot.of(kept_groups)


def _greatest(
    snapshot: Snapshot,
    config: ExporterConfig,
    aliases: Sequence[Alias],
    before: Collection[str],
    rows: int | None = None,
) -> set[str]:
    """Return the groups with the most lag that fit both budgets beside `OTHER`, without one of that name.

    `rows` limits how many positions they have."""
    families = _families(snapshot, config, aliases)
    others = _OTHER_SERIES * (1 + bool(aliases))
    budgets = [
        (_costs(snapshot, families, _row_series), config.series_budget - others),
        (_costs(snapshot, families, row_bytes), config.page_bytes - others * _OTHER_SERIES_BYTES),
    ]
    sums = combine(snapshot.lag_by_group(), by=["group_id"])
    if rows is not None:
        budgets.append((_by_group(sums["group_id"], sums["positions"]), rows))
    lag = _by_group(sums["group_id"], sums["lag"])
    weight = {group: (lag.get(group) or 0) * (_STAYS if group in before else 1) for group in _groups(snapshot)}
    left = [budget for _, budget in budgets]
    kept = set()
    for group in sorted(weight.keys() - {OTHER}, key=lambda group: (-weight[group], group not in before, group)):
        after = [budget - costs.get(group, 0) for budget, (costs, _) in zip(left, budgets, strict=True)]
        if min(after) >= 0:
            kept.add(group)
            left = after
    return kept


def _costs(
    snapshot: Snapshot, families: Iterable[Family], of_rows: Callable[[Family], pa.Array]
) -> Mapping[str, int]:
    """Return an upper bound of what each group's series cost, with those of its topics' logs.

    `of_rows` returns the cost of each row of a family. Every value of a partition counts as known, so that the cost
    is the same for a group whose rows the snapshot does not have.
    """
    extent = snapshot.positions_by_topic()
    group, topic = (extent[name].dictionary_encode() for name in ("group_id", "topic"))
    status = pa.repeat(max(STATUSES, key=len), len(extent)).dictionary_encode()
    topics = pa.table({"group": group, "topic": topic, "partition": extent["positions"], "status": status})
    of_topics = pa.repeat(0, len(extent))
    costs = []
    for family in families:
        labels = family.labels.values()
        if _is_of_lag(family):
            cost = of_rows(replace(family, rows=topics))
            of_topics = pc.add(of_topics, pc.multiply(cost, extent["positions"]) if "partition" in labels else cost)
        else:
            costs.append(pa.table({"group": family.rows["group"], "cost": of_rows(family)}))
    costs.append(pa.table({"group": extent["group_id"], "cost": of_topics}))
    sums = pa.concat_tables(costs).group_by("group").aggregate([("cost", "sum")])
    return _by_group(sums["group"], sums["cost_sum"])


def _is_of_lag(family: Family) -> bool:
    """Return whether a family's rows are made from those of lag, which a snapshot may lack."""
    metric = contracts.metrics().get(family.name)  # aliases have names of their own
    return "topic" in family.labels.values() and (metric is None or metric.table == "consumer_lag")


def _row_series(family: Family) -> pa.Array:
    return pa.repeat(family.series_a_row, len(family.rows))


def _by_group(groups: pa.ChunkedArray, values: pa.ChunkedArray) -> dict[str, int]:
    return dict(zip(groups.to_pylist(), values.to_pylist(), strict=True))


def _together(families: list[Family], rest: list[Family]) -> list[Family]:
    """Return one family for each name."""
    others = {family.name: family.rows for family in rest}
    return [
        replace(family, rows=_concatenated(family.rows, others[family.name])) if family.name in others else family
        for family in families
    ]


def _concatenated(rows: pa.Table, others: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, others.select(rows.column_names)], promote_options="permissive")


def _groups(snapshot: Snapshot) -> set[str]:
    tables = (snapshot.lag, snapshot.extent, snapshot.groups)
    return {group for rows in tables for group in pc.unique(rows["group_id"]).to_pylist()}


def _most_series(snapshot: Snapshot, families: Iterable[Family]) -> int:
    """Return how many series a snapshot's families have, and at most would have with the rows that it lacks."""
    count = 0
    for family in families:
        count += family.series
        if _is_of_lag(family):
            positions = pc.sum(snapshot.extent["positions"]).as_py() or 0
            count += positions if "partition" in family.labels.values() else len(snapshot.extent)
    return count


def _series(families: Iterable[Family]) -> int:
    return sum(family.series for family in families)


def _bytes(families: Iterable[Family]) -> int:
    return sum(pc.sum(row_bytes(family)).as_py() or 0 for family in families)

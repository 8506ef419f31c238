"""Select the series of a snapshot that are served: by the patterns, the granularity and the budgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.exporter.alias import Alias, alias_families
from grouptrail.exporter.families import OTHER, group_families, other_families
from grouptrail.exporter.labels import shorten_names
from grouptrail.exporter.snapshot import Snapshot
from grouptrail.exporter.text import Family, row_bytes

if TYPE_CHECKING:
    from grouptrail.config import ExporterConfig

_FINER = {"partition": (), "topic": ("partition",), "group": ("partition", "topic")}

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
    """Return what is served of a snapshot; `before` are the groups that the previous one kept."""

    def families(own: list[Family]) -> list[Family]:
        finer = _FINER[config.granularity]
        everything = [*own, *alias_families(own, aliases)]
        return [family for family in everything if not any(name in finer for name in family.labels.values())]

    # Patterns apply to whole names.
    allowed = _allowed(snapshot, config)
    pattern = 0
    if allowed is not snapshot:
        everything = families(group_families(shorten_names(snapshot, config.label_bytes)))
        pattern = _series(everything)
    allowed = shorten_names(allowed, config.label_bytes)
    wanted = families(group_families(allowed))
    count = _series(wanted)
    pattern = max(0, pattern - count)
    if count <= config.series_budget and _bytes(wanted) <= config.page_bytes:
        return Governed(wanted, {"pattern": pattern, "budget": 0})
    others = _OTHER_SERIES * (1 + bool(aliases))
    kept = _greatest(
        allowed,
        [
            (_costs(allowed, wanted), config.series_budget - others),
            (_costs(allowed, wanted, in_bytes=True), config.page_bytes - others * _OTHER_SERIES_BYTES),
        ],
        before,
    )
    served = families(group_families(allowed.of(kept)))
    rest = families(other_families(allowed.of(_groups(allowed) - kept)))
    return Governed(_together(served, rest), {"pattern": pattern, "budget": count - _series(served)}, frozenset(kept))


def _allowed(snapshot: Snapshot, config: ExporterConfig) -> Snapshot:
    """Return the snapshot of the allowed groups and topics; the same object if all are allowed."""
    groups = _groups(snapshot)
    topics = set(pc.unique(snapshot.lag["topic"]).to_pylist())
    kept_groups = {group for group in groups if _matches(group, config.allow_groups, config.deny_groups)}
    kept_topics = {topic for topic in topics if _matches(topic, config.allow_topics, config.deny_topics)}
    if kept_topics != topics:
        allowed = pc.is_in(snapshot.lag["topic"], pa.array(sorted(kept_topics), pa.string()))
        snapshot = replace(snapshot, lag=snapshot.lag.filter(allowed))
    return snapshot if kept_groups == groups else snapshot.of(kept_groups)


def _matches(name: str, allow: Iterable[str], deny: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in allow) and not any(
        fnmatchcase(name, pattern) for pattern in deny
    )


def _greatest(
    snapshot: Snapshot, budgets: Sequence[tuple[Mapping[str, int], int]], before: Collection[str]
) -> set[str]:
    """Return the groups with the most lag whose costs fit every budget, without one that is named `OTHER`."""
    sums = snapshot.lag.group_by("group_id").aggregate([("lag", "sum")])
    lag = dict(zip(sums["group_id"].to_pylist(), sums["lag_sum"].to_pylist(), strict=True))
    weight = {group: (lag.get(group) or 0) * (_STAYS if group in before else 1) for group in _groups(snapshot)}
    left = [budget for _, budget in budgets]
    kept = set()
    for group in sorted(weight.keys() - {OTHER}, key=lambda group: (-weight[group], group not in before, group)):
        after = [budget - costs[group] for budget, (costs, _) in zip(left, budgets, strict=True)]
        if min(after) >= 0:
            kept.add(group)
            left = after
    return kept


def _costs(snapshot: Snapshot, families: Iterable[Family], *, in_bytes: bool = False) -> Counter[str]:
    """Return an upper bound of each group's number of series, or of their bytes, with those of its topics' logs."""
    costs: Counter[str] = Counter()
    partitions = _counts(snapshot.lag["group_id"])
    for family in families:
        if "group" not in family.labels.values():
            of_a_row = (pc.max(row_bytes(family)).as_py() or 0) if in_bytes else family.series_a_row
            costs.update({group: count * of_a_row for group, count in partitions.items()})
        elif in_bytes:
            sizes = pa.table({"group": family.rows["group"], "bytes": row_bytes(family)}).group_by("group")
            rows = sizes.aggregate([("bytes", "sum")])
            costs.update(dict(zip(rows["group"].to_pylist(), rows["bytes_sum"].to_pylist(), strict=True)))
        else:
            counts = _counts(family.rows["group"])
            costs.update({group: count * family.series_a_row for group, count in counts.items()})
    return costs


def _counts(values: pa.ChunkedArray) -> Mapping[str, int]:
    return {entry["values"]: entry["counts"] for entry in pc.value_counts(values).to_pylist()}


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
    return {group for rows in (snapshot.lag, snapshot.groups) for group in pc.unique(rows["group_id"]).to_pylist()}


def _series(families: Iterable[Family]) -> int:
    return sum(family.series for family in families)


def _bytes(families: Iterable[Family]) -> int:
    return sum(pc.sum(row_bytes(family)).as_py() or 0 for family in families)

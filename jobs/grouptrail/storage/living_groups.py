"""The groups of some kinds that the history knows and that are not deleted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from grouptrail.storage.buckets import OPEN_BUCKETS, in_buckets

if TYPE_CHECKING:
    from grouptrail.storage.table import Table


def living_groups(states: Table, kinds: Iterable[str]) -> dict[str, str]:
    """Return each group of `group_states` that has one of these kinds and is not Dead, with its kind."""
    among = ", ".join(f"'{kind}'" for kind in kinds)
    now = f"{in_buckets(range(OPEN_BUCKETS))} AND ended_at IS NULL"
    rows = states.select("group_id, group_kind", f"AND {now} AND state <> 'Dead' AND group_kind IN ({among})")
    return {row["group_id"]: row["group_kind"] for row in rows}

"""Counters of rebalances: none falls, and none counts a rebalance twice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from grouptrail.snapshot.totals import Rising


def counted(*rows: tuple[str, str, int]) -> pa.Table:
    columns = ("group_id", "cause", "count")
    return pa.table({name: [row[index] for row in rows] for index, name in enumerate(columns)})


def total(rows: pa.Table) -> int:
    return int(np.sum(rows["count"].to_numpy()))


def test_rising_counts_a_rebalance_whose_cause_becomes_known_once() -> None:
    """`topic_metadata_changed` becomes `partitions_added` when the target is computed."""
    rising = Rising()
    rising.now(counted(("billing", "group_started", 1)))
    rising.now(counted(("billing", "group_started", 1), ("billing", "topic_metadata_changed", 1)))
    now = rising.now(counted(("billing", "group_started", 1), ("billing", "partitions_added", 1)))
    assert total(now) == 2


def test_rising_keeps_what_a_retention_deleted() -> None:
    rising = Rising()
    rising.now(counted(("billing", "group_started", 1), ("billing", "topic_metadata_changed", 3)))
    assert total(rising.now(counted(("billing", "group_started", 1)))) == 4

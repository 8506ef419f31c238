"""A part of `make bench`: the computation of one sample of lag, alone, by what the history says of the groups.

There is neither a Kafka nor a table: the made-up commits, groups and samples of `bench_shards` are given to the
calculator.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import pyarrow as pa

from bench.measure import seconds
from bench.shards import PARTITIONS, commits_of, places, sample
from grouptrail.lag.calculator import LagCalculator, Rules
from grouptrail.lag.group_status import NONE_OWNED, OWNED, GroupStatus
from grouptrail.lag.index import micros
from grouptrail.lag.positions import from_records
from grouptrail.memory import release_memory

_CLUSTER = "bench"
_WARM_UP, _SAMPLES = 3, 13


def measure_sample(*, positions: int) -> dict[str, Any]:
    """Return the median seconds of a sample for groups without members, with members, and that members have left."""
    commits = pa.concat_tables(map(from_records, commits_of(positions // PARTITIONS)))
    owned = commits.select(OWNED.names).cast(OWNED)
    names = commits["group_id"].unique().to_pylist()
    left_at = datetime.now(UTC) - timedelta(seconds=30)
    member = GroupStatus("Stable", topics=frozenset(places()[0]))
    gone = GroupStatus("Empty", emptied_at=left_at, endings=frozenset({"left_or_expired"}))
    kinds = {
        "without members": ({}, NONE_OWNED),
        "with members": (dict.fromkeys(names, member), owned),
        "empty": (dict.fromkeys(names, gone), NONE_OWNED),
    }
    figures: dict[str, Any] = {"positions": len(commits)}
    for kind, (statuses, of_members) in kinds.items():
        figures[f"{kind}, s"] = round(median(_seconds(commits, statuses, of_members)[_WARM_UP:]), 2)
        print(f"{len(commits):,} positions of groups {kind}: {figures[f'{kind}, s']} s a sample", flush=True)
    return figures


def _seconds(commits: pa.Table, statuses: dict[str, GroupStatus], owned: pa.Table) -> list[float]:
    """Return the seconds of each sample; they are ten seconds apart, in which the logs grow."""
    calculator = LagCalculator(_CLUSTER, Rules())
    calculator.positions.add(commits)
    started_at = datetime.now(UTC)

    def compute(at: datetime) -> None:
        calculator.add_sample(sample(_CLUSTER, at))
        assert len(calculator.compute(statuses, owned, until=micros(at))) == len(commits)

    took = []
    for number in range(_SAMPLES):
        at = started_at + timedelta(seconds=10 * number)
        took.append(seconds(lambda at=at: compute(at)))  # type: ignore[misc]
        release_memory()
    return took

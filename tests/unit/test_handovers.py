"""What the commits say of handed over partitions, against a search through all of them, one by one."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from grouptrail.config import load_config
from grouptrail.history.handovers import fill_commits, last_commits, sort_events
from grouptrail.storage.schema import table_schema
from support import small_tables

LOOKBACK = timedelta(minutes=5)

Commit = tuple[str, int, datetime, int]
Handover = tuple[str, int, datetime]

_groups = st.sampled_from(["billing", "audit"])
_partitions = st.integers(0, 2)
# Before and within the last minute, at its edge and at that of the lookback, and several at the same time.
_times = st.one_of(st.integers(0, 600), st.sampled_from([0, 299, 300, 301, 540, 600])).map(
    lambda second: small_tables.NOON + timedelta(seconds=second)
)
_commits = st.lists(st.tuples(_groups, _partitions, _times, st.integers(0, 1000)), max_size=30)
_handovers = st.lists(st.tuples(_groups, _partitions, _times), min_size=1, max_size=8)


def searched(commits: list[Commit], handover: Handover) -> tuple[int | None, int | None, int | None]:
    """Return committed_offset, commit_age_ms and may_be_read_twice of each handover."""
    group, partition, given_up = handover
    near = sorted(
        (at, number, offset)
        for number, (of_group, of_partition, at, offset) in enumerate(commits)
        if (of_group, of_partition) == (group, partition) and given_up - LOOKBACK <= at <= given_up
    )[-2:]
    if not near:
        return None, None, None
    at, _, offset = near[-1]
    age = (given_up - at) // timedelta(milliseconds=1)
    between = (at - near[0][0]) // timedelta(milliseconds=1)
    if not between or offset < near[0][2]:
        return offset, age, None
    return offset, age, int((offset - near[0][2]) / between * age + 0.5)


def handed_over(handovers: list[Handover]) -> list[dict[str, Any]]:
    unknown = dict.fromkeys(("committed_offset", "commit_age_ms", "may_be_read_twice"))
    return [
        {
            **unknown,
            "topic": "orders",
            "partition": partition,
            "from_member": "a",
            "to_member": "b",
            "given_up_at": given_up,
            "taken_at": given_up,
        }
        for _, partition, given_up in handovers
    ]


def rebalances(handovers: list[Handover]) -> pa.Table:
    """Return one rebalance with a handover for each group, among others without."""
    schema = table_schema("rebalances")
    fields = [schema.field(name) for name in ("record_partition", "group_id", "record_offset", "handed_over")]
    rows = [
        {"record_partition": 9, "group_id": group, "record_offset": offset, "handed_over": handed}
        for group in ("audit", "billing")
        for offset, handed in enumerate(
            ([], handed_over([handover for handover in handovers if handover[0] == group]), []), start=100
        )
    ]
    return pa.Table.from_pylist(rows, pa.schema(fields))


@settings(deadline=None)
@given(_commits, _handovers)
def test_handovers_are_filled_from_the_last_two_commits_before_each(
    commits: list[Commit], handovers: list[Handover]
) -> None:
    """For commits at any distance, of any group, among tombstones and commits of another cluster."""
    with TemporaryDirectory() as folder:
        config = load_config(None, {"warehouse": folder}, {})
        rows = [
            {
                "group_id": group,
                "topic": "orders",
                "partition": partition,
                "record_at": at,
                "committed_offset": offset,
            }
            for group, partition, at, offset in commits
        ]
        unrelated = [{**row, "cluster": "other"} for row in rows] + [
            {**row, "committed_offset": None} for row in rows
        ]
        small_tables.lay(config, "offset_commits", *rows, *unrelated, {"group_id": "idle", "committed_offset": 1})
        table = DeltaTable(Path(folder) / "offset_commits").to_pyarrow_dataset()
        filled = fill_commits(rebalances(handovers), lambda *_: table, config.cluster, LOOKBACK)
    kept = {
        (row["group_id"], one["partition"], one["given_up_at"]): (
            one["committed_offset"],
            one["commit_age_ms"],
            one["may_be_read_twice"],
        )
        for row in filled.to_pylist()
        for one in row["handed_over"]
    }
    assert kept == {handover: searched(commits, handover) for handover in handovers}
    assert filled.drop("handed_over") == rebalances(handovers).drop("handed_over")


@given(_commits, _handovers, st.lists(st.integers(0, 40), max_size=5))
def test_last_commits_result_does_not_depend_on_batch_boundaries(
    commits: list[Commit], handovers: list[Handover], cuts: list[int]
) -> None:
    """Commits before a boundary are carried over, for the same partition only."""
    common = {"record_partition": 9, "topic": "orders"}
    of_commits = [
        {
            **common,
            "group_id": group,
            "partition": at,
            "at": when,
            "record_offset": number,
            "committed_offset": offset,
        }
        for number, (group, at, when, offset) in enumerate(commits)
    ]
    of_handovers = [
        {**common, "group_id": group, "partition": at, "at": when, "record_offset": 100, "position": number}
        for number, (group, at, when) in enumerate(handovers)
    ]
    schema = pa.schema(
        {
            "record_partition": pa.int32(),
            "group_id": pa.string(),
            "topic": pa.string(),
            "partition": pa.int32(),
            "at": pa.timestamp("us", "UTC"),
            "record_offset": pa.int64(),
            "committed_offset": pa.int64(),
            "position": pa.int32(),
        }
    )
    events = sort_events(pa.Table.from_pylist([*of_commits, *of_handovers], schema))
    edges = sorted({0, len(events), *(cut for cut in cuts if cut < len(events))})
    pieces = [events.slice(start, end - start).combine_chunks().to_batches()[0] for start, end in pairwise(edges)]
    filled = pa.Table.from_batches(last_commits(LOOKBACK)(pieces)).sort_by("position").to_pylist()
    assert [(row["committed_offset"], row["commit_age_ms"], row["may_be_read_twice"]) for row in filled] == [
        searched(commits, handover) for handover in handovers
    ]

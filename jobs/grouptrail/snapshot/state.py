"""State of a cluster: its newest snapshot, and its jobs in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grouptrail.snapshot.reader import Snapshot

NO_SNAPSHOT_YET = "the first snapshot is not made yet"
STATES = (
    "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Assigning", "Reconciling", "NotReady",
)  # fmt: skip
"""The states of a group that exists."""


@dataclass(frozen=True)
class JobState:
    """A job of this process: whether it runs, and how often it was restarted after a fault."""

    is_running: bool
    restarts: int


@dataclass(frozen=True)
class ClusterState:
    """State of a cluster: its newest snapshot, why it is not current, and its jobs in this process.

    Before the first snapshot, `problem` is `NO_SNAPSHOT_YET` or why it failed."""

    snapshot: Snapshot | None
    problem: str | None
    jobs: Mapping[str, JobState]

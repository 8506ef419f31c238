"""Notices on pages whose figures are missing or old, with a remedy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from grouptrail.query import freshness
from grouptrail.query.formats import counted
from grouptrail.snapshot.reader import Snapshot
from grouptrail.snapshot.state import NO_SNAPSHOT_YET
from grouptrail.web.answers import Notice
from grouptrail.web.texts import ago, span

if TYPE_CHECKING:
    from grouptrail.snapshot.reader import ServedCluster
    from grouptrail.snapshot.state import ClusterState

Kind = Literal["empty", "reading", "stale", "failed"]


def notices(cluster: ServedCluster, state: ClusterState, as_of: datetime | None, *, has_groups: bool) -> list[Notice]:
    """Return the notices about missing or old figures of a cluster, the most urgent first; see `ClusterGroups`."""
    if state.snapshot is None:
        texts = _without_snapshot(state)
    else:
        texts = (
            *_faults(state, state.snapshot),
            *_age(cluster.sample_seconds, state.snapshot, as_of, has_groups=has_groups),
        )
    return [Notice(kind=kind, cluster=cluster.name, title=title, detail=detail) for kind, title, detail in texts]


def _without_snapshot(state: ClusterState) -> tuple[tuple[Kind, str, str], ...]:
    if state.problem == NO_SNAPSHOT_YET:
        return (("reading", "The tables are being read", "This page has its figures in a few seconds."),)
    return (("failed", "The tables cannot be read", f"{state.problem}."),)


def _faults(state: ClusterState, snapshot: Snapshot) -> Iterator[tuple[Kind, str, str]]:
    if state.problem not in (None, snapshot.not_ready):
        age = span(time.time() - snapshot.made_at)
        yield "failed", "The tables cannot be read now", f"{state.problem}. These figures are {age} old."
    if snapshot.silence is not None:
        yield "failed", "No broker returns log offsets", _sentence(snapshot.not_ready)
    for name, texts in snapshot.damage.items():
        others = f" {counted(len(texts) - 1, 'other file')} of it are, too." if len(texts) > 1 else ""
        yield (
            "failed",
            f"Rows of {name} are missing",
            f"{_sentence(texts[0])}{others} Restore it from a backup, or see docs/faults.md#damaged-files.",
        )
    for name, job in state.jobs.items():
        if not job.is_running and job.restarts:
            yield (
                "failed",
                f"The job {name} does not run",
                f"It failed and is started again after a pause ({counted(job.restarts, 'restart')} so far): "
                "the output of `grouptrail run` has the reason.",
            )


def _age(
    sample_seconds: float, snapshot: Snapshot, as_of: datetime | None, *, has_groups: bool
) -> Iterator[tuple[Kind, str, str]]:
    if as_of is None and not has_groups:
        yield (
            "empty",
            "Nothing of __consumer_offsets has been read yet",
            f"{_sentence(snapshot.not_ready)} Start `grouptrail run`; if it runs, compare its warehouse and cluster "
            "with these, or run `grouptrail doctor`.",
        )
    elif as_of is not None and freshness.is_stale(sample_seconds, as_of):
        newest = max(as_of, datetime.fromtimestamp(snapshot.newest.get("ingest_progress", 0), UTC))
        stopped = f"The pipeline stopped {ago(newest)}"
        start = "Start `grouptrail run`; if it runs, its output has the reason, or `grouptrail doctor` finds it."
        yield (
            "stale",
            stopped if freshness.is_stale(sample_seconds, newest) else f"Lag was last sampled {ago(as_of)}",
            f"These figures are {freshness.as_of(as_of)}. "
            f"{'The jobs start when a broker answers.' if snapshot.awaits_broker else start}",
        )
    elif not has_groups:
        yield (
            "empty",
            "No consumer group has committed an offset yet",
            "A group appears with its first commit or member. If there are groups, `grouptrail doctor` checks "
            "whether __consumer_offsets can be read.",
        )
    elif snapshot.not_ready is not None and snapshot.silence is None:
        yield "reading", "The pipeline is catching up", _sentence(snapshot.not_ready)


def _sentence(text: str | None) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""

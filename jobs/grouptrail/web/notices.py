"""Notices on pages whose figures are missing or old, with a remedy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from grouptrail.exporter.service import NO_SNAPSHOT_YET
from grouptrail.exporter.snapshot import Snapshot, stale_seconds
from grouptrail.web.answers import Notice
from grouptrail.web.texts import count, span

if TYPE_CHECKING:
    from grouptrail.config import Config
    from grouptrail.exporter.service import ClusterState

Kind = Literal["empty", "reading", "stale", "failed"]


def notices(config: Config, state: ClusterState, *, has_groups: bool) -> list[Notice]:
    """Return the notices about missing or old figures of a cluster, the most urgent first."""
    if state.snapshot is None:
        found = _without_snapshot(state)
    else:
        found = (*_faults(state, state.snapshot), *_age(config, state.snapshot, has_groups=has_groups))
    return [Notice(kind=kind, cluster=config.cluster, title=title, detail=detail) for kind, title, detail in found]


def _without_snapshot(state: ClusterState) -> tuple[tuple[Kind, str, str], ...]:
    if state.problem == NO_SNAPSHOT_YET:
        return (("reading", "The tables are being read", "This page has its figures in a few seconds."),)
    return (("failed", "The tables cannot be read", f"{state.problem}."),)


def _faults(state: ClusterState, snapshot: Snapshot) -> Iterator[tuple[Kind, str, str]]:
    if state.problem not in (None, snapshot.not_ready):
        age = span(time.time() - snapshot.made_at)
        yield "failed", "The tables cannot be read now", f"{state.problem}. These figures are {age} old."
    for name, job in state.jobs.items():
        if not job.is_running and job.restarts:
            yield (
                "failed",
                f"The job {name} does not run",
                f"It failed and is started again after a pause ({count(job.restarts, 'restart')} so far): "
                "the output of `grouptrail run` has the reason.",
            )


def _age(config: Config, snapshot: Snapshot, *, has_groups: bool) -> Iterator[tuple[Kind, str, str]]:
    newest = [snapshot.newest[table] for table in ("consumer_lag", "ingest_progress") if table in snapshot.newest]
    if not newest and not has_groups:
        yield (
            "empty",
            "Nothing of __consumer_offsets has been read yet",
            f"Start `grouptrail run`. If it runs, compare its warehouse with this one ({config.warehouse}) and its "
            f"cluster with {config.cluster}, or run `grouptrail doctor`.",
        )
        return
    age = time.time() - max(newest, default=0)
    if newest and age > stale_seconds(config):
        yield (
            "stale",
            f"The pipeline stopped {span(age)} ago",
            "These figures are its last ones. Start `grouptrail run`; if it runs, its output has the reason, "
            "or `grouptrail doctor` finds it.",
        )
    elif not has_groups:
        yield (
            "empty",
            "No consumer group has committed an offset yet",
            "A group appears with its first commit or member. If there are groups, `grouptrail doctor` checks "
            "whether __consumer_offsets can be read.",
        )
    elif snapshot.not_ready is not None:
        yield "reading", "The pipeline is catching up", f"{snapshot.not_ready[:1].upper()}{snapshot.not_ready[1:]}."

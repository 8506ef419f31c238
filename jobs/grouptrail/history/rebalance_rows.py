"""Rows of `rebalances`: cause, changes and duration of each."""

from __future__ import annotations

from collections.abc import Iterable

from grouptrail.history.causes import (
    Cause,
    Rebalance,
    cause_by_targets,
    cause_of,
    cause_superseded,
    recent_topics,
    with_doubt,
)
from grouptrail.history.changes import Change
from grouptrail.history.departures import departures
from grouptrail.history.evidence import COMPACTED_NOTE, Evidence
from grouptrail.history.generation_rows import origin, record_fact
from grouptrail.history.group import Group, Member, Partition, owned_by_anyone, targeted
from grouptrail.history.ownership_rows import count_kept
from grouptrail.history.rows import RebalanceRow
from grouptrail.history.state import FoldState, TargetBaseline

STORM_MS = 60_000
"""The time within which later generations count in a rebalance's row."""


def begin_rebalance(state: FoldState, change: Change) -> None:
    """Begin the row of a new generation's rebalance."""
    after, before = change.after, change.before
    if after.kind == "classic" and after.generation == 0:
        return
    if change.keeps_generation:
        state.is_converted = True
        return
    rebalance = Rebalance.of(state, change)
    cause = cause_of(rebalance)
    if change.operation[0].read_late_at is None and not state.unconfirmed:
        state.unsure_from = None  # this epoch was compared with what has been read
    if state.baseline is not None:
        _refine(state, cause_superseded(), change)
    previous_at = _set_aside(state, change.began_at)
    _note_partitions(state, change, cause)
    knows_sync = after.kind == "classic" and after.state_at is not None and bool(after.members)
    knows_sync = knows_sync and not change.is_conversion and not after.may_be_restart
    # The clock of a new coordinator may be behind that of the previous one.
    knows_previous = previous_at is not None and change.began_at >= previous_at and not change.may_hide_a_generation
    pairs = (*change.rejoined, *change.replaced)
    row = RebalanceRow(
        **origin(state, change.operation),
        group_kind=after.kind,
        from_generation=before.generation,
        to_generation=after.generation,
        at=change.began_at,
        **cause.columns,
        members_joined=sorted({*_ids(rebalance.joined), *_ids(new for _, new in pairs)}),
        members_left=sorted({*state.left_before_rebalance, *_ids(change.left), *_ids(old for old, _ in pairs)}),
        subscriptions_changed=sorted(member.member_id for member in change.resubscribed),
        skipped=0 if rebalance.is_beginning else change.skipped,
        previous_at=previous_at,
        seconds_since_previous=(change.began_at - (previous_at or 0)) / 1000 if knows_previous else None,
        duration_ms=change.at - change.boundary if knows_sync else None,
        duration_of="sync phase" if knows_sync else None,
        departed=departures(state, change),
        evidence=[record_fact(state, change.operation, cause.evidence.value.recorded)],
    )
    state.rows.rebalance = row
    state.rows.mark(row)


def _ids(members: Iterable[Member]) -> set[str]:
    return {member.member_id for member in members}


def settle_rebalances(state: FoldState, at: int) -> None:
    """Close the rebalances before the newest that are more than a minute old."""
    rows = state.rows
    for row in [row for row in rows.earlier_rebalances if at - row.at > STORM_MS]:
        rows.earlier_rebalances.remove(row)
        rows.close(row)


def end_rebalances(state: FoldState) -> None:
    """Close all rows: the group has ended."""
    rows = state.rows
    for row in (*rows.earlier_rebalances, *(() if rows.rebalance is None else (rows.rebalance,))):
        rows.close(row)
    rows.earlier_rebalances, rows.rebalance = [], None


def refine_cause(state: FoldState, change: Change) -> None:
    """Refine the cause of a change of topic metadata once its targets are computed."""
    after = change.after
    if state.baseline is None or (after.assignment_epoch or 0) < (after.generation or 0):
        return
    _refine(state, cause_by_targets(state.baseline, after, recent_topics(state, change.at)), change)
    state.baseline = None


def update_rebalance(state: FoldState, change: Change) -> None:
    """Bring the newest row up to date until the group is stable again."""
    row = state.rows.rebalance
    if row is None or row.ended_at is not None:
        return
    if change.keeps_generation and change.after.kind == "classic":
        state.rows.update(row, ended_at=max(change.at, row.at))  # its own end was not reached
        return
    state.rows.update(row, partitions_removed=len(state.given_up), partitions_kept=count_kept(state))
    if state.is_measured or change.after.kind == "classic":
        end_rebalance(state, change.after, change.began_at)


def end_rebalance(state: FoldState, group: Group, at: int) -> None:
    """End the newest row if the group was stable again, or empty, at a time (ms)."""
    row = state.rows.rebalance
    if row is None or row.ended_at is not None or group.state not in ("Stable", "Empty"):
        return
    state.rows.update(row, ended_at=max(at, row.at))
    if group.kind != "classic" and group.state == "Stable":
        state.rows.update(row, duration_ms=max(at - row.at, 0), duration_of="whole")


def _refine(state: FoldState, cause: Cause, change: Change) -> None:
    row = state.rows.rebalance
    if row is not None:
        if (row.cause_note or "").endswith(COMPACTED_NOTE):
            cause = with_doubt(cause, COMPACTED_NOTE)
        # States of earlier versions have no evidence.
        shown = record_fact(state, change.operation, cause.evidence.value.recorded)
        evidence = [*vars(row).get("evidence", ()), shown]
        vars(row).update(cause.columns, evidence=evidence)
        state.rows.mark(row)


def _set_aside(state: FoldState, at: int) -> int | None:
    """Move the newest row to the earlier ones, count this rebalance in them, and return its time (ms)."""
    rows, newest = state.rows, state.rows.rebalance
    if newest is not None:
        rows.earlier_rebalances.append(newest)
    for row in rows.earlier_rebalances:
        if at - row.at <= STORM_MS:
            rows.update(row, followed_within_minute=row.followed_within_minute + 1)
    return None if newest is None else newest.at


def _note_partitions(state: FoldState, change: Change, cause: Cause) -> None:
    """Record which partitions the change leaves without an owner, for later rebalances."""
    left_over = state.given_up | state.kept_back
    state.kept_back = left_over if change.after.keeps_back else set()
    state.given_up = set()
    state.taken_over = 0
    state.withdrawn = _withdrawn(change) if cause.name == "topic_deleted" else set()
    is_unknown = cause.name == "topic_metadata_changed" and cause.evidence != Evidence.RACKS_DIFFER
    is_unknown = is_unknown and change.after.kind != "classic"
    state.baseline = TargetBaseline(targeted(change.before), change.before.topic_ids) if is_unknown else None
    state.is_converted = change.is_conversion


def _withdrawn(change: Change) -> set[Partition]:
    """Return the partitions of topics that are no longer assigned."""
    had, has = owned_by_anyone(change.before) or frozenset(), owned_by_anyone(change.after) or frozenset()
    topics = {topic for topic, _ in has}
    return {(topic, number) for topic, number in had if topic not in topics}

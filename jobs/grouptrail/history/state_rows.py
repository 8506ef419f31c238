"""Rows of `group_states`: recorded states, and the states of a classic rebalance that its record implies."""

from __future__ import annotations

from grouptrail.history.changes import Change
from grouptrail.history.generation_rows import origin
from grouptrail.history.group import Group
from grouptrail.history.operations import Operation, removal_of
from grouptrail.history.reading import kind_of
from grouptrail.history.rows import GroupStateRow
from grouptrail.history.state import FoldState

_FIRST = "history begins here: earlier states are not known"
_AFTER_A_GAP = "compaction may have taken records before this was read: the states in between are not known"


def update_state(
    state: FoldState, change: Change, *, is_new: bool, is_beginning: bool, previous_at: int | None
) -> None:
    """Bring the open row up to date; `previous_at` (ms) is when the operation before was written."""
    after, rows = change.after, state.rows
    _end_before_gap(state, change)
    now = after.state
    if now is None:
        if state.rows.state is not None and after.generation is not None:
            end_state(state, change.at)
            state.gap_from = change.at
        return
    if state.is_measured and (after.kind != "classic" or is_new):
        note_stable(state, after, change.began_at)
    # The one record of a classic group says all of it.
    is_inferred = after.kind != "classic" and (state.keys_since_gap is not None or after.lacks_records)
    is_rebalance = after.kind == "classic" and is_new and after.generation != 0 and not change.is_conversion
    if rows.state is not None and rows.state.state == now and not is_rebalance:
        rows.update(rows.state, generation=after.generation, group_kind=after.kind)
        if is_inferred and not state.seems_complete:
            rows.update(rows.state, started_at=max(change.at, rows.state.started_at))
        return
    not_before, note = _beginning(state, change, is_beginning=is_beginning)
    if is_rebalance and rows.state is not None:
        _add_classic_rebalance(state, change, previous_at)
    end_state(state, change.at)
    state.gap_from = None
    began = change.boundary if now == "Empty" and after.kind == "classic" else change.began_at
    rows.state = GroupStateRow(
        **origin(state, change.operation),
        generation=after.generation,
        group_kind=after.kind,
        state=now,
        evidence="polled" if after.is_polled else "inferred" if is_inferred else "recorded",
        not_before=None if not_before is None else min(not_before, began),
        started_at=began,
        note=note,
    )
    rows.mark(rows.state)


def _end_before_gap(state: FoldState, change: Change) -> None:
    """End the state before a gap with what was read before it, unless a classic group shows that it lasted."""
    if state.gap_from is None:
        return
    if change.before.kind == change.after.kind == "classic" and not change.may_hide_a_generation and state.rows.state:
        state.gap_from = None
    else:
        end_state(state, state.gap_from)


def _beginning(state: FoldState, change: Change, *, is_beginning: bool) -> tuple[int | None, str | None]:
    """Return the time (ms) before which a new state did not begin, if that is not exact, and a note."""
    row, earliest = state.rows.state, change.operation[0].not_before
    if change.is_beginning_open:
        earliest = change.after.state_at
    if state.gap_from is not None:
        return max(state.gap_from, earliest or 0), _AFTER_A_GAP
    if row is None:
        return earliest, None if is_beginning else _FIRST
    if row.evidence == "inferred" and not state.seems_complete:
        return (row.started_at, _AFTER_A_GAP) if row.state == "Dead" else (row.not_before, row.note)
    return earliest, None


def note_stable(state: FoldState, group: Group, at: int) -> None:
    """Record when the newest generation became stable, if the group is now, at a time (ms)."""
    row = state.rows.generation
    if row is not None and row.stable_at is None and group.state == "Stable":
        state.rows.update(row, stable_at=at)


def end_state(state: FoldState, at: int) -> None:
    """End the open row, if there is one: an inferred state may have ended at any time after it was seen."""
    row = state.rows.state
    if row is not None:
        is_moment = row.evidence == "inferred" and not state.seems_complete
        state.rows.close(row, ended_at=row.started_at if is_moment else max(at, row.started_at))
        state.rows.state = None


def add_dead(state: FoldState, operation: Operation, note: str) -> None:
    """Begin the state Dead of a group that an operation removes."""
    last = operation[-1]
    row = GroupStateRow(
        **origin(state, (removal_of(operation),)),
        generation=None,
        group_kind=state.group.kind or kind_of(last.type),
        state="Dead",
        evidence="polled" if last.is_polled else "recorded" if state.keys_since_gap is None else "inferred",
        not_before=last.not_before if state.gap_from is None else min(state.gap_from, last.at),
        started_at=last.at,
        note=note,
    )
    state.rows.state = row
    state.rows.mark(row)


def _add_classic_rebalance(state: FoldState, change: Change, previous_at: int | None) -> None:
    """Add the states that a classic group went through without a record."""
    boundary, after = change.boundary, change.after
    end_state(state, boundary)
    not_before = change.operation[0].not_before if after.is_polled else previous_at
    preparing = GroupStateRow(
        **origin(state, change.operation),
        generation=after.generation,
        group_kind="classic",
        state="PreparingRebalance",
        evidence="inferred",
        # The clock of a new coordinator may be behind that of the previous one.
        not_before=None if not_before is None else min(not_before, boundary),
        started_at=boundary,
    )
    state.rows.close(preparing, ended_at=boundary)
    if after.members and after.state_at is not None and not after.may_be_restart:
        completing = GroupStateRow(
            **origin(state, change.operation),
            generation=after.generation,
            group_kind="classic",
            state="CompletingRebalance",
            evidence="recorded",
            not_before=None,
            started_at=boundary,
        )
        state.rows.close(completing, ended_at=change.at)

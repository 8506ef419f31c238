"""Rows of `group_states`: recorded states, and the states of a classic rebalance that its record implies."""

from __future__ import annotations

from grouptrail.history.changes import Change
from grouptrail.history.generation_rows import origin
from grouptrail.history.operations import Operation
from grouptrail.history.reading import kind_of
from grouptrail.history.rows import GroupStateRow
from grouptrail.history.state import FoldState


def update_state(
    state: FoldState, change: Change, *, is_new: bool, is_beginning: bool, previous_at: int | None
) -> None:
    """Bring the open row up to date; `previous_at` (ms) is when the operation before was written."""
    after, rows = change.after, state.rows
    now = after.state
    if now is None:
        return
    if now == "Stable" and rows.generation is not None and rows.generation.stable_at is None:
        rows.update(rows.generation, stable_at=change.at)
    is_rebalance = after.kind == "classic" and is_new and after.generation != 0 and not change.is_conversion
    note = None
    if rows.state is None:
        note = None if is_beginning else "history begins here: earlier states are not known"
    elif is_rebalance:
        _add_classic_rebalance(state, change, previous_at)
    elif rows.state.state == now:
        rows.update(rows.state, generation=after.generation, group_kind=after.kind)
        return
    else:
        end_state(state, change.at)
    began = change.boundary if now == "Empty" and after.kind == "classic" else change.at
    not_before = change.operation[0].not_before
    rows.state = GroupStateRow(
        **origin(state, change.operation),
        generation=after.generation,
        group_kind=after.kind,
        state=now,
        evidence="polled" if after.is_polled else "recorded",
        not_before=None if not_before is None else min(not_before, began),
        started_at=began,
        note=note,
    )
    rows.mark(rows.state)


def end_state(state: FoldState, at: int) -> None:
    """End the open row, if there is one."""
    row = state.rows.state
    if row is not None:
        state.rows.close(row, ended_at=max(at, row.started_at))
        state.rows.state = None


def add_dead(state: FoldState, operation: Operation, note: str) -> None:
    """Begin the state Dead of a group that an operation removes."""
    last = operation[-1]
    row = GroupStateRow(
        **origin(state, operation),
        generation=None,
        group_kind=state.group.kind or kind_of(last.type),
        state="Dead",
        evidence="polled" if last.is_polled else "recorded",
        not_before=last.not_before,
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
    if after.members and after.state_at is not None:
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

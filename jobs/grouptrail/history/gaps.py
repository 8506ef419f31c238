"""Gaps in a group's records: where history begins, and after a stop, compaction may have taken records.

Compaction keeps the newest record of each key, and takes none of those that were written last. So the first record of
a key that was read before, or one that was read at once, shows that no record is missing from the one before it on:
what is known of the group then was true since that one.
"""

from __future__ import annotations

from grouptrail.history.operations import Operation
from grouptrail.history.rebalance_rows import end_rebalance
from grouptrail.history.state import FoldState
from grouptrail.history.state_rows import note_stable


def note_gap(state: FoldState, operation: Operation) -> bool:
    """Note whether records may be missing before an operation, or not any more; return whether a stop was before it.

    A gap begins where a read begins that was late: records that were read together are complete from the first key on
    that they have twice.
    """
    read_late_at = operation[0].read_late_at
    is_after_stop = read_late_at not in (None, state.doubted_at) and state.last_at is not None
    if is_after_stop:
        state.gap_from, state.keys_since_gap = state.last_at, set()
        state.is_measured = state.seems_complete = False
    if read_late_at is not None:
        state.doubted_at = read_late_at
    if state.keys_since_gap is not None:
        _look_for_the_end(state, operation, state.keys_since_gap)
    return is_after_stop


def _look_for_the_end(state: FoldState, operation: Operation, known: set[str]) -> None:
    keys = {f"{record.type} {record.name or ''}" for record in operation}
    is_after_late_ones = state.doubted_at is not None and operation[0].read_late_at is None
    is_at_once = operation[0].read_at_once or is_after_late_ones
    if is_at_once or keys & known or operation[0].is_polled:
        _end_gap(state)
    else:
        known |= keys


def _end_gap(state: FoldState) -> None:
    """Take what was inferred since the last operation as recorded: nothing is missing between it and the next one."""
    state.keys_since_gap = None
    row, generation = state.rows.state, state.rows.generation
    if row is not None and row.evidence == "inferred":
        state.rows.update(row, evidence="recorded")
    state.is_measured = generation is None or generation.started_at == state.last_at
    if state.is_measured and state.last_at is not None:
        note_stable(state, state.group, state.last_at)
        end_rebalance(state, state.group, state.last_at)

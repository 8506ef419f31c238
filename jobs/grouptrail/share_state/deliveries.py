"""Fold the records of `__share_group_state` into the delivery state of each partition of a share group.

Kafka's share coordinator does the same when it loads a partition (ShareCoordinatorShard): a snapshot has the whole
state, an update what has changed since, and of two states of an offset the one that was delivered more often counts,
or, delivered as often, the one that is nearer to its end (PersisterStateBatchCombiner).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from grouptrail.decode.rows import Row
from grouptrail.storage.positions import CAME_BACK

TABLE = "share_deliveries"

AVAILABLE = 0
_STATES = ("available", "acquired", "acknowledged", "archiving", "archived")
"""RecordState of Kafka's brokers, by its number."""

_PLACE = ("record_partition", "record_offset", "record_at", "group_id", "topic_id", "partition")

_Key = tuple[str | None, str | None, int | None]


class StateBatch(NamedTuple):
    """Offsets, both ends included, with the same delivery state."""

    first: int
    last: int
    state: int
    delivered: int

    @property
    def rank(self) -> tuple[int, int]:
        """The greater of two replaces the other."""
        return self.delivered, self.state


class Change(NamedTuple):
    """Offsets whose state has become that of a batch; `previous_count` is None if the state before is not known."""

    batch: StateBatch
    previous_count: int | None


@dataclass
class PartitionState:
    """The delivery state of a partition in a share group.

    `batches` are in order and do not overlap. `is_whole`: they are all that there are, which they are not between the
    first record that was read, if it was an update, and the next snapshot.
    """

    snapshot_epoch: int | None = None
    state_epoch: int | None = None
    is_whole: bool = False
    batches: list[StateBatch] = field(default_factory=list)

    def put(self, batch: StateBatch) -> list[Change]:
        """Put a batch over what is there, where it counts; return what has changed."""
        low = bisect_left(self.batches, batch.first, key=lambda old: old.last)
        high = bisect_right(self.batches, batch.last, key=lambda old: old.first)
        changes: list[Change] = []
        pieces: list[StateBatch] = []
        unset = 0 if self.is_whole else None
        at = batch.first
        for old in self.batches[low:high]:
            first, last = max(old.first, batch.first), min(old.last, batch.last)
            if old.first < first:
                pieces.append(old._replace(last=first - 1))
            if at < first:
                changes.append(Change(batch._replace(first=at, last=first - 1), unset))
                pieces.append(changes[-1].batch)
            inner = (batch if batch.rank > old.rank else old)._replace(first=first, last=last)
            pieces.append(inner)
            if batch.rank > old.rank:
                changes.append(Change(inner, old.delivered))
            if last < old.last:
                pieces.append(old._replace(first=last + 1))
            at = last + 1
        if at <= batch.last:
            changes.append(Change(batch._replace(first=at), unset))
            pieces.append(changes[-1].batch)
        around = slice(max(low - 1, 0), high + 1)
        self.batches[around] = _joined([*self.batches[around.start : low], *pieces, *self.batches[high : high + 1]])
        return changes

    def drop_before(self, start_offset: int) -> None:
        """Forget offsets before the start offset: they are complete."""
        kept = bisect_left(self.batches, start_offset, key=lambda old: old.last)
        del self.batches[:kept]
        if self.batches and self.batches[0].first < start_offset:
            self.batches[0] = self.batches[0]._replace(first=start_offset)

    def came_back(self) -> tuple[int, int, int | None]:
        """Return the figures `CAME_BACK` of the offsets that were delivered and came back.

        They wait for another delivery, or are in one: that is not written.
        """
        count, most, offset = 0, 0, None
        for first, last, state, delivered in self.batches:
            if state == AVAILABLE and delivered > 0:
                count += last - first + 1
                if delivered > most:
                    most, offset = delivered, first
        return count, most, offset


def _joined(batches: list[StateBatch]) -> list[StateBatch]:
    """Make one of neighbours that have the same state."""
    joined = batches[:1]
    for batch in batches[1:]:
        last = joined[-1]
        if last.last + 1 == batch.first and last.rank == batch.rank:
            joined[-1] = last._replace(last=batch.last)
        else:
            joined.append(batch)
    return joined


class Deliveries:
    """The delivery states of all partitions of share groups, as far as their records were read.

    What records that are missing have changed is not known: a state is known again from its next snapshot on.
    """

    def __init__(self) -> None:
        self._logs: dict[int, _Log] = {}

    def add(self, row: Row) -> list[Row]:
        """Add the next row of `share_group_state` in its partition of the topic; return rows of `share_deliveries`.

        The row gets the columns `CAME_BACK`, which rest on the records before it, too.
        """
        row |= dict.fromkeys(CAME_BACK)
        log = self._logs.get(row["record_partition"])
        if log is None or log.next_offset != row["record_offset"]:
            log = self._logs[row["record_partition"]] = _Log()
        log.next_offset = row["record_offset"] + 1
        if row["reason"] is not None:
            log.states.pop((row.get("group_id"), row.get("topic_id"), row.get("partition")), None)
            return []
        key = row["group_id"], row["topic_id"], row["partition"]
        if row["is_tombstone"]:
            log.states.pop(key, None)
            return []
        if row["record_type"] == "snapshot":
            changes = _snapshot(log.states, key, row)
        else:
            changes = [(change, False) for change in _update(log.states, key, row)]
        state = log.states[key]
        if row["start_offset"] is not None:
            state.drop_before(row["start_offset"])
        if state.is_whole:
            row |= zip(CAME_BACK, state.came_back(), strict=True)
        place = {name: row[name] for name in _PLACE}
        return [{**place, **_columns(change), "is_first": is_first} for change, is_first in changes]


@dataclass
class _Log:
    """What was read of a partition of the topic without a gap: the offset after it, and the states."""

    next_offset: int = 0
    states: dict[_Key, PartitionState] = field(default_factory=dict)


def _snapshot(states: dict[_Key, PartitionState], key: _Key, row: Row) -> list[tuple[Change, bool]]:
    """Replace the state; return its changes, and whether they are of before the first record that was read."""
    before = states.get(key, PartitionState())
    if before.state_epoch not in (None, row["state_epoch"]):
        before = PartitionState(is_whole=True)
    is_first = not before.is_whole
    after = PartitionState(row["snapshot_epoch"], row["state_epoch"], is_whole=True)
    changes = []
    for batch in _batches(row):
        after.put(batch)
        changes += [(change, is_first) for change in before.put(batch)]
    states[key] = after
    return changes


def _update(states: dict[_Key, PartitionState], key: _Key, row: Row) -> list[Change]:
    state = states.get(key)
    if state is None or state.snapshot_epoch != row["snapshot_epoch"]:
        state = states[key] = PartitionState(row["snapshot_epoch"])
    return [change for batch in _batches(row) for change in state.put(batch)]


def _batches(row: Row) -> list[StateBatch]:
    return [StateBatch(*batch.values()) for batch in row["state_batches"]]


def _columns(change: Change) -> Row:
    batch, before = change
    records = batch.last - batch.first + 1
    return {
        "first_offset": batch.first,
        "last_offset": batch.last,
        "records": records,
        "delivery_state": _STATES[batch.state] if 0 <= batch.state < len(_STATES) else str(batch.state),
        "delivery_count": batch.delivered,
        "previous_count": before,
        "redeliveries": None if before is None else records * max(0, batch.delivered - max(before, 1)),
    }

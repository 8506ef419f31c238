"""The changes of a group and its members by one operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from grouptrail.history.group import Group, Member
from grouptrail.history.operations import CLASSIC, Operation

# The first epoch of a group: 2 from Kafka 4.3 on, 1 before.
LATEST_FIRST_EPOCH = 2


@dataclass(frozen=True, slots=True)
class Change:
    """A group before and after an operation.

    `replaced` are static members that rejoined under a new id (old, new), `rejoined` dynamic members with the same
    client id and host, which are probably the same member; neither are in `joined` or `left`. `resubscribed` members
    stayed and changed their topics. `touched` are the ids of all members that may differ.
    """

    before: Group
    after: Group
    operation: Operation
    touched: tuple[str, ...]
    joined: tuple[Member, ...]
    left: tuple[Member, ...]
    replaced: tuple[tuple[Member, Member], ...]
    rejoined: tuple[tuple[Member, Member], ...]
    resubscribed: tuple[Member, ...]

    @property
    def at(self) -> int:
        """When the operation was written (ms)."""
        return self.operation[-1].at

    @property
    def is_conversion(self) -> bool:
        """Whether the group changed from the classic protocol to one of the broker's, or back."""
        return None not in (self.before.kind, self.after.kind) and self.before.kind != self.after.kind

    @property
    def keeps_generation(self) -> bool:
        """Whether the other protocol took over in the same generation, which is no rebalance: one may follow.

        A downgrade does (GMM.convertToClassicGroup), and an upgrade by a member that subscribes to no topic yet.
        """
        return self.is_conversion and self.before.generation == self.after.generation

    @property
    def skipped(self) -> int | None:
        """How many generations are missing in the log between the two; None where that is not known."""
        before, after = self.before, self.after
        if after.is_polled or before.generation is None or after.generation is None:
            return None
        if self.is_conversion and before.generation == 0 and after.generation == LATEST_FIRST_EPOCH:
            # Ambiguous: generation 1 may have been converted before it was complete, or the empty group was deleted
            # and recreated, whose first epoch is 2 as well.
            return None
        return max(0, after.generation - before.generation - 1)

    @property
    def may_miss_records(self) -> bool:
        """Whether compaction may have removed records of the group since its newest generation's record.

        It may have if the two were read at different times. Records read together are complete: compaction keeps the
        newest record of each key.
        """
        read_late_at, before = self.operation[0].read_late_at, self.before
        is_apart = before.kind is not None and read_late_at not in (None, before.read_late_at)
        is_complete = self._is_same_group and self.skipped == 0 and not self._has_static
        return is_apart and not is_complete

    @property
    def may_hide_a_generation(self) -> bool:
        """Whether compaction may have taken the record of a generation between the two, of this group or another."""
        return self.may_miss_records and not (self._is_same_group and self.skipped == 0)

    @property
    def may_hide_another_group(self) -> bool:
        """Whether these records may have been the deletion of the group and the beginning of this one."""
        return self.may_miss_records and not self._is_same_group

    @property
    def _has_static(self) -> bool:
        """Whether a generation's record may have been replaced when a static member came back."""
        members = (*self.before.members.values(), *self.after.members.values())
        return any(member.instance_id for member in members)

    @property
    def _is_same_group(self) -> bool:
        """Whether members show that the group was not deleted: a classic coordinator gives no member id twice."""
        before, after = self.before, self.after
        return before.kind == after.kind == "classic" and bool(before.members.keys() & after.members.keys())

    @property
    def began_at(self) -> int:
        """When (ms) the generation began: when it was written, unless that record was replaced long after.

        A member that does not sync within its rebalance timeout is removed (GMM.expirePendingSync), so that no sync
        phase takes longer.
        """
        after = self.after
        if not after.may_be_restart or after.state_at is None or not 0 <= after.state_at <= self.at:
            return self.at
        longest_ms = max(member.rebalance_timeout_ms or 0 for member in after.members.values())
        return after.state_at if self.at - after.state_at > longest_ms else self.at

    @property
    def is_beginning_open(self) -> bool:
        """Whether the generation may have begun long before its record, at the time of the group's state at the
        earliest."""
        return self.after.may_be_restart and self.began_at == self.at

    @property
    def boundary(self) -> int:
        """The time (ms) of the change; of a classic rebalance the end of its join phase."""
        before, after = self.before, self.after
        if after.kind != "classic" or after.state_at is None or self.is_conversion:
            return self.at
        if self.began_at < self.at:
            return self.began_at
        if before.generation == after.generation:  # no rebalance: a static member came back
            return self.at
        return min(max(after.state_at, self.operation[0].at - _LONGEST_SYNC_MS), self.at)


# A state's time far before its record is not a sync phase: the coordinator's clock was set.
_LONGEST_SYNC_MS = 24 * 3600 * 1000


def change_of(before: Group, after: Group, operation: Operation) -> Change:
    """Compare a group before and after an operation."""
    if any(record.type == CLASSIC for record in operation) or before.kind != after.kind:
        touched = tuple(before.members.keys() | after.members.keys())
    else:
        touched = tuple({record.name for record in operation if record.name is not None})
    touched = tuple(sorted(touched))
    gone = [before.members[name] for name in touched if name in before.members and name not in after.members]
    new = [after.members[name] for name in touched if name in after.members and name not in before.members]
    replaced = _paired(gone, new, lambda member: member.instance_id)
    rejoined = _paired(
        _others(gone, (old for old, _ in replaced)),
        _others(new, (now for _, now in replaced)),
        lambda member: None if member.instance_id else (member.client_id, member.client_host),
    )
    pairs = [*replaced, *rejoined]
    return Change(
        before=before,
        after=after,
        operation=operation,
        touched=touched,
        joined=tuple(_others(new, (now for _, now in pairs))),
        left=tuple(_others(gone, (old for old, _ in pairs))),
        replaced=tuple(replaced),
        rejoined=tuple(rejoined),
        resubscribed=tuple(
            after.members[name]
            for name in touched
            if name in before.members
            and name in after.members
            and None not in (before.members[name].topics, after.members[name].topics)
            and before.members[name].subscription != after.members[name].subscription
        ),
    )


def _paired(
    gone: Iterable[Member], new: Iterable[Member], trait: Callable[[Member], object]
) -> list[tuple[Member, Member]]:
    """Pair members that are gone with new ones of the same trait; members without a match are left out."""
    waiting: dict[object, list[Member]] = {}
    for member in new:
        if trait(member) is not None:
            waiting.setdefault(trait(member), []).append(member)
    return [(member, waiting[trait(member)].pop(0)) for member in gone if waiting.get(trait(member))]


def _others(members: Iterable[Member], without: Iterable[Member]) -> list[Member]:
    ids = {member.member_id for member in without}
    return [member for member in members if member.member_id not in ids]

"""Cut a group's records into operations: the records that the coordinator wrote together for one event.

The order of the records within an operation is that of Kafka's GroupMetadataManager and of its record helpers
(`CoordinatorRecordHelpers`, `TargetAssignmentBuilder`, `CurrentAssignmentBuilder`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

CLASSIC = "GroupMetadata"
COMMIT_TOMBSTONE = "OffsetCommit"
UNREADABLE = "Unreadable"
"""The type of a record of a group that could not be decoded: a layout of an early release, or of a later one."""

_KINDS = ("ConsumerGroup", "ShareGroup", "StreamsGroup")


class Record(NamedTuple):
    """One record: its offset, its timestamp in ms, Kafka's name of its type, and its value (None: a tombstone).

    `name` is the part of the key besides the group: a member id or a regular expression. For a polled group a record
    is what a poll found at that time and what changed after `not_before` (ms; None: not known). `read_late_at` (ms)
    is when it was read, if compaction may have taken records before it: so long after it was written, and with gaps;
    `read_at_once`: it was not. A polled record with `read_late_at` is a group's removal that a coordinator confirmed
    after a stop. Neither is given if it is not known when it was read. `leader_epoch` is that of its
    partition, which changes with the coordinator; None: not known.
    """

    offset: int
    at: int
    type: str
    name: str | None
    body: dict[str, Any] | None
    is_polled: bool = False
    not_before: int | None = None
    read_late_at: int | None = None
    read_at_once: bool = False
    leader_epoch: int | None = None

    @property
    def has_generation(self) -> bool:
        """Whether it holds the generation or epoch of its group."""
        return self.body is not None and self.type.endswith("GroupMetadata")

    @property
    def removes_group(self) -> bool:
        """Whether it is the tombstone of a group itself."""
        return self.body is None and self.type.endswith("GroupMetadata")


Operation = tuple[Record, ...]


def removal_of(operation: Operation) -> Record:
    """Return the record that removes the group; the first if none does.

    The batches of a removal may become readable one by one: the record that removes the group is in the last.
    """
    return next((record for record in operation if record.removes_group), operation[0])


def operations(
    records: Iterable[Record], complete_to: int, bumps_epoch: Callable[[Record], bool]
) -> Iterator[tuple[Operation, bool]]:
    """Yield each operation of one group's records, which are in offset order, and whether it is complete.

    An operation's records have adjacent offsets, the same timestamp and an order that one request to the coordinator
    can produce: several requests may share a batch and a millisecond (`group.coordinator.append.linger.ms`).
    Only the last operation may be incomplete: if it ends at `complete_to`, the offset up to which everything has been
    read, more of it may follow. At the log's end nothing more can follow, because a batch of records becomes visible
    as a whole; the caller then passes an offset past the end.
    `bumps_epoch` returns whether the request that wrote a member's metadata must have written an epoch, too. It is
    called when all operations before that record have been consumed.
    """
    current = _OperationBuilder()
    for record in records:
        if current.records and not current.takes(record):
            yield from ((operation, True) for operation in current.operations(bumps_epoch))
            current = _OperationBuilder()
        current.add(record)
    if current.records:
        is_complete = current.records[-1].offset + 1 < complete_to or current.is_ended
        yield from ((operation, is_complete) for operation in current.operations(bumps_epoch))


@dataclass(slots=True)
class _OperationBuilder:
    """The records of one operation, and how far they are in the coordinator's order."""

    records: list[Record] = field(default_factory=list)
    is_ended: bool = False
    _has_pattern: bool = False
    _has_epoch: bool = False
    _has_target_epoch: bool = False
    _is_conversion: bool = False
    _is_removed: bool = False
    _members_removed: int = 0
    _members: set[str | None] = field(default_factory=set)
    _classic_members: set[str | None] = field(default_factory=set)

    def takes(self, record: Record) -> bool:
        """Return whether the record belongs to the same operation."""
        last = self.records[-1]
        if self.is_ended or record.offset != last.offset + 1 or record.at != last.at:
            return False
        if record.is_polled or last.is_polled:
            return record.is_polled and last.is_polled
        if {COMMIT_TOMBSTONE, UNREADABLE} & {record.type, last.type}:
            return False
        if CLASSIC in (record.type, last.type):
            # A downgrade ends with the classic group's value, an upgrade begins with its tombstone.
            return last.body is None and record.body is not None and record.type != last.type
        if self._is_removed:
            return record.body is None  # a deletion is tombstones alone; a value is the first record of another group
        return self._is_conversion or not self._begins_another(record)

    def _begins_another(self, record: Record) -> bool:
        """Return whether a record cannot be the next of this operation, but can be the first of another."""
        part = _part(record)
        if self._is_resolution and part not in ("RegularExpression", "PartitionMetadata", "Metadata"):
            return True
        if part == "MemberMetadata" and record.body is not None and self._has_other_request(record.name):
            return True
        if part in ("MemberMetadata", "Metadata") and record.body is not None:
            return self._has_epoch or self._has_target_epoch
        if part == "RegularExpression":
            # A request writes only the tombstone of a pattern; what a pattern matches is written later.
            return self._has_epoch or (bool(self._members) and record.body is not None)
        if part == "CurrentMemberAssignment" and record.body is None:
            return bool(self._members) or self._has_epoch
        return False

    def _has_other_request(self, member_id: str | None) -> bool:
        """Return whether the records so far hold the request of another member, or an earlier one of this member.

        A request writes its member's metadata once, and without an epoch when only its timeouts or its classic
        metadata changed. The return of a static member writes it twice, after its predecessor's tombstones
        (GMM.replaceMember, then the subscription of the heartbeat).
        """
        return bool(self._members) and (self._members_removed == 0 or member_id not in self._members)

    def operations(self, bumps_epoch: Callable[[Record], bool]) -> tuple[Operation, ...]:
        """Return the records as one operation, or as two if they hold the requests of two members.

        The last assignment belongs to the member that sent the last request. If that is not the member whose
        metadata comes first, the metadata is an operation of its own. The records stay together if the metadata
        bumped the epoch: which records belong to it is then open, and all have the same time.
        """
        first, last = self.records[0], self.records[-1]
        is_request = _part(first) == "MemberMetadata" and first.body is not None and not self._members_removed
        is_others = _part(last) == "CurrentMemberAssignment" and last.name not in self._members
        if is_request and is_others and not bumps_epoch(first):
            return (first,), tuple(self.records[1:])
        return (tuple(self.records),)

    @property
    def _is_resolution(self) -> bool:
        """Whether these records store the topics of a resolved pattern, without any member's request
        (GMM.handleRegularExpressionsResult)."""
        return self._has_pattern and not self._members

    def add(self, record: Record) -> None:
        """Add a record."""
        self.records.append(record)
        part = _part(record)
        if part == CLASSIC:
            self.is_ended = record.body is not None
            self._is_conversion = record.body is None
            return
        if record.is_polled:
            return
        if part == "MemberMetadata":
            self._add_member(record)
        elif part == "Metadata" and record.body is not None:
            self._has_epoch = True
            # Members that stay, or whose pattern was resolved, get their targets with a later heartbeat.
            self.is_ended = self._is_resolution or (self._members_removed > 0 and not self._members)
        elif part == "Metadata":
            self._is_removed = True
        elif part == "RegularExpression":
            self._has_pattern = True
        elif part == "TargetAssignmentMetadata" and record.body is not None:
            self._has_target_epoch = True
        elif part == "CurrentMemberAssignment" and record.body is not None:
            self.is_ended = self._is_last_assignment(record)

    def _add_member(self, record: Record) -> None:
        if record.body is None:
            self._members_removed += 1
            return
        self._members.add(record.name)
        if (record.body.get("classicMemberMetadata") or {}).get("supportedProtocols"):
            self._classic_members.add(record.name)

    def _is_last_assignment(self, record: Record) -> bool:
        """Return whether this assignment ends the operation, as that of the member that sent the request.

        Two operations write other assignments before it: an upgrade writes those of the classic members, and the
        return of a static member writes a copy of its predecessor's.
        """
        assert record.body is not None
        if self._is_conversion:
            return bool(self._members) and record.name not in self._classic_members
        is_copy = self._members_removed > 0 and bool(self._members) and record.body.get("memberEpoch") == 0
        return not is_copy


def _part(record: Record) -> str:
    """Return the record type without the kind of its group."""
    for kind in _KINDS:
        if record.type.startswith(kind):
            return record.type[len(kind) :]
    return record.type

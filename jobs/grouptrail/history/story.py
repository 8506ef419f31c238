"""A group's story: folds its records, in log order, into the rows of the history tables.

A pure function of the records and of where it had stopped: told at once or piece by piece, cut anywhere, the rows
are the same. Start reading at `tell`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from grouptrail.history.assignors import Subscriber, explain, skew
from grouptrail.history.causes import cause, metadata_cause, targets
from grouptrail.history.changes import Change, change, ending
from grouptrail.history.group import Group, Member, Partition, by_topic, group_json, group_of_json
from grouptrail.history.open_rows import OpenRows, Row
from grouptrail.history.operations import CLASSIC, COMMIT_TOMBSTONE, Operation, Record, operations
from grouptrail.history.reading import Names, after, kind_of

STORM_MS = 60_000
"""Generations that follow a rebalance within this time are counted in its row."""

_ONE = ""  # the name of the one open row of a table that has one a group


@dataclass(frozen=True)
class Told:
    """What records added: `rows` as (table, row) without the cluster, times in ms; `state` to go on from `told_to`.

    `waits`: the last operation may not be complete; it is taken in when more is read of its partition.
    """

    rows: list[tuple[str, Row]]
    state: str
    told_to: int
    waits: bool


def tell(
    group_id: str,
    record_partition: int,
    records: Iterable[Record],
    *,
    complete_to: int,
    names: Names,
    state: str | None = None,
    retention_ms: int = 7 * 24 * 3600 * 1000,
) -> Told:
    """Goes on with a group's story.

    `records` are in the order of their offsets; those taken in before are passed over. `complete_to` is as for
    `operations`, `names` the topics by id, `state` what the last call gave, `retention_ms` the broker's
    `offsets.retention.minutes`, by which deletion and expiry are told apart.
    """
    story = _Story(group_id, record_partition, names, retention_ms, json.loads(state) if state else {})
    told_to, pending = story.told_to, story.pending
    fresh = (record for record in records if record.offset >= told_to)
    story.pending = []
    for operation, is_complete in operations([*pending, *fresh], complete_to):
        told_to = operation[-1].offset + 1
        if is_complete:
            story.take(operation)
        else:
            story.pending = list(operation)
    rows = story.rows()
    state = json.dumps(story.saved(told_to), separators=(",", ":"), ensure_ascii=False)
    return Told(rows, state, told_to, bool(story.pending))


class _Story:
    def __init__(self, group_id: str, record_partition: int, names: Names, retention_ms: int, saved: dict[str, Any]):
        self._record_partition = record_partition
        self._names = names
        self._retention_ms = retention_ms
        self.told_to: int = saved.get("told_to", 0)
        self.pending = [Record(*values) for values in saved.get("pending", ())]
        self._group = group_of_json(saved["group"]) if "group" in saved else Group()
        self._incarnation: int = saved.get("incarnation", 1)
        self._was_removed: bool = saved.get("was_removed", False)
        self._last_at: int | None = saved.get("last_at")
        self._open = OpenRows(group_id, saved.get("open"))
        self._counts: dict[str, int] = saved.get("counts", {})
        self._owners: dict[Partition, list[Any]] = {(t, p): rest for t, p, *rest in saved.get("owners", ())}
        self._given_up: set[Partition] = {(t, p) for t, p in saved.get("given_up", ())}
        self._kept_back: set[Partition] = {(t, p) for t, p in saved.get("kept_back", ())}
        self._targets: frozenset[Partition] | None = (
            frozenset((t, p) for t, p in saved["targets"]) if saved.get("targets") is not None else None
        )
        self._opened: int = saved.get("opened", 0)

    def saved(self, told_to: int) -> dict[str, Any]:
        return {
            "told_to": told_to,
            "pending": self.pending,
            "group": group_json(self._group),
            "incarnation": self._incarnation,
            "was_removed": self._was_removed,
            "last_at": self._last_at,
            "open": self._open.saved(),
            "counts": self._counts,
            "owners": [[*partition, *rest] for partition, rest in self._owners.items()],
            "given_up": sorted(self._given_up),
            "kept_back": sorted(self._kept_back),
            "targets": None if self._targets is None else sorted(self._targets),
            "opened": self._opened,
        }

    def rows(self) -> list[tuple[str, Row]]:
        self._describe_generation()
        return self._open.changed()

    def take(self, operation: Operation) -> None:
        """One operation: everything it changed, in one step."""
        now = after(self._group, operation, self._names)
        if all(record.type == COMMIT_TOMBSTONE for record in operation):
            return
        if now.kind is None and self._group.kind is None and not _removes_a_group(operation):
            return
        self._settle_rebalances(operation[-1].at)
        if self._begins_anew(now):
            self._end_incarnation(operation, "made anew: its end was not seen")
        if self._group.kind is None and now.kind is not None and self._was_removed:
            self._incarnation, self._was_removed = self._incarnation + 1, False
        seen = change(self._group, now, operation)
        if now.kind is None:
            self._end_incarnation(operation, self._removal(operation))
        else:
            self._tell(seen)
        self._last_at = operation[-1].at

    def _begins_anew(self, now: Group) -> bool:
        """A generation below the one before: the group was made anew, and compaction took the tombstone."""
        before = self._group
        return (
            before.kind == now.kind
            and before.generation is not None
            and now.generation is not None
            and now.generation < before.generation
        )

    def _tell(self, seen: Change) -> None:
        before, now = self._group, seen.after
        is_first = before.generation is None
        is_new = now.generation is not None and (
            is_first or seen.is_conversion or now.generation != before.generation
        )
        previous_at = self._last_at
        if is_new:
            self._describe_generation()
        self._group = now
        self._remember_counts(seen)
        if is_new:
            self._begin_generation(seen, is_first=is_first)
            self._begin_rebalance(seen, is_first=is_first)
        self._tell_members(seen)
        self._tell_ownership(seen, counts=is_new or now.kind != "classic")
        self._tell_targets(seen)
        self._tell_state(seen, is_new=is_new, previous_at=previous_at)
        self._update_rebalance(seen)

    # Where a row comes from

    def _origin(self, operation: Operation) -> Row:
        return {
            "incarnation": self._incarnation,
            "record_partition": self._record_partition,
            "record_offset": operation[0].offset,
        }

    def _end_interval(self, table: str, at: int) -> None:
        row = self._open.get(table, _ONE)
        assert row is not None
        self._open.end(table, _ONE, {"ended_at": max(at, row["started_at"])})

    # Generations

    def _begin_generation(self, seen: Change, *, is_first: bool) -> None:
        now = seen.after
        if self._open.get("generations", _ONE):
            self._end_interval("generations", seen.at)
        self._open.begin(
            "generations",
            _ONE,
            {
                **self._origin(seen.operation),
                "generation": now.generation,
                "group_kind": now.kind,
                "started_at": seen.at,
                "skipped": self._skipped(seen, is_first=is_first),
                "stable_at": None,
                "ended_at": None,
            },
        )

    def _skipped(self, seen: Change, *, is_first: bool) -> int | None:
        before, now = seen.before, seen.after
        if now.is_polled:
            return None
        if is_first or before.generation is None or now.generation is None:
            return 0 if self._incarnation > 1 or (now.generation or 0) <= 1 else None
        return max(0, now.generation - before.generation - 1)

    def _describe_generation(self) -> None:
        """What the open generation's row says of its members: as they are now."""
        group = self._group
        if self._open.get("generations", _ONE) is None:
            return
        # No assignment is ever made for an epoch without members.
        is_assigned = (
            group.kind == "classic" or not group.members or (group.assignment_epoch or 0) >= (group.generation or 0)
        )
        assigned = {name: _assigned(group, member) for name, member in group.members.items()}
        known = {name: owned for name, owned in assigned.items() if owned is not None}
        is_known = len(known) == len(assigned)
        self._open.update(
            "generations",
            _ONE,
            {
                "protocol_type": group.protocol_type,
                "protocol": group.protocol,
                "leader": group.leader,
                "member_count": len(group.members),
                "members": [_member_row(member, assigned[name]) for name, member in sorted(group.members.items())]
                if is_assigned
                else None,
                "partition_count": len(frozenset().union(*known.values())) if is_known else None,
                "skew": skew(known) if is_known and known else None,
                **self._explanation(known if is_known else None),
            },
        )

    def _explanation(self, assigned: dict[str, frozenset[Partition]] | None) -> Row:
        group = self._group
        if not group.members or (assigned is not None and not any(assigned.values())):
            return {"is_assignors_own": None, "assignment_note": None}
        if group.kind != "classic" or group.protocol_type != "consumer":
            return {"is_assignors_own": None, "assignment_note": "only consumers' own assignors are computed again"}
        if assigned is None:
            return {"is_assignors_own": None, "assignment_note": "not every assignment can be read"}
        if any(member.topics is None for member in group.members.values()):
            return {"is_assignors_own": None, "assignment_note": "not every subscription can be read"}
        subscribers = [
            Subscriber(
                member_id=member.member_id,
                instance_id=member.instance_id,
                topics=frozenset(member.topics or ()),
                owned=member.claimed,
                generation=member.claimed_generation,
                rack=member.rack,
            )
            for member in group.members.values()
        ]
        told = explain(group.protocol, subscribers, self._counts, assigned)
        return {"is_assignors_own": told.is_own, "assignment_note": told.note}

    def _remember_counts(self, seen: Change) -> None:
        """How many partitions a topic has at least: what was ever assigned of it."""
        for name in seen.touched:
            member = seen.after.members.get(name)
            for topic, number in (_assigned(seen.after, member) or ()) if member else ():
                if number >= self._counts.get(topic, 0):
                    self._counts[topic] = number + 1

    # States

    def _tell_state(self, seen: Change, *, is_new: bool, previous_at: int | None) -> None:
        now = seen.after
        state = now.state
        if state is None:
            return
        generation, row = self._open.get("generations", _ONE), self._open.get("group_states", _ONE)
        if state == "Stable" and generation is not None and generation["stable_at"] is None:
            self._open.update("generations", _ONE, {"stable_at": seen.at})
        rebalanced = now.kind == "classic" and is_new and now.generation != 0 and not seen.is_conversion
        if row is not None and rebalanced:
            self._tell_classic_rebalance(seen, previous_at)
        elif row is not None and row["state"] == state:
            self._open.update("group_states", _ONE, {"generation": now.generation, "group_kind": now.kind})
            return
        elif row is not None:
            self._end_interval("group_states", seen.at)
        began = seen.boundary if state == "Empty" and now.kind == "classic" else seen.at
        note = "history begins here: states before are not known" if row is None and self._starts_late(now) else None
        self._begin_state(seen, state, began, note=note)

    def _starts_late(self, now: Group) -> bool:
        first = 1 if now.kind == "classic" else 2
        starts_late = now.is_polled or now.generation is None or now.generation > first
        return self._incarnation == 1 and starts_late

    def _begin_state(self, seen: Change, state: str, began: int, *, note: str | None) -> None:
        self._open.begin(
            "group_states",
            _ONE,
            {
                **self._origin(seen.operation),
                "generation": seen.after.generation,
                "group_kind": seen.after.kind,
                "state": state,
                "evidence": "polled" if seen.after.is_polled else "recorded",
                "not_before": seen.operation[0].not_before,
                "started_at": began,
                "ended_at": None,
                "note": note,
            },
        )

    def _tell_classic_rebalance(self, seen: Change, previous_at: int | None) -> None:
        """The states a classic group went through without a record, from the one that ends them."""
        boundary = seen.boundary
        self._end_interval("group_states", boundary)
        shared = {
            **self._origin(seen.operation),
            "generation": seen.after.generation,
            "group_kind": "classic",
            "started_at": boundary,
            "note": None,
        }
        self._open.add(
            "group_states",
            {
                **shared,
                "state": "PreparingRebalance",
                "evidence": "inferred",
                "not_before": seen.operation[0].not_before if seen.after.is_polled else previous_at,
                "ended_at": boundary,
            },
        )
        if seen.after.members and seen.after.state_at is not None:
            self._open.add(
                "group_states",
                {
                    **shared,
                    "state": "CompletingRebalance",
                    "evidence": "recorded",
                    "not_before": None,
                    "ended_at": seen.at,
                },
            )

    # Members

    def _tell_members(self, seen: Change) -> None:
        generation = seen.after.generation
        left_at = seen.boundary
        began = "there" if seen.before.generation is None and self._starts_late(seen.after) else "joined"
        for member in seen.left:
            told = ending(member, seen)
            self._end_membership(member, left_at, generation, told.ended, told.because)
        for old, _ in seen.rejoined:
            self._end_membership(old, left_at, generation, "rejoined", "the same client and host came under a new id")
        for old, _ in seen.replaced:
            self._end_membership(old, seen.at, generation, "replaced", "its instance id came back under a new id")
        for member in seen.joined:
            self._begin_membership(seen, member, began)
        for _, new in seen.rejoined:
            self._begin_membership(seen, new, "rejoined")
        for _, new in seen.replaced:
            self._begin_membership(seen, new, "replaced")
        for name in seen.touched:
            member_now = seen.after.members.get(name)
            if member_now is not None and self._open.get("memberships", name):
                values = {"client_id": member_now.client_id, "client_host": member_now.client_host}
                self._open.update("memberships", name, values)

    def _begin_membership(self, seen: Change, member: Member, began: str) -> None:
        self._open.begin(
            "memberships",
            member.member_id,
            {
                **self._origin(seen.operation),
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "joined_at": seen.at,
                "joined_generation": seen.after.generation,
                "began": began,
                "left_at": None,
                "left_generation": None,
                "ended": None,
                "ended_because": None,
            },
        )

    def _end_membership(self, member: Member, at: int, generation: int | None, ended: str, because: str) -> None:
        row = self._open.get("memberships", member.member_id)
        if row is not None:
            values = {
                "left_at": max(at, row["joined_at"]),
                "left_generation": generation,
                "ended": ended,
                "ended_because": because,
            }
            self._open.end("memberships", member.member_id, values)

    # Ownership

    def _tell_ownership(self, seen: Change, *, counts: bool) -> None:
        """First what is given up, then what is taken, so that a partition that moved has both its ends."""
        for name in seen.touched:
            had, has = seen.before.members.get(name), seen.after.members.get(name)
            lost = _owned(had) - _owned(has)
            if had is None or not lost:
                continue
            stays = has is not None and has.owned is not None
            until = seen.at if stays and seen.after.is_cooperative else seen.boundary
            ended = "unknown" if has is not None and has.owned is None else "given_up" if has else "member_gone"
            for partition in sorted(lost):
                self._give_up(had, partition, until, seen.after.generation, ended)
        for name in seen.touched:
            had, has = seen.before.members.get(name), seen.after.members.get(name)
            if has is not None:
                for partition in sorted(_owned(has) - _owned(had)):
                    self._take_over(seen, has, partition, counts=counts)

    def _give_up(self, member: Member, partition: Partition, until: int, generation: int | None, ended: str) -> None:
        name = _ownership(partition, member)
        row = self._open.get("partition_ownership", name)
        if row is None:
            return
        until = max(until, row["owned_from"])  # the coordinator's clock may have been set back
        self._open.end(
            "partition_ownership",
            name,
            {"owned_until": until, "until_generation": generation, "ended": ended},
        )
        self._owners[partition] = [member.identity, member.member_id, until]
        if ended != "unknown":
            self._given_up.add(partition)

    def _take_over(self, seen: Change, member: Member, partition: Partition, *, counts: bool) -> None:
        topic, number = partition
        self._open.begin(
            "partition_ownership",
            _ownership(partition, member),
            {
                **self._origin(seen.operation),
                "topic": topic,
                "partition": number,
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "owned_from": seen.at,
                "from_generation": seen.after.generation,
                "owned_until": None,
                "until_generation": None,
                "ended": None,
            },
        )
        self._given_up.discard(partition)
        self._kept_back.discard(partition)
        last = self._owners.get(partition)
        self._owners[partition] = [member.identity, member.member_id, None]
        rebalance = self._open.get("rebalances", _ONE)
        if not counts or rebalance is None or seen.after.kind == "share":
            return
        self._opened += 1
        if last is None:
            self._open.update("rebalances", _ONE, {"partitions_added": rebalance["partitions_added"] + 1})
        elif last[0] != member.identity:
            given_up_at = seen.at if last[2] is None else last[2]
            handover = {
                "topic": topic,
                "partition": number,
                "from_member": last[1],
                "to_member": member.member_id,
                "given_up_at": given_up_at,
                "taken_at": seen.at,
            }
            unowned = rebalance["unowned_partition_ms"] + max(0, seen.at - given_up_at)
            rebalance["handed_over"].append(handover)
            self._open.update(
                "rebalances",
                _ONE,
                {
                    "partitions_moved": rebalance["partitions_moved"] + 1,
                    "unowned_partition_ms": unowned,
                },
            )

    # Rebalances

    def _begin_rebalance(self, seen: Change, *, is_first: bool) -> None:
        now = seen.after
        if now.kind == "classic" and now.generation == 0:
            return
        left_over = self._given_up | self._kept_back
        told = cause(seen, is_first=is_first and self._incarnation == 1, given_up=left_over)
        previous = self._file_rebalance()
        self._kept_back = left_over if now.keeps_back else set()
        self._given_up, self._opened = set(), 0
        self._targets = targets(seen.before) if told.name == "topic_metadata_changed" else None
        is_classic = now.kind == "classic"
        knows_sync = is_classic and now.state_at is not None and bool(now.members) and not seen.is_conversion
        self._open.begin(
            "rebalances",
            _ONE,
            {
                **self._origin(seen.operation),
                "group_kind": now.kind,
                "from_generation": seen.before.generation,
                "to_generation": now.generation,
                "at": seen.at,
                "cause": told.name,
                "certainty": told.certainty,
                "cause_note": told.note,
                "members_joined": sorted(
                    member.member_id
                    for member in (*seen.joined, *(new for _, new in (*seen.rejoined, *seen.replaced)))
                ),
                "members_left": sorted(
                    member.member_id for member in (*seen.left, *(old for old, _ in (*seen.rejoined, *seen.replaced)))
                ),
                "subscriptions_changed": sorted(member.member_id for member in seen.resubscribed),
                "partitions_added": 0,
                "partitions_removed": 0,
                "partitions_moved": 0,
                "partitions_kept": 0,
                "skipped": self._skipped(seen, is_first=is_first),
                "previous_at": previous,
                "seconds_since_previous": None if previous is None else (seen.at - previous) / 1000,
                "followed_within_minute": 0,
                "duration_ms": seen.at - seen.boundary if knows_sync else None,
                "duration_of": "sync phase" if knows_sync else None,
                "ended_at": None,
                "unowned_partition_ms": 0,
                "handed_over": [],
            },
        )

    def _file_rebalance(self) -> int | None:
        """The rebalance before goes among those that a next one may still follow within a minute; its time."""
        row = self._open.get("rebalances", _ONE)
        for name in self._open.names("rebalances"):
            follows = self._open.get("rebalances", name)
            assert follows is not None
            self._open.update("rebalances", name, {"followed_within_minute": follows["followed_within_minute"] + 1})
        if row is None:
            return None
        self._open.rename("rebalances", _ONE, str(row["record_offset"]))
        at: int = row["at"]
        return at

    def _settle_rebalances(self, at: int) -> None:
        """Closes the rebalances before the last that no generation can follow within a minute any more."""
        for name in self._open.names("rebalances"):
            row = self._open.get("rebalances", name)
            if row is not None and name != _ONE and at - row["at"] > STORM_MS:
                self._open.end("rebalances", name, {})

    def _tell_targets(self, seen: Change) -> None:
        """What a change of topic metadata was shows in the targets computed for it."""
        now = seen.after
        if self._targets is None or (now.assignment_epoch or 0) < (now.generation or 0):
            return
        told = metadata_cause(self._targets, targets(now))
        self._targets = None
        values = {"cause": told.name, "certainty": told.certainty, "cause_note": told.note}
        if self._open.get("rebalances", _ONE):
            self._open.update("rebalances", _ONE, values)

    def _update_rebalance(self, seen: Change) -> None:
        row = self._open.get("rebalances", _ONE)
        if row is None or row["ended_at"] is not None:
            return
        values: Row = {
            "partitions_removed": len(self._given_up),
            "partitions_kept": self._open.count("partition_ownership") - self._opened,
        }
        if seen.after.state in ("Stable", "Empty"):
            values["ended_at"] = seen.at
            if seen.after.kind != "classic" and seen.after.state == "Stable":
                values |= {"duration_ms": seen.at - row["at"], "duration_of": "whole"}
        self._open.update("rebalances", _ONE, values)

    # The end

    def _removal(self, operation: Operation) -> str:
        """Why a group was removed, as far as that can be told (offsets-topic semantics, 4.5)."""
        if operation[-1].is_polled:
            return "polled: deleted or expired, since the poll before"
        if not any(record.type == COMMIT_TOMBSTONE for record in operation):
            return "removed without offsets: deleted, or found empty by the broker's regular check"
        since = self._group.state_at if self._group.kind == "classic" and not self._group.members else None
        if since is None:
            return "deleted, or all its offsets expired"
        empty_ms = operation[-1].at - since
        if empty_ms < self._retention_ms:
            return f"deleted: it had been empty for {empty_ms / 1000:.0f} s only, less than offsets are kept"
        return f"expired: it had been empty for {empty_ms / 86_400_000:.1f} days"

    def _end_incarnation(self, operation: Operation, note: str) -> None:
        at = operation[-1].at
        self._describe_generation()
        for member in self._group.members.values():
            for partition in sorted(_owned(member)):
                self._give_up(member, partition, at, None, "group_ended")
            self._end_membership(member, at, None, "group_ended", note)
        for table in ("generations", "group_states"):
            if self._open.get(table, _ONE):
                self._end_interval(table, at)
        for name in self._open.names("rebalances"):
            self._open.end("rebalances", name, {})
        self._open.begin(
            "group_states",
            _ONE,
            {
                **self._origin(operation),
                "generation": None,
                "group_kind": self._group.kind or kind_of(operation[-1].type),
                "state": "Dead",
                "evidence": "polled" if operation[-1].is_polled else "recorded",
                "not_before": operation[-1].not_before,
                "started_at": at,
                "ended_at": None,
                "note": note,
            },
        )
        self._was_removed = True
        self._group = Group()
        self._counts, self._owners, self._targets = {}, {}, None
        self._given_up, self._kept_back = set(), set()


def _removes_a_group(operation: Operation) -> bool:
    return any(
        record.body is None and (record.type == CLASSIC or record.type.endswith("GroupMetadata"))
        for record in operation
    )


def _owned(member: Member | None) -> frozenset[Partition]:
    return (member.owned or frozenset()) if member else frozenset()


def _assigned(group: Group, member: Member) -> frozenset[Partition] | None:
    """What the group's assignment gives a member, whether it has it yet or not."""
    return member.owned if group.kind == "classic" or member.target is None else member.target


def _ownership(partition: Partition, member: Member) -> str:
    return f"{partition[0]}/{partition[1]}/{member.member_id}"


def _member_row(member: Member, assigned: frozenset[Partition] | None) -> Row:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rack": member.rack,
        "topics": None if member.topics is None else list(member.topics),
        "topic_regex": member.topic_regex,
        "partitions": None if assigned is None else by_topic(assigned),
    }

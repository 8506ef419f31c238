"""The state of a group's fold between two batches, and its encoding in `history_positions.state`.

The encoding is JSON with a `version`. States of version 1, which grouptrail 0.1 wrote without that field, can still
be read: fields that they lack are empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from grouptrail.history.group import (
    Group,
    Member,
    Partition,
    PartitionCount,
    Task,
    by_topic,
    partitions,
    settled_by_epoch,
)
from grouptrail.history.operations import Record
from grouptrail.history.rows import (
    TABLES,
    GenerationRow,
    GroupStateRow,
    MembershipRow,
    OpenRows,
    OwnershipRow,
    RebalanceRow,
    TaskRow,
    TopologyRow,
    Values,
)

VERSION = 2


@dataclass(frozen=True, slots=True)
class Owner:
    """A partition's last owner; `until` (ms) is when it gave the partition up, None while it owns it."""

    identity: str
    member_id: str
    until: int | None


@dataclass(frozen=True, slots=True)
class TargetBaseline:
    """The target assignment before a change of the topics' metadata, and the topics' ids by name."""

    partitions: frozenset[Partition]
    topic_ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A classic group in its newest generation's record; `is_synced`: the record holds the leader's assignment."""

    group: Group
    is_synced: bool


@dataclass
class FoldState:
    """A group between two of its records.

    Its records are processed up to the offset `processed_to`, except those of the last operation, which are `pending`
    if more of it may follow. Later records are compared with the other fields:

    - `group`: as described by the records so far; `incarnation`: its number; `was_removed`: it does not exist now;
    - `last_at`, `commit_tombstone_at` (ms): when the last operation and the last tombstone of a commit were written;
    - `keys_since_gap`: the keys read since history began, or since a stop, while records may be missing, else None;
      `gap_from` (ms): the operation before the stop, until a state is known after it; `gap_offset`: the first offset
      after it; `doubted_at`: when (ms) the records after it were read;
    - `is_measured`: the newest generation was read from its beginning, and no record since then can be missing;
      `seems_complete`: none of the group can, if its first records are its beginning, as they seem to be;
    - `partition_counts` by topic: the most partitions that were ever assigned or claimed;
    - `owners`: the last owner of each partition; `revoked`: partitions that the newest assignment of a cooperative
      group takes from their owners, which learn of it after the record;
    - `given_up`: partitions without an owner since the newest rebalance; `kept_back`: since an earlier one;
    - `withdrawn`: those among both whose topic is no longer assigned;
    - `taken_over`: how many partitions the newest rebalance gave to members;
    - `baseline`: the targets before a change of metadata, until new ones are computed;
    - `subscribed_since`: the time (ms) at which members first subscribed to a topic;
    - `joined_before_epoch`: members that joined in an operation without a group epoch; `left_before_rebalance`:
      members that left as the other protocol took over in the same generation;
    - `waiting`: members whose pattern has not been resolved: whether each `joined` with it or `resubscribed` to it;
    - `is_converted`: the newest generation is the first after a change of protocol;
    - `unconfirmed`: members of whom nothing has been read since a stop of more than a day; `unsure_from`: the first
      offset after it, until an epoch of confirmed members is read at once;
    - `unnamed`: topic ids that rows show instead of names, also if a name is found later;
    - `unexplained`: the newest assignment, until it is compared with its assignor's; not encoded, because it is never
      set at the end of a fold.
    """

    group_id: str
    record_partition: int
    processed_to: int = 0
    pending: tuple[Record, ...] = ()
    group: Group = field(default_factory=Group)
    incarnation: int = 1
    was_removed: bool = False
    last_at: int | None = None
    commit_tombstone_at: int | None = None
    keys_since_gap: set[str] | None = field(default_factory=set)
    gap_from: int | None = None
    gap_offset: int = 0
    doubted_at: int | None = None
    is_measured: bool = False
    seems_complete: bool = False
    rows: OpenRows = field(default_factory=OpenRows)
    partition_counts: dict[str, int] = field(default_factory=dict)
    owners: dict[Partition, Owner] = field(default_factory=dict)
    revoked: set[Partition] = field(default_factory=set)
    given_up: set[Partition] = field(default_factory=set)
    kept_back: set[Partition] = field(default_factory=set)
    withdrawn: set[Partition] = field(default_factory=set)
    taken_over: int = 0
    baseline: TargetBaseline | None = None
    subscribed_since: dict[str, int] = field(default_factory=dict)
    joined_before_epoch: set[str] = field(default_factory=set)
    left_before_rebalance: set[str] = field(default_factory=set)
    waiting: dict[str, str] = field(default_factory=dict)
    is_converted: bool = False
    unconfirmed: set[str] = field(default_factory=set)
    unsure_from: int | None = None
    unnamed: set[str] = field(default_factory=set)
    unexplained: Assignment | None = None

    def copy(self) -> FoldState:
        """Return a state that can be changed on its own."""
        keys = None if self.keys_since_gap is None else self.keys_since_gap.copy()
        copied = replace(self, rows=self.rows.copy(), keys_since_gap=keys)
        for name in _MUTABLE:
            setattr(copied, name, getattr(self, name).copy())
        return copied

    def forget_group(self) -> None:
        """Reset what belongs to an incarnation that has ended."""
        self.group = Group()
        self.baseline = self.unexplained = None
        self.taken_over = 0
        self.is_converted = self.seems_complete = False
        self.unsure_from = None
        for name in _MUTABLE:
            getattr(self, name).clear()


# Fields by how JSON has them: as they are, and as lists of names and of partitions.
_PLAIN = (
    *("incarnation", "was_removed", "last_at", "commit_tombstone_at", "gap_from", "gap_offset", "doubted_at"),
    *("is_measured", "seems_complete", "subscribed_since", "waiting", "is_converted", "unsure_from"),
)
_NAME_SETS = ("joined_before_epoch", "left_before_rebalance", "unconfirmed", "unnamed")
_PLACE_SETS = ("revoked", "given_up", "kept_back", "withdrawn")
_MUTABLE = ("partition_counts", "owners", "subscribed_since", "waiting", *_NAME_SETS, *_PLACE_SETS)


class StateError(ValueError):
    """A state of a version that this release does not know."""


def encode_state(state: FoldState) -> str:
    """Return the state as JSON."""
    values = {
        "version": VERSION,
        "told_to": state.processed_to,
        "pending": state.pending,
        "group": _group_values(state.group),
        "keys_since_gap": None if state.keys_since_gap is None else sorted(state.keys_since_gap),
        "open": _open_values(state.rows),
        "counts": dict(sorted(state.partition_counts.items())),
        "owners": [[*place, one.identity, one.member_id, one.until] for place, one in state.owners.items()],
        "opened": state.taken_over,
        "targets": None if state.baseline is None else sorted(state.baseline.partitions),
        "target_topic_ids": {} if state.baseline is None else dict(state.baseline.topic_ids),
        **{name: getattr(state, name) for name in _PLAIN},
        **{name: sorted(getattr(state, name)) for name in (*_NAME_SETS, *_PLACE_SETS)},
    }
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


def decode_state(group_id: str, record_partition: int, text: str | None, names: Mapping[str, str]) -> FoldState:
    """Return the state that `encode_state` encoded; a new one for None.

    `names` gives topics' names by their ids. Raises StateError for a version that a later release wrote.
    """
    if not text:
        return FoldState(group_id, record_partition)
    values = json.loads(text)
    version = values.get("version", 1)
    if version > VERSION:
        raise StateError(
            f"the history of group {group_id} was written by a later grouptrail (state version {version}, this one "
            f"knows {VERSION}): upgrade grouptrail, or run grouptrail rebuild history"
        )
    values.setdefault("is_measured", True)
    # Before it was saved, all that had joined without an epoch were taken to wait.
    values.setdefault("waiting", dict.fromkeys(values.get("joined_before_epoch", ()), "joined"))
    targets, keys = values.get("targets"), values.get("keys_since_gap")
    known: Values = {
        **{name: values[name] for name in _PLAIN if name in values},
        **{name: set(values.get(name, ())) for name in _NAME_SETS},
        **{name: _places(values.get(name, ())) for name in _PLACE_SETS},
    }
    state = FoldState(
        group_id=group_id,
        record_partition=record_partition,
        processed_to=values.get("told_to", 0),
        pending=tuple(Record(*one) for one in values.get("pending", ())),
        group=replace(_group(values.get("group", {})), may_miss_records=keys is not None),
        keys_since_gap=None if keys is None else set(keys),
        rows=_open_rows(values.get("open", {})),
        partition_counts=values.get("counts", {}),
        owners={(topic, number): Owner(*rest) for topic, number, *rest in values.get("owners", ())},
        taken_over=values.get("opened", 0),
        baseline=None
        if targets is None
        else TargetBaseline(frozenset(_places(targets)), values.get("target_topic_ids", {})),
        **known,
    )
    if version == 1:
        state.unnamed = _shown_ids(state) & names.keys()
    return state


def _places(listed: Iterable[Iterable[Any]]) -> set[Partition]:
    return {(topic, number) for topic, number in listed}


def _shown_ids(state: FoldState) -> set[str]:
    """Return what rows show for topics in a state of version 1: names, or ids of topics without a known name."""
    members = (*state.group.members.values(), *state.group.fragments.values())
    sets = (places for member in members for places in (member.owned, member.target) if places)
    return {topic for places in sets for topic, _ in places} | {topic for topic, _, _ in state.rows.ownership}


# The group

_PARTITION_SETS = ("owned", "claimed", "target")
_NOTHING_KNOWN = Member("")
_GROUP_FIELDS = tuple(one.name for one in fields(Group) if one.name not in ("settled", "may_miss_records"))
_MEMBER_FIELDS = tuple((one.name, getattr(_NOTHING_KNOWN, one.name)) for one in fields(Member))


def _group_values(group: Group) -> Values:
    values = {name: getattr(group, name) for name in _GROUP_FIELDS}
    for name in ("members", "fragments"):
        values[name] = [_member_values(member) for member in values[name].values()]
    return values


def _group(values: Values) -> Group:
    members = {
        name: {member.member_id: member for member in map(_member, values.get(name, ()))}
        for name in ("members", "fragments")
    }
    regexes = {regex: tuple(topics) for regex, topics in values.get("regexes", {}).items()}
    counts = values.get("partition_counts")
    if counts is not None:
        # The checksum of racks was not saved at first.
        counts = {
            topic_id: PartitionCount(*counted[:2], *(counted[2:] or [None])) for topic_id, counted in counts.items()
        }
    settings = tuple((name, value) for name, value in values.get("settings", ()))
    settled = settled_by_epoch(members["members"].values())
    # Version 1 did not distinguish the end of the join phase from the last change of state.
    has_static = any(member.instance_id for member in members["members"].values())
    join_ended_at = values.get("join_ended_at", None if has_static else values.get("state_at"))
    known = {**values, **members, "regexes": regexes, "settings": settings, "join_ended_at": join_ended_at}
    return Group(**{**known, "partition_counts": counts}, settled=settled)


def _member_values(member: Member) -> Values:
    values = {name: value for name, default in _MEMBER_FIELDS if (value := getattr(member, name)) != default}
    for name in _PARTITION_SETS:
        if values.get(name) is not None:
            values[name] = _numbers_by_topic(values[name])
    if member.tasks is not None:
        roles = sorted({task.role for task in member.tasks})
        values["tasks"] = {
            role: _numbers_by_topic(task[1:] for task in member.tasks if task.role == role) for role in roles
        }
    return values


def _numbers_by_topic(places: Iterable[Partition]) -> list[tuple[str, list[int]]]:
    return [(part["topic"], part["partitions"]) for part in by_topic(places)]


def _member(values: Values) -> Member:
    sets = {name: partitions(values[name]) for name in _PARTITION_SETS if values.get(name) is not None}
    topics = values.get("topics", ())
    known = {**values, **sets, "topics": None if topics is None else tuple(topics)}
    if "tasks" in values:
        known["tasks"] = frozenset(
            Task(role, *place) for role, listed in values["tasks"].items() for place in partitions(listed)
        )
    return Member(**known)


# The open rows by table, as (name, columns); the name is empty where a group has only one row in the table

_Named = dict[str, list[tuple[str, Values]]]


def _open_values(rows: OpenRows) -> _Named:
    values: _Named = {table: [] for table in TABLES}
    for row in (rows.generation, rows.state, rows.rebalance):
        if row is not None:
            values[row.table].append(("", row.values()))
    values["memberships"] = [(name, row.values()) for name, row in rows.memberships.items()]
    values["partition_ownership"] = [
        (f"{topic}/{number}/{member_id}", row.values()) for (topic, number, member_id), row in rows.ownership.items()
    ]
    values["task_assignments"] = [
        (f"{'/'.join(map(str, task))}/{member_id}", row.values()) for (task, member_id), row in rows.tasks.items()
    ]
    values["streams_topology"] = [("", row.values()) for row in rows.topology]
    values["rebalances"] += [(str(row.record_offset), row.values()) for row in rows.earlier_rebalances]
    return {table: listed for table, listed in values.items() if listed}


def _open_rows(saved: _Named) -> OpenRows:
    rebalances = {name: RebalanceRow.of(values) for name, values in saved.get("rebalances", ())}
    ownership = [OwnershipRow.of(values) for _, values in saved.get("partition_ownership", ())]
    tasks = [TaskRow.of(values) for _, values in saved.get("task_assignments", ())]
    return OpenRows(
        generation=next((GenerationRow.of(values) for _, values in saved.get("generations", ())), None),
        state=next((GroupStateRow.of(values) for _, values in saved.get("group_states", ())), None),
        memberships={name: MembershipRow.of(values) for name, values in saved.get("memberships", ())},
        ownership={(row.topic, row.partition, row.member_id): row for row in ownership},
        rebalance=rebalances.pop("", None),
        earlier_rebalances=list(rebalances.values()),
        tasks={(Task(row.role, row.subtopology, row.task), row.member_id): row for row in tasks},
        topology=[TopologyRow.of(values) for _, values in saved.get("streams_topology", ())],
    )

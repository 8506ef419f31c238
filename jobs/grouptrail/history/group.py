"""What is known of a group at one moment: the same for every kind of group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Partition = tuple[str, int]
Kind = Literal["classic", "consumer", "share", "streams"]

AWAY_EPOCH = -2
"""Member epoch of a static member that has left for now (KIP-848)."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member; `owned` is None where its assignment could not be read, `topics` where its subscription could not.

    `claimed` and `claimed_generation` are what it said it had when it joined (sticky assignors). The others below
    are of groups that the broker assigns: `target` is what it shall have, `is_settled` whether it needs to give up
    or wait for nothing, `unrevoked_since` (ms) since when it has been asked to give up.
    """

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rack: str | None = None
    topics: tuple[str, ...] | None = ()
    topic_regex: str | None = None
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    owned: frozenset[Partition] | None = frozenset()
    claimed: frozenset[Partition] = frozenset()
    claimed_generation: int = -1
    assignor: str | None = None
    target: frozenset[Partition] | None = None
    epoch: int | None = None
    is_settled: bool = False
    unrevoked_since: int | None = None

    @property
    def identity(self) -> str:
        """What stays the same when a static member comes back under a new id."""
        return self.instance_id or self.member_id


@dataclass(frozen=True, slots=True)
class Group:
    """A group; `kind` is None while there is none.

    `generation` is the group epoch of a group that the broker assigns, `state_at` (ms) the classic group's last
    change of state, `fragments` what came of a member before the record that makes it one. `settled` counts the
    members that have settled, by their epoch: to look at each of them at each of their records would take long.
    `keeps_back`: the leader of Connect workers keeps back what one of them had, should that one return.
    `is_polled`: it is known by polls, which show nothing of what happens in between; of a classic group the
    generation is then a count of what they showed.
    """

    kind: Kind | None = None
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    generation: int | None = None
    state_at: int | None = None
    assignment_epoch: int | None = None
    metadata_hash: int | None = None
    topology_epoch: int | None = None
    validated_topology_epoch: int | None = None
    members: Mapping[str, Member] = field(default_factory=dict)
    fragments: Mapping[str, Member] = field(default_factory=dict)
    regexes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    settled: Mapping[int, int] = field(default_factory=dict)
    keeps_back: bool = False
    is_polled: bool = False

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep what they own through a rebalance."""
        return self.kind != "classic" or self.protocol in ("cooperative-sticky", "compatible", "sessioned")

    @property
    def state(self) -> str | None:
        """The state as Kafka derives it; None while too little is known."""
        if self.kind is None or self.generation is None:
            return None
        if not self.members:
            return "Empty"
        if self.kind in ("classic", "share"):
            return "Stable"
        return self._reconciliation()

    def _reconciliation(self) -> str:
        is_ready = self.topology_epoch is not None and self.topology_epoch == self.validated_topology_epoch
        if self.kind == "streams" and not is_ready:
            return "NotReady"
        if (self.generation or 0) > (self.assignment_epoch or 0):
            return "Assigning"
        settled = self.settled.get(self.assignment_epoch or 0, 0)
        return "Stable" if settled == len(self.members) else "Reconciling"


def partitions(topics: Iterable[tuple[str, Iterable[int]]]) -> frozenset[Partition]:
    """(topic, partitions) pairs, where a topic may come twice, as one set."""
    return frozenset((topic, number) for topic, numbers in topics for number in numbers)


def by_topic(owned: Iterable[Partition]) -> list[dict[str, Any]]:
    """The inverse of `partitions`, in order: elements (topic, partitions) of a row."""
    found: dict[str, list[int]] = {}
    for topic, number in sorted(owned):
        found.setdefault(topic, []).append(number)
    return [{"topic": topic, "partitions": numbers} for topic, numbers in found.items()]


def group_json(group: Group) -> dict[str, Any]:
    """A group as JSON values."""
    values = {name: getattr(group, name) for name in Group.__slots__ if name != "settled"}
    for name in ("members", "fragments"):
        values[name] = [_member_json(member) for member in values[name].values()]
    return values


def group_of_json(values: dict[str, Any]) -> Group:
    """The inverse of `group_json`."""
    members = {
        name: {member.member_id: member for member in map(_member_of_json, values[name])}
        for name in ("members", "fragments")
    }
    regexes = {regex: tuple(topics) for regex, topics in values["regexes"].items()}
    settled = settled_by_epoch(members["members"].values())
    return Group(**{**values, **members, "regexes": regexes, "settled": settled})


def settled_by_epoch(members: Iterable[Member]) -> Counter[int]:
    """How many members have settled in which epoch: `Group.settled`."""
    return Counter(member.epoch for member in members if member.is_settled and member.epoch is not None)


_PARTITION_SETS = ("owned", "claimed", "target")
_NOTHING_KNOWN = Member("")


def _member_json(member: Member) -> dict[str, Any]:
    given = {name: getattr(member, name) for name in Member.__slots__}
    values = {name: value for name, value in given.items() if value != getattr(_NOTHING_KNOWN, name)}
    for name in _PARTITION_SETS:
        if values.get(name) is not None:
            values[name] = [(part["topic"], part["partitions"]) for part in by_topic(values[name])]
    return values


def _member_of_json(values: dict[str, Any]) -> Member:
    sets = {name: partitions(values[name]) for name in _PARTITION_SETS if values.get(name) is not None}
    topics = values.get("topics", ())
    return Member(**{**values, **sets, "topics": None if topics is None else tuple(topics)})

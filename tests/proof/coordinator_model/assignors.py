"""Assignors of the model: the Java client's range and round robin, and a plain sticky one for the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cmp_to_key
from random import Random
from typing import Protocol

from proof.coordinator_model.schedule import Library

Partition = tuple[str, int]


class Subscriber(Protocol):
    member_id: str
    instance_id: str | None
    topics: tuple[str, ...]
    claimed: frozenset[Partition]


Assigned = dict[str, frozenset[Partition]]


class AssignorError(Exception):
    """The leader fails: kafka-python 3.0's round robin raises KeyError where it has to pass over a member that does
    not subscribe to a topic (kafka/coordinator/assignors/roundrobin.py)."""


def assign(
    protocol: str,
    members: Sequence[Subscriber],
    counts: Mapping[str, int],
    random: Random,
    *,
    library: Library = "java",
) -> Assigned:
    """Return what each member gets of topics with so many partitions; which ones sticky assignors move is drawn.

    `library` is the leader's: each has its own assignors.
    """
    if protocol == "range":
        return _range(members, counts, library)
    if protocol == "roundrobin":
        return _round_robin(members, counts, library)
    had = {member.member_id: member.claimed for member in members}
    topics = {member.member_id: member.topics for member in members}
    given = sticky(topics, had, counts, keeps_last=random.random() < 0.5)
    if protocol != "cooperative-sticky":
        return given
    # CooperativeStickyAssignor: what another member still has is given in the next round.
    owners = {partition: name for name, partitions in had.items() for partition in partitions}
    subscribed = {topic for wanted in topics.values() for topic in wanted}
    # librdkafka's leaves members what they have of topics that nobody subscribes to.
    keeps_unsubscribed = library == "librdkafka"
    return {
        name: frozenset(partition for partition in partitions if owners.get(partition, name) == name)
        | frozenset(one for one in had[name] if keeps_unsubscribed and one[0] not in subscribed)
        for name, partitions in given.items()
    }


def _order(members: Sequence[Subscriber], library: Library) -> list[Subscriber]:
    """Return members in the order in which assignors serve them.

    Java (AbstractPartitionAssignor.MemberInfo) and kafka-python: static members first, by instance id. librdkafka
    (rd_kafka_group_member_cmp): by member id, or by instance id if both have one.
    """
    if library == "librdkafka":
        return sorted(members, key=cmp_to_key(_compare_in_librdkafka))
    return sorted(members, key=lambda one: (one.instance_id is None, one.instance_id or "", one.member_id))


def _compare_in_librdkafka(one: Subscriber, other: Subscriber) -> int:
    if one.instance_id is not None and other.instance_id is not None:
        keys = one.instance_id, other.instance_id
    else:
        keys = one.member_id, other.member_id
    return (keys[0] > keys[1]) - (keys[0] < keys[1])


def _range(members: Sequence[Subscriber], counts: Mapping[str, int], library: Library) -> Assigned:
    given: dict[str, set[Partition]] = {member.member_id: set() for member in members}
    for topic, count in counts.items():
        consumers = _order([member for member in members if topic in member.topics], library)
        start = 0
        for index, member in enumerate(consumers):
            size = count // len(consumers) + (index < count % len(consumers))
            given[member.member_id] |= {(topic, number) for number in range(start, start + size)}
            start += size
    return {name: frozenset(partitions) for name, partitions in given.items()}


def _round_robin(members: Sequence[Subscriber], counts: Mapping[str, int], library: Library) -> Assigned:
    given: dict[str, set[Partition]] = {member.member_id: set() for member in members}
    order = _order(members, library)
    turn = 0
    for topic in sorted(counts):
        if not any(topic in member.topics for member in order):
            continue
        for number in range(counts[topic]):
            while topic not in order[turn % len(order)].topics:
                if library == "kafka-python":
                    raise AssignorError
                turn += 1
            given[order[turn % len(order)].member_id].add((topic, number))
            turn += 1
    return {name: frozenset(partitions) for name, partitions in given.items()}


def sticky(
    topics: Mapping[str, Sequence[str]],
    had: Mapping[str, frozenset[Partition]],
    counts: Mapping[str, int],
    *,
    keeps_last: bool = False,
) -> Assigned:
    """Keep what can be kept; the rest, and what is above the fair share, goes to the members with the least."""
    given: dict[str, set[Partition]] = {name: set() for name in topics}
    if not given:
        return {}
    places = [(topic, number) for topic in sorted(counts) for number in range(counts[topic])]
    places = [place for place in places if any(place[0] in wanted for wanted in topics.values())]
    most = -(-len(places) // len(given))
    taken: set[Partition] = set()
    for name in sorted(given):
        in_order = sorted(had.get(name, ()), reverse=keeps_last)
        kept = [place for place in in_order if place in set(places) and place[0] in topics[name]]
        given[name] = set([place for place in kept if place not in taken][:most])
        taken |= given[name]
    for place in places:
        if place not in taken:
            candidates = [name for name in sorted(given) if place[0] in topics[name]]
            given[min(candidates, key=lambda name: len(given[name]))].add(place)
    _balance(given, topics, keeps_last=keeps_last)
    return {name: frozenset(partitions) for name, partitions in given.items()}


def _balance(given: dict[str, set[Partition]], topics: Mapping[str, Sequence[str]], *, keeps_last: bool) -> None:
    """Move partitions until no member has two more than another that could take one."""

    def moves() -> Iterator[tuple[Partition, str, str]]:
        by_size = sorted(given, key=lambda name: (len(given[name]), name))
        for poor in by_size:
            for rich in reversed(by_size):
                if len(given[rich]) - len(given[poor]) > 1:
                    places = sorted(given[rich], reverse=keeps_last)
                    yield from ((place, rich, poor) for place in places if place[0] in topics[poor])

    while move := next(moves(), None):
        place, rich, poor = move
        given[rich].remove(place)
        given[poor].add(place)

"""Recompute an assignment with its assignor, and explain how the recorded one differs.

The algorithms of the Java client are tested against kafka-clients 4.3.0, those of kafka-python against the installed
one, those of others against what real clients wrote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, permutations
from math import factorial

from grouptrail.history.dealing import JAVA, KAFKA_PYTHON, KAFKAJS, dealer, dealt_by_java, is_cyclic, partitions_of
from grouptrail.history.franz_go import franz_go_sticky
from grouptrail.history.subscriber import Owners, Partition, Subscriber, in_utf16_order
from grouptrail.kafka.coordinator import java_hash
from grouptrail.kafka.sticky import sticky_owners

# Members and partitions together: some 20 ms. The time grows with more than the square.
_KAFKA_PYTHON_LIMIT = 200

# Members and partitions, times the orders of the topics: some 20 ms.
_FRANZ_GO_LIMIT = 10_000

_DEALT = ("range", "roundrobin", KAFKAJS)
_STICKY = ("sticky", "cooperative-sticky")

_RACKS = "members have racks: a rack-aware or unknown assignor"
_CYCLIC = "librdkafka has no definite order for these static and dynamic members"


@dataclass(frozen=True)
class Explanation:
    """Whether the assignor computes this assignment (None: not known), and a note for the user."""

    is_own: bool | None
    note: str


@dataclass(frozen=True)
class _Target:
    """The assignment that a client's assignor computes; a cooperative one withholds what another member still has."""

    client: str
    owners: Owners
    withheld: frozenset[Partition] = frozenset()


def explain(
    protocol: str | None,
    subscribers: Sequence[Subscriber],
    partition_counts: Mapping[str, int],
    assigned: Mapping[str, Collection[Partition]],
) -> Explanation:
    """Compare `assigned` (partitions by member id) with what `protocol` computes for the subscribers.

    The subscribers are in the record's order. A topic without a partition count has no partitions.
    """
    if protocol not in (*_DEALT, *_STICKY):
        return Explanation(None, f"unknown assignor: {protocol}")
    if not subscribers:
        return Explanation(None, "no members")
    topics = sorted({topic for member in subscribers for topic in member.topics})
    counts = {topic: partition_counts[topic] for topic in topics if partition_counts.get(topic, 0) > 0}
    owners = {partition: member_id for member_id, partitions in assigned.items() for partition in partitions}
    has_one_owner_each = len(owners) == sum(len(set(partitions)) for partitions in assigned.values())
    if protocol in _DEALT and has_one_owner_each:
        client = dealer(protocol, subscribers, counts, owners)
        if client is not None:
            return Explanation(True, f"{protocol}{client} gives the same")
    if protocol == KAFKAJS:
        return Explanation(None, f"{protocol} of kafkajs, but not reproduced")
    fault = _fault(protocol, subscribers, counts, assigned)
    if fault is not None:
        return fault
    explained = _explain_dealt if protocol in _DEALT else _explain_sticky
    return explained(protocol, subscribers, counts, owners)


def skew(assigned: Mapping[str, Collection[Partition]]) -> int:
    """Return the difference between the most and the fewest partitions of a member; 0 without members."""
    sizes = [len(partitions) for partitions in assigned.values()]
    return max(sizes, default=0) - min(sizes, default=0)


def _fault(
    protocol: str,
    subscribers: Sequence[Subscriber],
    counts: Mapping[str, int],
    assigned: Mapping[str, Collection[Partition]],
) -> Explanation | None:
    """Return what no assignor does, or a sign that the leader knew other partition counts; else None."""
    members = {member.member_id: member for member in subscribers}
    holders: Owners = {}
    for member_id, partitions in assigned.items():
        if member_id not in members:
            return Explanation(False, f"{member_id} is not a member")
        for partition in sorted(partitions):
            topic, number = partition
            if topic not in members[member_id].topics:
                unsubscribed = f"{member_id} has {_name(partition)} but does not subscribe to {topic}"
                # librdkafka does this after a static member has come back with other topics; Sarama gives back what a
                # member of an older generation says that it had (performReassignments in balance_strategy.go).
                if protocol in _STICKY and partition in members[member_id].owned:
                    return Explanation(None, f"{unsubscribed}: librdkafka and Sarama leave members what they had")
                return Explanation(False, unsubscribed)
            if number >= counts.get(topic, 0):
                return Explanation(
                    None, f"{_name(partition)} is not among the {counts.get(topic, 0)} known partitions of {topic}"
                )
            holder = holders.setdefault(partition, member_id)
            if holder != member_id:
                return Explanation(False, f"{_name(partition)} is owned by both {holder} and {member_id}")
    return None


def _name(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


# Range and round robin


def _explain_dealt(
    protocol: str, subscribers: Sequence[Subscriber], counts: Mapping[str, int], owners: Owners
) -> Explanation:
    """Explain an assignment that no known client deals out."""
    java = dealt_by_java(protocol, subscribers, counts)
    partition = next(each for each in partitions_of(counts) if owners.get(each) != java[each])
    if partition not in owners:
        return Explanation(False, f"{_name(partition)} has no owner")
    if any(member.rack for member in subscribers):
        return Explanation(None, _RACKS)
    if is_cyclic(subscribers):
        return Explanation(None, _CYCLIC)
    given = f"{protocol} gives {_name(partition)} to {java[partition]}, not {owners[partition]}"
    return Explanation(False, f"another assignment: {given}")


# Sticky and cooperative sticky


def _explain_sticky(
    protocol: str, subscribers: Sequence[Subscriber], counts: Mapping[str, int], owners: Owners
) -> Explanation:
    cooperative = protocol == "cooperative-sticky"
    for target in _sticky_targets(subscribers, counts):
        if owners == target.owners:
            return Explanation(True, f"{protocol}{target.client} gives the same")
        withheld = len(target.withheld) if cooperative else 0
        if withheld and owners == {p: member for p, member in target.owners.items() if p not in target.withheld}:
            return Explanation(
                True, f"{protocol}{target.client} gives the same; withheld for the next round: {withheld}"
            )
    return _explain_unlike(subscribers, counts, owners, cooperative=cooperative)


def _explain_unlike(
    subscribers: Sequence[Subscriber], counts: Mapping[str, int], owners: Owners, *, cooperative: bool
) -> Explanation:
    """Explain what is wrong with an assignment that no known client computes."""
    missing = [partition for partition in partitions_of(counts) if partition not in owners]
    claimed = {partition for member in subscribers for partition in member.owned} if cooperative else set()
    for partition in missing:
        if partition not in claimed:
            return Explanation(False, f"{_name(partition)} has no owner")
    if missing:
        return Explanation(None, f"not reproduced; withheld for the next round: {len(missing)}")
    has_racks = any(member.rack for member in subscribers)
    sizes = Counter(owners.values())
    broken = _unbalanced(subscribers, owners, sizes)
    # Racks, unlike subscriptions and a second claim are reasons to take a partition from who could have kept it.
    is_sticky = _is_alike(subscribers) and not has_racks and not _is_any_claimed_twice(subscribers)
    if broken is None and is_sticky:
        broken = _moved(_claims(_latest(subscribers), counts)[0], owners, sizes)
    if broken is not None:
        return Explanation(False, broken)
    return Explanation(None, _RACKS if has_racks else f"balanced{is_sticky * ' and sticky'}, but not reproduced")


def _is_any_claimed_twice(subscribers: Iterable[Subscriber]) -> bool:
    return max(Counter(chain.from_iterable(member.owned for member in subscribers)).values(), default=0) > 1


def _unbalanced(subscribers: Sequence[Subscriber], owners: Owners, sizes: Mapping[str, int]) -> str | None:
    """Return a note on a partition whose move would balance two members; None if there is none."""
    poorest: dict[str, str] = {}
    for member in sorted(subscribers, key=lambda each: (-sizes[each.member_id], each.member_id)):
        poorest.update(dict.fromkeys(member.topics, member.member_id))
    for partition, rich in sorted(owners.items()):
        poor = poorest[partition[0]]
        if sizes[poor] + 1 < sizes[rich]:
            return (
                f"not balanced: {rich} has {sizes[rich]}, {poor} {sizes[poor]}, though {_name(partition)} could move"
            )
    return None


def _moved(claims: Owners, owners: Owners, sizes: Mapping[str, int]) -> str | None:
    """Return a note on a partition that moved to a member which now has more; None if there is none."""
    for partition, before in sorted(claims.items()):
        now = owners[partition]
        if sizes[before] < sizes[now]:
            return f"not sticky: {_name(partition)} went from {before} to {now}, which has more"
    return None


def _sticky_targets(subscribers: Sequence[Subscriber], counts: Mapping[str, int]) -> Iterator[_Target]:
    listed = _java_listed(subscribers)
    claims, disputed = _claims(listed, counts)
    if _is_alike(subscribers):
        members = [member.member_id for member in listed]
        yield _java_sticky(members, counts, claims, disputed)
        if len({member.generation for member in subscribers}) > 1:
            # Java clients before 3.5 ignore what members of older generations say that they had.
            yield _java_sticky(members, counts, *_claims(_latest(listed), counts))
    if len(subscribers) + sum(counts.values()) <= _KAFKA_PYTHON_LIMIT:
        # Where subscriptions differ, the two clients compute the same.
        client = KAFKA_PYTHON if _is_alike(subscribers) else ""
        yield _Target(client, *_kafka_python_sticky(subscribers, counts, disputed))
    effort = factorial(len(counts)) * (len(subscribers) + sum(counts.values()))
    if _is_alike(subscribers) and effort <= _FRANZ_GO_LIMIT:
        # franz-go goes through the topics in the order of a Go map, which is another each time.
        for topics in permutations(counts):
            yield _Target(" of franz-go", *franz_go_sticky(subscribers, {topic: counts[topic] for topic in topics}))


def _is_alike(subscribers: Sequence[Subscriber]) -> bool:
    return len({member.topics for member in subscribers}) == 1


def _latest(members: Sequence[Subscriber]) -> list[Subscriber]:
    latest = max(member.generation for member in members)
    return [member for member in members if member.generation == latest]


def _claims(members: Iterable[Subscriber], counts: Mapping[str, int]) -> tuple[Owners, set[Partition]]:
    """Return each partition's claimant of the latest generation, and the partitions with two claimants there."""
    claims: dict[Partition, Subscriber] = {}
    disputed = set()
    for member in members:
        for topic, number in member.owned:
            if number >= counts.get(topic, 0):
                continue
            other = claims.setdefault((topic, number), member)
            if other.generation < member.generation:
                claims[topic, number] = member
            elif other is not member and other.generation == member.generation:
                disputed.add((topic, number))
    return {p: member.member_id for p, member in claims.items() if p not in disputed}, disputed


def _java_sticky(
    members: Sequence[str], counts: Mapping[str, int], claims: Owners, disputed: Collection[Partition]
) -> _Target:
    """Assign as AbstractStickyAssignor with equal subscriptions; `members` are in a HashMap's order."""
    had: dict[str, list[Partition]] = {member: [] for member in members}
    for partition, member in claims.items():
        had[member].append(partition)
    partitions = partitions_of(counts)
    least, larger = divmod(len(partitions), len(members))
    owners: Owners = {}
    short, level = [], []
    for member in members:
        kept = sorted(had[member], key=lambda each: (each[1], each[0]))
        if len(kept) < least:
            short.append(member)
        elif larger and len(kept) > least:
            kept = kept[: least + 1]
            larger -= 1
        else:
            kept = kept[:least]
            level.append(member)
        owners.update(dict.fromkeys(kept, member))
    free = [partition for partition in partitions if partition not in owners]
    sizes = Counter(owners.values())
    for partition, member in zip(free, _takers(short, level, sizes, least), strict=False):
        owners[partition] = member
    return _Target(JAVA, owners, frozenset(p for p in free if p in claims or p in disputed))


def _takers(short: list[str], level: list[str], sizes: Mapping[str, int], least: int) -> Iterator[str]:
    """Yield the members in the order in which they get partitions: `least` each in rounds, then one more each."""
    short, level = sorted(short, key=in_utf16_order), sorted(level, key=in_utf16_order)
    missing = {member: least - sizes[member] for member in short}
    while short:
        for member in short:
            yield member
            missing[member] -= 1
        level += [member for member in short if not missing[member]]
        short = [member for member in short if missing[member]]
    yield from level


def _java_listed(subscribers: Sequence[Subscriber]) -> list[Subscriber]:
    """Return the members in the order of a Java HashMap: by bucket, then in order of insertion."""
    buckets = 16
    while len(subscribers) > buckets * 3 // 4:
        buckets *= 2
    return sorted(subscribers, key=lambda member: _map_hash(member.member_id) % buckets)


@lru_cache(maxsize=1 << 16)
def _map_hash(text: str) -> int:
    """Return HashMap's hash of a key: String.hashCode with its upper half mixed into the lower."""
    code = java_hash(text) & 0xFFFFFFFF
    return code ^ code >> 16


def _kafka_python_sticky(
    subscribers: Sequence[Subscriber], counts: Mapping[str, int], disputed: Collection[Partition]
) -> tuple[Owners, frozenset[Partition]]:
    """Return what kafka-python computes, and the part of it that another member still has."""
    members = {
        member.member_id: (member.topics, member.owned.difference(disputed), member.generation)
        for member in subscribers
    }
    owners = sticky_owners(members, counts)
    claims = {member.member_id: member.owned for member in subscribers}
    claimed = frozenset[Partition]().union(*claims.values())
    return owners, frozenset(p for p, member_id in owners.items() if p in claimed and p not in claims[member_id])

"""Recompute an assignment with its assignor, and explain how the recorded one differs.

The algorithms are those of the Java client, tested against kafka-clients 4.3.0, and of the installed kafka-python.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key, lru_cache
from itertools import chain, cycle, groupby, islice, pairwise

from grouptrail.kafka.coordinator import java_hash
from grouptrail.kafka.sticky import sticky_owners

Partition = tuple[str, int]
Owners = dict[Partition, str]

# Members and partitions together: some 20 ms. The time grows with more than the square.
_KAFKA_PYTHON_LIMIT = 200

_JAVA, _KAFKA_PYTHON, _LIBRDKAFKA, _SARAMA = (
    f" of {client}" for client in ("the Java client", "kafka-python", "librdkafka", "Sarama")
)
_RACKS = "members have racks: a rack-aware or unknown assignor"
_CYCLIC = "librdkafka has no definite order for these static and dynamic members"


@dataclass(frozen=True)
class Subscriber:
    """A member as the leader saw it when it computed the assignment.

    `owned` is what the member claimed to have before: a cooperative member's owned partitions, or a sticky one's
    previous assignment. `generation` is that of the claim; -1 is unknown.
    """

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    owned: frozenset[Partition]
    generation: int
    rack: str | None


@dataclass(frozen=True)
class Explanation:
    """Whether the assignor computes this assignment (None: not known), and a note for the user."""

    is_own: bool | None
    note: str


Order = Callable[[Iterable[Subscriber]], list[Subscriber]]


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
    if protocol not in ("range", "roundrobin", "sticky", "cooperative-sticky"):
        return Explanation(None, f"unknown assignor: {protocol}")
    if not subscribers:
        return Explanation(None, "no members")
    topics = sorted({topic for member in subscribers for topic in member.topics})
    counts = {topic: partition_counts[topic] for topic in topics if partition_counts.get(topic, 0) > 0}
    fault = _fault(protocol, subscribers, counts, assigned)
    if fault is not None:
        return fault
    owners = {partition: member_id for member_id, partitions in assigned.items() for partition in partitions}
    if protocol in ("range", "roundrobin"):
        return _explain_dealt(protocol, subscribers, counts, owners)
    return _explain_sticky(protocol, subscribers, counts, owners)


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
                # librdkafka does this after a static member has come back with other topics.
                if protocol == "cooperative-sticky" and partition in members[member_id].owned:
                    return Explanation(None, f"{unsubscribed}: librdkafka leaves members what they have")
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


def _partitions(counts: Mapping[str, int]) -> list[Partition]:
    return [(topic, number) for topic, count in counts.items() for number in range(count)]


# Range and round robin


def _explain_dealt(
    protocol: str, subscribers: Sequence[Subscriber], counts: Mapping[str, int], owners: Owners
) -> Explanation:
    deal = _range if protocol == "range" else _round_robin
    orders = {_JAVA: _java_order}
    is_cyclic = _is_cyclic(subscribers)
    if any(member.instance_id is not None for member in subscribers):
        orders |= {_KAFKA_PYTHON: _kafka_python_order}
        orders |= {} if is_cyclic else {_LIBRDKAFKA: _librdkafka_order}
        orders |= {" by member id alone": _id_order}
    targets = {client: deal(subscribers, counts, order) for client, order in orders.items()}
    same = [client for client, target in targets.items() if target == owners]
    if same:
        # Without static members all clients sort alike.
        is_shared = len(targets) == 1 or same[:2] == [_JAVA, _KAFKA_PYTHON]
        return Explanation(True, f"{protocol}{'' if is_shared else same[0]} gives the same")
    if protocol == "roundrobin" and _round_robin(subscribers, counts, _id_order, _as_texts) == owners:
        return Explanation(True, f"{protocol}{_SARAMA} gives the same")
    java = targets[_JAVA]
    partition = next(each for each in _partitions(counts) if owners.get(each) != java[each])
    if partition not in owners:
        return Explanation(False, f"{_name(partition)} has no owner")
    if any(member.rack for member in subscribers):
        return Explanation(None, _RACKS)
    if is_cyclic:
        return Explanation(None, _CYCLIC)
    given = f"{protocol} gives {_name(partition)} to {java[partition]}, not {owners[partition]}"
    return Explanation(False, f"another assignment: {given}")


def _java_order(members: Iterable[Subscriber]) -> list[Subscriber]:
    """Sort members as Java's assignors do: static ones first, by their instance ids."""
    return sorted(members, key=lambda each: (each.instance_id is None, _utf16(each.instance_id or each.member_id)))


def _kafka_python_order(members: Iterable[Subscriber]) -> list[Subscriber]:
    """Sort members as kafka-python 3.0 does: only the last run of static members and the last run of others count."""
    runs = {is_static: list(run) for is_static, run in groupby(members, lambda each: each.instance_id is not None)}
    return _java_order(chain.from_iterable(runs.values()))


def _librdkafka_order(members: Iterable[Subscriber]) -> list[Subscriber]:
    """Sort members as librdkafka 2.x does: by instance id where both have one, else by member id
    (rd_kafka_group_member_cmp in rdkafka_assignor.c; both as bytes)."""
    return sorted(members, key=cmp_to_key(_compare_in_librdkafka))


def _compare_in_librdkafka(one: Subscriber, other: Subscriber) -> int:
    by_instance = one.instance_id is not None and other.instance_id is not None
    keys = [each.instance_id if by_instance else each.member_id for each in (one, other)]
    first, second = (key.encode("utf-8", "surrogatepass") for key in keys if key is not None)
    return (first > second) - (first < second)


def _is_cyclic(members: Sequence[Subscriber]) -> bool:
    """Return whether librdkafka's comparison of these members is not transitive.

    Its order goes in a circle if a dynamic member's id lies between those of two static members whose instance ids
    sort the other way round. The result of qsort then depends on the C library.
    """
    dynamic = [each for each in members if each.instance_id is None]
    static = _librdkafka_order(each for each in members if each.instance_id is not None)
    return any(
        _compare_in_librdkafka(later, member) < 0 < _compare_in_librdkafka(earlier, member)
        for earlier, later in pairwise(static)
        for member in dynamic
    )


def _id_order(members: Iterable[Subscriber]) -> list[Subscriber]:
    return sorted(members, key=lambda each: _utf16(each.member_id))


def _utf16(text: str) -> bytes:
    """Return bytes that sort as Java's strings do."""
    return text.encode("utf-16-be", "surrogatepass")


def _range(subscribers: Iterable[Subscriber], counts: Mapping[str, int], in_order: Order) -> Owners:
    takers: dict[str, list[Subscriber]] = defaultdict(list)
    for member in subscribers:
        for topic in member.topics:
            takers[topic].append(member)
    owners: Owners = {}
    for topic, count in counts.items():
        numbers = iter(range(count))
        members = in_order(takers[topic])
        share, larger = divmod(count, len(members))
        for index, member in enumerate(members):
            for number in islice(numbers, share + (index < larger)):
                owners[topic, number] = member.member_id
    return owners


def _as_texts(partitions: list[Partition]) -> list[Partition]:
    """Sort partitions as Sarama does: orders-10 comes before orders-2 (IBM/sarama balance_strategy.go)."""
    return sorted(partitions, key=_name)


def _round_robin(
    subscribers: Iterable[Subscriber],
    counts: Mapping[str, int],
    in_order: Order,
    sort: Callable[[list[Partition]], list[Partition]] = list,
) -> Owners:
    members = in_order(subscribers)
    wanted = {topic for member in members for topic in member.topics}
    turns = cycle(members)
    return {
        (topic, number): next(member.member_id for member in turns if topic in member.topics)
        for topic, number in sort(_partitions(counts))
        if topic in wanted
    }


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
    missing = [partition for partition in _partitions(counts) if partition not in owners]
    claimed = {partition for member in subscribers for partition in member.owned} if cooperative else set()
    for partition in missing:
        if partition not in claimed:
            return Explanation(False, f"{_name(partition)} has no owner")
    if missing:
        return Explanation(None, f"not reproduced; withheld for the next round: {len(missing)}")
    has_racks = any(member.rack for member in subscribers)
    sizes = Counter(owners.values())
    broken = _unbalanced(subscribers, owners, sizes)
    # Racks and unlike subscriptions are reasons to take a partition from a member that could have kept it.
    is_sticky = _is_alike(subscribers) and not has_racks
    if broken is None and is_sticky:
        broken = _moved(_claims(_latest(subscribers), counts)[0], owners, sizes)
    if broken is not None:
        return Explanation(False, broken)
    return Explanation(None, _RACKS if has_racks else f"balanced{is_sticky * ' and sticky'}, but not reproduced")


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
        client = _KAFKA_PYTHON if _is_alike(subscribers) else ""
        yield _Target(client, *_kafka_python_sticky(subscribers, counts, disputed))


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
    partitions = _partitions(counts)
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
    return _Target(_JAVA, owners, frozenset(p for p in free if p in claims or p in disputed))


def _takers(short: list[str], level: list[str], sizes: Mapping[str, int], least: int) -> Iterator[str]:
    """Yield the members in the order in which they get partitions: `least` each in rounds, then one more each."""
    short, level = sorted(short, key=_utf16), sorted(level, key=_utf16)
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

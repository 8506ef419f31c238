"""Range and round robin as the clients' libraries deal partitions out: all call them the same, few compute the same.

Each was read in the source of the library named, in the versions named; tests compare with what real clients wrote.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cmp_to_key, partial
from itertools import chain, cycle, groupby, pairwise
from math import floor

from grouptrail.history.subscriber import Owners, Partition, Subscriber, in_utf16_order

KAFKAJS = "RoundRobinAssigner"
"""The protocol of kafkajs."""

JAVA, KAFKA_PYTHON, LIBRDKAFKA = (f" of {client}" for client in ("the Java client", "kafka-python", "librdkafka"))

Order = Callable[[Iterable[Subscriber]], list[Subscriber]]
Bounds = Callable[[int, int], list[int]]
"""Returns where each member's range begins, and the end of the last, for a number of partitions and of members."""


def dealer(protocol: str, subscribers: Sequence[Subscriber], counts: Mapping[str, int], owners: Owners) -> str | None:
    """Return the client that deals `owners` out, as ` of <client>`; empty if most do, None if no known one does.

    The subscribers are in the record's order, which is that of the join response.
    """
    if protocol == KAFKAJS:
        return _dealer_to_all(protocol, subscribers, counts, owners)
    deals = _ranges(subscribers, counts) if protocol == "range" else _round_robins(subscribers, counts)
    for client, dealt in chain(_in_common(protocol, subscribers, counts), deals):
        if dealt == owners:
            return client
    return _dealer_to_all(protocol, subscribers, counts, owners)


def dealt_by_java(protocol: str, subscribers: Iterable[Subscriber], counts: Mapping[str, int]) -> Owners:
    """Return what the Java client computes without racks."""
    return _deal(protocol)(subscribers, counts, java_order)


def _deal(protocol: str) -> Callable[[Iterable[Subscriber], Mapping[str, int], Order], Owners]:
    return deal_ranges if protocol == "range" else deal_around


def _in_common(
    protocol: str, subscribers: Sequence[Subscriber], counts: Mapping[str, int]
) -> Iterator[tuple[str, Owners]]:
    """Yield what the libraries compute that follow the Java client: they differ in how they sort static members."""
    deal = partial(_deal(protocol), subscribers, counts)
    java = deal(java_order)
    if any(member.instance_id is not None for member in subscribers):
        kafka_python = deal(kafka_python_order)
        yield ("" if java == kafka_python else JAVA), java
        yield KAFKA_PYTHON, kafka_python
        if not is_cyclic(subscribers):
            yield LIBRDKAFKA, deal(librdkafka_order)
        yield " by member id alone", deal(id_order)
    else:
        yield "", java
    yield " by member id alone", deal(code_point_order)


def _ranges(subscribers: Sequence[Subscriber], counts: Mapping[str, int]) -> Iterator[tuple[str, Owners]]:
    yield " of kafka-go", deal_ranges(subscribers, counts, code_point_order, _floored)
    by_hash = _deal_by_topic(subscribers, counts, partial(_in_ranges, bounds=_rounded), _by_sarama_hash)
    yield " of Sarama before 1.34.1", by_hash
    yield " of sarama-cluster", deal_ranges(subscribers, counts, code_point_order, _rounded)
    yield " of longlang/phpkafka", deal_ranges(subscribers, counts, list)


def _round_robins(subscribers: Sequence[Subscriber], counts: Mapping[str, int]) -> Iterator[tuple[str, Owners]]:
    by_text = deal_around(subscribers, counts, code_point_order, _as_texts)
    yield " of Sarama", by_text
    yield " of kafka-go", _deal_by_topic(subscribers, counts, _in_turn, lambda _, members: code_point_order(members))
    yield " of Sarama before 1.28", _deal_by_topic(subscribers, counts, _in_turn, _by_sarama_hash)
    yield " of ruby-kafka", deal_around(subscribers, counts, list)
    yield " of longlang/phpkafka", _deal_by_topic(subscribers, counts, _in_turn, lambda _, members: members)
    for is_first in (True, False):
        dealt = _deal_around_few(librdkafka_order(subscribers), counts, is_first=is_first)
        if dealt is not None:
            yield f"{LIBRDKAFKA} before {'1.5' if is_first else '1.6'}", dealt


def _dealer_to_all(
    protocol: str, subscribers: Sequence[Subscriber], counts: Mapping[str, int], owners: Owners
) -> str | None:
    """Return the client that deals the topics of its leader to all members, whatever these subscribe to."""
    of_leader = {topic: count for topic, count in counts.items() if (topic, 0) in owners}
    if not any(of_leader.keys() == member.topics & counts.keys() for member in subscribers):
        return None
    members = id_order(subscribers)
    if protocol == KAFKAJS:  # roundRobinAssigner/index.js; before 1.13 the first member began with each topic
        by_topic = _deal_to_all(members, of_leader, lambda number, _, size: number % size)
        return " of kafkajs" if _goes_around(members, of_leader, owners) or owners == by_topic else None
    if protocol == "range":
        is_dealt = owners == _deal_to_all(members, of_leader, _floored_place)
    else:  # until 2.8 in the order of the join response
        is_dealt = any(_goes_around(order, of_leader, owners) for order in (members, subscribers))
    return " of @platformatic/kafka" if is_dealt else None


def _deal_to_all(
    members: Sequence[Subscriber], counts: Mapping[str, int], place: Callable[[int, int, int], int]
) -> Owners:
    """Deal partitions to all members, whatever they subscribe to.

    `place` returns the place of the member that gets a partition, from its number and how many partitions and members
    there are.
    """
    return {
        (topic, number): members[place(number, counts[topic], len(members))].member_id
        for topic, number in partitions_of(counts)
    }


# The order of the members


def java_order(members: Iterable[Subscriber]) -> list[Subscriber]:
    """Sort members as Java's and franz-go's assignors do: static ones first, by their instance ids."""
    return sorted(
        members, key=lambda each: (each.instance_id is None, in_utf16_order(each.instance_id or each.member_id))
    )


def kafka_python_order(members: Iterable[Subscriber]) -> list[Subscriber]:
    """Sort members as kafka-python 3.0 does: only the last run of static members and the last run of others count."""
    runs = {is_static: list(run) for is_static, run in groupby(members, lambda each: each.instance_id is not None)}
    return java_order(chain.from_iterable(runs.values()))


def librdkafka_order(members: Iterable[Subscriber]) -> list[Subscriber]:
    """Sort members as librdkafka 2.x does: by instance id where both have one, else by member id
    (rd_kafka_group_member_cmp in rdkafka_assignor.c; both as bytes)."""
    return sorted(members, key=cmp_to_key(_compare_in_librdkafka))


def _compare_in_librdkafka(one: Subscriber, other: Subscriber) -> int:
    by_instance = one.instance_id is not None and other.instance_id is not None
    keys = [each.instance_id if by_instance else each.member_id for each in (one, other)]
    first, second = (key.encode("utf-8", "surrogatepass") for key in keys if key is not None)
    return (first > second) - (first < second)


def is_cyclic(members: Sequence[Subscriber]) -> bool:
    """Return whether librdkafka's comparison of these members is not transitive.

    Its order goes in a circle if a dynamic member's id lies between those of two static members whose instance ids
    sort the other way round. The result of qsort then depends on the C library.
    """
    dynamic = [each for each in members if each.instance_id is None]
    static = librdkafka_order(each for each in members if each.instance_id is not None)
    return any(
        _compare_in_librdkafka(later, member) < 0 < _compare_in_librdkafka(earlier, member)
        for earlier, later in pairwise(static)
        for member in dynamic
    )


def id_order(members: Iterable[Subscriber]) -> list[Subscriber]:
    """Sort members by their ids as Java and JavaScript do."""
    return sorted(members, key=lambda each: in_utf16_order(each.member_id))


def code_point_order(members: Iterable[Subscriber]) -> list[Subscriber]:
    """Sort members by their ids as Go and Python do."""
    return sorted(members, key=lambda each: each.member_id)


def _by_sarama_hash(topic: str, members: Iterable[Subscriber]) -> list[Subscriber]:
    """Sort members as Sarama before 1.34.1 does: by the FNV-1a hash of topic and member id (balance_strategy.go)."""
    return sorted(members, key=lambda each: _fnv_1a(topic + each.member_id))


def _fnv_1a(text: str) -> int:
    """Return the 32-bit hash, with code points for bytes."""
    code = 2166136261
    for character in text:
        code = (code ^ ord(character)) * 16777619 & 0xFFFFFFFF
    return code


# Range


def deal_ranges(
    subscribers: Iterable[Subscriber], counts: Mapping[str, int], in_order: Order, bounds: Bounds | None = None
) -> Owners:
    """Give each member of a topic a range of its partitions."""
    take = partial(_in_ranges, bounds=bounds or _larger_first)
    return _deal_by_topic(subscribers, counts, take, lambda _, members: in_order(members))


def _larger_first(count: int, members: int) -> list[int]:
    share, larger = divmod(count, members)
    return [index * share + min(index, larger) for index in range(members + 1)]


def _floored(count: int, members: int) -> list[int]:
    """kafka-go's RangeGroupBalancer (groupbalancer.go)."""
    return [index * count // members for index in range(members + 1)]


def _floored_place(number: int, count: int, members: int) -> int:
    """Return the place of the member with that partition in `_floored`: @platformatic/kafka's rangeAssigner
    (partitions-assigners.ts)."""
    return ((number + 1) * members - 1) // count


def _rounded(count: int, members: int) -> list[int]:
    """Sarama from 1.20 to 1.34.0 (balance_strategy.go), sarama-cluster (balancer.go)."""
    step = count / members
    return [floor(index * step + 0.5) for index in range(members + 1)]


def _in_ranges(count: int, members: Sequence[Subscriber], bounds: Bounds) -> Iterator[Subscriber]:
    for member, (start, end) in zip(members, pairwise(bounds(count, len(members))), strict=True):
        yield from [member] * (end - start)


def _deal_by_topic(
    subscribers: Iterable[Subscriber],
    counts: Mapping[str, int],
    take: Callable[[int, Sequence[Subscriber]], Iterable[Subscriber]],
    in_order: Callable[[str, list[Subscriber]], list[Subscriber]],
) -> Owners:
    """Deal each topic's partitions to its subscribers alone; `take` gives the owner of each, in order."""
    takers: dict[str, list[Subscriber]] = defaultdict(list)
    for member in subscribers:
        for topic in member.topics:
            takers[topic].append(member)
    return {
        (topic, number): member.member_id
        for topic, count in counts.items()
        for number, member in enumerate(take(count, in_order(topic, takers[topic])))
    }


# Round robin


def deal_around(
    subscribers: Iterable[Subscriber],
    counts: Mapping[str, int],
    in_order: Order,
    sort: Callable[[list[Partition]], list[Partition]] = list,
) -> Owners:
    """Deal all partitions around; who does not subscribe to a topic is passed over."""
    members = in_order(subscribers)
    wanted = {topic for member in members for topic in member.topics}
    turns = cycle(members)
    return {
        (topic, number): next(member.member_id for member in turns if topic in member.topics)
        for topic, number in sort(partitions_of(counts))
        if topic in wanted
    }


def partitions_of(counts: Mapping[str, int]) -> list[Partition]:
    """Return all partitions in the topics' order."""
    return [(topic, number) for topic, count in counts.items() for number in range(count)]


def _as_texts(partitions: list[Partition]) -> list[Partition]:
    """Sort partitions as Sarama does since 1.28: orders-10 comes before orders-2 (balance_strategy.go)."""
    return sorted(partitions, key=lambda each: f"{each[0]}-{each[1]}")


def _in_turn(count: int, members: Sequence[Subscriber]) -> Iterator[Subscriber]:
    """kafka-go's RoundRobinGroupBalancer, Sarama's before 1.28: the first member begins with each topic."""
    return (members[number % len(members)] for number in range(count))


def _deal_around_few(members: Sequence[Subscriber], counts: Mapping[str, int], *, is_first: bool) -> Owners | None:
    """Deal as librdkafka before 1.6: only as many of all members take turns as subscribe to the topic
    (rdkafka_roundrobin_assignor.c). Where subscriptions differ it may find no taker: None.

    `is_first` is the form before 1.5, which looks for a taker beyond these, the other that of 1.5.2 and 1.5.3.
    """
    owners: Owners = {}
    turn = 0
    for topic, count in counts.items():
        size = sum(topic in member.topics for member in members)
        within = len(members) if is_first else size
        for number in range(count):
            taker = _taker(members, topic, turn if is_first else turn % size, within, wraps=not is_first)
            if taker is None:
                return None
            owners[topic, number] = members[taker].member_id
            turn = (taker + 1) % size if is_first else taker + 1
    return owners


def _taker(members: Sequence[Subscriber], topic: str, turn: int, within: int, *, wraps: bool) -> int | None:
    """Return the place of the first member from `turn` on that subscribes to the topic."""
    places = chain(range(turn, within), range(turn if wraps else 0))
    return next((place for place in places if topic in members[place].topics), None)


def _goes_around(members: Sequence[Subscriber], counts: Mapping[str, int], owners: Owners) -> bool:
    """Return whether all members take turns, whatever they subscribe to, in some order of the topics.

    Each topic is a step from the owner of its first partition to the one after the owner of its last. They are dealt
    in one go from the first member on if these steps form a path that begins there (an Eulerian path).
    """
    size = len(members)
    places = {member.member_id: place for place, member in enumerate(members)}
    if len(owners) != sum(counts.values()):
        return False
    surplus: Counter[int] = Counter()
    steps: dict[int, set[int]] = defaultdict(set)
    for topic, count in counts.items():
        start = places[owners[topic, 0]]
        if any(places[owners[topic, number]] != (start + number) % size for number in range(count)):
            return False
        end = (start + count) % size
        surplus.update({start: 1})
        surplus.subtract({end: 1})
        steps[start].add(end)
        steps[end].add(start)
    unequal = {place: more for place, more in surplus.items() if more}
    is_path = not unequal or (unequal.get(0) == 1 and sorted(unequal.values()) == [-1, 1])
    return is_path and _reached_from(0, steps) >= steps.keys()


def _reached_from(start: int, steps: Mapping[int, set[int]]) -> set[int]:
    reached, ahead = {start}, [start]
    while ahead:
        further = steps.get(ahead.pop(), set()) - reached
        reached |= further
        ahead += further
    return reached

"""Whether an assignment is its assignor's own. The assignments written out here are those of kafka-clients 4.3.0."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from grouptrail.history.assignors import Explanation, explain, skew
from grouptrail.history.subscriber import Partition, Subscriber
from support.strategies import MANY

STICKY = ("sticky", "cooperative-sticky")
ORDERS = {"orders": 7}
BOTH = {"orders": 5, "audit": 7}


def subscriber(
    member_id: str, topics: str = "orders", owned: str = "", generation: int = -1, **more: Any
) -> Subscriber:
    """Return a member; topics and partitions are separated by spaces."""
    more = {"instance_id": None, "rack": None} | more
    return Subscriber(
        member_id, topics=frozenset(topics.split()), owned=frozenset(parts(owned)), generation=generation, **more
    )


def parts(text: str) -> list[Partition]:
    """Parse partitions such as `orders:0,2 audit:1`."""
    named = [topic.split(":") for topic in text.split()]
    return [(topic, int(number)) for topic, numbers in named for number in numbers.split(",")]


def assignment(**of: str) -> dict[str, list[Partition]]:
    """Partitions by member."""
    return {member_id: parts(text) for member_id, text in of.items()}


ABC = [subscriber("a"), subscriber("b"), subscriber("c")]
STATIC = [subscriber("a"), subscriber("b", instance_id="two"), subscriber("c", instance_id="one")]
UNLIKE = [subscriber("a", "orders audit"), subscriber("b"), subscriber("c", "audit"), subscriber("d", "other")]
# A HashMap lists p before a, so p keeps the third partition.
CROWDED = [subscriber("a", owned="orders:0,1,2,3", generation=5), subscriber("p", owned="orders:4,5,6", generation=5)]
CROWDED += [subscriber("z")]
STALE = [subscriber("a", owned="orders:0,1", generation=5), subscriber("p", owned="orders:1,4,5,6", generation=4)]
STALE += [subscriber("z")]
DISPUTED = [subscriber("a", owned="orders:0,1,2", generation=5), subscriber("p", owned="orders:2,3,4", generation=5)]
DISPUTED += [subscriber("z", owned="orders:5,6", generation=5)]

JAVA = [
    ("range", ABC, ORDERS, assignment(a="orders:0,1,2", b="orders:3,4", c="orders:5,6")),
    ("roundrobin", ABC, ORDERS, assignment(a="orders:0,3,6", b="orders:1,4", c="orders:2,5")),
    ("sticky", ABC, ORDERS, assignment(a="orders:0,3,6", b="orders:1,4", c="orders:2,5")),
    ("cooperative-sticky", ABC, ORDERS, assignment(a="orders:0,3,6", b="orders:1,4", c="orders:2,5")),
    ("range", STATIC, ORDERS, assignment(a="orders:5,6", b="orders:3,4", c="orders:0,1,2")),
    ("roundrobin", STATIC, ORDERS, assignment(a="orders:2,5", b="orders:1,4", c="orders:0,3,6")),
    ("range", UNLIKE, BOTH, assignment(a="audit:0,1,2,3 orders:0,1,2", b="orders:3,4", c="audit:4,5,6", d="")),
    ("roundrobin", UNLIKE, BOTH, assignment(a="audit:0,2,4,6 orders:1,3", b="orders:0,2,4", c="audit:1,3,5", d="")),
    ("sticky", UNLIKE, BOTH, assignment(a="audit:2,4,6 orders:4", b="orders:0,1,2,3", c="audit:0,1,3,5", d="")),
    ("sticky", CROWDED, ORDERS, assignment(a="orders:0,1", p="orders:4,5,6", z="orders:2,3")),
    ("cooperative-sticky", CROWDED, ORDERS, assignment(a="orders:0,1", p="orders:4,5,6", z="")),
    ("cooperative-sticky", STALE, ORDERS, assignment(a="orders:0,1", p="orders:4,5,6", z="orders:2,3")),
    ("sticky", DISPUTED, ORDERS, assignment(a="orders:0,1,2", p="orders:3,4", z="orders:5,6")),
]


@pytest.mark.parametrize(("protocol", "members", "counts", "assigned"), JAVA)
def test_explain_java_client_assignment_is_own(
    protocol: str, members: list[Subscriber], counts: dict[str, int], assigned: dict[str, list[Partition]]
) -> None:
    assert explain(protocol, members, counts, assigned).is_own
    assert explain(protocol, members[::-1], counts, {m: ps[::-1] for m, ps in assigned.items()}).is_own


def test_explain_sticky_member_left_is_own_only_if_just_its_partitions_move() -> None:
    left = [subscriber("a", owned="orders:0,3,6", generation=1), subscriber("c", owned="orders:2,5", generation=1)]
    for protocol in STICKY:
        assert explain(protocol, left, ORDERS, assignment(a="orders:0,3,4,6", c="orders:1,2,5")).is_own
        moved = explain(protocol, left, ORDERS, assignment(a="orders:0,1,3,5", c="orders:2,4,6"))
        assert not moved.is_own


@pytest.mark.parametrize("protocol", ["range", "roundrobin", *STICKY])
def test_explain_seven_partitions_five_members_is_own_only_under_its_protocol(protocol: str) -> None:
    members = [subscriber(member_id) for member_id in "abcde"]
    by_range = assignment(a="orders:0,1", b="orders:2,3", c="orders:4", d="orders:5", e="orders:6")
    in_turn = assignment(a="orders:0,5", b="orders:1,6", c="orders:2", d="orders:3", e="orders:4")
    own, other = (by_range, in_turn) if protocol == "range" else (in_turn, by_range)
    assert explain(protocol, members, ORDERS, own).is_own
    # Sticky members without previous partitions may get any balanced assignment.
    assert explain(protocol, members, ORDERS, other).is_own is (None if protocol in STICKY else False)
    assert skew(own) == 1


def test_explain_java_client_before_3_5_ignores_owned_partitions_of_older_generations() -> None:
    assigned = assignment(a="orders:0,1,6", p="orders:2,4", z="orders:3,5")
    assert explain("cooperative-sticky", STALE, ORDERS, assigned).is_own


def test_explain_cooperative_member_keeps_what_it_does_not_subscribe_to_is_not_known() -> None:
    """A recorded run of librdkafka 2.16: a static member came back with other topics."""
    members = [subscriber("a", "orders", owned="audit:0,1", generation=1, instance_id="a"), subscriber("c")]
    assigned = assignment(a="orders:0,2,4,6 audit:0,1", c="orders:1,3,5")
    explained = explain("cooperative-sticky", members, ORDERS, assigned)
    assert explained.is_own is None
    unsubscribed = "a has audit-0 but does not subscribe to audit"
    assert explained.note == f"{unsubscribed}: librdkafka and Sarama leave members what they had"
    assert explain("cooperative-sticky", [subscriber("a"), subscriber("c")], ORDERS, assigned).is_own is False
    assert explain("range", members, ORDERS, assigned).is_own is False


def test_explain_note_names_the_client_where_clients_differ() -> None:
    mixed = [subscriber("a", instance_id="x"), subscriber("b"), subscriber("c", instance_id="w")]
    # kafka-python 3.0 forgets the first, as a dynamic member comes between it and the other static one.
    for assigned, note in (
        (assignment(c="orders:0,1,2", a="orders:3,4", b="orders:5,6"), "range of the Java client gives the same"),
        (assignment(c="orders:0,1,2,3", b="orders:4,5,6"), "range of kafka-python gives the same"),
        (assignment(a="orders:0,1,2", b="orders:3,4", c="orders:5,6"), "range by member id alone gives the same"),
    ):
        assert explain("range", mixed, ORDERS, assigned) == Explanation(True, note)
    last = [subscriber("a"), subscriber("b", instance_id="two"), subscriber("c", instance_id="one")]
    by_pairs = assignment(a="orders:0,1,2", c="orders:3,4", b="orders:5,6")
    assert explain("range", last, ORDERS, by_pairs) == Explanation(True, "range of librdkafka gives the same")
    in_a_row = assignment(c="orders:0,1,2", b="orders:3,4", a="orders:5,6")
    assert explain("range", STATIC, ORDERS, in_a_row) == Explanation(True, "range gives the same")
    assert explain("sticky", ABC, ORDERS, JAVA[2][3]).note == "sticky of the Java client gives the same"
    assert explain("sticky", UNLIKE, BOTH, JAVA[8][3]).note == "sticky gives the same"


def test_explain_dealt_assignment_of_members_whose_order_in_librdkafka_is_circular_is_not_known() -> None:
    """By member id a is before b and b before c, by instance id c before a (rd_kafka_group_member_cmp)."""
    circle = [subscriber("a", instance_id="two"), subscriber("b"), subscriber("c", instance_id="one")]
    assigned = assignment(b="orders:0,1,2", a="orders:3,4", c="orders:5,6")
    explained = explain("range", circle, ORDERS, assigned)
    assert explained == Explanation(None, "librdkafka has no definite order for these static and dynamic members")
    ordered = [subscriber("a", instance_id="one"), subscriber("b"), subscriber("c", instance_id="two")]
    assert explain("range", ordered, ORDERS, assigned).is_own is False


def test_skew_is_largest_minus_smallest_partition_count() -> None:
    assert skew({}) == 0
    assert skew(assignment(a="orders:0,1,2", b="orders:3", c="")) == 3


NOT_OWN = [
    (
        assignment(a="orders:0,1,3", b="orders:2,4", c="orders:5,6"),
        "another assignment: range gives orders-2 to a, not b",
    ),
    (assignment(a="orders:0,1,2", b="orders:3,4", c="orders:5"), "orders-6 has no owner"),
    (assignment(a="orders:0,1,2", b="orders:2,3,4", c="orders:5,6"), "orders-2 is owned by both a and b"),
    (assignment(a="orders:0,1,2", b="orders:3,4", x="orders:5,6"), "x is not a member"),
    (assignment(a="audit:0"), "a has audit-0 but does not subscribe to audit"),
]


@pytest.mark.parametrize(("assigned", "note"), NOT_OWN)
def test_explain_range_different_assignment_is_not_own_and_note_says_why(
    assigned: dict[str, list[Partition]], note: str
) -> None:
    assert explain("range", ABC, ORDERS, assigned) == Explanation(False, note)


@pytest.mark.parametrize("protocol", STICKY)
def test_explain_sticky_not_reproduced_checks_stickiness_and_balance(protocol: str) -> None:
    had = [subscriber("a", owned="orders:0,1,2,3", generation=2), subscriber("b", owned="orders:4,5,6", generation=2)]
    swapped = assignment(a="orders:0,1,2", b="orders:3,4,5,6")
    assert explain(protocol, had, ORDERS, swapped) == Explanation(
        False, "not sticky: orders-3 went from a to b, which has more"
    )
    uneven = assignment(a="orders:0,1,2,3,4", b="orders:5,6")
    assert explain(protocol, had, ORDERS, uneven) == Explanation(
        False, "not balanced: a has 5, b 2, though orders-0 could move"
    )
    other = explain(protocol, ABC, ORDERS, assignment(a="orders:0,1,2", b="orders:3,4", c="orders:5,6"))
    assert other == Explanation(None, "balanced and sticky, but not reproduced")


def test_explain_sticky_large_group_unequal_subscriptions_checks_only_balance() -> None:
    members = [
        subscriber("a", "orders audit", "orders:0,1", 2),
        subscriber("b", "orders audit"),
        subscriber("c", "audit"),
    ]
    counts = {"orders": 2, "audit": 400}
    numbers = [",".join(map(str, range(start, 400, 3))) for start in range(3)]
    assigned = assignment(a=f"audit:{numbers[0]}", b=f"orders:0,1 audit:{numbers[1]}", c=f"audit:{numbers[2]}")
    assert explain("sticky", members, counts, assigned) == Explanation(
        False, "not balanced: b has 135, c 133, though audit-1 could move"
    )
    assigned["c"].append(assigned["b"].pop())
    assert explain("sticky", members, counts, assigned) == Explanation(None, "balanced, but not reproduced")


def test_explain_unassigned_partition_is_accepted_only_if_cooperative_and_owned_before() -> None:
    held_back = assignment(a="orders:0,1", p="orders:4,5,6", z="")
    assert explain("sticky", CROWDED, ORDERS, held_back) == Explanation(False, "orders-2 has no owner")
    assert explain("cooperative-sticky", CROWDED, ORDERS, held_back).note.endswith("withheld for the next round: 2")
    more = assignment(a="orders:0", p="orders:4,5,6", z="")
    assert explain("cooperative-sticky", CROWDED, ORDERS, more).is_own is None
    fresh = explain("cooperative-sticky", ABC, ORDERS, assignment(a="orders:0,3,6", b="orders:1,4"))
    assert fresh == Explanation(False, "orders-2 has no owner")


def test_explain_unknown_protocol_or_missing_members_or_topics_is_undetermined() -> None:
    assigned = assignment(a="orders:0,1,2", b="orders:3,4", c="orders:5,6")
    assert explain("stream", ABC, ORDERS, assigned).is_own is None
    assert explain(None, ABC, ORDERS, assigned).is_own is None
    assert explain("range", [], ORDERS, {}).is_own is None
    assert explain("range", ABC, {"orders": 6}, assigned) == Explanation(
        None, "orders-6 is not among the 6 known partitions of orders"
    )
    assert explain("range", ABC, {}, assigned).is_own is None


def test_explain_members_with_racks_different_assignment_is_undetermined() -> None:
    racks = [subscriber(member_id, rack=rack) for member_id, rack in (("a", "x"), ("b", "y"), ("c", None))]
    assert explain("range", racks, ORDERS, assignment(a="orders:0,1,2", b="orders:3,4", c="orders:5,6")).is_own
    other = assignment(a="orders:4,5,6", b="orders:2,3", c="orders:0,1")
    assert {explain(protocol, racks, ORDERS, other).is_own for protocol in ("range", "roundrobin", *STICKY)} == {None}


@pytest.mark.parametrize("protocol", ["range", "roundrobin", *STICKY])
def test_explain_empty_topics_and_unsubscribed_members_get_no_partitions(protocol: str) -> None:
    members = [subscriber("a", "orders gone"), subscriber("b", "")]
    assert explain(protocol, members, {"orders": 2, "gone": 0}, assignment(a="orders:0,1")).is_own
    assert explain(protocol, members, {"orders": 2}, assignment(a="orders:0,1", b="")).is_own
    assert explain(protocol, members, {}, {}).is_own


@st.composite
def groups(draw: st.DrawFn, *, alike: bool = False, static: bool = False) -> tuple[list[Subscriber], dict[str, int]]:
    """Members, in any order, that had what they say in a common generation; and the topics' partition counts."""
    counts = draw(st.dictionaries(st.sampled_from(["audit", "orders", "z.1"]), st.integers(1, 9), min_size=1))
    ids = draw(st.lists(st.text("abcpz-09é🦆", min_size=1, max_size=4), min_size=1, max_size=8, unique=True))
    some = st.frozensets(st.sampled_from(sorted(counts)), min_size=1)
    common = draw(some)
    everything = [(topic, number) for topic, count in counts.items() for number in range(count)]
    had = {partition: draw(st.sampled_from([None, *ids])) for partition in everything}
    return [
        Subscriber(
            member_id,
            f"i-{member_id}" if static and draw(st.booleans()) else None,
            common if alike else draw(some),
            frozenset(partition for partition, owner in had.items() if owner == member_id),
            3,
            None,
        )
        for member_id in ids
    ], counts


def by_kafka_python(assignor: Any, members: list[Subscriber], counts: dict[str, int]) -> dict[str, list[Partition]]:
    """Return the assignment of kafka-python's assignor for a JoinGroup response with these members."""
    joined = []
    for member in members:
        numbers = {topic: sorted(n for t, n in member.owned if t == topic) for topic in sorted(counts)}
        had = [(topic, owned) for topic, owned in numbers.items() if owned]
        metadata = ConsumerProtocolSubscription(
            version=2,
            topics=sorted(member.topics),
            user_data=StickyAssignorUserData(had, member.generation),
            owned_partitions=[ConsumerProtocolSubscription.TopicPartition(topic=t, partitions=ns) for t, ns in had],
            generation_id=member.generation,
        )
        identity = {"member_id": member.member_id, "group_instance_id": member.instance_id}
        joined.append(SimpleNamespace(**identity, metadata=metadata))
    subscribed = {topic: set(range(counts[topic])) for member in members for topic in member.topics}
    cluster = SimpleNamespace(topics=lambda: set(subscribed), partitions_for_topic=subscribed.get)
    made = assignor.assign(cluster, joined)
    return {member_id: [tuple(each) for each in blob.partitions()] for member_id, blob in made.items()}


@MANY
@given(groups(static=True))
def test_explain_kafka_python_range_assignment_is_own(group: tuple[list[Subscriber], dict[str, int]]) -> None:
    assert explain("range", *group, by_kafka_python(RangePartitionAssignor, *group)).is_own


@MANY
@given(groups(alike=True, static=True))  # It fails where it has to skip a member.
def test_explain_kafka_python_roundrobin_assignment_is_own(group: tuple[list[Subscriber], dict[str, int]]) -> None:
    assert explain("roundrobin", *group, by_kafka_python(RoundRobinPartitionAssignor, *group)).is_own


class Numbered(str):
    """A topic whose hash is its number, so that sets of its partitions have the same order in every process."""

    number: int

    def __hash__(self) -> int:
        return hash(self.number)


def numbered(members: list[Subscriber], counts: dict[str, int]) -> tuple[list[Subscriber], dict[str, int]]:
    """Return the same group with such topics."""
    topics = {topic: Numbered(topic) for topic in sorted(counts)}
    for number, topic in enumerate(topics.values()):
        topic.number = number
    return [
        replace(
            member,
            topics=frozenset(topics[topic] for topic in member.topics),
            owned=frozenset((topics[topic], number) for topic, number in member.owned),
        )
        for member in members
    ], {topics[topic]: count for topic, count in counts.items()}


STICKY_OF_KAFKA_PYTHON = [("sticky", StickyPartitionAssignor), ("cooperative-sticky", CooperativeStickyAssignor)]


@MANY
@given(groups(), st.sampled_from(STICKY_OF_KAFKA_PYTHON))
def test_explain_kafka_python_sticky_assignment_with_stable_hashes_is_own(
    group: tuple[list[Subscriber], dict[str, int]], client: tuple[str, Any]
) -> None:
    protocol, assignor = client
    members, counts = numbered(*group)
    assert explain(protocol, members, counts, by_kafka_python(assignor(), members, counts)).is_own


@MANY
@given(groups(), st.sampled_from(STICKY_OF_KAFKA_PYTHON))
def test_explain_kafka_python_sticky_assignment_with_process_hashes_is_never_rejected(
    group: tuple[list[Subscriber], dict[str, int]], client: tuple[str, Any]
) -> None:
    """With different subscriptions it picks from sets of partitions, so its result may vary; no variant may be
    rejected."""
    protocol, assignor = client
    members, counts = group
    is_alike = len({member.topics for member in members}) == 1
    verdict = explain(protocol, members, counts, by_kafka_python(assignor(), members, counts))
    assert verdict.is_own or (verdict.is_own is None and not is_alike)


@MANY
@given(groups(alike=True), st.sampled_from([RangePartitionAssignor, RoundRobinPartitionAssignor]), st.data())
def test_explain_one_partition_moved_to_another_member_is_not_own(
    group: tuple[list[Subscriber], dict[str, int]], assignor: Any, data: st.DataObject
) -> None:
    assigned = by_kafka_python(assignor, *group)
    partition, holder = data.draw(st.sampled_from([(p, member) for member, ps in assigned.items() for p in ps]))
    other = data.draw(st.sampled_from(sorted(assigned)))
    assigned[holder].remove(partition)
    assigned[other].append(partition)
    verdict = explain(assignor.name, *group, assigned)
    if other == holder:
        assert verdict.is_own
    elif verdict.is_own:
        # Where there are few partitions, another library gives them to just these members.
        assert verdict.note.startswith(f"{assignor.name} of ")
    else:
        wrong = f"{partition[0]}-{partition[1]} to {holder}, not {other}"
        assert verdict == Explanation(False, f"another assignment: {assignor.name} gives {wrong}")


@pytest.mark.parametrize("protocol", ["range", "roundrobin", *STICKY])
def test_explain_ten_thousand_members_takes_under_four_cpu_seconds(protocol: str) -> None:
    names = [f"consumer-billing-{number:05}-8f2f5d0a-6d0c" for number in range(10_000)]
    members = [subscriber(name) for name in names]
    assigned = {name: [("orders", number)] for number, name in enumerate(names[:1000])}
    backwards = dict(zip(assigned, reversed(assigned.values()), strict=True))
    started = time.process_time()
    assert explain(protocol, members, {"orders": 1000}, assigned).is_own
    assert explain(protocol, members, {"orders": 1000}, backwards).is_own is (None if protocol in STICKY else False)
    assert time.process_time() - started < 4

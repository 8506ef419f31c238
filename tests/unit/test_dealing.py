"""Range, round robin and sticky of other people's clients are recognised, and never called another assignment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.history.assignors import Explanation, explain
from grouptrail.history.dealing import dealer
from grouptrail.history.subscriber import Partition, Subscriber
from support.client_records import Dealt, lines_dealt
from support.strategies import MANY

DEALT = [Dealt.from_json(line) for line in lines_dealt()]

# Sarama goes through its partitions in the order of a Go map, so that nothing but its rules can be checked.
IN_NO_ORDER = {("Sarama", "sticky"), ("Sarama", "cooperative-sticky")}


def named(dealt: Dealt) -> str:
    return f"{dealt.library} {dealt.assignor}"


def member(member_id: str, topics: str = "orders") -> Subscriber:
    return Subscriber(member_id, None, frozenset(topics.split()), frozenset(), -1, None)


def owned(**by_member: Mapping[str, Sequence[int]]) -> dict[str, list[Partition]]:
    return {
        member_id: [(topic, number) for topic, numbers in topics.items() for number in numbers]
        for member_id, topics in by_member.items()
    }


@pytest.mark.parametrize("dealt", DEALT, ids=named)
def test_explain_assignment_that_a_library_computed_is_not_called_another(dealt: Dealt) -> None:
    """Sarama 1.61.1 and 1.27.2, kafka-go 0.4.51, franz-go 1.22.3; members subscribe alike or not."""
    explained = explain(dealt.assignor, dealt.subscribers, dealt.counts, dealt.assigned)
    assert explained.is_own or (explained.is_own is None and (dealt.library, dealt.assignor) in IN_NO_ORDER)


def test_explain_recorded_assignments_need_each_librarys_own_algorithm() -> None:
    """Of each library and assignor at least one differs from what the Java client computes."""
    notes = defaultdict(set)
    for dealt in DEALT:
        explained = explain(dealt.assignor, dealt.subscribers, dealt.counts, dealt.assigned)
        notes[dealt.library, dealt.assignor].add(explained.note.partition(";")[0])
    for library, assignor, client in (
        ("kafka-go", "range", "kafka-go"),
        ("kafka-go", "roundrobin", "kafka-go"),
        ("Sarama", "roundrobin", "Sarama"),
        ("Sarama 1.27.2", "range", "Sarama before 1.34.1"),
        ("Sarama 1.27.2", "roundrobin", "Sarama before 1.28"),
        ("franz-go", "sticky", "franz-go"),
        ("franz-go", "cooperative-sticky", "franz-go"),
    ):
        assert f"{assignor} of {client} gives the same" in notes[library, assignor]


ABC = [member(name) for name in "abc"]
OTHERS = [
    # bsm/sarama-cluster balancer.go: floor(i * n + 0.5), members by id.
    (
        "range",
        [member(name) for name in "abcd"],
        {"orders": 6},
        owned(a={"orders": [0, 1]}, b={"orders": [2]}, c={"orders": [3, 4]}, d={"orders": [5]}),
        "sarama-cluster",
    ),
    # platformatic/kafka partitions-assigners.ts: the leader's topics to all members, whatever they subscribe to.
    (
        "range",
        [member("a", "orders audit"), member("b", "audit")],
        {"orders": 3, "audit": 1},
        owned(a={"orders": [0]}, b={"orders": [1, 2], "audit": [0]}),
        "@platformatic/kafka",
    ),
    (
        "roundrobin",
        [member("a", "orders audit"), member("b", "audit")],
        {"orders": 3, "audit": 1},
        owned(a={"orders": [0, 2]}, b={"orders": [1], "audit": [0]}),
        "@platformatic/kafka",
    ),
    # Likewise, if the leader, a, does not know of audit.
    (
        "roundrobin",
        [member("a"), member("b", "audit orders"), member("c", "audit")],
        {"orders": 3, "audit": 1},
        owned(a={"orders": [0]}, b={"orders": [1]}, c={"orders": [2]}),
        "@platformatic/kafka",
    ),
    # swoole/phpkafka RangeAssignor.php and RoundRobinAssignor.php: members in the order of the join response.
    (
        "range",
        [member("b"), member("c"), member("a")],
        {"orders": 4},
        owned(b={"orders": [0, 1]}, c={"orders": [2]}, a={"orders": [3]}),
        "longlang/phpkafka",
    ),
    (
        "roundrobin",
        [member("b", "audit orders"), member("a", "audit orders")],
        {"audit": 1, "orders": 2},
        owned(b={"audit": [0], "orders": [0]}, a={"orders": [1]}),
        "longlang/phpkafka",
    ),
    # zendesk/ruby-kafka round_robin_assignment_strategy.rb: members in the order of the join response.
    (
        "roundrobin",
        [member("b", "orders audit"), member("a", "orders audit")],
        {"audit": 1, "orders": 2},
        owned(b={"audit": [0], "orders": [1]}, a={"orders": [0]}),
        "ruby-kafka",
    ),
    # librdkafka 1.4.4 rdkafka_roundrobin_assignor.c: next = (next + 1) % number of the topic's subscribers.
    (
        "roundrobin",
        [member("a", "audit"), member("b", "audit orders"), member("c", "audit orders")],
        {"audit": 2, "orders": 3},
        owned(a={"audit": [0]}, b={"audit": [1], "orders": [1, 2]}, c={"orders": [0]}),
        "librdkafka before 1.5",
    ),
    # librdkafka 1.5.3, likewise: it finds c only if the subscribers' number reaches that far.
    (
        "roundrobin",
        [member("a", "audit"), member("b", "audit orders"), member("c", "audit orders")],
        {"audit": 2, "orders": 3},
        owned(a={"audit": [0]}, b={"audit": [1], "orders": [0, 1, 2]}),
        "librdkafka before 1.6",
    ),
    # tulios/kafkajs roundRobinAssigner/index.js, version 2 and before 1.13.
    (
        "RoundRobinAssigner",
        ABC,
        {"orders": 4},
        owned(a={"orders": [0, 3]}, b={"orders": [1]}, c={"orders": [2]}),
        "kafkajs",
    ),
    (
        "RoundRobinAssigner",
        [member("a", "orders audit"), member("b", "orders audit")],
        {"orders": 1, "audit": 1},
        owned(a={"orders": [0], "audit": [0]}, b={}),
        "kafkajs",
    ),
]


@pytest.mark.parametrize(
    ("protocol", "members", "counts", "assigned", "client"), OTHERS, ids=[f"{row[-1]} {row[0]}" for row in OTHERS]
)
def test_explain_assignment_of_another_library_is_own(
    protocol: str,
    members: list[Subscriber],
    counts: dict[str, int],
    assigned: dict[str, list[Partition]],
    client: str,
) -> None:
    expected = Explanation(True, f"{protocol} of {client} gives the same")
    assert explain(protocol, members, counts, assigned) == expected


def test_explain_kafkajs_assignment_that_is_not_reproduced_is_not_known() -> None:
    """Also where a member has what it does not subscribe to."""
    apart = [member("a"), member("b", "audit")]
    for members, assigned in (
        (ABC, owned(a={"orders": [0, 1]}, b={"orders": [2, 3]})),
        (apart, owned(a={"orders": [0, 1]}, b={"orders": [2, 3]})),
    ):
        explained = explain("RoundRobinAssigner", members, {"orders": 4}, assigned)
        assert explained == Explanation(None, "RoundRobinAssigner of kafkajs, but not reproduced")


def test_explain_partition_of_two_members_is_nobodys_own() -> None:
    both = owned(a={"orders": [0, 1]}, b={"orders": [1]}, c={"orders": [2]})
    for protocol in ("range", "roundrobin"):
        assert explain(protocol, ABC, {"orders": 3}, both).is_own is False


COUNTS = st.dictionaries(st.sampled_from("vwxyz"), st.integers(1, 7), min_size=1, max_size=5)


def around(
    names: Sequence[str], counts: Mapping[str, int], topics: Sequence[str], start: int = 0
) -> dict[Partition, str]:
    dealt = [(topic, number) for topic in topics for number in range(counts[topic])]
    return {partition: names[(start + turn) % len(names)] for turn, partition in enumerate(dealt)}


@MANY
@given(COUNTS, st.integers(1, 6), st.data())
def test_dealer_kafkajs_is_recognised_in_any_order_of_topics(
    counts: dict[str, int], size: int, data: st.DataObject
) -> None:
    """Members take turns through all topics, in the order in which the leader subscribes to them."""
    names = [f"m{number}" for number in range(size)]
    topics = data.draw(st.permutations(sorted(counts)))
    members = [member(name, " ".join(counts)) for name in names]
    assert dealer("RoundRobinAssigner", members, counts, around(names, counts, topics)) == " of kafkajs"


@MANY
@given(COUNTS, st.integers(2, 6), st.data())
def test_dealer_kafkajs_turns_that_begin_with_another_member_are_not_its_own(
    counts: dict[str, int], size: int, data: st.DataObject
) -> None:
    """The first member has the first partition of some topic, in every order of the topics."""
    names = [f"m{number}" for number in range(size)]
    start = data.draw(st.integers(1, size - 1))
    owners = around(names, counts, sorted(counts), start)
    if not any(owners[topic, 0] == names[0] for topic in counts):
        members = [member(name, " ".join(counts)) for name in names]
        assert dealer("RoundRobinAssigner", members, counts, owners) is None


def test_dealer_kafkajs_topics_that_form_no_path_from_the_first_member_are_not_its_own() -> None:
    """Each topic is dealt in turn, but none begins where another ends."""
    members = [member(name, "x y") for name in "abcd"]
    apart = {("x", 0): "a", ("x", 1): "b", ("y", 0): "d", ("y", 1): "a"}
    assert dealer("RoundRobinAssigner", members, {"x": 2, "y": 2}, apart) is None
    joined = {("x", 0): "a", ("x", 1): "b", ("y", 0): "c", ("y", 1): "d"}
    assert dealer("RoundRobinAssigner", members, {"x": 2, "y": 2}, joined) == " of kafkajs"

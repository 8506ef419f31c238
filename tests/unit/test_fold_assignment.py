"""Whether an assignment is its assignor's own: false only if no other explanation is possible."""

from __future__ import annotations

import pytest

from grouptrail.history.assignors import explain
from grouptrail.history.subscriber import Subscriber
from support.fold_records import HOUR, classic, member, subscription
from support.group_records import fold


@pytest.mark.parametrize("protocol", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_is_assignors_own_after_a_subscribed_topic_was_deleted_is_not_false(protocol: str) -> None:
    """Members stay subscribed to the topic's name; that it was once assigned does not prove that it still exists."""
    more = {"subscription": subscription("orders", "other")}
    rows = fold(
        [
            classic(1, 1_000, 1, {"a": member({"orders": [0], "other": [0]}, **more)}, protocol=protocol),
            classic(2, HOUR, 2, {"a": member({"orders": [0]}, **more)}, protocol=protocol),
        ]
    )
    last = rows["generations"][-1]
    assert last["is_assignors_own"] is not False, last["assignment_note"]


def test_is_assignors_own_after_a_topic_was_remade_with_fewer_partitions_is_not_false() -> None:
    rows = fold(
        [
            classic(1, 1_000, 1, {"a": {"orders": [0, 1, 2, 3]}, "b": {"orders": [4, 5, 6, 7]}}),
            classic(2, HOUR, 2, {"a": {"orders": [0, 1]}, "b": {"orders": [2, 3]}}),
        ]
    )
    last = rows["generations"][-1]
    assert last["is_assignors_own"] is not False, last["assignment_note"]


def test_is_assignors_own_after_a_static_restart_with_other_topics_is_not_false() -> None:
    """Same generation, new subscription, the assignment of before it (GMM
    updateStaticMemberThenRebalanceOrCompleteJoin)."""
    both, one = {"subscription": subscription("orders", "other")}, {"subscription": subscription("orders")}
    has, static = {"orders": [0], "other": [0]}, {"group_instance_id": "s"}
    b = member({"orders": [1]}, **both)
    rows = fold(
        [
            classic(1, 1_000, 1, {"s-1": member(has, **both, **static), "b": b}),
            classic(2, 5_000, 1, {"s-2": member(has, **one, **static), "b": b}),
        ]
    )
    [generation] = rows["generations"]
    assert generation["is_assignors_own"] is not False, generation["assignment_note"]


def test_is_assignors_own_where_history_begins_between_cooperative_rounds_is_not_false() -> None:
    """Member a claims six partitions and three are withheld; the three assigned ones count."""
    had = {"subscription": subscription("orders", owned={"orders": range(6)}, generation=16)}
    members = {"a": member({"orders": [0, 1, 2]}, **had), "b": member({})}
    [generation] = fold([classic(1, 1_000, 17, members, protocol="cooperative-sticky")])["generations"]
    assert generation["is_assignors_own"] is not False, generation["assignment_note"]


def test_explain_round_robin_of_sarama_with_twelve_partitions_is_not_false() -> None:
    """IBM/sarama balance_strategy.go sorts partitions as texts: orders-0, orders-1, orders-10, orders-2."""
    members = [Subscriber(name, None, frozenset({"orders"}), frozenset(), -1, None) for name in "abc"]
    in_order = sorted(range(12), key=lambda number: f"orders-{number}")
    assigned = {name: [("orders", number) for number in in_order[first::3]] for first, name in enumerate("abc")}
    found = explain("roundrobin", members, {"orders": 12}, assigned)
    assert found.is_own is not False, found.note

"""Who is to blame for an epoch of a consumer group: members that join without topics begin none.

A member that subscribes to a pattern alone joins without an epoch (GMM.maybeUpdateRegularExpressions). The pattern
is resolved later, ten seconds after the last time at the earliest (GMM.REGEX_BATCH_REFRESH_MIN_INTERVAL_MS), and
begins an epoch only if it matches topics (GMM.handleRegularExpressionsResult).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from grouptrail.history.operations import Record
from support.fold_records import HOUR, current, epoch, joins, leaves, regex, target, target_epoch
from support.group_records import Row, fold

PATTERN = "^p.*"
NAMES = {"T": "orders", "P": "payments"}


def stable() -> list[Record]:
    """Return the records of a group in epoch 2, whose only member has two partitions."""
    records = [joins(0, 1_000, "a"), epoch(1, 1_000, 2), target(2, 1_000, "a", [0, 1]), target_epoch(3, 1_000, 2)]
    return [*records, current(4, 1_000, "a", 2, [0, 1], previous=0)]


def joins_without_topics(offset: int, at: int, name: str = "r", pattern: str | None = PATTERN) -> list[Record]:
    said = joins(offset, at, name, subscribedTopicNames=[], subscribedTopicRegex=pattern)
    return [said, current(offset + 1, at, name, 2, [], previous=0)]


def grows(offset: int, at: int, number: int) -> list[Record]:
    """Return an epoch in which `orders` has a third partition."""
    records = [epoch(offset, at, number, metadataHash=7), target(offset + 1, at, "a", [0, 1, 2])]
    return [
        *records,
        target_epoch(offset + 2, at, number),
        current(offset + 3, at, "a", number, [0, 1, 2], previous=2),
    ]


def causes(records: Sequence[Record], calls: Sequence[tuple[int, int]] | None = None) -> list[tuple[Any, ...]]:
    """Return what caused the epochs after the first."""
    rows = fold(records, calls, names=NAMES)["rebalances"][1:]
    return [(row["to_generation"], row["cause"], row["certainty"]) for row in rows]


def last(records: Sequence[Record]) -> Row:
    return fold(records, names=NAMES)["rebalances"][-1]


GREW = (3, "partitions_added", "likely")
JOINED = (4, "member_joined", "recorded")


@pytest.mark.parametrize("pattern", [PATTERN, None], ids=["a pattern that waits", "no topics at all"])
@pytest.mark.parametrize("is_cut", [False, True])
def test_cause_of_new_partitions_after_a_member_without_topics_joined(pattern: str | None, is_cut: bool) -> None:
    records = [*stable(), *joins_without_topics(10, 100_000, pattern=pattern), *grows(20, 102_000, 3)]
    cuts = [(len(stable()), 10), (7, 15), (len(records), 99)] if is_cut else None
    assert causes(records, cuts) == [GREW]
    assert last(records)["members_joined"] == ["r"]


def test_cause_of_new_partitions_after_a_classic_member_of_a_mixed_group_joined_without_topics() -> None:
    """A Java consumer whose pattern matches no topic joins a mixed group (GMM.classicGroupJoinToConsumerGroup)."""
    said = {"classicMemberMetadata": {"sessionTimeoutMs": 45_000, "supportedProtocols": [{"name": "range"}]}}
    joined = joins(10, 100_000, "r", subscribedTopicNames=[], **said)
    assert causes([*stable(), joined, current(11, 100_000, "r", 2, [], previous=0), *grows(20, 5 * HOUR, 3)]) == [
        GREW
    ]


def test_cause_of_an_epoch_in_the_joins_own_operation_is_what_else_differs() -> None:
    """The heartbeat with which it joins is the first after the topic got its partition."""
    said = joins(10, 9_000, "r", subscribedTopicNames=[], subscribedTopicRegex=PATTERN)
    records = [*stable(), said, epoch(11, 9_000, 3, metadataHash=7), target(12, 9_000, "a", [0, 1, 2])]
    assert causes([*records, target_epoch(13, 9_000, 3), current(14, 9_000, "r", 3, [], previous=0)]) == [GREW]


def test_cause_of_a_resolved_pattern_after_another_epoch_is_the_member_that_joined_with_it() -> None:
    resolved = [regex(30, 108_000, PATTERN, "payments"), epoch(31, 108_000, 4, metadataHash=9)]
    records = [*stable(), *joins_without_topics(10, 100_000), *grows(20, 102_000, 3), *resolved]
    assert causes(records) == [GREW, JOINED]
    assert (last(records)["members_joined"], last(records)["cause_note"]) == (
        [],
        "the pattern ^p.* of earlier members was resolved",
    )


def test_cause_of_new_partitions_after_a_pattern_that_matches_nothing_was_resolved() -> None:
    records = [*stable(), *joins_without_topics(10, 100_000), regex(12, 100_050, PATTERN)]
    assert causes([*records, *grows(20, 5 * HOUR, 3)]) == [GREW]


def test_cause_of_a_topic_that_a_pattern_matches_later_is_not_the_join() -> None:
    records = [*stable(), *joins_without_topics(10, 100_000), regex(12, 100_050, PATTERN)]
    records += [regex(20, 5 * HOUR, PATTERN, "payments"), epoch(21, 5 * HOUR, 3, metadataHash=7)]
    assert causes(records) == [(3, "topic_created", "likely")]


def test_cause_of_an_epoch_after_a_leave_is_not_the_member_that_waits() -> None:
    records = [*stable(), *joins_without_topics(10, 100_000), *leaves(20, 102_000, "a"), epoch(23, 102_000, 3)]
    assert causes(records) == [(3, "member_left_or_expired", "ambiguous")]


def test_cause_where_a_member_with_topics_joins_is_its_join() -> None:
    joined = [joins(20, 102_000, "b", clientHost="/10.0.0.2"), epoch(21, 102_000, 3)]
    joined.append(current(22, 102_000, "b", 3, [], previous=0))
    records = [*stable(), *joins_without_topics(10, 100_000), *joined]
    assert causes(records) == [(3, "member_joined", "recorded")]
    assert last(records)["members_joined"] == ["b", "r"]


def test_cause_of_one_of_two_patterns_resolved_is_the_join_with_it() -> None:
    records = [*stable(), *joins_without_topics(10, 100_000), *joins_without_topics(14, 101_000, "s", "^q.*")]
    records += [regex(20, 110_000, PATTERN), regex(21, 110_000, "^q.*", "queue"), epoch(22, 110_000, 3)]
    assert causes(records) == [(3, "member_joined", "recorded")]


@pytest.mark.parametrize("joins_too", [False, True])
def test_cause_of_a_pattern_to_which_a_member_changed_is_its_subscription(joins_too: bool) -> None:
    """Where another joined with the same pattern, both wait for it: each would have begun the epoch."""
    changed = joins(10, 100_000, "a", subscribedTopicRegex=PATTERN)
    other = joins_without_topics(12, 101_000) if joins_too else []
    records = [*stable(), changed, *other, regex(20, 110_000, PATTERN, "payments"), epoch(21, 110_000, 3)]
    assert causes(records) == [(3, "member_joined" if joins_too else "subscription_changed", "recorded")]


def test_cause_of_a_pattern_of_members_that_history_found_there_is_not_certain() -> None:
    """Compaction took how they came to it."""
    records = [epoch(0, 1_000, 7), joins(10, 5_000, "a", subscribedTopicNames=[], subscribedTopicRegex=PATTERN)]
    records += [current(12, 5_000, "a", 7, []), regex(20, 6_000, PATTERN, "payments"), epoch(21, 6_000, 8)]
    assert causes(records) == [(8, "subscription_changed", "likely")]
    assert "or a member joined with it" in last(records)["cause_note"]


def test_cause_of_an_epoch_in_which_a_member_changes_to_an_unresolved_pattern_is_not_certain() -> None:
    """The new pattern begins an epoch later: this one may be that of new partitions."""
    changed = joins(10, 100_000, "a", subscribedTopicRegex=PATTERN)
    assert causes([*stable(), changed, epoch(11, 100_000, 3, metadataHash=7)]) == [
        (3, "subscription_changed", "likely")
    ]


def test_cause_of_an_epoch_in_which_a_member_changes_to_the_pattern_of_another_is_certain() -> None:
    records = [*stable(), *joins_without_topics(10, 100_000), regex(12, 100_050, PATTERN, "payments")]
    records += [epoch(13, 100_050, 3), joins(20, 110_000, "a", subscribedTopicRegex=PATTERN), epoch(21, 110_000, 4)]
    assert causes(records)[-1] == (4, "subscription_changed", "recorded")


def test_cause_of_a_pattern_that_is_dropped_alone_is_not_certain() -> None:
    records = [*stable(), regex(10, 5_000, PATTERN, "payments")._replace(body=None), epoch(11, 5_000, 3)]
    records[5:5] = [regex(5, 2_000, PATTERN, "payments")]
    assert causes(records) == [(3, "subscription_changed", "likely")]
    assert "compaction" in last(records)["cause_note"]


def test_cause_of_an_epoch_in_which_nothing_differs_after_a_join_without_topics_is_likely_the_join() -> None:
    records = [*stable(), *joins_without_topics(10, 100_000), epoch(20, 102_000, 3)]
    assert causes(records) == [(3, "member_joined", "likely")]


def test_cause_of_a_pattern_of_a_static_member_that_came_back_while_it_waited_is_its_join() -> None:
    joined = joins(10, 100_000, "s-1", subscribedTopicNames=[], subscribedTopicRegex=PATTERN, instanceId="s")
    records = [*stable(), joined, current(11, 100_000, "s-1", 2, [], previous=0)]
    records += [current(12, 101_000, "s-1", -2, []), *leaves(13, 102_000, "s-1")]
    records += [joins(16, 102_000, "s-2", subscribedTopicNames=[], subscribedTopicRegex=PATTERN, instanceId="s")]
    records += [target(17, 102_000, "s-2", []), current(18, 102_000, "s-2", 0, [])]
    records += [current(19, 102_000, "s-2", 2, [], previous=0), *grows(20, 103_000, 3)]
    assert causes([*records, regex(30, 110_000, PATTERN, "payments"), epoch(31, 110_000, 4)]) == [GREW, JOINED]

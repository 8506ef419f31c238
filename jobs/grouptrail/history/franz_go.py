"""The sticky assignors of franz-go, for members with the same topics and without racks.

Read in twmb/franz-go, pkg/kgo/internal/sticky/sticky.go and AdjustCooperative in pkg/kgo/group_balancer.go (1.22).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from grouptrail.history.dealing import java_order, partitions_of
from grouptrail.history.subscriber import Owners, Partition, Subscriber

_Plan = list[list[Partition]]
"""Partitions by the place of their member."""


def franz_go_sticky(
    subscribers: Sequence[Subscriber], counts: Mapping[str, int]
) -> tuple[Owners, frozenset[Partition]]:
    """Return what franz-go computes, and the part of it that another member still has; it uses the topics' order."""
    members = java_order(subscribers)
    partitions = partitions_of(counts)
    plan = _kept(members, partitions)
    _give_out(partitions, plan)
    _level(plan)
    owners = {partition: member.member_id for member, kept in zip(members, plan, strict=True) for partition in kept}
    return owners, _to_revoke(subscribers, owners)


def _kept(members: Sequence[Subscriber], partitions: Sequence[Partition]) -> _Plan:
    """Return what each member keeps: what it claims with the highest generation.

    A partition goes back to the member with the next highest one if that has less by more than one.
    """
    claims = _two_newest(members)
    plan: _Plan = [[] for _ in members]
    for partition in partitions:
        for _, place in claims[partition][:1]:
            plan[place].append(partition)
    for partition in partitions:
        if len(claims[partition]) > 1:
            now, before = (plan[place] for _, place in claims[partition])
            if len(before) + 1 < len(now):
                now.remove(partition)
                before.append(partition)
    for kept in plan:
        kept.sort(key=lambda each: (each[1], each[0]))
    return plan


def _two_newest(members: Sequence[Subscriber]) -> Mapping[Partition, list[tuple[int, int]]]:
    """Return the generations and members' places of the two newest claims of each partition; of equal ones the first
    two."""
    claims: dict[Partition, list[tuple[int, int]]] = defaultdict(list)
    for place, member in enumerate(members):
        for partition in member.owned:
            claims[partition].append((max(member.generation, 0), place))
    for of_partition in claims.values():
        of_partition.sort(key=lambda claim: -claim[0])
        del of_partition[2:]
    return claims


def _give_out(partitions: Sequence[Partition], plan: _Plan) -> None:
    """Give each free partition to the first member of a heap by number of partitions."""
    taken = {partition for kept in plan for partition in kept}
    heap = list(range(len(plan)))
    for place in reversed(range(len(heap) // 2)):
        _sink(heap, place, plan)
    for partition in partitions:
        if partition not in taken:
            plan[heap[0]].append(partition)
            _sink(heap, 0, plan)


def _sink(heap: list[int], place: int, plan: _Plan) -> None:
    """Move a member down the heap to its place; which of two equal ones comes first decides who gets a partition."""
    while (left := 2 * place + 1) < len(heap):
        below = min(range(left, min(left + 2, len(heap))), key=lambda each: len(plan[heap[each]]))
        if len(plan[heap[place]]) <= len(plan[heap[below]]):
            return
        heap[place], heap[below] = heap[below], heap[place]
        place = below


def _level(plan: _Plan) -> None:
    """Move each time the last partition of a member with the most to one with the fewest, until all are level."""
    levels: dict[int, list[int]] = defaultdict(list)
    for place, kept in enumerate(plan):
        levels[len(kept)].append(place)
    while (highest := max(levels)) > (lowest := min(levels)) + 1:
        pairs = min(len(levels[lowest]), len(levels[highest]))
        takers, givers = levels[lowest][:pairs], levels[highest][:pairs]
        for taker, giver in zip(takers, givers, strict=True):
            plan[taker].append(plan[giver].pop())
        for level, moved, to in ((lowest, takers, lowest + 1), (highest, givers, highest - 1)):
            levels[to] += moved
            levels[level] = levels[level][pairs:]
            if not levels[level]:
                del levels[level]


def _to_revoke(subscribers: Sequence[Subscriber], owners: Owners) -> frozenset[Partition]:
    """Return the partitions that a cooperative assignor withholds, as another member still has them.

    A claim does not count as the owner's if another member claims the partition with a higher generation.
    """
    newest: dict[Partition, int] = {}
    claimants: dict[Partition, list[Subscriber]] = defaultdict(list)
    for member in subscribers:
        for partition in member.owned:
            claimants[partition].append(member)
            newest[partition] = max(newest.get(partition, -1), member.generation)
    return frozenset(
        partition
        for partition, owner in owners.items()
        if any(one.member_id != owner for one in claimants[partition])
        and not any(one.member_id == owner and one.generation >= newest[partition] for one in claimants[partition])
    )

"""Why a group rebalanced, told from what the operation changed; never more than the records can tell."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from grouptrail.history.changes import Change, ending
from grouptrail.history.group import Group, Member, Partition


class Cause(NamedTuple):
    """A cause, how sure it is (recorded, likely, ambiguous), and what else it may have been."""

    name: str
    certainty: str = "recorded"
    note: str | None = None


_BY_ENDING = {
    frozenset({"left"}): Cause("member_left"),
    frozenset({"expired"}): Cause("member_expired", "likely"),
    frozenset({"expired_or_removed"}): Cause("static_member_expired_or_removed", "likely"),
}
_LEADER = "leader_rejoined_or_coordinator_moved"


def cause(seen: Change, *, is_first: bool, given_up: Collection[Partition]) -> Cause:
    """Why the generation behind `seen` came; `given_up` are the partitions that rebalances before left to nobody."""
    if is_first and (seen.after.is_polled or not _is_beginning(seen)):
        return Cause("unknown", "ambiguous", "history begins here")
    if seen.after.is_polled:
        return _as_polled(_cause(seen, given_up))
    return _cause(seen, given_up)


def _as_polled(told: Cause) -> Cause:
    """Between two polls there may have been several rebalances, each with a cause of its own."""
    certainty = "likely" if told.certainty == "recorded" else told.certainty
    note = "polled: all that changed since the poll before is told as one rebalance"
    return Cause(told.name, certainty, f"{told.note}; {note}" if told.note else note)


def _cause(seen: Change, given_up: Collection[Partition]) -> Cause:
    if seen.is_conversion:
        return Cause("protocol_migrated", note=f"from {seen.before.kind} to {seen.after.kind}")
    found = _by_members(seen)
    if found is not None:
        return found
    if seen.after.kind == "classic":
        return _classic_cause(seen, given_up)
    return _epoch_cause(seen)


def _is_beginning(seen: Change) -> bool:
    """Whether a group's first record can be its first at all."""
    first = {"classic": 1, "consumer": 2, "share": 2, "streams": 2}
    return (seen.after.generation or 0) <= first[seen.after.kind or "classic"]


def _by_members(seen: Change) -> Cause | None:
    """From who joined and who left; the first that fits."""
    if not seen.after.members:
        return Cause("group_emptied", note=_endings(seen.left, seen))
    if not seen.before.members:
        return Cause("group_started", note="the first members")
    if seen.joined:
        return Cause("members_joined_and_left" if seen.left or seen.rejoined else "member_joined")
    if seen.left:
        kinds = frozenset(ending(member, seen).ended for member in seen.left)
        told = _BY_ENDING.get(kinds, Cause("member_left_or_expired", "ambiguous"))
        return told._replace(note=_endings(seen.left, seen))
    return next((told for members, told in _of_those_who_stayed(seen) if members), None)


def _of_those_who_stayed(seen: Change) -> Iterator[tuple[object, Cause]]:
    same = "same client id and host under a new id; or one left and one joined"
    yield seen.rejoined, Cause("member_rejoined", "likely", same)
    yield seen.replaced, Cause("static_member_replaced")
    yield seen.resubscribed, Cause("subscription_changed", note="or a pattern matched other topics")


def _endings(members: Iterable[Member], seen: Change) -> str | None:
    return "; ".join(dict.fromkeys(ending(member, seen).because for member in members)) or None


def _classic_cause(seen: Change, given_up: Collection[Partition]) -> Cause:
    before, after = seen.before, seen.after
    if before.protocol != after.protocol:
        return Cause("assignor_changed", note=f"from {before.protocol} to {after.protocol}")
    if any(member.topics is None for group in (before, after) for member in group.members.values()):
        return Cause("unknown", "ambiguous", "subscriptions could not be read")
    had, has = universe(before), universe(after)
    if had is None or has is None:
        return Cause("unknown", "ambiguous", "assignments could not be read")
    back = has & set(given_up) if after.is_cooperative else frozenset[Partition]()
    new = has - had
    if new and new <= back:
        return Cause("cooperative_follow_up", note="assigns what was given up before, and left to nobody")
    if new and not had and (after.protocol_type != "connect" or new <= set(given_up)):
        return Cause(_LEADER, "ambiguous", "nothing was assigned before: the leader knew no partitions of its topics")
    return _by_partitions(had | back, has) or Cause(
        _LEADER, "ambiguous", "nothing visible changed: fresh metadata, a forced rebalance or a new coordinator"
    )


def _by_partitions(had: frozenset[Partition], has: frozenset[Partition]) -> Cause | None:
    """From which partitions are assigned at all, before and now."""
    topics_before, topics_now = {topic for topic, _ in had}, {topic for topic, _ in has}
    if created := topics_now - topics_before:
        return Cause("topic_created", "likely", f"{_listed(created)}: created, or assigned for the first time")
    if deleted := topics_before - topics_now:
        return Cause("topic_deleted", "likely", f"{_listed(deleted)}: deleted, or not assigned any more")
    if has - had:
        return Cause("partitions_added", "likely", f"of {_listed({topic for topic, _ in has - had})}")
    return None


def _epoch_cause(seen: Change) -> Cause:
    before, after = seen.before, seen.after
    if seen.after.regexes != seen.before.regexes:
        return _regex_cause(before, after)
    if before.metadata_hash != after.metadata_hash:
        return Cause("topic_metadata_changed", note="partitions, topics or racks: the assignment that follows tells")
    if after.kind == "share":
        return Cause("share_state_ready", "likely", "the share state of its partitions was made")
    if after.kind == "streams":
        return Cause("topology_or_settings_changed", "likely")
    return Cause("unknown", "ambiguous")


def _regex_cause(before: Group, after: Group) -> Cause:
    for regex, topics in after.regexes.items():
        if regex not in before.regexes:
            return Cause("subscription_changed", note=f"the pattern {regex} was resolved to {len(topics)} topics")
        gained, lost = set(topics) - set(before.regexes[regex]), set(before.regexes[regex]) - set(topics)
        if gained:
            return Cause("topic_created", note=f"{_listed(gained)} matched by the pattern {regex}")
        if lost:
            return Cause("topic_deleted", note=f"{_listed(lost)} no more matched by the pattern {regex}")
    return Cause("subscription_changed", note="a pattern is no more in use")


def metadata_cause(had: frozenset[Partition], has: frozenset[Partition]) -> Cause:
    """What a change of topic metadata was, once the members' targets (before and now) are known."""
    return _by_partitions(had, has) or Cause(
        "topic_metadata_changed",
        "ambiguous",
        "the same partitions are assigned: racks, or a topic that is not assigned",
    )


def universe(group: Group) -> frozenset[Partition] | None:
    """All partitions that a group's members have; None where that of one is not known."""
    owned = [member.owned for member in group.members.values()]
    return None if None in owned else frozenset().union(*(one for one in owned if one is not None))


def targets(group: Group) -> frozenset[Partition]:
    """All partitions that a group's members shall have."""
    return frozenset().union(*(member.target or frozenset() for member in group.members.values()))


def _listed(topics: Iterable[str]) -> str:
    names = sorted(topics)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

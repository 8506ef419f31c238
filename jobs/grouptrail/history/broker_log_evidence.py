"""What the brokers' own log proves about rebalances and endings that the records leave open.

Pure functions of rows of `rebalances` and `memberships` and of rows of `broker_log_events`. A row is decided only
where exactly one chain of lines fits its group, generation, members and time, nothing contradicts it and no line of
it is doubtful. Coordinator and log have the same clock: the broker's. Lines of text, which a client could have
written, make a cause `likely` at most.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from grouptrail.history.evidence import LEADER, MOVED, PROBING, REJOINED, Certainty, Evidence

CLOCKS = timedelta(seconds=5)
"""How far a line may be from the record of the same moment: both have times of one broker."""

JOIN_PHASE = timedelta(hours=1)
"""The longest join phase that is matched: a rebalance timeout is five minutes by default."""

_ORDER = timedelta(seconds=1)
"""How far lines of several threads may be out of order."""

# The reasons of the Java client: AbstractCoordinator.close and handlePollTimeoutExpiry, KafkaConsumer.unsubscribe.
_CLOSED = frozenset({"the consumer is being closed", "the consumer unsubscribed from all topics"})
_POLL_TIMEOUT = "consumer poll timeout has expired."
# KafkaAdminClient.removeMembersFromConsumerGroup
_ADMINISTRATOR = "member was removed by an admin"
_NOT_PROVIDED = "not provided"
# Members that missed a rebalance: dead, or alive with an application that does not poll.
_MISSED = (
    "did not join",
    "did not sync",
    "it failed to transition",
    "the member failed to sync",
    "the classic member",
)
# AbstractCoordinator.joinGroupIfNeeded
_JOIN_FAILED = "rebalance failed due to "
_REVOKED = "need to revoke partitions"
# ConsumerCoordinator.rejoinNeededOrPending, KafkaConsumer.enforceRebalance
_NEW_METADATA = "cached metadata has changed"
# KafkaConsumer.enforceRebalance without a reason, and with those of StreamThread, which has a time if it probes.
_ENFORCED = frozenset(
    {
        "rebalance enforced by user",
        "triggered followup rebalance scheduled for 0",
        "Active tasks corrupted",
        "Shutdown requested",
    }
)
_PROBING = re.compile(r"triggered followup rebalance scheduled for [1-9]\d*")

_GONE = frozenset({"member_left", "member_expired", "member_left_or_expired", "static_member_expired_or_removed"})
_STATIC_GONE = "static_member_expired_or_removed"
_SILENT = "its partitions had been committed regularly until about its max.poll.interval.ms before"
_COMMITTED = "its partitions were committed regularly until shortly before: its application had polled"
# Of a member of a KIP-848 group; Java's leaves if its application does not poll (ConsumerHeartbeatRequestManager).
_EXPIRED_IN_EPOCH = "the member session expired"
_SENDS_NOTHING = "as of librdkafka's members also if their application does not poll"
_DEAD_OR_STALLED = "because it had crashed, or its application did not poll"
_UNKNOWN_EPOCHS = frozenset({"unknown", "topic_metadata_changed"})
_OPEN_ENDINGS = frozenset({"left_or_expired", "expired_or_removed"})
_ENDS = frozenset({"assignment_received", "group_emptied"})
_MOVES = frozenset({"group_loaded", "group_unloaded"})
_REMOVALS = frozenset({"member_left", "member_expired"})

Row = Mapping[str, Any]


class ProvingLine(NamedTuple):
    """A line of the log, and its time."""

    at: datetime
    line: str


@dataclass(frozen=True, slots=True)
class RebalanceProof:
    """The cause of a rebalance, and the lines that prove it, in order.

    `is_forgeable`: a client could have written one of them. `is_perhaps` are other causes that they do not exclude.
    """

    evidence: Evidence
    cause_note: str
    lines: tuple[ProvingLine, ...]
    is_forgeable: bool = False
    is_perhaps: frozenset[str] = frozenset()

    @property
    def cause(self) -> str:
        return self.evidence.value.cause

    @property
    def certainty(self) -> Certainty:
        return "likely" if self.is_forgeable else self.evidence.value.certainty


@dataclass(frozen=True, slots=True)
class EndingProof:
    """How a membership ended, and the lines that prove it, in order. `is_forgeable` as in `RebalanceProof`."""

    ended: str
    ended_because: str
    evidence: Evidence
    lines: tuple[ProvingLine, ...]
    is_forgeable: bool = False


class _Polls(NamedTuple):
    """What commits and times show of members that are gone: those that had polled in time, and those that had not."""

    in_time: Collection[str]
    stopped: Collection[str]


def prove_rebalance(
    rebalance: Row,
    events: Iterable[Row],
    *,
    polling: Collection[str] = frozenset(),
    stopped_polling: Collection[str] = frozenset(),
) -> RebalanceProof | None:
    """Return what the log proves about a row of `rebalances`; None if it is `recorded` already, or nothing is proved.

    `events` are rows of `broker_log_events` of its cluster, from `JOIN_PHASE` before its `at` to `CLOCKS` after.
    `polling` are members that are gone before their poll timeout had passed since their first join, or since a commit
    that shows that they polled (`had_polled`): a client that leaves because its application does not poll sends what
    one sends that is closed. `stopped_polling` are those whose commits show that, if they left by themselves
    (`had_stopped_polling`).
    """
    at = rebalance["at"]
    if rebalance["certainty"] == "recorded" or at is None:
        return None
    ours, polls = _of_group(rebalance, events), _Polls(polling, stopped_polling)
    if rebalance["group_kind"] == "classic":
        return _classic(rebalance, ours, polls)
    near = [event for event in ours if abs(event["logged_at"] - at) <= CLOCKS]
    if rebalance["cause"] in _GONE:
        return _gone(rebalance, near, None, polls)
    if rebalance["cause"] in _UNKNOWN_EPOCHS:
        return _epoch(rebalance, near)
    return None


def prove_ending(
    membership: Row,
    events: Iterable[Row],
    *,
    poll_timeout: timedelta | None = None,
    polled: bool = False,
    stopped_polling: bool = False,
) -> EndingProof | None:
    """Return what the log proves about the end of a row of `memberships`; None if it is known, or nothing is proved.

    `events` are as for `prove_rebalance`, by `left_at`. `poll_timeout` is the member's rebalance timeout, if known:
    without it a leave for which the client gave no reason may be that of an application that does not poll.
    `polled`: its commits show that it is not. `stopped_polling`: they show that it is, if the member left by itself.
    """
    is_open = membership["ended"] in _OPEN_ENDINGS and membership["left_at"] is not None
    removal = _removal_of(membership, events) if is_open else None
    if removal is None:
        return None
    because = f"the coordinator logged that it removed the member: {_expiry(removal)}"
    if _missed_rebalance(removal):
        rule = Evidence.LOGGED_REBALANCE_TIMEOUT
        return _ending_proof("rebalance_timeout", f"{because}, {_DEAD_OR_STALLED}", rule, removal)
    if removal["event"] == "member_expired":
        return _ending_proof("expired", because, Evidence.LOGGED_EXPIRY, removal)
    # A static member that closes rarely sends a LeaveGroup request, which has a reason.
    is_static = membership["ended"] == "expired_or_removed"
    ended, rule = _ended_for(removal["reason"])
    if rule is not Evidence.LOGGED_LEAVE_UNEXPLAINED:
        return _ending_proof(ended, _leave(removal), rule, removal)
    if removal["reason"] is not None and is_static:
        return None
    is_young = poll_timeout is not None and removal["logged_at"] - membership["joined_at"] < poll_timeout
    return _unexplained_leave(removal, is_young=is_young, polled=polled, stopped_polling=stopped_polling)


def _ended_for(reason: str | None) -> tuple[str, Evidence]:
    """Return how a member left by the reason in its LeaveGroup request."""
    if reason in _CLOSED:
        return "left", Evidence.LOGGED_LEAVE
    if reason == _POLL_TIMEOUT:
        return "poll_timeout", Evidence.LOGGED_POLL_TIMEOUT
    if _is_administrator(reason):
        return "removed", Evidence.LOGGED_REMOVAL
    return "left_or_poll_timeout", Evidence.LOGGED_LEAVE_UNEXPLAINED


def _unexplained_leave(removal: Row, *, is_young: bool, polled: bool, stopped_polling: bool) -> EndingProof:
    said, rule = _leave(removal), Evidence.LOGGED_LEAVE_UNEXPLAINED
    if is_young:
        # The heartbeat by which a KIP-848 member leaves has no reason, and is sent by the member alone.
        return _ending_proof("left", said, Evidence.LOGGED_LEAVE if removal["reason"] is None else rule, removal)
    if polled:
        return _ending_proof("left", f"{said}; {_COMMITTED}", rule, removal)
    if stopped_polling:
        return _ending_proof("poll_timeout", f"{said}; {_SILENT}", Evidence.LOGGED_LEAVE_AFTER_SILENCE, removal)
    return _ending_proof("left_or_poll_timeout", said, rule, removal)


def _ending_proof(ended: str, because: str, evidence: Evidence, line: Row) -> EndingProof:
    forged = _unless_forged([line])
    return EndingProof(ended, because + forged, evidence, (_proving(line),), bool(forged))


def _removal_of(membership: Row, events: Iterable[Row]) -> Row | None:
    first = max(membership["joined_at"], membership["left_at"] - JOIN_PHASE)
    last = membership["left_at"] + CLOCKS
    within = [one for one in _of_group(membership, events) if first <= one["logged_at"] <= last]
    return _removal(membership["member_id"], within)


def _proving(event: Row) -> ProvingLine:
    return ProvingLine(event["logged_at"], event["line"])


_FORGED = "; unless a client wrote this line of the log"


def _unless_forged(lines: Sequence[Row]) -> str:
    return _FORGED if any(one["is_forgeable"] for one in lines) else ""


def _proof(evidence: Evidence, note: str, lines: Sequence[Row], *, is_perhaps: str | None = None) -> RebalanceProof:
    forged = _unless_forged(lines)
    proving = tuple(dict.fromkeys(map(_proving, lines)))
    others = frozenset(() if is_perhaps is None else (is_perhaps,))
    return RebalanceProof(evidence, note + forged, proving, bool(forged), others)


def _of_group(row: Row, events: Iterable[Row]) -> list[Row]:
    """Return the events of the row's group, in order, each once, without those of another partition.

    A line that was ingested twice counts as it was trusted most.
    """
    partition = row.get("record_partition")
    ours: dict[tuple[object, ...], Row] = {}
    for event in sorted(events, key=lambda event: not event["is_forgeable"]):
        if event["group_id"] == row["group_id"] and event["record_partition"] in (None, partition):
            ours[event["line"], event["logged_at"], event["event"], event["member_id"]] = event
    return sorted(ours.values(), key=lambda event: event["logged_at"])


def _only(events: Sequence[Row]) -> Row | None:
    """Return the only event, unless it is doubtful."""
    return events[0] if len(events) == 1 and events[0]["doubt"] is None else None


def _removal(member: str, events: Sequence[Row]) -> Row | None:
    return _only([one for one in events if one["event"] in _REMOVALS and one["member_id"] == member])


@dataclass(frozen=True, slots=True)
class _Chain:
    """The lines that began and ended a rebalance of a classic group, and the group's lines between them."""

    start: Row
    during: Sequence[Row]


def _classic(rebalance: Row, events: Sequence[Row], polls: _Polls) -> RebalanceProof | None:
    chain = _chain(rebalance, events)
    if chain is None:
        return None
    cause, start = rebalance["cause"], chain.start
    if cause in _GONE:
        return _gone(rebalance, chain.during, start, polls)
    if cause == "static_member_replaced" and start["trigger"] == "static_member_replaced":
        return _proof(Evidence.LOGGED_REPLACEMENT, _logged(start), [start])
    if cause in (LEADER, REJOINED, MOVED, PROBING) and start["trigger"] in (
        "leader_rejoined",
        "member_metadata_changed",
    ):
        changed = (rebalance["members_joined"], rebalance["members_left"], rebalance["subscriptions_changed"])
        return None if any(changed) else _rejoined(rebalance["to_generation"], start, events)
    return None


def _chain(rebalance: Row, events: Sequence[Row]) -> _Chain | None:
    """Return the lines from the beginning of a rebalance to its end, if they are there once, of one coordinator."""
    number = rebalance["to_generation"]
    ends = [one for one in events if one["event"] in _ENDS and one["generation"] == number]
    end = _only([one for one in ends if abs(one["logged_at"] - rebalance["at"]) <= CLOCKS])
    if end is None or rebalance["from_generation"] != number - 1:
        return None
    first, last = end["logged_at"] - JOIN_PHASE, end["logged_at"] + _ORDER
    loads = [one for one in events if one["event"] == "group_loaded" and one["broker_id"] == end["broker_id"]]
    if loaded := [one for one in loads if one["doubt"] is None and first <= one["logged_at"] <= end["logged_at"]]:
        first = loaded[-1]["logged_at"]  # what the coordinator before had begun is not in the records
    starts = [one for one in events if one["event"] == "rebalance_started" and one["generation_before"] == number - 1]
    start = _only([one for one in starts if first <= one["logged_at"] <= last])
    if start is None or start["broker_id"] != end["broker_id"]:
        return None
    if any(start["logged_at"] < one["logged_at"] <= last for one in events if one["event"] in _MOVES):
        return None
    during = [one for one in events if start["logged_at"] - _ORDER <= one["logged_at"] <= last]
    return _Chain(start, during)


def _gone(rebalance: Row, events: Sequence[Row], start: Row | None, polls: _Polls) -> RebalanceProof | None:
    """Return why members are gone, if all for the same reason and, in a classic group, it began the rebalance."""
    if rebalance["members_joined"] or not rebalance["members_left"]:
        return None
    found = [_removal(member, events) for member in rebalance["members_left"]]
    removals = [one for one in found if one is not None]
    kinds = {one["event"] for one in removals}
    if len(removals) < len(found) or len(kinds) > 1:
        return None
    lines = [*removals, *([start] if start else [])]
    trigger = None if start is None else start["trigger"]
    if kinds == {"member_left"}:
        return _left(rebalance, removals, lines, polls) if trigger in (None, "member_left") else None
    if trigger not in (None, "member_expired") or any(_missed_rebalance(one) for one in removals):
        return None
    note = f"the coordinator logged: {'; '.join(sorted({_expiry(one) for one in removals}))}"
    return _proof(Evidence.LOGGED_EXPIRY, note, lines)


def _left(rebalance: Row, removals: Sequence[Row], lines: Sequence[Row], polls: _Polls) -> RebalanceProof | None:
    reasons = {one["reason"] for one in removals}
    notes = "; ".join(sorted({_leave(one) for one in removals}))
    if reasons == {_POLL_TIMEOUT}:
        return _proof(Evidence.LOGGED_POLL_TIMEOUT, notes, lines)
    if all(_is_administrator(one) for one in reasons):
        return _proof(Evidence.LOGGED_REMOVAL, notes, lines)
    # A static member that closes rarely sends a LeaveGroup request.
    if any(_is_administrator(one) for one in reasons) or (rebalance["cause"] == _STATIC_GONE and reasons - _CLOSED):
        return None
    unsaid = [one for one in removals if one["reason"] not in _CLOSED]
    # The heartbeat by which a KIP-848 member leaves has no reason, and is sent by the member alone.
    others = ["an administrator removed it"] if any(one["reason"] is not None for one in unsaid) else []
    unexplained = {one["member_id"] for one in unsaid}
    if len(unsaid) == len(removals) and unexplained <= {*polls.stopped}:
        return _proof(Evidence.LOGGED_LEAVE_AFTER_SILENCE, f"{notes}; {_SILENT}", lines)
    may_have_stalled = not unexplained <= {*polls.in_time}
    if may_have_stalled:
        others.append("its application had not polled within max.poll.interval.ms")
    if not others:
        return _proof(Evidence.LOGGED_LEAVE, notes, lines)
    note = f"{notes}; or {', or '.join(others)}"
    stalled = "member_poll_timeout" if may_have_stalled else None
    return _proof(Evidence.LOGGED_LEAVE_UNEXPLAINED, note, lines, is_perhaps=stalled)


def _rejoined(number: int, start: Row, events: Sequence[Row]) -> RebalanceProof | None:
    """Return whether the leader or another member joined again by itself, or because the coordinator had moved."""
    last = start["logged_at"] + _ORDER
    ends = [one for one in events if one["event"] == "assignment_received" and one["generation"] == number - 1]
    stable = _only([one for one in ends if one["logged_at"] <= last])
    if stable is None:
        return None
    moves = [
        one for one in events if one["event"] in _MOVES and stable["logged_at"] - _ORDER <= one["logged_at"] <= last
    ]
    _, _, words = (start["reason"] or "").partition("; client reason: ")
    if moves or stable["broker_id"] != start["broker_id"]:
        loaded = [one for one in moves if one["event"] == "group_loaded" and one["doubt"] is None]
        if not loaded or not words.startswith(_JOIN_FAILED) or start["trigger"] != "leader_rejoined":
            return None
        return _proof(Evidence.LOGGED_MOVE, _logged(start), [stable, loaded[-1], start])
    return None if words.startswith((_REVOKED, _JOIN_FAILED)) else _asked(words, [stable, start])


def _asked(words: str, lines: Sequence[Row]) -> RebalanceProof | None:
    """Return why a member joined again, as far as its client says; the last of the lines began the rebalance."""
    start = lines[-1]
    logged, is_leader = _logged(start), start["trigger"] == "leader_rejoined"
    if _PROBING.fullmatch(words):
        return _proof(Evidence.LOGGED_PROBING, logged, lines)
    if words in _ENFORCED:
        forced = Evidence.LOGGED_FORCED_REBALANCE if is_leader else Evidence.LOGGED_REJOIN_OF_MEMBER
        return _proof(forced, logged, lines)
    if not is_leader:
        return None
    if words.startswith(_NEW_METADATA):
        return _proof(Evidence.LOGGED_METADATA_OF_LEADER, f"{logged}: by the leader's own words", lines)
    note = f"{logged}: for fresh metadata or a forced rebalance"
    return _proof(Evidence.LOGGED_REJOIN, note, lines, is_perhaps=PROBING)


def _epoch(rebalance: Row, events: Sequence[Row]) -> RebalanceProof | None:
    """Return what was logged right before an epoch was bumped, if that is one thing."""
    bumped = _only(
        [one for one in events if one["event"] == "epoch_bumped" and one["generation"] == rebalance["to_generation"]]
    )
    if bumped is None or rebalance["members_joined"] or rebalance["members_left"]:
        return None
    # A heartbeat is handled by one thread: what it changes is logged before its epoch, and after the one before.
    earlier = [one for one in events if one["logged_at"] <= bumped["logged_at"] and one is not bumped]
    between = [one for one in earlier if one["logged_at"] >= bumped["logged_at"] - _ORDER]
    if not between or any(one["doubt"] is not None for one in between):
        return None
    if {one["event"] for one in between} == {"metadata_changed"}:
        return _proof(Evidence.LOGGED_METADATA, _logged(between[-1]), [between[-1], bumped])
    return None


def _missed_rebalance(event: Row) -> bool:
    return event["event"] == "member_expired" and (event["reason"] or "").startswith(_MISSED)


def _expiry(event: Row) -> str:
    reason: str = event["reason"] or "its session expired"
    return f"{reason}, {_SENDS_NOTHING}" if reason.startswith(_EXPIRED_IN_EPOCH) else reason


def _leave(event: Row) -> str:
    reason = event["reason"]
    if reason is None:
        return "the coordinator logged that the member left"
    if _is_administrator(reason):
        return f"the coordinator logged a LeaveGroup request of an administrator: {reason}"
    if reason == _POLL_TIMEOUT:
        return "the coordinator logged a LeaveGroup request: the client had not polled within max.poll.interval.ms"
    if reason == _NOT_PROVIDED:
        return "the coordinator logged a LeaveGroup request without a reason: of the client, or of an administrator"
    return f"the coordinator logged a LeaveGroup request; the client's reason: {reason}"


def _logged(event: Row) -> str:
    return f"the coordinator logged: {event['reason'] or event['event'].replace('_', ' ')}"


def _is_administrator(reason: str | None) -> bool:
    return reason is not None and reason.startswith(_ADMINISTRATOR)

"""How members left, by the last commits of their partitions; the group's own records often do not show it.

The fold lists the members that are gone, with what they owned (`departures`). When the rows are written,
`departure_commits` adds what the offset commits of that time say, and `end_by_commits` what follows from them.

A coordinator takes a plain commit only from a member of the current generation, and renews a classic member's
session with it (OffsetMetadataManager.validateOffsetCommit). Commits in a transaction (TxnOffsetCommit) renew none,
so they are not used. Those of a KIP-848 member renew none either, but show that it ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from grouptrail.history.causes import Cause, Finding, concluded_cause
from grouptrail.history.changes import Change
from grouptrail.history.endings import LARGEST_SKEW_MS, Ending, concluded, ending
from grouptrail.history.evidence import EndingEvidence, Evidence
from grouptrail.history.group import Member
from grouptrail.history.rows import Values
from grouptrail.history.state import FoldState

UNKNOWN = "member_left_or_expired"
"""The cause that departures can decide."""

EMPTIED = "group_emptied"
"""The cause whose note says how the last members left."""

LEAST_WINDOW = timedelta(minutes=10)
"""How far commits are searched before the longest of a member's timeouts."""

_OPEN = {
    EndingEvidence.NO_TIMES,
    EndingEvidence.WITHIN_CLOCKS,
    EndingEvidence.AFTER_TIMEOUTS,
    EndingEvidence.TOMBSTONES,
}
_MILLISECOND = timedelta(milliseconds=1)

# A consumer with auto-commit commits as it closes, and leaves then.
_CLOSING_MS = 2_000

# A rhythm is known from so many commits, none of them far from the next. A client may also be silent because there is
# nothing to read (librdkafka), unless it has committed what was committed before, or others go on in its topics.
_LEAST_COMMITS = 5
_LEAST_UNCHANGED = 2
_GAPS_IN_TIMEOUT = 3

# A session is renewed when the coordinator gets a commit, and the record is written after that.
_WRITTEN_LATER_MS = 1_000

# How long the others may take to join again: a heartbeat (3 s by default), and an answer.
_REJOIN_MS = 4_000
_REJOIN_OF_NOBODY_MS = 1_000


def departures(state: FoldState, change: Change) -> list[Values]:
    """Return elements of `rebalances.departed` for a change that begins a generation, before it is applied.

    Empty unless the records leave it open how at least one of them left.
    """
    if change.after.kind not in ("classic", "consumer") or change.is_conversion or change.may_miss_records:
        return []
    if change.after.is_polled or change.operation[-1].read_late_at is not None:
        return []
    if change.before.kind == "classic" and change.before.protocol_type != "consumer":
        return []  # what Connect workers own are no partitions
    by_records = {member.member_id: ending(member, change) for member in change.left}
    if not any(how.evidence in _OPEN for how in by_records.values()):
        return []
    return [_departure(state, change, member, by_records[member.member_id]) for member in change.left]


def _departure(state: FoldState, change: Change, member: Member, how: Ending) -> Values:
    before, after = change.before, change.after
    is_classic = after.kind == "classic"
    one_leader = before.leader_epoch is not None and before.leader_epoch == after.leader_epoch
    row = state.rows.memberships.get(member.member_id)
    rows = ((place, state.rows.ownership.get((*place, member.member_id))) for place in sorted(member.owned or ()))
    return {
        "member_id": member.member_id,
        "joined_at": row.joined_at if row else None,
        "left_at": max(change.boundary, row.joined_at if row else 0),
        "session_timeout_ms": member.session_timeout_ms if is_classic else None,
        "rebalance_timeout_ms": member.time_to_rejoin_ms if is_classic else member.rebalance_timeout_ms,
        "owned": [
            {"topic": topic, "partition": number, "since_offset": owned.record_offset}
            for (topic, number), owned in rows
            if owned is not None
        ]
        if how.evidence in _OPEN
        else [],
        "same_leader_from": before.record_offset if one_leader else None,
        "is_last": not after.members,
        "is_alone": len(change.left) + len(change.rejoined) + len(change.replaced) == 1,
        "ended": how.ended,
        "ended_because": how.because,
        "rule": how.evidence.name,
    }


def window(departure: Values, lookback: timedelta) -> timedelta:
    """Return how far before a departure its commits say something."""
    longest = max(departure["session_timeout_ms"] or 0, departure["rebalance_timeout_ms"] or 0)
    return min(lookback, timedelta(milliseconds=longest) + LEAST_WINDOW)


def is_open(departure: Values) -> bool:
    """Return whether commits of what a member owned may show how it left."""
    return bool(departure["owned"]) and EndingEvidence[departure["rule"]] in _OPEN


def ending_of(departure: Values) -> Ending:
    """Return how the member of an element of `rebalances.departed` left."""
    return Ending(EndingEvidence[departure["rule"]], departure["ended"], departure["ended_because"])


def is_by_commits(departure: Values) -> bool:
    """Return whether commits show how the member left, which the group's records leave open."""
    return departure["last_commit_at"] is not None and not is_open(departure)


def is_decided(departure: Values) -> bool:
    """Return whether the commits of a departure show how the member left."""
    return end_by_commits(departure) is not departure


def asks_others(departure: Values) -> bool:
    """Return whether the commits of others in the topics that a member read would show how it left."""
    with_others = {**departure, "others_advanced": True}
    return not is_decided(departure) and (is_decided(with_others) or had_stopped_polling(with_others))


def end_by_commits(departure: Values) -> Values:
    """Return a departure, an element of `rebalances.departed` with its commits, with the ending that they show.

    It stays as the records have it where they do not show one.
    """
    how = _by_commits(departure) if EndingEvidence[departure["rule"]] in _OPEN else None
    if how is None:
        return departure
    return {**departure, "ended": how.ended, "ended_because": how.because, "rule": how.evidence.name}


def _by_commits(departure: Values) -> Ending | None:
    last_at: datetime | None = departure["last_commit_at"]
    if last_at is None or last_at > departure["left_at"]:
        return None  # the latter if the coordinator's clock was set back
    age = (departure["left_at"] - last_at) // _MILLISECOND
    if departure["rule"] == EndingEvidence.TOMBSTONES.name:
        return concluded(EndingEvidence.AFTER_COMMIT_IN_EPOCH, age=age) if age <= _CLOSING_MS else None
    session: int | None = departure["session_timeout_ms"]
    rebalance: int | None = departure["rebalance_timeout_ms"]
    if session is None or rebalance is None:
        return None
    one_leader_from: int | None = departure["same_leader_from"]
    is_same_clock = one_leader_from is not None and departure["last_commit_offset"] > one_leader_from
    # A member that commits learns of a rebalance within a heartbeat: to miss it, it stopped after this commit, and
    # the others waited for its whole rebalance timeout.
    shortest = min(session, rebalance - _REJOIN_MS) - _WRITTEN_LATER_MS
    if age < shortest - (0 if is_same_clock else LARGEST_SKEW_MS):
        return concluded(EndingEvidence.AFTER_COMMIT, age=age, session=session, rebalance=rebalance)
    # Otherwise the join phase may have waited for another's session: a member that left with it looks the same.
    is_timed = is_same_clock and departure["is_alone"]
    return _by_silence(departure, age, session, rebalance) if is_timed and _is_regular(departure) else None


def _is_regular(departure: Mapping[str, Any]) -> bool:
    """Return whether a member would have committed again, had it gone on."""
    has_to_commit = departure["unchanged_commits"] >= _LEAST_UNCHANGED or departure["others_advanced"]
    return departure["commits"] >= _LEAST_COMMITS and bool(has_to_commit)


def had_polled(departure: Mapping[str, Any]) -> bool:
    """Return whether commits show that a classic member had polled within its rebalance timeout before it was gone.

    A client that commits in the background does so once more after the last poll.
    """
    last_at, rebalance = departure.get("last_commit_at"), departure["rebalance_timeout_ms"]
    if last_at is None or rebalance is None or departure["session_timeout_ms"] is None:
        return False
    age, gap = (departure["left_at"] - last_at) // _MILLISECOND, departure["longest_gap_ms"] or 0
    is_known = departure["commits"] >= _LEAST_COMMITS and _is_rhythm(gap, rebalance)
    return is_known and 0 <= age < rebalance - 2 * gap - LARGEST_SKEW_MS


def had_stopped_polling(departure: Mapping[str, Any]) -> bool:
    """Return whether a member that left by itself had not polled for its rebalance timeout, by its commits.

    That it left, and did not expire, has to be known: the session of a KIP-848 member is not in the records.
    """
    last_at, rebalance = departure.get("last_commit_at"), departure["rebalance_timeout_ms"]
    if last_at is None or rebalance is None or not _is_regular(departure):
        return False
    age, gap = (departure["left_at"] - last_at) // _MILLISECOND, departure["longest_gap_ms"] or 0
    late = gap + (_REJOIN_OF_NOBODY_MS if departure["is_last"] else _REJOIN_MS)
    return _is_rhythm(gap, rebalance) and rebalance - gap <= age <= rebalance + late


def _by_silence(departure: Values, age: int, session: int, rebalance: int) -> Ending | None:
    """Return how a member left whose regular commits ended some time (ms) before."""
    gap: int = departure["longest_gap_ms"]
    late = gap + (_REJOIN_OF_NOBODY_MS if departure["is_last"] else _REJOIN_MS)
    figures = {"commits": departure["commits"], "gap": gap, "age": age, "session": session}

    # A client that commits in the background does so once more after the last poll (librdkafka).
    if age < rebalance - gap:
        is_in_time = _is_rhythm(gap, session) and session <= age <= session + late
        return concluded(EndingEvidence.SILENT, **figures) if is_in_time else None
    if _is_rhythm(gap, rebalance) and session + late < age <= rebalance + late:
        return concluded(EndingEvidence.STALLED, **figures, rebalance=rebalance)
    return None


def _is_rhythm(gap: int, timeout: int) -> bool:
    return gap * _GAPS_IN_TIMEOUT <= timeout


def cause_by_departures(departed: Iterable[Values]) -> Cause | None:
    """Return the cause of a rebalance whose members are gone, where all of them left in one way."""
    listed = list(departed)
    shown = [EndingEvidence[one["rule"]].value.shows for one in listed]
    if len({evidence.value.cause for evidence in shown}) != 1 or Evidence.GONE in shown:
        return None
    weakest = max(shown, key=lambda evidence: len(evidence.value.otherwise or ""))
    return concluded_cause(Finding(weakest, _reasons(listed)))


def with_reasons(note: str | None, before: Iterable[Values], after: Iterable[Values]) -> str | None:
    """Return a note that begins with the reasons of departures with those that they have now."""
    was = _reasons(before)
    return note if note is None or not note.startswith(was) else _reasons(after) + note.removeprefix(was)


def _reasons(departed: Iterable[Values]) -> str:
    return "; ".join(dict.fromkeys(one["ended_because"] for one in departed))

"""Rows of `rebalances` and `memberships` with what the brokers' log proves, and how they were without it.

A line that is `recorded` replaces what records and commits make likely. Where they exclude what the log says, neither
is claimed. A row that has been judged before is judged again from its values without the log, so that the result does
not depend on when lines were ingested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from grouptrail.history.broker_log_evidence import (
    EndingProof,
    ProvingLine,
    RebalanceProof,
    Row,
    prove_ending,
    prove_rebalance,
)
from grouptrail.history.departures import EMPTIED, had_polled, had_stopped_polling
from grouptrail.history.evidence import LEADER, MOVED, REJOINED, Evidence
from grouptrail.history.rows import Values

SOURCE = "broker log"
"""The `source` of elements of a column `evidence` that are lines of the brokers' log."""

KEPT_CAUSE = {
    "cause": "cause_without_log",
    "certainty": "certainty_without_log",
    "cause_note": "note_without_log",
    "rule": "rule_without_log",
    "ruled_out": "ruled_out_without_log",
}
"""What the log changes in `rebalances`, besides `evidence`, and the columns that keep what it was."""
CAUSE_COLUMNS = (*KEPT_CAUSE, "evidence", *KEPT_CAUSE.values())
KEPT_ENDING = {
    "ended": "ended_without_log",
    "ended_because": "because_without_log",
    "rule": "rule_without_log",
    "ruled_out": "ruled_out_without_log",
}
"""What the log changes in `memberships`, besides `evidence`, and the columns that keep what it was."""
ENDING_COLUMNS = (*KEPT_ENDING, "evidence", *KEPT_ENDING.values())

_LEAVING = frozenset({"member_left", "member_expired", "member_poll_timeout"})
_LEADING = frozenset({LEADER, REJOINED, MOVED, "topic_metadata_changed", "member_rejoined"})
_ENDED = frozenset({"left", "expired", "poll_timeout"})
# What else the end may be that the log shows: an application that does not poll misses rebalances, too.
_COVERED = {"left_or_poll_timeout": {"left", "poll_timeout"}, "rebalance_timeout": {"poll_timeout"}}
_UNKNOWN_ENDING = "left_or_expired"
_UNKNOWN_CAUSE = "member_left_or_expired"
_MOST_FACTS = 20

# What each of these excludes, the log may not say. Other rules allow for what it says by their exceptions.
_EXCLUDING = frozenset(
    evidence.name
    for evidence in (
        Evidence.GONE_WITHIN_TIMEOUTS,
        Evidence.GONE_AFTER_COMMIT,
        Evidence.GONE_AFTER_COMMIT_IN_EPOCH,
        Evidence.GONE_SILENT,
        Evidence.GONE_STALLED,
        Evidence.NOTHING_BUT_LEADER_IN_EPOCH,
    )
)
_BY_COMMITS = frozenset(
    evidence.name
    for evidence in (
        Evidence.GONE_AFTER_COMMIT,
        Evidence.GONE_AFTER_COMMIT_IN_EPOCH,
        Evidence.GONE_SILENT,
        Evidence.GONE_STALLED,
    )
)


@dataclass(frozen=True, slots=True)
class Leaver:
    """What is known of a member that is gone: how long its application may take between two polls.

    `polled`: its commits show that it took no longer. `stopped_polling`: that it did, if it left by itself.
    """

    member_id: str
    poll_timeout: timedelta | None
    polled: bool = False
    stopped_polling: bool = False

    @classmethod
    def of(cls, departure: Row) -> Leaver:
        """Return what an element of `rebalances.departed` says."""
        ms = departure["rebalance_timeout_ms"]
        timeout = None if ms is None else timedelta(milliseconds=ms)
        return cls(departure["member_id"], timeout, had_polled(departure), had_stopped_polling(departure))


def conclude_rebalance(row: Row, events: Sequence[Row]) -> Values:
    """Return the columns of a row of `rebalances` that the log changes; `events` are as for `prove_rebalance`."""
    before = _before(row, KEPT_CAUSE)
    base = {**row, **before}
    is_emptied = base["cause"] == EMPTIED
    asked = {**base, "cause": _UNKNOWN_CAUSE} if base["cause"] in _LEAVING or is_emptied else base
    asked = {**asked, "certainty": "ambiguous"} if is_emptied else asked
    stopped = {one["member_id"] for one in row["departed"] or () if had_stopped_polling(one)}
    proof = prove_rebalance(asked, events, polling=_polling(row), stopped_polling=stopped) if events else None
    if proof is None:
        return _unchanged(row, before, KEPT_CAUSE)
    said = _emptied(before, proof) if is_emptied else _concluded(base, proof)
    return _changed(row, before, KEPT_CAUSE, said, proof.lines)


def _emptied(before: Values, proof: RebalanceProof) -> Values:
    """Return the cause of a group's end, which is recorded, with what the log says of how its members left."""
    notes = [before["cause_note"], f"the brokers' log: {proof.cause_note}"]
    return {**before, "cause_note": "; ".join(note for note in notes if note)}


def conclude_ending(row: Row, events: Sequence[Row], leaver: Leaver | None) -> Values:
    """Return the columns of a row of `memberships` that the log changes; `events` are as for `prove_ending`."""
    before = _before(row, KEPT_ENDING)
    base = {**row, **before}
    proof = _prove_ending(base, events, leaver or Leaver(row["member_id"], None)) if events else None
    if proof is None:
        return _unchanged(row, before, KEPT_ENDING)
    return _changed(row, before, KEPT_ENDING, _ended(base, proof), proof.lines)


def _before(row: Row, columns: Mapping[str, str]) -> Values:
    """Return what a row says without the log; the first of the columns is never null where the log changes it."""
    is_changed = row[next(iter(columns.values()))] is not None
    return {name: row[kept if is_changed else name] for name, kept in columns.items()}


def _unchanged(row: Row, before: Values, columns: Mapping[str, str]) -> Values:
    facts = _without_lines(row)
    evidence = row["evidence"] if len(facts) == len(row["evidence"] or ()) else facts
    return {**before, "evidence": evidence, **dict.fromkeys(columns.values())}


def _changed(
    row: Row, before: Values, columns: Mapping[str, str], said: Values, lines: Sequence[ProvingLine]
) -> Values:
    evidence = [*_without_lines(row), *(_fact(line) for line in lines[:_MOST_FACTS])]
    kept = {kept: None if said == before else before[name] for name, kept in columns.items()}
    return {**said, "evidence": evidence, **kept}


def _without_lines(row: Row) -> list[Any]:
    return [one for one in row["evidence"] or () if one["source"] != SOURCE]


def _polling(row: Row) -> set[str]:
    """Return the members that were gone before their poll timeout had passed since a time at which they polled."""
    return {one["member_id"] for one in row["departed"] or () if had_polled(one) or _is_young(one)}


def _is_young(departure: Row) -> bool:
    joined_at, ms = departure["joined_at"], departure["rebalance_timeout_ms"]
    if joined_at is None or ms is None:
        return False
    return bool(departure["left_at"] - joined_at < timedelta(milliseconds=ms))


def _concluded(base: Row, proof: RebalanceProof) -> Values:
    """Return the cause by the log, by records and commits, or by neither of them."""
    by_log = {
        "cause": proof.cause,
        "certainty": proof.certainty,
        "cause_note": proof.cause_note,
        "rule": proof.evidence.name,
        "ruled_out": None if proof.is_forgeable else proof.evidence.value.rules_out,
    }
    if base["certainty"] != "likely":
        return by_log
    unchanged = {name: base[name] for name in KEPT_CAUSE}
    is_recorded = proof.certainty == "recorded"
    if proof.cause == base["cause"]:
        return by_log if is_recorded else unchanged
    if base["cause"] in proof.is_perhaps:
        return unchanged
    if base["rule"] in _EXCLUDING or (not is_recorded and base["cause"] in {*_LEAVING, MOVED}):
        return by_log if _is_narrower(base, proof) else _differing(base, proof)
    return by_log


def _is_narrower(base: Row, proof: RebalanceProof) -> bool:
    """Return whether the log says why a leader joined again, or who let a member leave.

    The records show only that it did.
    """
    return (base["cause"], proof.cause) in ((REJOINED, "topic_metadata_changed"), ("member_left", "member_removed"))


def _differing(base: Row, proof: RebalanceProof) -> Values:
    is_about_leader = proof.cause in _LEADING
    evidence = Evidence.LOG_DIFFERS_ABOUT_LEADER if is_about_leader else Evidence.LOG_DIFFERS_ABOUT_MEMBERS
    source = "commits" if base["rule"] in _BY_COMMITS else "records"
    note = (
        f"the brokers' log shows {proof.cause} ({proof.cause_note}), but {source} show {base['cause']} "
        f"({base['cause_note'] or base['rule']})"
    )
    conclusion = evidence.value
    said = {"cause": conclusion.cause, "certainty": conclusion.certainty, "cause_note": note}
    return {**said, "rule": evidence.name, "ruled_out": None}


def _prove_ending(base: Row, events: Sequence[Row], leaver: Leaver) -> EndingProof | None:
    asked = {**base, "ended": _UNKNOWN_ENDING} if base["ended"] in _ENDED else base
    return prove_ending(
        asked,
        events,
        poll_timeout=leaver.poll_timeout,
        polled=leaver.polled,
        stopped_polling=leaver.stopped_polling,
    )


def _ended(base: Row, proof: EndingProof) -> Values:
    """Return how a membership ended by the log, by records and commits, or by neither of them."""
    by_log = {
        "ended": proof.ended,
        "ended_because": proof.ended_because,
        "rule": proof.evidence.name,
        "ruled_out": None if proof.is_forgeable else proof.evidence.value.rules_out,
    }
    if base["ended"] not in _ENDED or (base["ended"], proof.ended) == ("left", "removed"):
        return by_log
    unchanged = {name: base[name] for name in KEPT_ENDING}
    if proof.ended == base["ended"]:
        is_recorded = not proof.is_forgeable and proof.evidence.value.certainty == "recorded"
        return by_log if is_recorded else unchanged
    if base["ended"] in _COVERED.get(proof.ended, ()):
        return unchanged
    because = (
        f"the brokers' log shows {proof.ended} ({proof.ended_because}), but otherwise it is {base['ended']} "
        f"({base['ended_because']})"
    )
    rule = Evidence.LOG_DIFFERS_ABOUT_MEMBERS.name
    return {"ended": _UNKNOWN_ENDING, "ended_because": because, "rule": rule, "ruled_out": None}


def _fact(line: ProvingLine) -> dict[str, Any]:
    return {"source": SOURCE, "at": line.at, "record_partition": None, "record_offset": None, "shows": line.line}

"""Find the evidence for how a member left; the table in `evidence` maps it to an ending."""

from __future__ import annotations

from typing import NamedTuple

from grouptrail.history.changes import Change
from grouptrail.history.evidence import EndingEvidence, RemovalEvidence
from grouptrail.history.group import AWAY_EPOCH, Group, Member
from grouptrail.history.operations import Operation
from grouptrail.history.rows import Values

# A member that outlives its rebalance timeout got a new timer from another coordinator, and may then leave by itself.
_LONGEST_TIMER_DELAY_MS = 1_000

LARGEST_SKEW_MS = 10_000
"""How far the clocks of two coordinators may be apart."""

# The default of group.consumer.min.session.timeout.ms.
_SHORTEST_SESSION_MS = 45_000


class Ending(NamedTuple):
    """How a membership ended, as far as the log shows, and the evidence for it."""

    evidence: EndingEvidence
    ended: str
    because: str

    @property
    def recorded(self) -> str:
        """What the records show."""
        return self.evidence.value.recorded or self.evidence.value.shows.value.recorded

    @property
    def columns(self) -> Values:
        """The columns of `memberships` that say it."""
        rules_out = self.evidence.value.shows.value.rules_out
        proof = {"rule": self.evidence.name, "ruled_out": rules_out}
        return {"ended": self.ended, "ended_because": self.because, **proof}


def ending(member: Member, change: Change) -> Ending:
    """Return how a member left, although a leave and an expired session write the same records."""
    before, after = change.before, change.after
    if before.kind == "classic":
        return _classic_ending(member, before, after)
    if member.epoch == AWAY_EPOCH:
        away_ms = change.at - (member.away_since or change.at)
        is_long = member.away_since is None or away_ms >= _SHORTEST_SESSION_MS
        evidence = EndingEvidence.STATIC_WAS_AWAY if is_long else EndingEvidence.STATIC_WAS_AWAY_SHORTLY
        return concluded(evidence, since=f" {away_ms} ms before" if member.away_since is not None else "")
    timeout = member.rebalance_timeout_ms
    if member.unrevoked_since is not None and timeout:
        late_ms = change.at - member.unrevoked_since - timeout
        if 0 <= late_ms < _LONGEST_TIMER_DELAY_MS:
            return concluded(EndingEvidence.KEPT_PARTITIONS_TOO_LONG, rebalance=timeout)
    return concluded(EndingEvidence.TOMBSTONES)


def _classic_ending(member: Member, before: Group, after: Group) -> Ending:
    if member.instance_id is not None:
        return concluded(EndingEvidence.STATIC)
    session = member.session_timeout_ms
    if before.join_ended_at is None or after.state_at is None or session is None:
        return concluded(EndingEvidence.NO_TIMES)
    rebalance = member.time_to_rejoin_ms
    assert rebalance is not None
    elapsed = after.state_at - before.join_ended_at
    is_same_clock = before.leader_epoch is not None and before.leader_epoch == after.leader_epoch
    if 0 <= elapsed < min(session, rebalance) - (0 if is_same_clock else LARGEST_SKEW_MS):
        return concluded(EndingEvidence.WITHIN_TIMEOUTS, elapsed=elapsed, session=session, rebalance=rebalance)
    timeouts = {f"its session ({session} ms)": session, f"its time to rejoin ({rebalance} ms)": rebalance}
    # Below 0 the coordinator's clock was set back, and either timeout may have passed.
    passed = [name for name, timeout in timeouts.items() if not 0 <= elapsed < timeout]
    if not passed:
        return concluded(EndingEvidence.WITHIN_CLOCKS, elapsed=elapsed, timeout=min(session, rebalance))
    return concluded(EndingEvidence.AFTER_TIMEOUTS, elapsed=elapsed, timeouts=" or ".join(passed))


def concluded(evidence: EndingEvidence, **figures: int | str) -> Ending:
    """Return the ending that evidence shows, with its figures."""
    conclusion = evidence.value
    return Ending(evidence, conclusion.ended, conclusion.because.format(**figures))


def removal_note(group: Group, operation: Operation, *, has_offsets: bool, retention_ms: int) -> str:
    """Return why a group was removed, as far as the log shows (offsets-topic semantics, 4.5).

    `has_offsets`: tombstones of its commits were written with its own. `retention_ms`: the broker's offset retention.
    """
    if operation[-1].is_polled:
        if operation[-1].read_late_at is not None:
            return RemovalEvidence.MISSED.value
        return RemovalEvidence.POLLED.value
    if group.members:
        return RemovalEvidence.HAD_MEMBERS.value
    if not has_offsets:
        return RemovalEvidence.NEVER_SEEN.value if group.kind is None else RemovalEvidence.NO_OFFSETS.value
    since = group.state_at if group.kind == "classic" and not group.members else None
    if since is None:
        return RemovalEvidence.OFFSETS.value
    empty_ms = operation[-1].at - since
    is_soon = empty_ms < retention_ms
    evidence = RemovalEvidence.OFFSETS_SOON if is_soon else RemovalEvidence.OFFSETS_AFTER_RETENTION
    return evidence.value.format(empty=_duration(empty_ms), retention=_duration(retention_ms))


def _duration(ms: int) -> str:
    """Return a duration in its largest unit of which it has at least one."""
    units = {"days": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000}
    unit, size = next((one for one in units.items() if ms >= one[1]), ("s", 1_000))
    return f"{ms / size:.1f} {unit}".replace(".0 ", " ")

"""The status of a position by Burrow's rules over a time window, and the figures that led to it.

The first rule that holds decides (`VerdictRule`, docs/lag.md).

Where a position is usually silent for longer than `stop_seconds`, STOP and STALL wait for twice its usual silence, at
most `stop_seconds_limit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, unique
from functools import cached_property, partial
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from grouptrail.lag.index import UNKNOWN, Bools, Floats, Ints, Texts, nulls, sentences, valid
from grouptrail.lag.offsets import matching
from grouptrail.lag.rhythm import LONGER_THAN_USUAL
from grouptrail.lag.window import Window

_CAUGHT_UP, _NOTHING_LEFT = "lag is not above", "nothing is left to read"
_KEPT_UP = "had read all that was there two samples before"
DELIVERED_OFTEN = 2
"""A record that came back from so many deliveries is no accident of one client: WARN is by the rule REDELIVERED."""
CAUGHT_UP = (_CAUGHT_UP, _NOTHING_LEFT)
"""How the reasons of the rule on `allowed_lag` begin."""


class _RuleText(NamedTuple):
    """The status that a rule gives, when it holds, and what is known where it does not."""

    status: str
    holds: str
    otherwise: str | None = None


@unique
class VerdictRule(Enum):
    """The rules in their order; the name of the one that gave a verdict is in `consumer_lag.rule`."""

    NOT_SUBSCRIBED = _RuleText(
        "UNSUBSCRIBED",
        "the group's members do not subscribe to the topic",
        "a member subscribes to the topic, or it is not known what they subscribe to",
    )
    NOT_COMMITTED_YET = _RuleText(
        "UNCOMMITTED", "a member owns the partition, but the group has not committed to it yet"
    )
    NO_LAG = _RuleText("UNKNOWN", "there is no lag to judge: `problem` says why")
    COMMITS_HELD_BACK = _RuleText("UNKNOWN", "an open transaction holds back commits: `problem` says so")
    CAUGHT_UP = _RuleText("OK", "no more than `allowed_lag` records are left to read")
    ONLY_DELETED_LEFT = _RuleText("OK", "all that was left to read has been deleted")
    NO_RECORDS_LEFT = _RuleText("OK", "the offsets that are left hold no committed record")
    LAST_OFFSET_COMMITTED = _RuleText(
        "OK", "only the last record that was read is left: the client commits its offset instead of the next one"
    )
    LEFT_ON_PURPOSE = _RuleText(
        "EMPTY",
        "the partition's last owner left on purpose, and has not been away for too long",
        "the group has members, or nothing shows that the partition's last owner left on purpose, or it has been "
        "away for too long",
    )
    PAUSES_AS_USUAL = _RuleText(
        "EMPTY",
        "the group pauses as it used to, after it had read all",
        "the group has members, or does not pause so by habit, or had not read all",
    )
    STAYED_AWAY = _RuleText(
        "STOP", "the last owner has been away for too long, and a record waits for `stop_seconds`"
    )
    NO_COMMIT = _RuleText(
        "STOP",
        "no commit for `stop_seconds`, and a record that has waited for as long",
        "it has committed within the time that it may be silent, or no record has waited for as long",
    )
    WENT_BACK = _RuleText(
        "REWIND",
        "the committed offset went back within the window, and is still lower than it was",
        "the committed offset did not go back within the window, or has caught up with where it was",
    )
    REDELIVERED = _RuleText(
        "WARN", "a record of a share group has been delivered twice or more, and came back each time"
    )
    SILENT_AS_USUAL = _RuleText(
        "OK", "no commit for `stop_seconds`, but no longer than usual for this position or its group"
    )
    HAD_CAUGHT_UP = _RuleText("OK", "the group had caught up at some time within the window")
    SAME_OFFSET = _RuleText(
        "STALL",
        "the group keeps committing, but the same offset for `stop_seconds`",
        "it has committed other offsets meanwhile",
    )
    KEPT_UP = _RuleText("OK", "within the window, the group had read what was there two samples before")
    LAG_DID_NOT_FALL = _RuleText("WARN", "lag did not fall once in the window, which spans at least `stop_seconds`")
    LAG_FELL = _RuleText("OK", "lag fell in the window")
    WINDOW_TOO_SHORT = _RuleText("OK", "the window is too short to judge")

    @cached_property
    def ruled_out(self) -> str | None:
        """What the rules before it found not to be so."""
        before = takewhile(lambda rule: rule is not self, VerdictRule)
        found = [f"{rule.value.status}: {rule.value.otherwise}" for rule in before if rule.value.otherwise]
        return "; ".join(found) or None


class Thresholds(NamedTuple):
    """Settings of the section [lag]."""

    window_seconds: float = 600
    stop_seconds: float = 300
    allowed_lag: int = 0
    stop_seconds_limit: float = 86_400
    empty_seconds: float = 86_400

    @classmethod
    def of(cls, section: Any) -> Thresholds:
        """Return the thresholds that the section [lag] of the configuration sets."""
        return cls(*(getattr(section, name) for name in cls._fields))


@dataclass(frozen=True)
class PositionSample:
    """The figures of positions at one sample, by entry; seconds are NaN where not known.

    `lag` counts the records that are left to read, `lost` those before them that were deleted unread. `is_empty`: the
    last owner left on purpose, or the group pauses as it used to (`is_pausing`). `overdue_seconds`: for how long the
    owner that left on purpose has been away, where that is too long. `usual_seconds`: how long no commit usually
    comes while records wait, here or, with `is_usual_of_group`, in the group's other partitions. `stop_seconds`
    replaces the threshold. `held_back` says why the decoded commits are not up to date (None: all are).
    `without_records` counts the unread offsets that hold no record, `uncommitted` the records of a partition to which
    the group has not committed yet; `UNKNOWN` where it has. `are_shared`: of share groups, of which some records came
    back from a delivery: how many wait for another one, how often the one with `most_delivered_offset` was delivered;
    `UNKNOWN` where that is not known.
    """

    positions: Ints
    committed: Ints
    lag: Ints
    lost: Ints
    lag_seconds: Floats
    commit_seconds: Floats
    is_empty: Bools
    is_unsubscribed: Bools
    held_back: pa.Array | None = None
    without_records: Ints | None = None
    is_pausing: Bools | None = None
    overdue_seconds: Floats | None = None
    usual_seconds: Floats | None = None
    is_usual_of_group: Bools | None = None
    stop_seconds: Floats | None = None
    uncommitted: Ints | None = None
    pauses_with_one_left: Ints | None = None
    are_shared: Bools | None = None
    awaiting_redelivery: Ints | None = None
    most_deliveries: Ints | None = None
    most_delivered_offset: Ints | None = None

    def words(self, at: Ints, others: str, *, shared: str) -> str | pa.Array:
        """Return the words of a sentence for share groups and for others."""
        if self.are_shared is None:
            return others
        return pa.array(np.where(self.are_shared[at], shared, others), pa.string())

    def quiet(self, at: Ints) -> tuple[str | pa.Array | Floats, ...]:
        """Return the parts of a sentence that say for how long no commit has come."""
        words = self.words(at, "no commit for ", shared="nothing acknowledged or returned for ")
        return words, self.commit_seconds[at], " s, "

    @property
    def silent_seconds(self) -> Floats:
        """For how long no commit has come while a record waited."""
        silent: Floats = np.minimum(self.commit_seconds, self.lag_seconds)
        return silent

    def stop_of(self, thresholds: Thresholds) -> Floats:
        """Return `stop_seconds` of each position."""
        return np.full(len(self.lag), thresholds.stop_seconds) if self.stop_seconds is None else self.stop_seconds

    def patience_seconds(self, thresholds: Thresholds) -> Floats:
        """Return how long each position may be silent."""
        stop = self.stop_of(thresholds)
        if self.usual_seconds is None:
            return stop
        longer = LONGER_THAN_USUAL * np.nan_to_num(self.usual_seconds)
        return np.maximum(stop, np.minimum(longer, thresholds.stop_seconds_limit))

    def of(self, entries: Ints) -> PositionSample:
        """Return the figures of some entries."""
        if len(entries) == len(self.lag):
            return self
        given = {name: column[entries] for name, column in vars(self).items() if isinstance(column, np.ndarray)}
        held_back = None if self.held_back is None else self.held_back.take(pa.array(entries))
        return replace(self, **given, held_back=held_back)


def stop_seconds_of(
    group_ids: pa.Array, thresholds: Thresholds, group_stop_seconds: Sequence[tuple[str, float]]
) -> Floats:
    """Return `stop_seconds` of groups by the first of the patterns that matches."""
    limits = np.full(len(group_ids), thresholds.stop_seconds)
    for pattern, seconds in reversed(group_stop_seconds):
        limits[matching(group_ids, (pattern,))] = seconds
    return limits


_Reason = str | Callable[[], pa.Array]
"""A text that entries share, or a function that returns the text of each."""


class _Rule(NamedTuple):
    """A rule, where it holds, and the reason: a text, or a function that returns those of some entries."""

    rule: VerdictRule
    holds: Bools | np.bool_
    reason: str | Callable[[Ints], pa.Array]


class Verdict:
    """The status of each entry and the rule that gave it, as dictionary codes, and on demand the reason."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._statuses = Texts(count)
        self._rules = Texts(count)
        self._ruled_out = Texts(count)
        self._reasons: list[tuple[Ints, _Reason]] = []

    def set(self, entries: Ints, rule: VerdictRule, reason: _Reason) -> None:
        """Set the rule that gives the status of some entries, and the reason."""
        self._statuses.set(entries, rule.value.status)
        self._rules.set(entries, rule.name)
        if rule.ruled_out is not None:
            self._ruled_out.set(entries, rule.ruled_out)
        if len(entries):
            self._reasons.append((entries, reason))

    @property
    def status(self) -> pa.Array:
        """The statuses."""
        return self._statuses.codes()

    @property
    def rule(self) -> pa.Array:
        """The names of the rules."""
        return self._rules.codes()

    @property
    def ruled_out(self) -> pa.Array:
        """What the rules before them found not to be so."""
        return self._ruled_out.codes()

    @cached_property
    def reason(self) -> pa.Array:
        """The reasons."""
        texts = Texts(self._count)
        for entries, reason in self._reasons:
            texts.set(entries, reason if isinstance(reason, str) else reason())
        return texts.array()


def judge(window: Window, now: PositionSample, thresholds: Thresholds) -> Verdict:
    """Return the status of each position at the window's newest sample."""
    verdict = Verdict(len(now.lag))
    verdict.set(np.arange(len(now.lag)), VerdictRule.CAUGHT_UP, f"{_CAUGHT_UP} {thresholds.allowed_lag}")
    lost = np.flatnonzero((now.lag == 0) & (now.lost > 0))
    deleted = " records were deleted before they were consumed"
    verdict.set(lost, VerdictRule.ONLY_DELETED_LEFT, lambda: sentences(f"{_NOTHING_LEFT}: ", now.lost[lost], deleted))
    if (counts := now.without_records) is not None:
        without = np.flatnonzero(counts)
        held = " offsets from the committed one on hold no committed record"
        left = partial(sentences, f"{_NOTHING_LEFT}: the ", counts[without], held)
        verdict.set(without, VerdictRule.NO_RECORDS_LEFT, left)
    if (pauses := now.pauses_with_one_left) is not None:
        last = np.flatnonzero((pauses > 0) & (now.lag == 0))
        one = " pauses: the client commits the last offset that it has read instead of the next one"
        read = partial(sentences, f"{_NOTHING_LEFT}: one offset is left, as at ", pauses[last], one)
        verdict.set(last, VerdictRule.LAST_OFFSET_COMMITTED, read)
    undecided = np.flatnonzero((now.lag > thresholds.allowed_lag) | (now.lag == UNKNOWN) | now.is_unsubscribed)
    for rules in (_rules_without_window, partial(_rules_of_window, window)):
        is_open = np.full(len(undecided), True)
        for rule in rules(now.of(undecided), thresholds):
            chosen = np.flatnonzero(is_open & rule.holds)
            is_open[chosen] = False
            reason = rule.reason if isinstance(rule.reason, str) else partial(rule.reason, chosen)
            verdict.set(undecided[chosen], rule.rule, reason)
        undecided = undecided[is_open]
    return verdict


def _rules_without_window(now: PositionSample, thresholds: Thresholds) -> list[_Rule]:
    """Return the first rules for positions with more than `allowed_lag`; the first that holds decides."""
    waiting = now.lag_seconds
    has_stopped = now.silent_seconds >= now.patience_seconds(thresholds)
    held_back = nulls(len(now.lag)) if now.held_back is None else now.held_back
    overdue = np.full(len(now.lag), np.nan) if now.overdue_seconds is None else now.overdue_seconds

    is_pausing = np.full(len(now.lag), False) if now.is_pausing is None else now.is_pausing
    left = "the partition's last owner left the group on purpose"
    paused = "the group had read all and pauses as usual"

    def emptied(why: str, at: Ints) -> pa.Array:
        return sentences(f"{why}, with ", now.lag[at], " unread")

    def unread(at: Ints) -> tuple[str | Ints | Floats, ...]:
        return (now.lag[at], " unread, the first of them for ", waiting[at], " s")

    def stayed_away(at: Ints) -> pa.Array:
        return sentences(f"{left}, but for ", overdue[at], " s nobody has come back: ", *unread(at))

    def stopped(at: Ints) -> pa.Array:
        return sentences(*now.quiet(at), *unread(at))

    uncommitted = np.full(len(now.lag), UNKNOWN) if now.uncommitted is None else now.uncommitted

    def begun(at: Ints) -> pa.Array:
        return sentences(
            "no commit yet: between 0 and ", uncommitted[at], " records are unread, by auto.offset.reset"
        )

    return [
        _Rule(VerdictRule.NOT_SUBSCRIBED, now.is_unsubscribed, "no member of the group subscribes to the topic"),
        _Rule(VerdictRule.NOT_COMMITTED_YET, (now.lag == UNKNOWN) & (uncommitted != UNKNOWN), begun),
        _Rule(VerdictRule.NO_LAG, now.lag == UNKNOWN, "there is no lag to judge"),
        _Rule(VerdictRule.COMMITS_HELD_BACK, valid(held_back), lambda at: held_back.take(pa.array(at))),
        _Rule(VerdictRule.LEFT_ON_PURPOSE, now.is_empty & ~is_pausing, partial(emptied, left)),
        _Rule(VerdictRule.PAUSES_AS_USUAL, now.is_empty, partial(emptied, paused)),
        _Rule(VerdictRule.STAYED_AWAY, has_stopped & ~np.isnan(overdue), stayed_away),
        _Rule(VerdictRule.NO_COMMIT, has_stopped, stopped),
    ]


def _rules_of_window(window: Window, now: PositionSample, thresholds: Thresholds) -> list[_Rule]:
    """Return the rules for positions that no earlier rule has decided."""
    figures, stop = window.figures(now.positions), now.stop_of(thresholds)
    quiet, same, span = now.commit_seconds, figures.same_seconds, figures.span_seconds
    patience = now.patience_seconds(thresholds)
    usual = np.full(len(now.lag), np.nan) if now.usual_seconds is None else now.usual_seconds

    is_of_group = np.full(len(now.lag), False) if now.is_usual_of_group is None else now.is_usual_of_group

    def rewound(at: Ints) -> pa.Array:
        return sentences("committed went back from ", figures.rewound_from[at], " to ", figures.rewound_to[at])

    def waited(at: Ints) -> pa.Array:
        silent = (*now.quiet(at), now.lag[at], " unread")
        return sentences(*silent, ": records usually wait ", usual[at], " s here for a commit")

    def waited_as_group(at: Ints) -> pa.Array:
        silent = (*now.quiet(at), now.lag[at], " unread")
        return sentences(*silent, ": the group's records usually wait ", usual[at], " s for a commit")

    is_stalled = (same >= patience) & (quiet < same) & figures.is_repeated
    deliveries = np.full(len(now.lag), UNKNOWN) if now.most_deliveries is None else now.most_deliveries
    came_back = deliveries >= DELIVERED_OFTEN

    def stalled(at: Ints) -> pa.Array:
        since = (" for ", same[at], " s, ", now.lag[at], " unread")
        words = now.words(at, "has committed only offset ", shared="nothing completed from offset ")
        return sentences(words, now.committed[at], *since)

    def redelivered(at: Ints) -> pa.Array:
        assert now.most_delivered_offset is not None
        assert now.awaiting_redelivery is not None
        times = (" was delivered ", deliveries[at], " times and came back each time; ")
        waiting = (now.awaiting_redelivery[at], " wait for another delivery, ", now.lag[at], " unread")
        return sentences("offset ", now.most_delivered_offset[at], *times, *waiting)

    def warned(at: Ints) -> pa.Array:
        lags = (figures.first_lag[at], " before, ", now.lag[at], " now")
        return sentences("lag did not fall in ", span[at], " s: ", *lags)

    return [
        _Rule(VerdictRule.WENT_BACK, figures.rewound_from != UNKNOWN, rewound),
        _Rule(VerdictRule.SAME_OFFSET, is_stalled & came_back, stalled),
        _Rule(VerdictRule.REDELIVERED, came_back, redelivered),
        _Rule(VerdictRule.SILENT_AS_USUAL, (now.silent_seconds >= stop) & is_of_group, waited_as_group),
        _Rule(VerdictRule.SILENT_AS_USUAL, now.silent_seconds >= stop, waited),
        _Rule(
            VerdictRule.HAD_CAUGHT_UP, figures.caught_up, f"had caught up within {thresholds.window_seconds:.0f} s"
        ),
        _Rule(VerdictRule.SAME_OFFSET, is_stalled, stalled),
        _Rule(VerdictRule.KEPT_UP, figures.kept_up, f"kept up within {thresholds.window_seconds:.0f} s: {_KEPT_UP}"),
        _Rule(VerdictRule.LAG_DID_NOT_FALL, (span >= stop) & ~figures.fell, warned),
        _Rule(VerdictRule.LAG_FELL, figures.fell, "lag fell in the window"),
        _Rule(VerdictRule.WINDOW_TOO_SHORT, np.True_, "the window is too short to judge"),
    ]

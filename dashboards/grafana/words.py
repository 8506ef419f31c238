"""What verdicts and states are called, which number stands for each in a panel, and which colour it has.

Grey is rest, green is well, yellow to red grows in urgency, purple went backwards, blue is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Name:
    """What a value stands for, and its colour."""

    value: int
    text: str
    color: str


Thresholds = Sequence[tuple[float, str]]

GREY = "#7b7b7b"
VERDICTS = (
    Name(1, "OK", "green"),
    Name(2, "EMPTY", GREY),
    Name(3, "UNSUBSCRIBED", GREY),
    Name(4, "UNKNOWN", "light-blue"),
    Name(5, "WARN", "yellow"),
    Name(6, "STALL", "orange"),
    Name(7, "STOP", "red"),
    Name(8, "REWIND", "purple"),
)
STATES = (
    Name(1, "Stable", "green"),
    Name(2, "Empty", GREY),
    Name(3, "NotReady", "light-blue"),
    Name(4, "Assigning", "yellow"),
    Name(5, "Reconciling", "yellow"),
    Name(6, "PreparingRebalance", "orange"),
    Name(7, "CompletingRebalance", "yellow"),
)
READY = (Name(0, "catching up", "yellow"), Name(1, "ready", "green"))

VERDICT_COLORS = {name.text: name.color for name in VERDICTS}
OUTCOME_COLORS = {"hole unknown": GREY, "undecodable unknown": "orange", "lost unknown": "red"}

# Seconds behind: from a minute on worth a look, from five on what the alert says.
LATE: Thresholds = ((60, "yellow"), (300, "red"))
STALE: Thresholds = ((60, "yellow"), (120, "red"))
ANY_IS_BAD: Thresholds = ((1, "red"),)
# What a group that nobody is in, or a topic that nobody subscribes to, is behind by is nobody's trouble.
AT_REST = 'status=~"EMPTY|UNSUBSCRIBED"'

"""Value mappings of verdicts and states: number, text and colour; thresholds that panels share.

Grey is inactive, green is good, yellow to red are increasingly urgent, purple is a rewind, blue is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ValueName:
    """The text and colour that a panel shows for a number."""

    value: int
    text: str
    color: str


Thresholds = Sequence[tuple[float, str]]

GREY = "#7b7b7b"
VERDICTS = (
    ValueName(1, "OK", "green"),
    ValueName(2, "EMPTY", GREY),
    ValueName(3, "UNSUBSCRIBED", GREY),
    ValueName(4, "UNCOMMITTED", GREY),
    ValueName(5, "UNKNOWN", "light-blue"),
    ValueName(6, "WARN", "yellow"),
    ValueName(7, "STALL", "orange"),
    ValueName(8, "STOP", "red"),
    ValueName(9, "REWIND", "purple"),
)
STATES = (
    ValueName(1, "Stable", "green"),
    ValueName(2, "Empty", GREY),
    ValueName(3, "NotReady", "light-blue"),
    ValueName(4, "Assigning", "yellow"),
    ValueName(5, "Reconciling", "yellow"),
    ValueName(6, "PreparingRebalance", "orange"),
    ValueName(7, "CompletingRebalance", "yellow"),
)
READY = (ValueName(0, "catching up", "yellow"), ValueName(1, "ready", "green"))

VERDICT_COLORS = {name.text: name.color for name in VERDICTS}
OUTCOME_COLORS = {"hole unknown": GREY, "undecodable unknown": "orange", "lost unknown": "red"}

# Lag in seconds: a warning from one minute on; from five minutes on the alert fires.
LAG_THRESHOLDS: Thresholds = ((60, "yellow"), (300, "red"))
LOSS_THRESHOLDS: Thresholds = ((3600, "red"),)
AGE_THRESHOLDS: Thresholds = ((60, "yellow"), (120, "red"))
RED_IF_ANY: Thresholds = ((1, "red"),)
# The lag of groups without members and of topics without subscribers needs no attention.
INACTIVE = 'status=~"EMPTY|UNSUBSCRIBED"'

"""The metrics and labels in a PromQL expression, as far as the tests need them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_STRING = r'"(?:[^"\\]|\\.)*"'
_SELECTOR = re.compile(rf"([a-zA-Z_:][\w:]*)?\{{((?:[^\"}}]|{_STRING})*)\}}")
_MATCHER = re.compile(rf"(\w+)\s*(?:=~|!~|!=|=)\s*({_STRING})")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_WINDOW = re.compile(r"\[[^\]]*\]|\boffset\s+[\w$]+")
_NAME = re.compile(r"(?<![\w$.])[a-zA-Z_:][\w:]*(?!\w|\s*\()")
_WORDS = {"and", "or", "unless", "bool", "Inf", "NaN"}


@dataclass(frozen=True)
class Selector:
    """A metric with its label matchers: label to value as written."""

    metric: str
    matchers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Names:
    """The selectors of an expression, and the labels by which it groups and joins."""

    selectors: list[Selector]
    grouping: set[str]


def names(expression: str) -> Names:
    """Return the names in an expression that promtool accepts."""
    selectors = [
        Selector(metric, {label: value[1:-1] for label, value in _MATCHER.findall(body)})
        for metric, body in _SELECTOR.findall(expression)
    ]
    rest = _WINDOW.sub(" ", _SELECTOR.sub(" ", expression))
    grouping = {label.strip() for labels in _GROUPING.findall(rest) for label in labels.split(",")} - {""}
    bare = _NAME.findall(re.sub(_STRING, " ", _GROUPING.sub(" ", rest)))
    return Names([*selectors, *(Selector(name) for name in bare if name not in _WORDS)], grouping)

"""A group as its coordinator describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Committed(NamedTuple):
    """A group's position in a partition."""

    offset: int
    leader_epoch: int
    metadata: str


@dataclass
class PolledGroup:
    """A group as its coordinator tells it.

    `kind` is classic, consumer, share or streams. `described` is the group in the answer's fields, `commits` by topic
    and partition; None where it was not told, `problem` why.
    """

    group_id: str
    kind: str
    protocol_type: str
    state: str
    described: Mapping[str, Any] | None = None
    commits: Mapping[tuple[str, int], Committed] | None = None
    problem: str | None = None

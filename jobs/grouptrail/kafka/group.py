"""A group as its coordinator describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Committed(NamedTuple):
    """A group's committed offset in a partition."""

    offset: int
    leader_epoch: int
    metadata: str


class ShareOffset(NamedTuple):
    """How far a share group is in a partition, as its coordinator returns it.

    `start_offset` is -1 if nothing has been read yet, or if the share coordinator did not answer. `lag` is up to the
    end of the log at that moment; None if the broker does not know it.
    """

    topic_id: str
    start_offset: int
    lag: int | None


@dataclass(frozen=True)
class ShareOffsets:
    """The offsets of a share group by topic and partition; `problems` say why some have none."""

    offsets: Mapping[tuple[str, int], ShareOffset]
    problems: Mapping[tuple[str, int], str]


@dataclass
class PolledGroup:
    """A group as its coordinator describes it.

    `kind` is classic, consumer, share or streams. `described` has the fields of the coordinator's response, `commits`
    are by topic and partition; both are None where the coordinator returned none, `problem` says why. `is_gone`: it
    has no group of this kind and name. `without_commit` are partitions that were asked for and have no commit.
    """

    group_id: str
    kind: str
    protocol_type: str
    state: str
    described: Mapping[str, Any] | None = None
    commits: Mapping[tuple[str, int], Committed] | None = None
    problem: str | None = None
    is_gone: bool = False
    without_commit: frozenset[tuple[str, int]] = frozenset()

"""A member as the leader saw it when it computed an assignment."""

from __future__ import annotations

from dataclasses import dataclass

Partition = tuple[str, int]
Owners = dict[Partition, str]
"""Member ids by partition."""


@dataclass(frozen=True)
class Subscriber:
    """A member as the leader saw it when it computed the assignment.

    `owned` is what the member claimed to have before: a cooperative member's owned partitions, or a sticky one's
    previous assignment. `generation` is that of the claim; -1 is unknown.
    """

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    owned: frozenset[Partition]
    generation: int
    rack: str | None


def in_utf16_order(text: str) -> bytes:
    """Return bytes that sort as strings do in Java and JavaScript; Go, Python and C sort by code points."""
    return text.encode("utf-16-be", "surrogatepass")

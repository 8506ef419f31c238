"""Where the epochs of partitions' leaders began, from OffsetForLeaderEpoch. This module imports no Kafka client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

Place = tuple[str, int]
"""A topic and a partition."""

NO_EPOCH = -1
"""What brokers answer for an epoch that they do not know."""

# Lower than any epoch, and not `NO_EPOCH`: the answer is where the first known epoch begins
# (LeaderEpochFileCache.endOffsetFor).
_BEFORE_ALL = -2


class LeaderEpoch(NamedTuple):
    """An epoch of a partition's leader, and the offset of its first record; the next epoch's ends it.

    For the oldest one that the leader knows, it is the first offset of it that the log still has.
    """

    epoch: int
    first_offset: int


class EndOffset(NamedTuple):
    """The answer about an epoch: the newest known one that is not later, and the offset at which it ends."""

    error_code: int
    epoch: int
    end_offset: int


Ask = Callable[[Mapping[Place, int]], Mapping[Place, EndOffset]]
"""Sends one epoch of each partition to their leader, and returns the answers, of which some may be missing."""


def find_leader_epochs(
    ask: Ask, newest: Mapping[Place, int], known: Mapping[Place, int]
) -> dict[Place, list[LeaderEpoch] | int | None]:
    """Return the epochs of each partition in order, an error code, or None if its leader does not know the newest.

    `newest` are the epochs to begin with, as the metadata has them; those of `known`, and earlier ones, are left out.
    It asks once for each epoch of the partition that has most, and once more.
    """
    found: dict[Place, list[LeaderEpoch] | int | None] = {}

    def answered(epochs: Mapping[Place, int]) -> Iterator[tuple[Place, EndOffset]]:
        answers = ask(epochs)
        for place in epochs:
            answer = answers.get(place)
            if answer is None or answer.error_code or answer.end_offset < 0:
                found[place] = (answer.error_code if answer else 0) or None
            else:
                yield place, answer

    starts = {place: answer.end_offset for place, answer in answered(dict.fromkeys(newest, _BEFORE_ALL))}
    ends: dict[Place, list[EndOffset]] = {place: [] for place in starts}
    wanted = {place: newest[place] for place in starts}
    while wanted:
        earlier: dict[Place, int] = {}
        for place, answer in answered(wanted):
            if ends[place] and answer.end_offset <= starts[place]:
                continue  # an epoch before the first known one
            ends[place].append(answer)
            if answer.epoch > max(known.get(place, -1), 0):
                earlier[place] = answer.epoch - 1
        wanted = earlier
    in_order = {place: _in_order(ends[place], start, known.get(place, -1)) for place, start in starts.items()}
    return {**in_order, **found}


def _in_order(ends: list[EndOffset], start: int, known: int) -> list[LeaderEpoch]:
    """Return the epochs after a known one; `ends` begins with the newest, the first one begins at `start`."""
    begun = [*(one.end_offset for one in ends[1:]), start]
    epochs = [LeaderEpoch(one.epoch, offset) for one, offset in zip(ends, begun, strict=False)]
    return [one for one in reversed(epochs) if one.epoch > known]

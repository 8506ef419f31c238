"""What the window shows of each position is what its samples show, although it does not keep them."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grouptrail.lag.index import UNKNOWN, Ints
from grouptrail.lag.window import Sample, Window

SECOND = 1_000_000
POSITIONS, PARTITIONS = 4, np.array([0, 0, 1, 2])
WINDOW_SECONDS = 120


class _Kept(NamedTuple):
    at: int
    committed: list[int]
    committed_at: list[int]
    lag: list[int]
    keeps_up: list[bool]


class AllSamples:
    """A window that keeps each sample, and looks at one position after another.

    It begins with one of those, at most sixty, that are not close to the one before.
    """

    def __init__(self) -> None:
        self.past: list[_Kept] = []
        self.apart: list[int] = []

    def add(self, kept: _Kept) -> None:
        if self.past and kept.at == self.past[-1].at:
            self.past.pop()
        elif self.past and kept.at < self.past[-1].at:
            self.past.clear()
            self.apart.clear()
        elif self.past and (not self.apart or self.past[-1].at - self.apart[-1] >= WINDOW_SECONDS * SECOND / 60):
            self.apart.append(self.past[-1].at)
        self.past.append(kept)
        self.apart = [at for at in self.apart if at >= kept.at - WINDOW_SECONDS * SECOND]
        self.past = [past for past in self.past if past.at >= (self.apart or [kept.at])[0]]

    def forget(self, position: int) -> None:
        for past in self.past:
            past.committed[position] = past.lag[position] = UNKNOWN
            past.keeps_up[position] = False

    def has_gap(self, position: int) -> bool:
        """Return whether a figure is unknown after it was known."""
        return any(
            UNKNOWN in column[next((n for n, one in enumerate(column) if one != UNKNOWN), len(column)) :]
            for column in ([getattr(past, name)[position] for past in self.past] for name in ("committed", "lag"))
        )

    def figures(self, position: int) -> dict[str, object]:
        committed = [(past.at, past.committed[position], past.committed_at[position]) for past in self.past]
        known = [one for one in committed if one[1] != UNKNOWN]
        lags = [(past.at, past.lag[position]) for past in self.past if past.lag[position] != UNKNOWN]
        newest = self.past[-1].at
        rewound = (UNKNOWN, UNKNOWN)
        run = newest, UNKNOWN
        for number, (at, offset, commit_at) in enumerate(known):
            before = known[number - 1][1] if number else UNKNOWN
            if offset != before:
                run = at, commit_at
            if rewound[0] != UNKNOWN and offset >= rewound[0]:
                rewound = UNKNOWN, UNKNOWN
            elif offset < before and rewound[0] == UNKNOWN:
                rewound = before, offset
        return {
            "rewound_from": rewound[0],
            "rewound_to": rewound[1],
            "caught_up": any(lag <= 0 for _, lag in lags),
            "kept_up": any(past.keeps_up[position] for past in self.past),
            "fell": any(after < before for (_, before), (_, after) in pairwise(lags)),
            "is_repeated": bool(known) and committed[-1][1] != UNKNOWN and committed[-1][2] > run[1],
            "same_seconds": (newest - run[0]) / SECOND,
            "span_seconds": (newest - lags[0][0]) / SECOND if lags else 0.0,
            "first_lag": lags[0][1] if lags else UNKNOWN,
        }

    def since(self, seconds: float, position: int) -> tuple[int, int]:
        there = (*self.apart, self.past[-1].at)
        at = next(at for at in there if at >= self.past[-1].at - seconds * SECOND)
        [past] = [past for past in self.past if past.at == at]
        return past.committed[position], past.at


OFFSET = st.integers(0, 4) | st.just(UNKNOWN)
LAG = st.integers(0, 4) | st.just(UNKNOWN)
SAMPLE = st.tuples(
    st.sampled_from([0, 1, 5, 10, 10, 10, 40, 90, -300]),
    st.lists(st.tuples(OFFSET, st.booleans(), LAG, st.booleans()), min_size=POSITIONS, max_size=POSITIONS),
    st.none() | st.integers(0, POSITIONS - 1),
    st.booleans(),
)


@settings(max_examples=600)
@given(samples=st.lists(SAMPLE, min_size=1, max_size=25), appear=st.integers(1, POSITIONS))
def test_window_shows_what_all_its_samples_show(
    samples: list[tuple[int, list[tuple[int, bool, int, bool]], int | None, bool]], appear: int
) -> None:
    """Also with thinned samples, gaps, replaced logs, positions that appear later and samples put back."""
    window, everything, at = Window(WINDOW_SECONDS, 0), AllSamples(), 100_000 * SECOND
    commit_at = [at] * POSITIONS
    for number, (later, figures, replaced, is_looked_at) in enumerate(samples):
        at += later * SECOND
        count = appear if number < 3 else POSITIONS
        for position, (_, commits, *_) in enumerate(figures):
            commit_at[position] = max(commit_at[position], at) if commits else commit_at[position]
        columns = [
            [one[place] if position < count else UNKNOWN for position, one in enumerate(figures)] for place in (0, 2)
        ]
        keeps_up = [one[3] and position < count for position, one in enumerate(figures)]
        kept = _Kept(at, columns[0], list(commit_at), columns[1], keeps_up)
        if replaced is not None:
            window.forget(np.array([replaced]))
            everything.forget(replaced)
        if is_looked_at and number:  # as to publish newer commits
            known = window.newest_at(everything.past[-1].at)
            assert isinstance(known, Sample)
            other = _Kept(known.at, [3] * POSITIONS, [at] * POSITIONS, [1] * POSITIONS, [True] * POSITIONS)
            add(window, other, POSITIONS)
            window.figures(np.arange(POSITIONS))
            window.restore(known)
        add(window, kept, count)
        everything.add(kept)
        computed = asdict(window.figures(np.arange(count)))
        then, sampled_at = window.since(40)
        for position in range(count):
            of_it = {name: column[position].item() for name, column in computed.items()}
            expected = everything.figures(position)
            if everything.has_gap(position):
                # It may know less, never more.
                assert of_it["same_seconds"] <= expected["same_seconds"]
                assert of_it["span_seconds"] <= expected["span_seconds"]
                for name in ("same_seconds", "span_seconds", "first_lag", "is_repeated"):
                    del of_it[name], expected[name]
            assert of_it == expected, position
            assert (then[position], sampled_at) == everything.since(40, position)


def add(window: Window, kept: _Kept, count: int) -> None:
    of_those: list[Ints] = [np.array(column[:count]) for column in kept[1:]]
    figures = dict(zip(("committed", "committed_at", "lag", "keeps_up"), of_those, strict=True))
    window.start_sample(kept.at, count)
    window.put(np.arange(count), PARTITIONS[:count], **figures)

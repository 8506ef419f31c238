"""The age of a record, from samples of its log's end offset."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.lag.index import UNKNOWN
from grouptrail.lag.seconds import HORIZON_SECONDS, LogEnds, LogEndSample, kept_times

SECOND = 1_000_000


def ends_of(*samples: tuple[float, int]) -> LogEnds:
    """Return samples of one partition from seconds and end offsets; each query took 0.1 s."""
    ends = LogEnds()
    for seconds, end in samples:
        at = round(seconds * SECOND)
        ends.add(LogEndSample(at - SECOND // 10, at, np.array([end])))
    return ends


def age(ends: LogEnds, offset: int, now: float) -> tuple[float, float]:
    ages = ends.written(np.array([0]), np.array([offset])).age(np.array([round(now * SECOND)]))
    return round(float(ages.seconds[0]), 3), round(float(ages.errors[0]), 3)


def test_log_ends_age_is_interpolated_between_two_samples() -> None:
    """Records are assumed to arrive evenly; the error is the distance to the farther sample."""
    ends = ends_of((0, 100), (10, 140), (20, 140), (30, 141))
    assert age(ends, 100, now=30) == (29.974, 9.974)
    assert age(ends, 139, now=30) == (20.126, 9.974)
    assert age(ends, 140, now=30) == (5.05, 5.05)


def test_log_ends_age_before_the_first_sample_is_a_lower_bound() -> None:
    seconds, error = age(ends_of((50, 100), (60, 140)), 99, now=60)
    assert seconds == 10
    assert np.isnan(error)


def test_log_ends_age_unknown_sample_widens_the_error() -> None:
    """A sample without an answer does not show whether the record existed."""
    ends = ends_of((0, 100), (10, UNKNOWN), (20, 140))
    assert age(ends, 120, now=20) == (9.799, 10.301)


def test_log_ends_forget_drops_samples_of_that_partition_only() -> None:

    ends = LogEnds()
    for seconds, of_each in ((0, [100, 100]), (10, [200, 200]), (20, [5, 200])):
        ends.add(LogEndSample(seconds * SECOND, seconds * SECOND, np.array(of_each)))
    ends.forget(np.array([0]))
    ages = ends.written(np.array([0, 1]), np.array([3, 150])).age(np.array([20 * SECOND] * 2))
    assert np.isnan(ages.errors).tolist() == [True, False]
    assert ages.seconds[0] == 0


def test_log_ends_clock_step_back_discards_earlier_samples() -> None:
    """Times before and after the step cannot be compared."""
    ends = ends_of((100, 10), (110, 20), (50, 30))
    seconds, error = age(ends, 15, now=50)
    assert (seconds, np.isnan(error)) == (0, True)


def test_log_ends_new_partition_is_unknown_in_older_samples() -> None:
    """The columns of older samples are shorter."""
    ends = ends_of((0, 100), (10, 100))
    ends.add(LogEndSample(20 * SECOND, 20 * SECOND, np.array([100, 7])))
    ages = ends.written(np.array([1]), np.array([3])).age(np.array([20 * SECOND]))
    assert (ages.seconds.tolist(), np.isnan(ages.errors).tolist()) == ([0.0], [True])
    assert ends.end_since(np.array([0, 1]), 5 * SECOND)[0].tolist() == [100, UNKNOWN]


def test_log_ends_week_of_samples_is_thinned_within_the_error() -> None:
    """All samples of the last ten minutes stay, older ones are thinned, and those older than a week are dropped."""
    ends = LogEnds()
    last = HORIZON_SECONDS + 3 * 24 * 3600
    for seconds in range(0, last + 1, 60):
        ends.add(LogEndSample(seconds * SECOND, seconds * SECOND, np.array([seconds])))
    assert len(ends) < 200
    seconds, error = age(ends, last - 6 * 24 * 3600, now=last)
    assert abs(seconds - 6 * 24 * 3600) <= error <= 6 * 24 * 3600 * 0.11
    assert np.isnan(age(ends, 10, now=last)[1])


@given(
    writes=st.lists(st.floats(0, 3000), min_size=1, max_size=60),
    samples=st.lists(st.floats(0, 3000), min_size=1, max_size=80, unique_by=lambda seconds: round(seconds * SECOND)),
    offset=st.integers(0, 59),
    slow=st.floats(0, 8),
)
def test_log_ends_age_true_age_is_within_the_error(
    writes: list[float], samples: list[float], offset: int, slow: float
) -> None:
    """For any times of writes and samples, and any delay of the brokers' answers."""
    written, ends = sorted(round(seconds * SECOND) for seconds in writes), LogEnds()
    now = 0
    for asked in sorted(round(seconds * SECOND) for seconds in samples):
        now = asked + round(slow * SECOND)
        ends.add(LogEndSample(asked, now, np.array([sum(at <= asked for at in written)])))
    newest = sum(at <= now - round(slow * SECOND) for at in written)
    if offset >= newest:
        return
    ages = ends.written(np.array([0]), np.array([offset])).age(np.array([now]))
    seconds, error = float(ages.seconds[0]), float(ages.errors[0])
    truth = (now - written[offset]) / SECOND
    if np.isnan(error):
        assert truth >= seconds - 1e-6
    else:
        assert abs(truth - seconds) <= error + 1e-6


@given(st.sets(st.integers(0, HORIZON_SECONDS), min_size=1, max_size=300))
def test_kept_times_returns_ordered_disjoint_spans_up_to_the_newest(times: set[int]) -> None:
    """The spans begin and end at sampled times."""
    there = np.array(sorted(times)) * SECOND
    now = int(there[-1]) + SECOND
    spans = kept_times(there, now, 5)
    assert spans[-1][1] == there[-1]
    assert all(first in there and last in there for first, last in spans)
    assert [first for first, _ in spans] == sorted(first for first, _ in spans)
    assert all(one[1] < next_one[0] for one, next_one in pairwise(spans))


SAMPLES = st.lists(st.lists(st.none() | st.integers(0, 3), min_size=2, max_size=2), max_size=12)


@given(SAMPLES, st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20)), max_size=8))
def test_log_ends_age_is_that_of_the_nearest_samples_without_and_with_the_record(
    growth: list[list[int | None]], records: list[tuple[int, int]]
) -> None:
    """Searched one sample after the other, also where leaders did not answer (None)."""
    ends, log_ends, newest = [0, 0], LogEnds(), len(growth) * 10 * SECOND
    samples: list[tuple[int, list[int]]] = []
    for number, of_each in enumerate(growth):
        ends = [end + (more or 0) for end, more in zip(ends, of_each, strict=True)]
        shown = [UNKNOWN if more is None else end for end, more in zip(ends, of_each, strict=True)]
        samples.append((number * 10 * SECOND, shown))
        log_ends.add(LogEndSample(samples[-1][0], samples[-1][0], np.array(shown)))
    partitions, offsets = (np.array([record[at] for record in records], np.int64) for at in (0, 1))
    ages = log_ends.written(partitions, offsets).age(np.full(len(records), newest))
    for (partition, offset), seconds, error in zip(records, ages.seconds, ages.errors, strict=True):
        known = [(at, shown[partition]) for at, shown in samples if shown[partition] != UNKNOWN]
        without, end_before = max((one for one in known if one[1] <= offset), default=(None, 0))
        with_it, end_after = min((one for one in known if one[1] > offset), default=(newest, 0))
        if without is None:
            assert (seconds, np.isnan(error)) == ((newest - with_it) / SECOND, True)
            continue
        share = min((offset - end_before + 0.5) / max(end_after - end_before, 1), 1)
        written = without + share * (with_it - without)
        assert seconds == pytest.approx((newest - written) / SECOND)
        assert error == pytest.approx(max(written - without, with_it - written) / SECOND)

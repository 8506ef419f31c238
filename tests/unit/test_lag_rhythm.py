"""Groups that commit rarely: how long records usually wait there, and when that is too long."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.lag.calculator import LagCalculator, Rules
from grouptrail.lag.rhythm import GroupWaits, UsualWaits
from grouptrail.lag.verdict import Thresholds
from grouptrail.storage.schema import table_schema
from support.lag_samples import NOON, SECOND, add_commits, add_sample, commit, log, new_calculator

HOUR = 3600


def judged(
    commits_at: list[int], until: int, *, step: int = 60, thresholds: Thresholds | None = None
) -> list[dict[str, Any]]:
    """Return the rows of samples of a topic with a record a second, of which a group commits all at these times."""
    calculator = new_calculator(rules=Rules(thresholds or Thresholds()))
    waiting, rows = sorted(commits_at), []
    for second in range(0, until, step):
        while waiting and waiting[0] <= second:
            committed_at = waiting.pop(0)
            add_commits(calculator, commit(committed_at, committed_at))
        add_sample(calculator, log(second, second))
        rows += calculator.compute({}).to_pylist()
    return rows


def stopped(rows: list[dict[str, Any]]) -> list[float]:
    """Return the seconds at which the status is STOP or STALL, which are alerted on."""
    return [(row["sampled_at"] - NOON).total_seconds() for row in rows if row["status"] in {"STOP", "STALL"}]


def test_status_of_an_hourly_committer_is_not_stop_once_two_waits_in_a_row_were_as_long() -> None:
    rows = judged(list(range(0, 5 * HOUR, HOUR)), 5 * HOUR)
    assert max(stopped(rows)) < 2 * HOUR
    last = rows[-1]
    assert (last["status"], last["usual_wait_seconds"], last["last_wait_seconds"]) == ("OK", 3539.5, 3539.5)
    assert last["status_reason"] == "no commit for 3540 s, 3540 unread: records usually wait 3540 s here for a commit"


def test_status_of_an_hourly_committer_that_dies_is_stop_after_two_hours_without_a_commit() -> None:
    rows = judged(list(range(0, 6 * HOUR, HOUR)), 8 * HOUR)
    assert min(second for second in stopped(rows) if second > 2 * HOUR) == pytest.approx(7 * HOUR, abs=120)


def test_status_of_a_rare_committer_is_stop_at_the_limit_of_the_operator() -> None:
    rows = judged(list(range(0, 6 * HOUR, HOUR)), 7 * HOUR, thresholds=Thresholds(stop_seconds_limit=1.5 * HOUR))
    assert min(second for second in stopped(rows) if second > 5 * HOUR) == pytest.approx(6.5 * HOUR, abs=60)


def test_status_after_a_single_outage_is_stop_as_soon_as_ever() -> None:
    """It was down for three hours, came back, and is down again."""
    commits = [*range(0, HOUR, 10), *range(4 * HOUR, 4 * HOUR + 600, 10)]
    again = [second for second in stopped(judged(commits, 5 * HOUR)) if second > 4 * HOUR]
    assert min(again) == pytest.approx(4 * HOUR + 590 + 300, abs=60)


def test_status_right_after_an_outage_is_stop_as_soon_as_ever() -> None:
    """It was down for three hours, committed once, and is down again."""
    commits = [*range(0, HOUR, 10), 4 * HOUR]
    again = [second for second in stopped(judged(commits, 5 * HOUR)) if second > 4 * HOUR]
    assert min(again) == pytest.approx(4 * HOUR + 300, abs=60)


def test_status_of_checkpoints_every_ten_minutes_is_ok() -> None:
    """As Flink commits; none after the first two checkpoints."""
    rows = judged(list(range(0, 2 * HOUR, 600)), 2 * HOUR)
    assert max(stopped(rows)) < 1_200


def test_status_of_an_idle_partition_is_stop_when_its_only_record_waits() -> None:
    """It gets a record a day, which its consumer reads at once: that it commits rarely is not its rhythm."""
    calculator = new_calculator()
    for day in range(4):
        add_commits(calculator, commit(86_400 * day, day))
        add_sample(calculator, log(86_400 * day + 5, day))
        calculator.compute({})
    for seconds in range(86_400 * 4, 86_400 * 4 + 400, 10):
        add_sample(calculator, log(seconds, 4))
        [row] = calculator.compute({}).to_pylist()
    assert (row["status"], row["usual_wait_seconds"]) == ("STOP", None)


def test_status_of_a_group_with_a_threshold_of_its_own_is_stop_by_that() -> None:
    """The first pattern that matches applies."""
    for patterns, first in (((("bill*", 600.0), ("*", 60.0)), 600), ((("audit", 600.0),), 300)):
        calculator = new_calculator(commit(0, 0), rules=Rules(group_stop_seconds=patterns))
        rows = []
        for second in range(0, 1_000, 20):
            add_sample(calculator, log(second, second))
            rows += calculator.compute({}).to_pylist()
        assert min(stopped(rows)) == pytest.approx(first, abs=20)


# --- the rhythm of a group in partitions that rarely get a record ----------------------------------------------

BUSY, SPARSE = 0, 1


class Fleet:
    """Groups that read a topic with a busy partition, of a record each ten seconds, and a sparse one.

    Commits are of all that is there. In: by partition, when commits come, and when records of the sparse one do.
    """

    def __init__(
        self,
        commits: dict[int, list[int]],
        records: list[int],
        *,
        group: str = "billing",
        calculator: LagCalculator | None = None,
    ) -> None:
        self.calculator = calculator or new_calculator()
        self._commits, self._records, self._group = commits, records, group

    def _end(self, partition: int, second: int) -> int:
        return second // 10 if partition == BUSY else sum(one <= second for one in self._records)

    def rows(self, since: int, until: int, *, step: int = 60) -> list[dict[str, Any]]:
        """Return the rows of the group at the samples of a time."""
        rows = []
        for second in range(since, until, step):
            for partition, times in self._commits.items():
                for time in (one for one in times if second - step < one <= second):
                    more = {"partition": partition, "group_id": self._group, "record_offset": time * 10 + partition}
                    add_commits(self.calculator, commit(time, self._end(partition, time), **more))
            ends = [log(second, self._end(partition, second), partition=partition) for partition in (BUSY, SPARSE)]
            add_sample(self.calculator, *ends)
            computed = self.calculator.compute({}).to_pylist()
            rows += [row for row in computed if row["group_id"] == self._group]
        return rows


def stops_of(rows: list[dict[str, Any]], partition: int) -> list[float]:
    return stopped([row for row in rows if row["partition"] == partition])


def every(seconds: int, until: int, *, since: int = 0) -> list[int]:
    return list(range(since, until, seconds))


def both(commits: list[int]) -> dict[int, list[int]]:
    return {BUSY: commits, SPARSE: commits}


@pytest.mark.parametrize(
    ("gap", "early"),
    [
        *[(600, 0.02), (600, 0.98), (HOUR, 0.3)],
        *(
            pytest.param(*more, marks=pytest.mark.full)
            for more in [(600, 0.3), (600, 0.7), (HOUR, 0.02), (HOUR, 0.7), (HOUR, 0.98)]
        ),
    ],
)
def test_status_of_a_rare_record_in_a_group_that_commits_rarely_is_ok(gap: int, early: float) -> None:
    """Whenever it comes between two checkpoints, with any wait before it."""
    records = [round(gap * (4 + 3 * number + early)) for number in range(3)]
    rows = Fleet(both(every(gap, 12 * gap)), [0, *records]).rows(0, 12 * gap, step=gap // 12)
    assert stops_of(rows, SPARSE) == []
    assert max(stops_of(rows, BUSY)) < 2 * gap


def test_status_reason_of_a_group_that_commits_rarely_has_its_usual_wait() -> None:
    rows = Fleet(both(every(600, 5_000)), [0, 3_010]).rows(0, 3_580)
    [row] = [row for row in rows[-2:] if row["partition"] == SPARSE]
    assert (row["status"], row["usual_wait_seconds"]) == ("OK", 535)
    assert row["status_reason"] == (
        "no commit for 540 s, 1 unread: the group's records usually wait 535 s for a commit"
    )


def test_status_of_a_partition_that_the_others_outlive_is_stop_after_twice_the_usual_wait_of_the_group() -> None:
    """Its reader dies, the other checkpoints go on."""
    fleet = Fleet({BUSY: every(600, 9_000), SPARSE: every(600, 3_000)}, [0, 3_010])
    assert min(stops_of(fleet.rows(0, 9_000), SPARSE)) == pytest.approx(3_010 + 1_140, abs=70)


def test_status_of_a_group_that_commits_rarely_and_dies_is_stop_after_twice_its_usual_wait() -> None:
    rows = Fleet(both(every(600, 3_001)), [0, 3_010]).rows(0, 6_000)
    assert min(at for at in stops_of(rows, SPARSE)) == pytest.approx(3_010 + 1_140, abs=70)


def test_status_of_a_rare_record_is_stop_at_the_limit_of_the_operator() -> None:
    calculator = new_calculator(rules=Rules(Thresholds(stop_seconds_limit=700)))
    rows = Fleet(both(every(600, 3_001)), [0, 3_010], calculator=calculator).rows(0, 6_000)
    assert min(stops_of(rows, SPARSE)) == pytest.approx(3_710, abs=70)


@pytest.mark.parametrize("quick", [10, 60, 200])
def test_status_of_a_rare_record_in_a_group_that_commits_often_is_stop_as_soon_as_ever(quick: int) -> None:
    """Its busy partition is read all the time; the sparse one is not."""
    fleet = Fleet({BUSY: every(quick, 6_000), SPARSE: [0]}, [0, 3_010])
    assert min(stops_of(fleet.rows(0, 6_000), SPARSE)) == pytest.approx(3_310, abs=2 * quick + 60)


def test_status_after_a_single_outage_of_the_group_is_stop_as_soon_as_ever() -> None:
    commits = [*every(20, 1_000), *every(20, 6_000, since=4_000)]
    fleet = Fleet({BUSY: commits, SPARSE: [0]}, [0, 4_510])
    assert next(at for at in stops_of(fleet.rows(0, 6_000), SPARSE) if at > 4_000) == pytest.approx(4_810, abs=70)


def test_status_beside_a_stuck_partition_is_stop_as_soon_as_ever() -> None:
    """The group commits only when the sparse partition gets a record, once an hour, while the busy one is stuck: the
    waits there end with no commit."""
    records = every(HOUR, 6 * HOUR)
    commits = [at + 10 for at in records[:-1]]
    rows = Fleet({BUSY: [0], SPARSE: commits}, records).rows(0, 6 * HOUR, step=120)
    assert min(stops_of(rows, BUSY)) < 600
    assert min(stops_of(rows, SPARSE)) == pytest.approx(5 * HOUR + 300, abs=240)


def test_status_of_a_rare_record_does_not_depend_on_another_group_that_commits_rarely() -> None:
    calculator = new_calculator()
    rare = Fleet(both(every(600, 6_000)), [0, 3_010], group="rare", calculator=calculator)
    quick = Fleet({BUSY: every(20, 6_000), SPARSE: [0]}, [0, 3_010], calculator=calculator)
    statuses = []
    for second in range(0, 6_000, 60):
        for fleet, records in ((rare, both([second] if second % 600 == 0 else [])), (quick, None)):
            if records is not None:
                fleet._commits = records
            rows = fleet.rows(second, second + 60)
            if fleet is quick:
                statuses += [(second, row["status"]) for row in rows if row["partition"] == SPARSE]
    assert min(second for second, status in statuses if status == "STOP") == pytest.approx(3_310, abs=70)


def test_status_of_a_rare_record_after_a_restart_is_that_without_one() -> None:
    """The stored rows have the usual wait of the group."""
    whole = Fleet(both(every(600, 9_000)), [0, 3_010]).rows(0, 4_020)
    until = [row for row in whole if (row["sampled_at"] - NOON).total_seconds() < 3_060]
    again = new_calculator()
    for second in every(60, 3_060):
        rows = [row for row in until if (row["sampled_at"] - NOON).total_seconds() == second]
        logs = [log(second, row["log_end_offset"], partition=row["partition"]) for row in rows]
        add_sample(again, *(logs or [log(second, 0)]))
        if rows:
            again.add_stored_lag(pa.Table.from_pylist(rows, table_schema("consumer_lag")))
    for partition in (BUSY, SPARSE):
        offsets = {BUSY: 300, SPARSE: 1}
        more = {"partition": partition, "record_offset": 30_000 + partition}
        add_commits(again, commit(3_000, offsets[partition], **more))
    resumed = Fleet(both(every(600, 9_000)), [0, 3_010], calculator=again).rows(3_060, 4_020)
    assert [row["status"] for row in resumed] == [row["status"] for row in whole[len(until) :]]
    assert stops_of(resumed, SPARSE) == []


def test_rhythm_of_a_group_that_was_deleted_is_forgotten() -> None:
    waits, zero = GroupWaits(), np.array([0])
    for number, (groups, ended) in enumerate([(zero, 600), (zero, 600), (zero, -1)]):
        waits.start_sample(number * SECOND)
        waits.put(groups, np.array([ended * SECOND]))
    waits.start_sample(3 * SECOND)
    assert waits.usual(zero) == [600]
    waits.put(np.array([1]), np.array([-1]))
    waits.start_sample(4 * SECOND)
    assert np.isnan(waits.usual(np.array([0, 1, 2]))).all()


@given(st.lists(st.lists(st.sampled_from([-1, 0, 31, 400, 3600]), min_size=3, max_size=3), min_size=1, max_size=9))
def test_rhythm_of_a_group_is_what_the_longest_waits_that_its_last_two_commits_ended_have_reached(
    samples: list[list[int]],
) -> None:
    """Of two groups, the first of which has two positions; a sample that is computed again changes nothing."""
    waits, groups = GroupWaits(), np.array([0, 0, 1])
    ended: dict[int, list[int]] = {0: [0, 0], 1: [0, 0]}
    for number, sample in enumerate(samples):
        waits.start_sample(number * SECOND)
        waits.put(groups, np.array([9, 9, 9]) * SECOND)
        waits.start_sample(number * SECOND)
        waits.put(groups, np.where(np.array(sample) < 0, -1, np.array(sample) * SECOND))
        for group, longest in ((0, max(sample[:2])), (1, sample[2])):
            ended[group] += [longest] if longest >= 0 else []
    waits.start_sample(len(samples) * SECOND)
    assert np.nan_to_num(waits.usual(np.array([0, 1]))).tolist() == [min(ended[0][-2:]), min(ended[1][-2:])]


OFFSET, WAIT = st.integers(0, 5), st.sampled_from([0.0, 20.0, 31.0, 400.0, 3600.0])


@given(st.lists(st.tuples(st.just(-1) | OFFSET, WAIT), min_size=1, max_size=20), st.integers(0, 19))
def test_rhythm_restored_from_stored_waits_is_that_of_an_uninterrupted_run(
    samples: list[tuple[int, float]], stop: int
) -> None:
    """Of the samples before a stop, only the waits and what they show are stored."""
    whole, again = UsualWaits(), UsualWaits()
    zero = np.array([0])
    for number, (committed, silent) in enumerate(samples):
        whole.start_sample(number * SECOND, 1)
        whole.put(zero, np.array([committed]), np.array([silent]))
        again.start_sample(number * SECOND, 1)
        again.put(zero, np.array([committed]), np.array([silent]))
        if number <= stop:
            again.restore(zero, *whole.waits(zero))
    for restarted, expected in zip(again.waits(zero), whole.waits(zero), strict=True):
        assert restarted == pytest.approx(expected, nan_ok=True)


@given(st.lists(st.tuples(OFFSET, WAIT), min_size=1, max_size=20))
def test_rhythm_is_what_the_last_two_waits_that_a_commit_ended_have_reached(samples: list[tuple[int, float]]) -> None:
    """Computed one sample after the other."""
    rhythm, zero, waits = UsualWaits(), np.array([0]), [0.0, 0.0]
    for number, (committed, silent) in enumerate(samples):
        rhythm.start_sample(number * SECOND, 1)
        rhythm.put(zero, np.array([committed]), np.array([silent]))
        if number and committed > samples[number - 1][0]:
            before = samples[number - 1][1]
            waits.append(before if before >= 30 else 0.0)
    usual, last = (float(np.nan_to_num(one)[0]) for one in rhythm.waits(zero))
    assert (usual, last) == (min(waits[-2:]), waits[-1])

"""The history against a model of the coordinator, which knows the truth: ignorant at times, never wrong."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proof.coordinator_model import Commit, Crash, DeleteGroup, Join, Leave, MoveCoordinator, Wait, run
from proof.coordinator_model.schedule import Protocol, Schedule
from proof.coordinator_model.strategies import SCHEDULES, varied_schedule
from proof.model_judge import (
    Fact,
    Verdict,
    compacted,
    fold_over_a_stop,
    judge,
    judge_compacted,
    tally,
    with_commits,
)
from support.group_records import fold_in_pieces

_CUTS = st.lists(st.integers(1, 150), max_size=4)
_RUNS = 10_000


def facts_of(schedule: Schedule, cuts: list[int]) -> list[Fact]:
    done = run(schedule)
    if not done.records:
        return []
    read_at_once = [record._replace(read_at_once=True) for record in done.records]
    facts = judge(done, fold_in_pieces(read_at_once, cuts, done.names))
    wrong = [f"{fact.about}: {fact.detail}" for fact in facts if fact.verdict == "wrong"]
    assert not wrong, "\n".join([*wrong, schedule.to_json()])
    return facts


@settings(max_examples=15 * settings().max_examples)
@given(SCHEDULES, _CUTS)
def test_history_never_contradicts_the_model(schedule: Schedule, cuts: list[int]) -> None:
    facts_of(schedule, cuts)


@settings(max_examples=5 * settings().max_examples)
@given(SCHEDULES, st.sampled_from([500, 1_000, 5_000, 20_000]), st.booleans())
def test_history_with_commits_never_contradicts_the_model(schedule: Schedule, commit_ms: int, is_busy: bool) -> None:
    facts = facts_with_commits(schedule, commit_ms, is_busy=is_busy)
    assert not [fact for fact in facts if fact.verdict == "wrong"], schedule.to_json()


def facts_with_commits(schedule: Schedule, commit_ms: int, *, is_busy: bool) -> list[Fact]:
    """Of a run whose consumers commit regularly, and when they close; a wait of days is one of minutes then."""
    actions = tuple(
        replace(one, ms=min(one.ms, 400_000)) if isinstance(one, Wait) else one for one in schedule.actions
    )
    done = run(replace(schedule, actions=actions, commit_ms=commit_ms, is_busy=is_busy))
    if not done.records:
        return []
    read_at_once = [record._replace(read_at_once=True) for record in done.records]
    return judge(done, with_commits(done, fold_in_pieces(read_at_once, names=done.names)))


def test_history_of_an_epoch_after_classic_generation_0_never_contradicts_the_model() -> None:
    """A classic group that never had a generation is deleted when a member of the new protocol joins."""
    died_at_once = (Join("c"), Wait(100), Crash("c"), MoveCoordinator("killed"))
    assert facts_of(Schedule((*died_at_once, Join("b", protocol="consumer"), Wait(20_000)), seed=0), [])


@pytest.mark.parametrize("after", ["classic", "consumer"])
@pytest.mark.parametrize("before", ["classic", "consumer"])
@pytest.mark.parametrize("has_commits", [False, True])
def test_history_of_a_deletion_and_a_join_in_one_millisecond_never_contradicts_the_model(
    before: Protocol, after: Protocol, has_commits: bool
) -> None:
    """Requests and offsets are drawn: some of the runs write both at once, with no record of others in between."""
    commits = (Commit("a"),) if has_commits else ()
    emptied = (Join("a", protocol=before), Wait(20_000), *commits, Leave("a"), Wait(20_000))
    at_once = 0
    for seed in range(60):
        schedule = Schedule((*emptied, DeleteGroup(), Join("b", protocol=after), Wait(20_000)), "4.1", seed=seed)
        facts_of(schedule, [])
        moments = run(schedule).moments
        at_once += any(
            one.kind is None and (one.at, one.end_offset) == (two.at, two.offset) for one, two in pairwise(moments)
        )
    assert at_once > 0


@settings(max_examples=5 * settings().max_examples)
@given(SCHEDULES, st.integers(0, 100), st.booleans())
def test_history_after_compaction_never_contradicts_the_model(
    schedule: Schedule, moment: int, keeps_tombstones: bool
) -> None:
    assert not wrong_after_compaction(schedule, moment, keeps_tombstones=keeps_tombstones), schedule.to_json()


def wrong_after_compaction(schedule: Schedule, moment: int, *, keeps_tombstones: bool) -> list[str]:
    done = run(schedule)
    if not done.moments:
        return []
    start = done.moments[moment % len(done.moments)].offset
    records = compacted(done.records, start, keeps_tombstones=keeps_tombstones)
    facts = judge_compacted(done, fold_in_pieces(records, names=done.names))
    return [f"{fact.about}: {fact.detail}" for fact in facts if fact.verdict == "wrong"]


@settings(max_examples=5 * settings().max_examples)
@given(SCHEDULES, st.integers(0, 100), st.integers(0, 100), st.booleans())
def test_history_after_compaction_during_a_stop_never_contradicts_the_model(
    schedule: Schedule, moment: int, another: int, keeps_tombstones: bool
) -> None:
    assert not wrong_after_a_stop(schedule, moment, another, keeps_tombstones=keeps_tombstones), schedule.to_json()


def wrong_after_a_stop(schedule: Schedule, moment: int, another: int, *, keeps_tombstones: bool) -> list[str]:
    """Compact the records between two moments, which are read together afterwards.

    Without their tombstones, members that are gone may stay open (docs/history.md): causes alone are judged then.
    """
    done = run(schedule)
    if not done.moments:
        return []
    stop, start = sorted(done.moments[one % len(done.moments)].offset for one in (moment, another))
    reasons = frozenset[str]()
    moments = []
    for one in done.moments:
        is_within = stop <= one.offset <= start and one.is_new_generation
        # A cause is that of all that happened since the generation before that is in the log.
        reasons |= one.reasons if is_within else frozenset()
        moments.append(replace(one, reasons=reasons) if is_within else one)
    rows = fold_over_a_stop(done, stop, start, keeps_tombstones=keeps_tombstones)
    facts = judge_compacted(replace(done, moments=moments), rows)
    judged = (fact for fact in facts if keeps_tombstones or fact.about.startswith("cause"))
    return [f"{fact.about}: {fact.detail}" for fact in judged if fact.verdict == "wrong"]


def test_static_member_replaced_in_a_generation_that_was_compacted_is_not_called_gone() -> None:
    """Its return rewrote the record of the generation; all that is left of it is in the next one, without it."""
    first, again = (Join(client, instance_id="static-a", library="librdkafka") for client in "ba")
    actions = (
        first,
        Join("c", library="librdkafka"),
        Wait(8_000),
        again,
        Leave("a", for_good=True),
        Wait(691_200_000),
    )
    schedule = Schedule((*actions, again), "4.0", topics=(("orders", 1), ("other", 2)))
    assert not wrong_after_a_stop(schedule, 2, 4, keeps_tombstones=True)


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> range:
    """The seeds of ten thousand runs; each `--hypothesis-seed=N` has its own."""
    first = int(request.config.getoption("--hypothesis-seed") or 0) * _RUNS
    return range(first, first + _RUNS)


@pytest.mark.full
def test_history_of_ten_thousand_compacted_runs_never_contradicts_the_model(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        schedule, moment = varied_schedule(random), random.randrange(101)
        keeps_tombstones = random.random() < 0.5
        wrong = wrong_after_compaction(schedule, moment, keeps_tombstones=keeps_tombstones)
        wrong += wrong_after_a_stop(schedule, moment, random.randrange(101), keeps_tombstones=keeps_tombstones)
        assert not wrong, f"{seed}: {wrong} {schedule.to_json()}"


@pytest.mark.full
def test_history_of_ten_thousand_runs_knows_nearly_everything(
    capsys: pytest.CaptureFixture[str], seeds: range
) -> None:
    """It prints the facts that were unknown and the guesses that were wrong."""
    counts: Counter[tuple[str, Verdict]] = Counter()
    for seed in seeds:
        random = Random(seed)
        cuts = [random.randint(1, 150) for _ in range(random.randint(0, 4))]
        counts.update(tally(facts_of(varied_schedule(random), cuts)))
    with capsys.disabled():
        sys.stdout.write(f"\n{report(counts)}\n")
    facts, likely = of(counts, ""), of(counts, "cause likely")
    assert facts["right"] >= 0.98 * facts.total()
    assert likely["wrong guess"] <= 0.1 * likely.total()


@pytest.mark.full
def test_history_of_ten_thousand_runs_with_commits_knows_most_endings(
    capsys: pytest.CaptureFixture[str], seeds: range
) -> None:
    """It prints the facts that were unknown and the guesses that were wrong."""
    counts: Counter[tuple[str, Verdict]] = Counter()
    for seed in seeds:
        random = Random(seed)
        commit_ms, is_busy = random.choice((500, 1_000, 5_000, 20_000)), random.random() < 0.5
        facts = facts_with_commits(varied_schedule(random), commit_ms, is_busy=is_busy)
        wrong = [f"{fact.about}: {fact.detail}" for fact in facts if fact.verdict == "wrong"]
        assert not wrong, (seed, wrong)
        counts.update(tally(facts))
    with capsys.disabled():
        sys.stdout.write(f"\n{report(counts)}\n")
    endings, causes = of(counts, "membership.ended"), of(counts, "cause likely: member_")
    assert endings["wrong guess"] <= 0.001 * endings.total()
    assert causes["wrong guess"] <= 0.15 * causes.total()


def of(counts: Counter[tuple[str, Verdict]], about: str) -> Counter[Verdict]:
    found: Counter[Verdict] = Counter()
    for (kind, verdict), count in counts.items():
        if kind.startswith(about):
            found[verdict] += count
    return found


def report(counts: Counter[tuple[str, Verdict]]) -> str:
    lines = [f"{count:9} {verdict}" for verdict, count in sorted(of(counts, "").items())]
    lines += [
        f"{count:9} {verdict}: {about}" for (about, verdict), count in sorted(counts.items()) if verdict != "right"
    ]
    lines += [
        f"{count:9} {verdict}: {about}" for (about, verdict), count in sorted(counts.items()) if "cause" in about
    ]
    return "\n".join(dict.fromkeys(lines))

"""Recorded runs of real clients: the coordinator model writes what the broker wrote, and the history is right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proof.model_calibration import SEEDS_FILE, agrees, missing_shapes
from proof.recorded_runs import Run
from proof.recorded_schedules import ALL
from proof.recording_judge import counted, facts_of_recording
from proof.recordings import Recording, load_recordings

RECORDINGS = load_recordings()
RUNS = [pytest.param(one, run, id=f"{one.version}-{run.group_id}") for one in RECORDINGS for run in one.runs]

WANTED_FACTS = 10_000


@pytest.fixture(scope="module")
def seeds() -> dict[str, Any]:
    """The seed with which the model reproduces each run, as found by `python -m proof.model_calibration`."""
    by_group: dict[str, Any] = json.loads(SEEDS_FILE.read_text("utf-8"))
    return by_group


@pytest.mark.parametrize(("recording", "run"), RUNS)
def test_model_follows_the_recorded_run(recording: Recording, run: Run, seeds: dict[str, Any]) -> None:
    """Generations or epochs are equal, with equal numbers of members and of partitions per member."""
    records = run.records(recording.records)
    seed = seeds[recording.version][run.group_id]
    assert seed is not None
    assert agrees(ALL[run.group_id], recording.version, records, seed)


@pytest.mark.parametrize(("recording", "run"), RUNS)
def test_model_writes_each_kind_of_operation_of_the_recorded_run(recording: Recording, run: Run) -> None:
    assert not missing_shapes(ALL[run.group_id], recording.version, run.records(recording.records))


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda one: one.version)
def test_history_of_the_recorded_runs_is_never_wrong(recording: Recording) -> None:
    assert not [fact for fact in facts_of_recording(recording) if fact.verdict == "wrong"]


def test_history_of_the_recorded_runs_admits_little() -> None:
    counts = counted(fact for recording in RECORDINGS for fact in facts_of_recording(recording))
    assert counts.total() >= WANTED_FACTS
    assert counts["right"] >= 0.97 * counts.total()

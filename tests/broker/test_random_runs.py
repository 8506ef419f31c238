"""Random schedules of the coordinator model, played with real clients: the model predicts what the broker writes, and
the history of what it wrote is never wrong."""

from __future__ import annotations

import sys

import pytest

from proof.random_calibration import differences, follow
from proof.random_runs import PROPERTIES, Barrier, run_all, schedules
from proof.recorded_runs import Environment, Run, group_records
from proof.recording_judge import check_facts
from proof.recordings import Recording, save
from servers.kafka import Broker
from servers.offsets_topic import ensure_offsets_topic
from support.observed_groups import NotStableError

pytestmark = pytest.mark.full

RUNS = 50
WANTED_FACTS = 1_000
WANTED_AGREEING = 35
MOST_GIVEN_UP = 3
_AT_ONCE = 25


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    names: dict[str, str] = {}
    runs: list[Run] = []
    given_up: list[NotStableError] = []
    with Broker(tmp_path_factory.mktemp("kafka"), properties=PROPERTIES) as broker:
        ensure_offsets_topic(broker.bootstrap)

        def restart() -> None:
            broker.kill()
            broker.start()

        listed = list(schedules(RUNS, broker.version).items())
        for start in range(0, RUNS, _AT_ONCE):
            part = dict(listed[start : start + _AT_ONCE])
            barrier = Barrier(len(part), restart)
            complete, hung = run_all(Environment(broker, names, barrier.wait), part, barrier)
            runs += complete
            given_up += hung
        made = Recording(broker.version, runs, group_records(broker), names)
    sys.stdout.writelines(f"given up: {error}\n" for error in given_up)
    assert len(given_up) <= MOST_GIVEN_UP
    save(made, tmp_path_factory.getbasetemp(), "random")
    return made


def test_model_predicts_what_the_broker_wrote(recording: Recording, capsys: pytest.CaptureFixture[str]) -> None:
    """In most: some runs need a coincidence that no seed hits upon, or depend on what the model does not have."""
    unlike: dict[str, str] = {}
    for run in recording.runs:
        assert run.schedule is not None
        records = run.records(recording.records)
        followed = follow(run.schedule, records, run.group_id)
        if not followed.agrees:
            unlike[run.group_id] = f"followed for {followed.matched} steps"
        elif problems := differences(run.schedule, records, run.group_id, followed.seeds):
            unlike[run.group_id] = "; ".join(problems)
    runs = len(recording.runs)
    agreeing = runs - len(unlike)
    with capsys.disabled():
        sys.stdout.write(f"\nKafka {recording.version}: the model agrees with {agreeing} of {runs} runs\n")
        sys.stdout.writelines(f"  {group_id}: {how}\n" for group_id, how in unlike.items())
    assert agreeing >= WANTED_AGREEING


def test_history_of_random_runs_is_never_wrong(recording: Recording, capsys: pytest.CaptureFixture[str]) -> None:
    """The counts of right, unknown and wrong facts by kind are printed."""
    with capsys.disabled():
        sys.stdout.write(check_facts(recording, WANTED_FACTS))

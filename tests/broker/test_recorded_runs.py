"""The history of recorded runs of real clients, compared fact by fact: a fact may be unknown, but is never wrong.

Every run is known without the log: what was done and when, what each client received, and what an admin client saw.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from proof.model_calibration import seed_of
from proof.recorded_runs import Environment, Run, ScheduleRunner, crashing, group_records
from proof.recorded_schedules import (
    ALL,
    CLASSIC,
    CONSUMER,
    CRASHES_CLASSIC,
    CRASHES_CONSUMER,
    SESSION_MS,
    RecordedSchedule,
)
from proof.recording_judge import check_facts
from proof.recordings import Recording, save
from servers.kafka import VERSIONS, Broker
from servers.offsets_topic import ensure_offsets_topic
from support.observed_groups import PATIENCE_SECONDS

pytestmark = pytest.mark.full

OLD = VERSIONS[-1]
WANTED_FACTS = 1_000

PROPERTIES = {
    "group.initial.rebalance.delay.ms": "3000",  # the default: clients know their topics by then
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
}
NEW_COORDINATOR = {
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
}
OLD_COORDINATOR = {"group.coordinator.rebalance.protocols": "classic", "group.coordinator.new.enable": "false"}


def run_all(environment: Environment, schedules: Mapping[str, RecordedSchedule]) -> list[Run]:
    """Run all schedules at once, one for each group."""
    runs = {group_id: Run(group_id, one.library) for group_id, one in schedules.items()}

    def run_schedule(group_id: str) -> None:
        recorded = schedules[group_id]
        runner = ScheduleRunner(environment, runs[group_id], dict(recorded.topics), crashing(recorded.actions))
        runner.run(recorded.actions)

    with ThreadPoolExecutor(len(schedules)) as pool:
        for running in [pool.submit(run_schedule, group_id) for group_id in schedules]:
            running.result()
    return list(runs.values())


@pytest.fixture(scope="module", params=VERSIONS)
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    version: str = request.param
    is_old = version == OLD
    properties = PROPERTIES | (OLD_COORDINATOR if is_old else NEW_COORDINATOR)
    names: dict[str, str] = {}
    with Broker(tmp_path_factory.mktemp("kafka"), version=version, properties=properties) as broker:
        ensure_offsets_topic(broker.bootstrap)
        runs = run_all(Environment(broker, names, lambda: None), CLASSIC if is_old else CLASSIC | CONSUMER)

        def restart() -> None:
            broker.kill()
            broker.start()

        crashes = CRASHES_CLASSIC if is_old else CRASHES_CLASSIC | CRASHES_CONSUMER
        together = threading.Barrier(len(crashes), action=restart, timeout=4 * PATIENCE_SECONDS)
        runs += run_all(Environment(broker, names, together.wait), crashes)
        made = Recording(version, runs, group_records(broker), names)
        save(made, tmp_path_factory.getbasetemp())
        return made


def test_history_of_recorded_runs_has_a_thousand_facts_and_none_wrong(
    recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    """The counts of right, unknown and wrong facts by kind are printed."""
    with capsys.disabled():
        sys.stdout.write(check_facts(recording, WANTED_FACTS))


def test_model_of_the_coordinator_agrees_with_recorded_runs(
    recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not in all runs: delays of clients are drawn from a seed, and some seed has to reproduce the recorded order."""
    agreeing = {
        run.group_id: seed_of(ALL[run.group_id], recording.version, run.records(recording.records)) is not None
        for run in recording.runs
    }
    with capsys.disabled():
        others = ", ".join(group_id for group_id, does in agreeing.items() if not does)
        sys.stdout.write(f"\nKafka {recording.version}: the model agrees with {sum(agreeing.values())} of ")
        sys.stdout.write(f"{len(agreeing)} runs; not with {others}\n")
    assert sum(agreeing.values()) >= 0.9 * len(agreeing)

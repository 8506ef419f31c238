"""Compare the recorded runs with what the coordinator model writes for their schedules.

The model draws from its seed what a schedule does not determine, such as the order of requests. A recording agrees
with the model if some seed leads to the same path: the same generations or epochs, each with as many members and, of
classic groups, shares as large. After a change to the model

    PYTHONPATH=jobs:deploy:tests .venv/bin/python -m proof.model_calibration

searches for the seeds again and writes them to `tests/data/recorded-runs-seeds.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from grouptrail.history.operations import CLASSIC, COMMIT_TOMBSTONE, Record, operations
from proof import coordinator_model
from proof.coordinator_model import schedule as actions
from proof.coordinator_model.schedule import Action, Join, Schedule, Version
from proof.recorded_schedules import SESSION_MS, RecordedSchedule

VERSIONS: tuple[Version, ...] = ("4.4", "4.3", "4.1", "4.0", "3.9")
SEEDS = range(1_000)
_HURRIED_SEEDS = 400
NEW_TOPICS_MS = 5_000
"""How long it took clients to learn of topics, although they refresh their metadata each second."""

SEEDS_FILE = Path(__file__).parents[1] / "data" / "recorded-runs-seeds.json"

Shape = tuple[str, ...]
"""The records of an operation by their types, those of several members as one; a tombstone has a minus before it."""
Step = tuple[str, int | None, int, tuple[int, ...]]
"""A group according to a record: (kind, generation or epoch, members, partitions of each member, the most first)."""


def seed_of(recorded: RecordedSchedule, release: str, records: Sequence[Record]) -> int | None:
    """Return the first seed that leads the model to the path of a recording, None where none does."""
    return next((seed for seed in SEEDS if agrees(recorded, release, records, seed)), None)


def agrees(recorded: RecordedSchedule, release: str, records: Sequence[Record], seed: int) -> bool:
    """Whether a seed leads the model to the path of a recording."""
    return path(model_run(recorded, release, seed)) == path(records)


def version_of(release: str) -> Version:
    """Return the version of the model for a release of Kafka: its own, or that of the newest release before it."""
    major, minor, *_ = map(int, release.split("."))
    return next(one for one in VERSIONS if tuple(map(int, one.split("."))) <= (major, minor))


def model_run(recorded: RecordedSchedule, release: str, seed: int) -> list[Record]:
    """The model's records of a schedule; the seed also decides how soon the group was stable."""
    version = version_of(release)
    as_run = [_as_run(action, recorded) for action in recorded.actions]
    spaced = tuple(_spaced(as_run, Random(seed)))
    return coordinator_model.run(Schedule(spaced, version, recorded.topics, seed)).records


def _as_run(action: Action, recorded: RecordedSchedule) -> Action:
    """A join as `recorded_runs.ScheduleRunner` runs it."""
    if not isinstance(action, Join):
        return action
    is_cooperative = action.assignors == ("cooperative-sticky",)
    library = "librdkafka" if is_cooperative or recorded.library == "librdkafka" else "kafka-python"
    # Static members have time enough to come back, there as here.
    session_ms = SESSION_MS if action.instance_id is None else action.session_ms
    return replace(action, library=library, session_ms=session_ms, metadata_age_ms=NEW_TOPICS_MS)


def _spaced(recorded: Sequence[Action], random: Random) -> Iterator[Action]:
    """Yield the actions, with waits in which the recorded group became stable."""
    static = {one.client for one in recorded if isinstance(one, Join) and one.instance_id}
    has_new_metadata = any(isinstance(one, actions.AddPartitions | actions.CreateTopic) for one in recorded)
    for action in recorded:
        if isinstance(action, actions.Wait):
            yield actions.Wait(100_000)
            continue
        yield action
        if isinstance(action, actions.Crash) and action.client not in static:
            yield actions.Wait(60_000)
        elif static:
            yield actions.Wait(10_000)
        else:
            # A group may be stable before all clients have learnt of a topic.
            yield actions.Wait(random.choice((20_000, 20_000, 2_000)) if has_new_metadata else 20_000)


def missing_shapes(recorded: RecordedSchedule, release: str, records: Sequence[Record]) -> set[Shape]:
    """The shapes of a recording that no run of its schedule by the model has, with little or enough time between its
    actions."""
    version = version_of(release)
    missing = shapes(records) - shapes(model_run(recorded, release, 0))
    for seed in range(_HURRIED_SEEDS):
        if not missing:
            break
        random = Random(seed)
        hurried: list[Action] = []
        for action in recorded.actions:
            hurried += [_as_run(action, recorded), actions.Wait(random.choice((300, 700, 1_500, 3_000, 8_000)))]
        missing -= shapes(coordinator_model.run(Schedule(tuple(hurried), version, recorded.topics, seed)).records)
    return missing


def shapes(records: Iterable[Record]) -> set[Shape]:
    """The shapes of all operations."""
    listed = list(records)
    return {_shape(operation) for operation, _ in operations(listed, listed[-1].offset + 2, lambda _: False)}


def _shape(operation: Iterable[Record]) -> Shape:
    types: list[str] = []
    for record in operation:
        type_ = f"{'-' * (record.body is None)}{record.type}"
        if not types or types[-1] != type_:
            types.append(type_)
    return tuple(types)


def path(records: Iterable[Record]) -> list[Step]:
    """How a group's generations or epochs follow each other."""
    steps: list[Step] = []
    members: set[str] = set()
    for record in records:
        step: Step | None = None
        if record.type == COMMIT_TOMBSTONE:
            continue
        if record.type == CLASSIC:
            step = ("classic", *_classic(record)) if record.body is not None else ("classic", None, 0, ())
        elif record.type.endswith("MemberMetadata"):
            (members.discard if record.body is None else members.add)(record.name or "")
        elif record.type.endswith("GroupMetadata"):
            epoch = None if record.body is None else record.body["epoch"]
            step = ("consumer", epoch, len(members), ())
        if step is not None and (not steps or steps[-1] != step):
            steps.append(step)
    return steps


def _classic(record: Record) -> tuple[int, int, tuple[int, ...]]:
    assert record.body is not None
    sizes = [
        sum(len(part["partitions"]) for part in member["assignment"].get("partitions") or ())
        for member in record.body["members"]
    ]
    return record.body["generation"], len(sizes), tuple(sorted(sizes, reverse=True))


def main() -> None:
    """Look for the seed of each kept recording, and say how many have one."""
    from proof.recorded_schedules import ALL
    from proof.recordings import load_recordings

    found = {
        one.version: {
            run.group_id: seed_of(ALL[run.group_id], one.version, run.records(one.records)) for run in one.runs
        }
        for one in load_recordings()
    }
    SEEDS_FILE.write_text(f"{json.dumps(found, indent=1)}\n", "utf-8")
    for version, seeds in found.items():
        agreeing = sum(seed is not None for seed in seeds.values())
        others = ", ".join(group_id for group_id, seed in seeds.items() if seed is None) or "none"
        sys.stdout.write(f"Kafka {version}: {agreeing} of {len(seeds)} runs agree; not: {others}\n")


if __name__ == "__main__":
    main()

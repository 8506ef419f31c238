"""Compare the recorded runs of random schedules with what the coordinator model writes for them.

Compared is the *path* of a group: every generation and epoch in order, with the members of each (client id,
instance id, subscription), the protocol, and what each member was assigned. Of `range` and `roundrobin` these are the
partitions themselves; of the sticky assignors and of KIP-848 how many each has, because which partition moves is up
to the implementation, and nothing (of KIP-848: how many all have) where subscriptions differ, because so is which
balance is possible. The coordinator of KIP-848 skips the assignment of an epoch if the next one comes soon:
compared are the assignments of those epochs for which both wrote one. Besides, the model has to write the same types
of records and tombstones, and every kind of operation (`model_calibration.Shape`) that the broker wrote.

Not compared, because the schedule does not determine it: times and offsets, member ids and so who of
a shared client id is first, leaders, which of several heartbeats reconciles first and how many records that takes,
commits and their tombstones.

How soon a request arrives is drawn by the model, and by the machine in a recording. Whenever a recorded group has
become stable, the model draws from a new seed: a recording agrees if there are seeds, one for each segment between
two stable states, that lead the model along its path from the first generation to the last.
The records of both end with the last stable state. After a change to the model

    PYTHONPATH=jobs:deploy:tests .venv/bin/python -m proof.random_calibration

searches for the seeds again and writes them to `tests/data/random-runs-seeds.json`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any

from grouptrail.history.operations import CLASSIC, COMMIT_TOMBSTONE, Record
from proof import coordinator_model
from proof.coordinator_model import schedule as actions
from proof.coordinator_model.schedule import Action, Schedule
from proof.model_calibration import Shape, shapes
from proof.random_runs import waits_until_stable
from proof.recorded_runs import Run

SEEDS_FILE = Path(__file__).parents[1] / "data" / "random-runs-seeds.json"
SEEDS = range(200)
_BRANCHES = 2
_MOST_RUNS = 6_000
_SETTLE_MS = 60_000

Described = tuple[Any, ...]
Step = tuple[Any, ...]
"""A generation or epoch of a group according to a record: (protocol, generation or epoch, assignor, members)."""


@dataclass(frozen=True)
class Followed:
    """How far the model follows a recording: `seeds` as far as it does, all of them if `agrees`."""

    seeds: tuple[int, ...]
    agrees: bool
    matched: int


def segments(schedule: Schedule) -> list[list[Action]]:
    """Return the actions of each segment, from one stable state to the next."""
    found: list[list[Action]] = [[]]
    for action in schedule.actions:
        if waits_until_stable(action):
            found.append([])
        else:
            found[-1].append(action)
    return [one for one in found if one]


def model_run(schedule: Schedule, seeds: Sequence[int]) -> list[Record]:
    """Return the model's records of as many segments as there are seeds, which also decide how long actions take."""
    return _model_run(schedule, seeds)[0]


def _model_run(schedule: Schedule, seeds: Sequence[int]) -> tuple[list[Record], tuple[object, ...]]:
    """The records up to the end of the last segment, as a recording ends there too, and the state at that time: what
    is still to come of the segment's actions, and which clients run."""
    spaced: list[Action] = []
    starts: dict[int, int] = {}
    for seed, segment in zip(seeds, segments(schedule), strict=False):
        random = Random(seed)
        starts[len(spaced)] = seed
        spaced += _timed(segment, random)
        # A group may be described as stable before all clients have noticed what was done.
        is_noticed_late = any(isinstance(one, _NOTICED_LATE) for one in segment)
        wait = actions.Wait(random.choice((_SETTLE_MS, _SETTLE_MS, 2_000, 10) if is_noticed_late else (_SETTLE_MS,)))
        spaced.append(wait)
    run = coordinator_model.run(replace(schedule, actions=tuple(spaced)), starts)
    records = [record for record in run.records if record.at <= run.last_action_at]
    return records, (wait.ms, *sorted(run.clients.items()))


# How long a client takes (ms) to start or to close, where the machine has little or much to do.
_TAKES_MS = ((0, 0, 20), (0, 100, 500), (20, 500, 1_500, 4_000), (500, 3_000, 8_000))


def _timed(segment: Sequence[Action], random: Random) -> Iterator[Action]:
    """The actions when they take effect: clients start while others do something, each at its own pace."""
    takes = random.choice(_TAKES_MS)
    now = 0
    ready: dict[str, int] = {}
    due: list[tuple[int, int, Action]] = []
    for index, action in enumerate(segment):
        if isinstance(action, actions.Wait):
            now += action.ms
            continue
        client: str = getattr(action, "client", "")
        at = max(now, ready.get(client, 0))
        if isinstance(action, actions.Join | actions.Subscribe):
            at = at + random.choice(takes)
            ready[client] = at + random.choice((0, 50))
        else:
            now = at + random.choice(takes)
        due.append((at, index, action))
    last = 0
    for at, _, action in sorted(due, key=lambda one: one[:2]):
        if at > last:
            yield actions.Wait(at - last)
        yield action
        last = max(last, at)


_NOTICED_LATE = (
    *(actions.AddPartitions, actions.CreateTopic, actions.DeleteTopic),
    *(actions.Subscribe, actions.MoveCoordinator),
)


def follow(schedule: Schedule, records: Sequence[Record], group_id: str) -> Followed:
    """Search for seeds that lead the model along the path of a recording, segment by segment."""
    return _Search(schedule, path(records, group_id), group_id).run()


class _Search:
    """Depth first: the seeds that lead farthest first, and few of those that lead as far to the same state."""

    def __init__(self, schedule: Schedule, wanted: GroupPath, group_id: str) -> None:
        self._schedule = schedule
        self._wanted = wanted
        self._group_id = group_id
        self._count = len(segments(schedule))
        self._best = Followed((), False, 0)
        self._runs = 0

    def run(self) -> Followed:
        found = self._search(())
        return self._best if found is None else Followed(found, True, len(self._wanted))

    def _search(self, seeds: tuple[int, ...]) -> tuple[int, ...] | None:
        is_last = len(seeds) + 1 == self._count
        for length, branches in sorted(self._next(seeds, is_last=is_last).items(), reverse=True):
            if (len(seeds) + 1, length) > (len(self._best.seeds), self._best.matched):
                self._best = Followed((*seeds, branches[0]), False, length)
            if is_last:
                return (*seeds, branches[0]) if length == len(self._wanted) else None
            for seed in branches:
                deeper = self._search((*seeds, seed))
                if deeper is not None:
                    return deeper
        return None

    def _next(self, seeds: tuple[int, ...], *, is_last: bool) -> dict[int, list[int]]:
        """Return the seeds for one more segment that keep to the path, by how far they lead."""
        found: dict[int, list[int]] = {}
        states: Counter[tuple[object, ...]] = Counter()
        for seed in SEEDS:
            if self._runs > _MOST_RUNS:
                break
            self._runs += 1
            modelled, state = _model_run(self._schedule, (*seeds, seed))
            now = path(modelled, self._group_id)
            if not self._wanted.begins_with(now):
                continue
            states[len(now), state] += 1
            if states[len(now), state] <= _BRANCHES:
                found.setdefault(len(now), []).append(seed)
            if is_last and len(now) == len(self._wanted):
                break
        return found


def differences(schedule: Schedule, records: Sequence[Record], group_id: str, seeds: Sequence[int]) -> list[str]:
    """Return the differences between the model's records with these seeds and the broker's; none if they agree."""
    modelled = model_run(schedule, seeds)
    found: list[str] = []
    wanted, written = path(records, group_id), path(modelled, group_id)
    if wanted.steps != written.steps:
        both = enumerate(zip_longest(wanted.steps, written.steps))
        index, (real, own) = next((index, pair) for index, pair in both if pair[0] != pair[1])
        found.append(f"step {index}: the broker wrote {real}, the model {own}")
    elif not wanted.begins_with(written):
        found.append(f"the broker assigned {wanted.assigned}, the model {written.assigned}")
    real_types, own_types = _types(records), _types(modelled)
    found += [f"only the broker wrote {one}" for one in sorted(real_types - own_types)]
    found += [f"only the model wrote {one}" for one in sorted(own_types - real_types)]
    return found


def missing_shapes(schedule: Schedule, records: Sequence[Record], seeds: Sequence[int]) -> set[Shape]:
    """The kinds of operations of a recording that no run of its schedule by the model has, with little or enough time
    between its actions."""
    missing = shapes(records) - _OF_OTHERS
    missing -= shapes(model_run(schedule, seeds))
    count = len(segments(schedule))
    for seed in range(_HURRIED_SEEDS):
        if not missing:
            break
        random = Random(seed)
        hurried: list[Action] = []
        for action in schedule.actions:
            stable = actions.Wait(random.choice((50, 700, 1_500, 3_000, 8_000, 20_000)))
            hurried += [action, stable] if not waits_until_stable(action) else [stable]
        runs = [
            coordinator_model.run(replace(schedule, actions=tuple(hurried), seed=seed)).records,
            model_run(schedule, [seed * count + index for index in range(count)]),
        ]
        for written in runs:
            missing -= shapes(written) if written else set()
    return missing


# Topics of other groups change what the coordinator knows, and it resolves patterns again.
_OF_OTHERS = {("ConsumerGroupRegularExpression",)}
_HURRIED_SEEDS = 400


def _types(records: Iterable[Record]) -> set[str]:
    return {f"{'-' * (one.body is None)}{one.type}" for one in records if one.type != COMMIT_TOMBSTONE}


@dataclass(frozen=True)
class GroupPath:
    """The generations or epochs of a group in order, and the number of partitions assigned to each member.

    `assigned` is of KIP-848 groups: by the number of steps before and the epoch, the sizes in order.
    """

    steps: list[Step]
    assigned: dict[tuple[int, int], tuple[int, ...]]

    def __len__(self) -> int:
        return len(self.steps)

    def begins_with(self, other: GroupPath) -> bool:
        """Whether another path is the beginning of this one, as far as both hold assignments."""
        both = self.assigned.keys() & other.assigned.keys()
        return self.steps[: len(other)] == other.steps and all(
            self.assigned[one] == other.assigned[one] for one in both
        )


def path(records: Iterable[Record], group_id: str) -> GroupPath:
    """Return the path of a group."""
    found = GroupPath([], {})
    now = _Now(group_id)
    for record in records:
        step = now.step(record)
        if step is None:
            continue
        if step[0] == "assigned":
            found.assigned[(len(found), step[1])] = step[2]
        elif not found.steps or found.steps[-1] != step:
            found.steps.append(step)
    return found


class _Now:
    """The group's members and the size of each target assignment, updated record by record."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._members: dict[str, Described] = {}
        self._targets: dict[str, int] = {}
        self._was_modern = False

    def step(self, record: Record) -> Step | None:
        """Return the generation or epoch that a record completes, if it does."""
        name, body = record.name or "", record.body
        match record.type.removeprefix("ConsumerGroup"):
            case _ if record.type == CLASSIC:
                self._members, self._targets = {}, {}
                if body is None:
                    return "classic", None
                # A group that has become a classic one has the assignment and the random ids of the other protocol.
                self._was_modern = self._was_modern and bool(body["members"])
                has_own_places = body["protocol"] in ("range", "roundrobin") and not self._was_modern
                return "classic", *_classic(body, self._group_id, has_own_places=has_own_places)
            case "MemberMetadata":
                self._members.pop(name, None)
                if body is not None:
                    self._members[name] = _described(body, self._group_id)
            case "TargetAssignmentMember":
                self._targets.pop(name, None)
                if body is not None:
                    self._targets[name] = sum(len(one["partitions"]) for one in body["topicPartitions"])
            case "TargetAssignmentMetadata" if body is not None:
                alike = len({one[2:4] for one in self._members.values()}) <= 1
                sizes = sorted(self._targets.values())
                return "assigned", body["assignmentEpoch"], tuple(sizes) if alike else (sum(sizes),)
            case "Metadata":
                epoch = None if body is None else body["epoch"]
                self._was_modern = True
                return "consumer", epoch, tuple(sorted(self._members.values(), key=repr))
        return None


def _described(body: Mapping[str, Any], group_id: str) -> Described:
    topics = tuple(sorted(_plain(topic, group_id) for topic in body.get("subscribedTopicNames") or ()))
    pattern = body.get("subscribedTopicRegex") or ""
    is_classic = body.get("classicMemberMetadata") is not None
    return _plain(body["clientId"], group_id), body.get("instanceId"), topics, pattern != "", is_classic


def _classic(body: Mapping[str, Any], group_id: str, *, has_own_places: bool) -> tuple[Any, ...]:
    found = []
    sizes = []
    for member in body["members"]:
        topics = tuple(sorted(_plain(topic, group_id) for topic in member["subscription"].get("topics") or ()))
        places = tuple(
            sorted(
                (_plain(part["topic"], group_id), number)
                for part in member["assignment"].get("partitions") or ()
                for number in part["partitions"]
            )
        )
        described = (_plain(member["client_id"], group_id), member["group_instance_id"], topics)
        found.append((*described, places) if has_own_places else described)
        sizes.append(len(places))
    if not has_own_places and len({one[2] for one in found}) > 1:
        sizes = []
    return body["generation"], body["protocol"], tuple(sorted(found, key=repr)), tuple(sorted(sizes))


def _plain(name: str, group_id: str) -> str:
    """A topic or client without the group that begins its name."""
    return name.removeprefix(f"{group_id}.").removeprefix(f"{group_id}-")


def main() -> None:
    """Search for the seeds of each recording; print how many runs the model follows and where the others differ."""
    from proof.recordings import load_recordings

    [recording] = load_recordings("random")
    recorded = [(run, run.records(recording.records)) for run in recording.runs]
    found: dict[str, list[int] | None] = {}
    with ProcessPoolExecutor() as pool:
        for (run, records), one in zip(recorded, pool.map(_followed, recorded), strict=True):
            found[run.group_id] = list(one.seeds) if one.agrees else None
            if not one.agrees:
                then = path(records, run.group_id).steps[one.matched : one.matched + 1]
                sys.stdout.write(f"{run.group_id} after {one.matched} steps, {len(one.seeds)} segments: {then}\n")
                sys.stdout.flush()
    lines = ",\n ".join(f"{json.dumps(group_id)}: {json.dumps(seeds)}" for group_id, seeds in found.items())
    SEEDS_FILE.write_text(f"{{\n {lines}\n}}\n", "utf-8")
    agreeing = sum(seeds is not None for seeds in found.values())
    sys.stdout.write(f"Kafka {recording.version}: {agreeing} of {len(found)} runs agree\n")


def _followed(recorded: tuple[Run, list[Record]]) -> Followed:
    run, records = recorded
    assert run.schedule is not None
    return follow(run.schedule, records, run.group_id)


if __name__ == "__main__":
    main()

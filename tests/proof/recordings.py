"""Recorded runs as files: what was done, what each client received, what an admin client saw, and the records.

`tests/data/recorded-runs-VERSION.json.gz` and `random-runs-VERSION.json.gz` hold those that the unit tests read; the
broker tests write such files into pytest's folder of temporary files.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from grouptrail.history.operations import Record
from proof.coordinator_model.schedule import Schedule, action_from_values
from proof.recorded_runs import Run, Step
from support.observed_groups import (
    DescribedMember,
    GroupDescription,
    Member,
    MemberEvent,
    MemberSpec,
    Partition,
    StableState,
)

FOLDER = Path(__file__).parents[1] / "data"


@dataclass(frozen=True)
class Recording:
    """All runs on one broker, and what it wrote of them: partition and records by group; `names` by topic id."""

    version: str
    runs: list[Run]
    records: dict[str, tuple[int, list[Record]]]
    names: dict[str, str]


def load_recordings(kind: str = "recorded") -> list[Recording]:
    """Return the recordings that are kept, by version."""
    return [_load(path) for path in sorted(FOLDER.glob(f"{kind}-runs-*.json.gz"))]


def save(recording: Recording, folder: Path, kind: str = "recorded") -> Path:
    """Write a recording of complete runs; return the file."""
    values = {
        "version": recording.version,
        "names": recording.names,
        "runs": [_of_run(run, *recording.records[run.group_id]) for run in recording.runs],
    }
    path = folder / f"{kind}-runs-{recording.version}.json.gz"
    text = json.dumps(values, separators=(",", ":"), default=sorted)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path


def _of_run(run: Run, partition: int, records: Iterable[Record]) -> dict[str, Any]:
    index = {id(member): number for number, member in enumerate(run.members)}
    return {
        "group_id": run.group_id,
        "library": run.library,
        "schedule": run.schedule and json.loads(run.schedule.to_json()),
        "members": [
            [_values(one.spec), [list(_values(event).values()) for event in one.events]] for one in run.members
        ],
        "steps": [
            {
                "action": step.action and {"action": type(step.action).__name__, **_values(step.action)},
                "began_ms": step.began_ms,
                "at_ms": step.stable.at_ms,
                "sight": _values(step.stable.group)
                | {"members": {name: _values(described) for name, described in step.stable.group.members.items()}},
                "member": index.get(id(step.member)),
                "returned": index.get(id(step.returned)),
            }
            for step in run.steps
        ],
        "partition": partition,
        "records": [
            [one.offset, one.at, one.type, one.name, _without_bytes(one.body), one.leader_epoch] for one in records
        ],
    }


def _values(one: Any) -> dict[str, Any]:
    return {field.name: getattr(one, field.name) for field in fields(one)}


def _without_bytes(value: Any) -> Any:
    """Without user data, which the history does not read."""
    if isinstance(value, Mapping):
        return {name: _without_bytes(one) for name, one in value.items() if not isinstance(one, bytes)}
    return [_without_bytes(one) for one in value] if isinstance(value, list) else value


def _load(path: Path) -> Recording:
    values = json.loads(gzip.decompress(path.read_bytes()))
    records = {run["group_id"]: (run["partition"], list(map(_record, run["records"]))) for run in values["runs"]}
    return Recording(values["version"], [_run(run) for run in values["runs"]], records, values["names"])


def _record(values: list[Any]) -> Record:
    """Return a record; earlier recordings do not have the epoch of its leader."""
    offset, at, kind, name, body, *epoch = values
    return Record(offset, at, kind, name, body, leader_epoch=epoch[0] if epoch else None)


def _run(values: dict[str, Any]) -> Run:
    members = [_member(spec, events) for spec, events in values["members"]]

    def member(index: int | None) -> Member | None:
        return None if index is None else members[index]

    steps = [
        Step(
            one["action"] and action_from_values(one["action"]),
            one["began_ms"],
            StableState(one["at_ms"], _described_group(one["sight"])),
            member(one["member"]),
            member(one["returned"]),
        )
        for one in values["steps"]
    ]
    schedule = values.get("schedule")
    played = None if schedule is None else Schedule.from_json(json.dumps(schedule))
    return Run(values["group_id"], values["library"], steps, members, played)


def _member(spec: dict[str, Any], events: list[list[Any]]) -> Member:
    """A recorded member: its configuration and events."""
    listed = [
        MemberEvent(at_ms, kind, member_id, generation, _partitions(given), _partitions(held))
        for at_ms, kind, member_id, generation, given, held in events
    ]
    return cast("Member", SimpleNamespace(spec=MemberSpec(**spec | {"topics": tuple(spec["topics"])}), events=listed))


def _described_group(values: dict[str, Any]) -> GroupDescription:
    members = {
        name: DescribedMember(**described | {"partitions": _partitions(described["partitions"])})
        for name, described in values["members"].items()
    }
    return GroupDescription(**values | {"members": members})


def _partitions(pairs: Iterable[Iterable[Any]]) -> frozenset[Partition]:
    return frozenset((topic, number) for topic, number in pairs)

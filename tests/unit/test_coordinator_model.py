"""The model of the coordinator: its schedules are data, its records those of real brokers in form and order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given

from grouptrail.history.operations import Record
from grouptrail.wire.layout import record_types
from grouptrail.wire.records import Key, Value, decode_record, encode_key, encode_value
from grouptrail.wire.text import data_json, values_from_json
from proof.coordinator_model import run
from proof.coordinator_model.schedule import Action, AddPartitions, Crash, Join, Leave, Schedule, Subscribe, Wait
from proof.coordinator_model.strategies import SCHEDULES
from support.group_records import real_logs

_TYPES = {message.name.removesuffix("Value"): number for number, message in record_types().items()}


@given(SCHEDULES)
def test_schedule_is_the_same_after_json_and_runs_the_same(schedule: Schedule) -> None:
    again = Schedule.from_json(schedule.to_json())
    assert again == schedule
    assert run(again).records == run(schedule).records


@given(SCHEDULES)
def test_records_of_consumer_groups_can_be_written_as_bytes(schedule: Schedule) -> None:
    for record in run(schedule).records:
        if record.type.startswith("ConsumerGroup") and record.body is not None:
            key = Key(_TYPES[record.type], _key_of(record))
            body = {name: value for name, value in record.body.items() if not _is_default(name, value)}
            message = record_types()[key.type]
            values = values_from_json(message, message.value, body)
            read = decode_record(encode_key(key), encode_value(key, Value(0, values)))
            assert read.value is not None
            assert data_json(read.value.data) == body


def _key_of(record: Record) -> dict[str, Any]:
    name = "regularExpression" if record.type.endswith("RegularExpression") else "memberId"
    return {"groupId": "group"} | ({} if record.name is None else {name: record.name})


def _is_default(name: str, value: object) -> bool:
    """Tagged fields that Kafka leaves out."""
    return name in ("metadataHash", "assignmentTimestamp") and value == 0


def _operations(records: Iterable[Record]) -> list[tuple[str, ...]]:
    """The records' types, those of one time together."""
    by_time: dict[int, list[str]] = {}
    for record in records:
        mark = "-" if record.body is None else ""
        by_time.setdefault(record.at, []).append(record.type.removeprefix("ConsumerGroup") + mark)
    return [tuple(types) for types in by_time.values()]


def _schedule(protocol: Any, **more: Any) -> Schedule:
    """Three clients of one group, as in the recorded ones."""
    actions: list[Action] = [
        *(Join(name, protocol=protocol, **more) for name in "abd"),
        Wait(20_000),
        *(AddPartitions("orders"), Wait(400_000), Crash("b"), Wait(60_000), Subscribe("a", ("orders", "other"))),
        *(Wait(20_000), Join("c", ("orders",), protocol, **more), Wait(20_000), Leave("c"), Wait(20_000)),
    ]
    return Schedule((*actions, Leave("a"), Wait(20_000), Leave("d")), "4.3")


@pytest.mark.parametrize("group", ["insights", "billing", "search"])
def test_every_operation_of_recorded_groups_is_one_that_the_model_writes(group: str) -> None:
    """Groups of a 4.3 broker, with patterns and static members."""
    [real] = [records for name, records in real_logs() if name == f"groups-4.3/{group}"]
    protocol = "consumer" if group == "insights" else "classic"
    written: set[tuple[str, ...]] = set()
    bodies: dict[str, set[str]] = {}
    more: list[dict[str, Any]] = [{}, {"pattern": "^o.*"}] if protocol == "consumer" else [{}]
    for choice in more:
        for record in (done := run(_schedule(protocol, **choice)).records):
            bodies.setdefault(record.type, set()).update(record.body or ())
        written |= {_plain(types) for types in _operations(done)}
    assert {_plain(types) for types in _operations(real)} <= written
    for record in real:
        if record.body is not None:
            assert record.body.keys() - {"protocol", "leader"} <= bodies[record.type], record


def _plain(types: tuple[str, ...]) -> tuple[str, ...]:
    """Targets are written of as many members as they change for."""
    return tuple(dict.fromkeys(types))

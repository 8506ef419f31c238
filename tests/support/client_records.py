"""What other people's clients wrote: recorded assignments and records of their groups."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grouptrail.history.operations import Record
from grouptrail.history.subscriber import Partition, Subscriber
from support.group_records import Row, as_record, fold

DATA = Path(__file__).parents[1] / "data"


class Dealt(NamedTuple):
    """A group, and the partitions by member that a library's assignor computed for it."""

    library: str
    assignor: str
    subscribers: list[Subscriber]
    counts: dict[str, int]
    assigned: dict[str, list[Partition]]

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Dealt:
        """Return a line of `dealt-by-clients.jsonl`: what `deal` of `tests/clients/go` reads, and what it printed."""
        subscribers = [
            Subscriber(
                member_id=member["id"],
                instance_id=member["instance"],
                topics=frozenset(member["topics"]),
                owned=frozenset(partitions(member["owned"])),
                generation=member["generation"],
                rack=None,
            )
            for member in line["members"]
        ]
        assigned = {member_id: partitions(owned) for member_id, owned in line["dealt"].items()}
        return cls(line["library"], line["assignor"], subscribers, line["counts"], assigned)


def partitions(by_topic: Mapping[str, list[int]]) -> list[Partition]:
    return [(topic, number) for topic, numbers in by_topic.items() for number in numbers]


def lines_dealt() -> list[dict[str, Any]]:
    """Return the lines of `dealt-by-clients.jsonl`."""
    return [json.loads(line) for line in (DATA / "dealt-by-clients.jsonl").read_text("utf-8").splitlines()]


class Recorded(NamedTuple):
    """A group of three members of a library on Kafka 4.3.0.

    `owned` is what the members themselves say that they have in the end, `records` those of the group.
    """

    library: str
    version: str
    assignor: str
    owned: dict[str, dict[str, list[int]]]
    records: list[Record]

    @classmethod
    def from_json(cls, group: Mapping[str, Any]) -> Recorded:
        """Return an element of `client-groups-4.3.0.json`, as `client_groups.record` returns it."""
        records = [
            as_record(offset, at, bytes.fromhex(key), bytes.fromhex(value))
            for offset, (at, key, value) in enumerate(group["records"])
        ]
        return cls(group["library"], group["version"], group["assignor"], group["owned"], records)

    def newest_generation(self) -> Row:
        """Return the row of the newest generation in the history."""
        return fold(self.records)["generations"][-1]

    def subscription_error(self) -> str | None:
        """Return the error of the members' subscriptions, which must have the same one."""
        assert self.records[-1].body is not None
        [error] = {member["subscription"].get("error") for member in self.records[-1].body["members"]}
        return error


def recorded_groups() -> list[Recorded]:
    """Return the groups of `client-groups-4.3.0.json`."""
    return [Recorded.from_json(group) for group in json.loads((DATA / "client-groups-4.3.0.json").read_text("utf-8"))]


def recorded_group(library: str, assignor: str) -> Recorded:
    return next(one for one in recorded_groups() if (one.library, one.assignor) == (library, assignor))

"""What other people's clients wrote: recorded assignments and records of their groups."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grouptrail.history.subscriber import Partition, Subscriber

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

"""Lines of brokers' logs for tests: recorded ones (`tests/data/broker_logs`), and made ones in Kafka's layouts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from grouptrail.broker_log.reading import LineCounts, read_events

FOLDER = Path(__file__).parent.parent / "data" / "broker_logs"
LOGGER = "org.apache.kafka.coordinator.group.GroupMetadataManager"
BEGIN = datetime(2026, 11, 28, 9, 0, 0, tzinfo=UTC)


def recorded() -> list[Path]:
    """Return the logs that brokers of each release wrote, in Kafka's default layout."""
    return sorted(FOLDER.glob("kafka-*.log"))


def at(seconds: float) -> datetime:
    """Return the time so many seconds after `BEGIN`."""
    return BEGIN + timedelta(seconds=seconds)


def rebalance(**more: Any) -> dict[str, Any]:
    """Return a rebalance of `orders` from generation 4 to 5 after 12 s, in which a member is gone."""
    return {
        "group_id": "orders",
        "group_kind": "classic",
        "record_partition": 0,
        "at": at(12),
        "from_generation": 4,
        "to_generation": 5,
        "cause": "member_left_or_expired",
        "certainty": "ambiguous",
        "cause_note": None,
        "members_joined": [],
        "subscriptions_changed": [],
        **more,
    }


def plain(seconds: float, text: str, *, broker: int = 1, partition: int = 0, level: str = "INFO") -> str:
    """Return a coordinator's line in Kafka's default layout."""
    time = at(seconds).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
    context = f"[GroupCoordinator id={broker} topic=__consumer_offsets partition={partition}]"
    return f"[{time}] {level} {context} {text} ({LOGGER})"


def structured(seconds: float, text: str, *, broker: int = 1, partition: int = 0) -> str:
    """Return a coordinator's line in the layout of the Elastic Common Schema."""
    context = f"[GroupCoordinator id={broker} topic=__consumer_offsets partition={partition}]"
    whole = {"@timestamp": at(seconds).isoformat(), "log.level": "INFO", "message": f"{context} {text}"}
    return json.dumps({**whole, "log.logger": LOGGER})


def preparing(group: str, old: int, reason: str) -> str:
    state = "in state PreparingRebalance with old generation"
    return f"Preparing to rebalance group {group} {state} {old} (reason: {reason})."


def assigned(group: str, generation: int, leader: str) -> str:
    return (
        f"Assignment received from leader {leader} for group {group} for generation {generation}. The group has 1 "
        "members, 0 of which are static."
    )


def left(group: str, member: str, reason: str = "not provided") -> str:
    asked = "has left group through explicit `LeaveGroup` request"
    return f"[Group {group}] Member {member} {asked}; client reason: {reason}"


def failed(group: str, member: str) -> str:
    return f"Member {member} in group {group} has failed, removing it from the group."


def events_of(
    folder: Path, lines: Iterable[str], *, trusts_clients: bool = False, counts: LineCounts | None = None
) -> list[dict[str, Any]]:
    """Return the rows that some lines give."""
    path = folder / "server.log"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return list(read_events(path, UTC, counts or LineCounts(), trusts_clients=trusts_clients))


def named(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, str | None]]:
    """Return the group, event and member of rows."""
    return [(row["group_id"], row["event"], row["member_id"]) for row in rows]

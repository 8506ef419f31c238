"""The history of a simulated group, as rows of the history tables and of consumer_lag: no Kafka, no JVM.

For benchmarks and tests that read these tables. The rows follow the contracts in `schemas/tables` and are those that
the jobs would write for such a group.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.history.evidence import Certainty, Evidence
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.buckets import bucket_of
from grouptrail.storage.schema import table_schema

Row = dict[str, Any]
Partition = tuple[str, int]

_SYNC_MS = 400
_BY_CERTAINTY: tuple[Certainty, ...] = ("ambiguous", "likely", "recorded")
_MOST_CERTAIN = {
    evidence.value.cause: evidence.value.certainty
    for evidence in sorted(Evidence, key=lambda one: _BY_CERTAINTY.index(one.value.certainty))
}
_EMPTY: dict[str, Any] = {"string": "", "smallint": 0, "int": 0, "bigint": 0, "double": 0.0, "boolean": False}


@dataclass(frozen=True)
class Client:
    """A member's ids and host."""

    member_id: str
    client_id: str
    host: str = "/10.0.0.1"
    instance_id: str | None = None


@dataclass
class SimulatedGroup:
    """A classic group with a sticky or an eager assignor; `rows` are its history."""

    group_id: str
    topics: dict[str, int]
    cluster: str = "default"
    kind: str = "classic"
    protocol: str = "cooperative-sticky"
    sticky: bool = True
    rows: dict[str, list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.members: dict[str, Client] = {}
        self.owners: dict[Partition, str] = {}
        self.generation = 0
        self._last: datetime | None = None
        self._open: dict[Any, Row] = {}

    def rebalance(
        self,
        at: datetime,
        cause: str,
        *,
        joined: Iterable[Client] = (),
        left: Mapping[str, tuple[str, str]] | None = None,
        certainty: Certainty | None = None,
        note: str | None = None,
        join_phase: timedelta = timedelta(seconds=3),
        skipped: int = 0,
        proof: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin the next generation at that time; `left` gives how each member id's membership ended, and the
        rule, `proof` the columns of the cause's evidence. By default, the cause is as certain as the history can be
        of it."""
        self.generation += 1 + skipped
        left = left or {}
        newcomers = list(joined)
        self._change_members(at, newcomers, left)
        before, self.owners = self.owners, self._assigned()
        self._change_owners(at, before, left)
        changes = {
            "partitions_added": len(self.owners.keys() - before.keys()),
            "partitions_removed": len(before.keys() - self.owners.keys()),
            "partitions_moved": sum(before.get(key, owner) != owner for key, owner in self.owners.items()),
            "partitions_kept": sum(before.get(key) == owner for key, owner in self.owners.items()),
        }
        self._add(
            "rebalances",
            {
                "group_kind": self.kind,
                "from_generation": self.generation - 1 - skipped,
                "to_generation": self.generation,
            }
            | {
                "at": at,
                "cause": cause,
                "certainty": certainty or _MOST_CERTAIN[cause],
                "cause_note": note,
                "skipped": skipped,
            }
            | dict(proof or {})
            | {"members_joined": [client.member_id for client in newcomers], "members_left": list(left), **changes}
            | {"previous_at": self._last, "duration_ms": _SYNC_MS, "duration_of": "sync phase", "ended_at": at}
            | {"seconds_since_previous": (at - self._last).total_seconds() if self._last else None},
        )
        self._change_generation(at, skipped)
        self._change_state(at, join_phase)
        self._last = at

    def end(self, at: datetime) -> None:
        """Delete the group, which has no members any more."""
        self._close("generation", ended_at=at)
        self._close("state", ended_at=at)
        self._open["state"] = self._add(
            "group_states", {"group_kind": self.kind, "state": "Dead", "evidence": "recorded", "started_at": at}
        )

    def lay(self, config: Config) -> None:
        """Write the rows; missing columns are null, or empty if they may not be null."""
        for row in (*self._open.values(), *self.rows["rebalances"][-1:]):
            row |= {"is_open": True, "open_bucket": bucket_of(self.group_id)}
        for table, rows in self.rows.items():
            lay_rows(config, table, rows)

    def _add(self, table: str, row: Row) -> Row:
        rows = self.rows.setdefault(table, [])
        shared = {"cluster": self.cluster, "group_id": self.group_id, "incarnation": 1, "record_partition": 9}
        rows.append({**shared, "record_offset": self.generation, "is_open": False, **row})
        return rows[-1]

    def _close(self, key: Any, **changes: Any) -> None:
        row = self._open.pop(key, None)
        if row is not None:
            row.update(changes)

    def _change_members(self, at: datetime, joined: list[Client], left: Mapping[str, tuple[str, str]]) -> None:
        for member_id, (ended, because) in left.items():
            del self.members[member_id]
            self._close(member_id, left_at=at, left_generation=self.generation, ended=ended, ended_because=because)
        replaced = {row["instance_id"] for row in self.rows.get("memberships", []) if row.get("ended") == "replaced"}
        for client in joined:
            self.members[client.member_id] = client
            self._open[client.member_id] = self._add(
                "memberships",
                {"member_id": client.member_id, "instance_id": client.instance_id, "client_id": client.client_id}
                | {"client_host": client.host, "joined_at": at, "joined_generation": self.generation}
                | {"began": "replaced" if client.instance_id and client.instance_id in replaced else "joined"},
            )

    def _assigned(self) -> dict[Partition, str]:
        """Return the new owners: the sticky assignor takes from members with too many, the eager one reassigns
        everything."""
        keys = [(topic, number) for topic, count in sorted(self.topics.items()) for number in range(count)]
        names = list(self.members)
        if not names:
            return {}
        if not self.sticky:
            return {key: names[index % len(names)] for index, key in enumerate(keys)}
        share, rest = divmod(len(keys), len(names))
        owned: dict[str, list[Partition]] = {name: [] for name in names}
        free = []
        for key in keys:
            holder = self.owners.get(key)
            if holder in owned and len(owned[holder]) < share + (rest > 0):
                owned[holder].append(key)
            else:
                free.append(key)
        for key in free:
            owned[min(names, key=lambda name: len(owned[name]))].append(key)
        while names and len(longest := max(owned.values(), key=len)) - len(least := min(owned.values(), key=len)) > 1:
            least.append(longest.pop())
        return {key: name for name, held in owned.items() for key in held}

    def _change_owners(self, at: datetime, before: dict[Partition, str], left: Mapping[str, tuple[str, str]]) -> None:
        for key, owner in before.items():
            if self.owners.get(key) != owner:
                ended = "member_gone" if owner in left else "given_up"
                self._close(key, owned_until=at, until_generation=self.generation, ended=ended)
        for (topic, number), owner in self.owners.items():
            if before.get((topic, number)) != owner:
                client = self.members[owner]
                self._open[topic, number] = self._add(
                    "partition_ownership",
                    {"topic": topic, "partition": number, "member_id": owner, "instance_id": client.instance_id}
                    | {"client_id": client.client_id, "owned_from": at, "from_generation": self.generation},
                )

    def _change_generation(self, at: datetime, skipped: int) -> None:
        self._close("generation", ended_at=at)
        self._open["generation"] = self._add(
            "generations",
            {"generation": self.generation, "group_kind": self.kind, "protocol_type": "consumer"}
            | {"protocol": self.protocol, "started_at": at, "stable_at": at, "skipped": skipped, "skew": 1}
            | {"member_count": len(self.members), "partition_count": len(self.owners), "is_assignors_own": True}
            | {"assignment_note": f"{self.protocol} gives the same"},
        )

    def _change_state(self, at: datetime, join_phase: timedelta) -> None:
        completing = at - timedelta(milliseconds=_SYNC_MS)
        preparing = completing - join_phase
        if self._last is not None:
            self._close("state", ended_at=preparing)
            for state, started, ended in (
                ("PreparingRebalance", preparing, completing),
                ("CompletingRebalance", completing, at),
            ):
                self._add(
                    "group_states",
                    {"generation": self.generation, "group_kind": self.kind, "state": state, "started_at": started}
                    | {"evidence": "inferred", "ended_at": ended, "not_before": self._last},
                )
        self._open["state"] = self._add(
            "group_states",
            {"generation": self.generation, "group_kind": self.kind, "state": "Stable" if self.members else "Empty"}
            | {"evidence": "recorded", "started_at": at},
        )


def lag_rows(
    group: SimulatedGroup,
    *,
    begins: datetime,
    ends: datetime,
    every: timedelta = timedelta(seconds=10),
    silent: tuple[tuple[Partition, datetime, datetime], ...] = (),
    unread_at_start: int = 0,
) -> list[Row]:
    """Samples of consumer_lag: a partition's lag rises while no one reads it, and falls at twice the pace after.

    `silent` says when a member owned a partition and did not read it. A rebalance costs half a minute of reading."""
    chance = random.Random(7)
    known_from: dict[Partition, datetime] = {}
    for row in group.rows["partition_ownership"]:
        known_from.setdefault((row["topic"], row["partition"]), row["owned_from"])
    keys = sorted(known_from)
    pauses = [
        (row["at"] - timedelta(seconds=15), row["at"] + timedelta(seconds=15)) for row in group.rows["rebalances"]
    ]
    behind = dict.fromkeys(keys, float(unread_at_start))
    rows = []
    moment = begins
    while moment < ends:
        reads = not any(start <= moment < end for start, end in pauses)
        for number, key in enumerate(keys):
            if moment < known_from[key]:
                continue
            is_silent = any(key == who and start <= moment < end for who, start, end in silent)
            pace = 40 + 10 * (number % 4)
            step = every.total_seconds() * pace * (1 if is_silent or not reads else -1)
            behind[key] = max(0.0, behind[key] + step) + (chance.random() < 0.3) * chance.randrange(40)
            is_bounded = unread_at_start > 0 and behind[key] >= unread_at_start
            rows.append(
                _sample(group, key, moment, int(behind[key]), pace, is_silent=is_silent, is_bounded=is_bounded)
            )
        moment += every
    return rows


def _sample(
    group: SimulatedGroup, key: Partition, moment: datetime, lag: int, pace: int, *, is_silent: bool, is_bounded: bool
) -> Row:
    why = "no commit advanced" if is_silent else "rising"
    status = "STALL" if is_silent and lag > 20 * pace else "WARN" if lag > 60 * pace else "OK"
    return {
        "cluster": group.cluster, "group_id": group.group_id, "topic": key[0], "partition": key[1],
        "sampled_at": moment, "committed_offset": 1000, "commit_at": moment, "lag": lag, "lag_seconds": lag / pace,
        "lag_seconds_method": "bounded" if is_bounded else "observed", "status": status,
        "status_reason": f"lag {lag}: {'small' if status == 'OK' else why}",
    }  # fmt: skip


def lay_rows(config: Config, table: str, rows: Iterable[Row], *, moment: datetime | None = None) -> None:
    """Appends rows to a Delta table of the contract's columns.

    A column that a row does not name is null; where it never is null, it is empty, and a time is `moment`.
    """
    empty = _EMPTY | {"timestamp": moment}
    absent = {
        column.name: None if column.null_means else empty.get(column.type, [])
        for column in contracts.tables()[table].columns
    }
    whole = [{name: row.get(name, value) for name, value in absent.items()} for row in rows]
    write_deltalake(
        warehouse_of(config).table(table).path, pa.Table.from_pylist(whole, table_schema(table)), mode="append"
    )

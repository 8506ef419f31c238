"""Read a group's history from its tables in the form in which tests observe groups."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.history.rows import TABLES
from grouptrail.runtime.warehouses import warehouse_of
from support.observed_groups import DescribedMember, GroupDescription, Partition, Partitions, StableState

Row = dict[str, Any]


@dataclass(frozen=True)
class History:
    """The history tables' rows, read with delta-rs; times in ms."""

    tables: dict[str, list[Row]]

    @classmethod
    def read(cls, config: Config) -> History:
        return cls({table: _rows(config, table) for table in TABLES})

    def of(self, table: str, group_id: str) -> list[Row]:
        return [row for row in self.tables[table] if row["group_id"] == group_id]

    def at(self, table: str, group_id: str, at_ms: int, since: str, until: str) -> list[Row]:
        """Return the rows whose interval contains a time."""
        return [row for row in self.of(table, group_id) if row[since] <= at_ms < (row[until] or at_ms + 1)]

    def generation(self, group_id: str, stable: StableState) -> Row:
        (row,) = self.at("generations", group_id, stable.at_ms, "started_at", "ended_at")
        return row

    def group_at(self, group_id: str, stable: StableState) -> GroupDescription:
        """Return the group in a stable state according to the history."""
        (state,) = self.at("group_states", group_id, stable.at_ms, "started_at", "ended_at")
        generation = self.generation(group_id, stable)
        # A share group stays in one state for all epochs with members.
        assert state["generation"] == generation["generation"] or state["group_kind"] == "share"
        owned: dict[str, set[Partition]] = defaultdict(set)
        for row in self.at("partition_ownership", group_id, stable.at_ms, "owned_from", "owned_until"):
            owned[row["member_id"]].add((row["topic"], row["partition"]))
        members = self.at("memberships", group_id, stable.at_ms, "joined_at", "left_at")
        assert owned.keys() <= {member["member_id"] for member in members}
        return GroupDescription(
            state=state["state"],
            protocol=generation["protocol"],
            generation=generation["generation"],
            members={
                member["member_id"]: _described_member(member, frozenset(owned[member["member_id"]]))
                for member in members
            },
        )

    def rebalances(self, group_id: str, after: StableState, until: StableState) -> list[Row]:
        rows = [row for row in self.of("rebalances", group_id) if after.at_ms < row["at"] <= until.at_ms]
        return sorted(rows, key=lambda row: row["at"])


def _rows(config: Config, table: str) -> list[Row]:
    """Return a table's rows sorted by its key."""
    path = warehouse_of(config).table(table).path
    if not (Path(path) / "_delta_log").is_dir():
        return []
    batches = QueryBuilder().register(table, DeltaTable(path)).execute(f"select * from {table}").read_all()
    key = contracts.tables()[table].key
    rows = [_in_ms(row) for row in pa.table(batches).to_pylist()]
    return sorted(rows, key=lambda row: [row[column] for column in key])


def _in_ms(value: Any) -> Any:
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, dict):
        return {name: _in_ms(one) for name, one in value.items()}
    return [_in_ms(one) for one in value] if isinstance(value, list) else value


def rebalance_with(member_id: str, column: str, rebalances: list[Row]) -> tuple[Row, list[Row]]:
    """Return the rebalance with a member in its `members_left` or `members_joined`, and those after it.

    Others may come before it: a leader that joins again, or a Connect worker that learned late of a connector.
    """
    [at] = [number for number, row in enumerate(rebalances) if member_id in row[column]]
    return rebalances[at], rebalances[at + 1 :]


def described_members(generation: Row) -> dict[str, DescribedMember]:
    """Return the members of a generation by their ids."""
    members = generation["members"]
    return {member["member_id"]: _described_member(member, partitions_of(member["partitions"])) for member in members}


def partitions_of(topics: list[Row]) -> Partitions:
    return frozenset((part["topic"], number) for part in topics for number in part["partitions"])


def _described_member(member: Row, partitions: Partitions) -> DescribedMember:
    return DescribedMember(member["instance_id"], member["client_id"], member["client_host"], partitions)

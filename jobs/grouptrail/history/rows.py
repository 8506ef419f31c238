"""The rows of a group's history with the types of the tables' columns, and the ones that may still change.

Times are in ms. A row has all columns of its table but the cluster and `open_bucket`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from grouptrail.history.group import Role, Task

TABLES = (
    "generations",
    "group_states",
    "memberships",
    "partition_ownership",
    "rebalances",
    "task_assignments",
    "streams_topology",
)

Values = dict[str, Any]


@dataclass
class Row:
    """The columns of all rows: the group, and the position of the record that began the row.

    `key` are the columns that identify a row among those of its group and table.
    """

    table: ClassVar[str]
    key: ClassVar[tuple[str, ...]]

    group_id: str
    incarnation: int
    record_partition: int
    record_offset: int
    is_open: bool = field(default=True, kw_only=True)

    @classmethod
    def of(cls, values: Values) -> Self:
        """Return the row that has these values: all columns, as `values` gives them."""
        row = object.__new__(cls)
        vars(row).update(values)
        return row

    def values(self) -> Values:
        """Return the row by column."""
        return vars(self)

    def copy(self) -> Self:
        """Return a row that can be changed on its own."""
        return self.of(vars(self))


@dataclass
class GenerationRow(Row):
    """A row of `generations`."""

    table = "generations"
    key = ("record_offset",)

    generation: int | None
    group_kind: str | None
    started_at: int
    skipped: int | None
    stable_at: int | None = None
    ended_at: int | None = None
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    member_count: int | None = 0
    members: list[Values] | None = None
    partition_count: int | None = None
    skew: int | None = None
    is_assignors_own: bool | None = None
    assignment_note: str | None = None


@dataclass
class GroupStateRow(Row):
    """A row of `group_states`."""

    table = "group_states"
    key = ("record_offset", "state")

    generation: int | None
    group_kind: str | None
    state: str
    evidence: str
    not_before: int | None
    started_at: int
    ended_at: int | None = None
    note: str | None = None


@dataclass
class MembershipRow(Row):
    """A row of `memberships`."""

    table = "memberships"
    key = ("record_offset", "member_id")

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    joined_at: int
    joined_generation: int | None
    began: str
    process_id: str | None = None
    endpoint: str | None = None
    topology_epoch: int | None = None
    left_at: int | None = None
    left_generation: int | None = None
    ended: str | None = None
    ended_because: str | None = None
    rule: str | None = None
    evidence: list[Values] | None = None
    ruled_out: str | None = None
    ended_without_log: str | None = None
    because_without_log: str | None = None
    rule_without_log: str | None = None
    ruled_out_without_log: str | None = None


@dataclass
class OwnershipRow(Row):
    """A row of `partition_ownership`."""

    table = "partition_ownership"
    key = ("record_offset", "topic", "partition", "member_id")

    topic: str
    partition: int
    member_id: str
    instance_id: str | None
    client_id: str
    owned_from: int
    from_generation: int | None
    owned_until: int | None = None
    until_generation: int | None = None
    ended: str | None = None


@dataclass
class RebalanceRow(Row):
    """A row of `rebalances`. What commits and the brokers' log say is added when the rows are written."""

    table = "rebalances"
    key = ("record_offset",)

    group_kind: str | None
    from_generation: int | None
    to_generation: int | None
    at: int
    cause: str
    certainty: str
    cause_note: str | None
    members_joined: list[str]
    members_left: list[str]
    subscriptions_changed: list[str]
    skipped: int | None
    previous_at: int | None
    seconds_since_previous: float | None
    duration_ms: int | None
    duration_of: str | None
    partitions_added: int = 0
    partitions_removed: int = 0
    partitions_moved: int = 0
    partitions_kept: int = 0
    followed_within_minute: int = 0
    ended_at: int | None = None
    unowned_partition_ms: int = 0
    handed_over: list[Values] = field(default_factory=list)
    departed: list[Values] = field(default_factory=list)
    rule: str | None = None
    evidence: list[Values] = field(default_factory=list)
    ruled_out: str | None = None
    cause_without_log: str | None = None
    certainty_without_log: str | None = None
    note_without_log: str | None = None
    rule_without_log: str | None = None
    ruled_out_without_log: str | None = None

    def copy(self) -> Self:
        """Return a row that can be changed on its own."""
        return self.of({**vars(self), "handed_over": list(self.handed_over)})


@dataclass
class TaskRow(Row):
    """A row of `task_assignments`."""

    table = "task_assignments"
    key = ("record_offset", "subtopology", "task", "role", "member_id")

    subtopology: str
    task: int
    role: Role
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    process_id: str | None
    endpoint: str | None
    assigned_from: int
    from_generation: int | None
    offset_sum: int | None = None
    offset_sum_at: int | None = None
    assigned_until: int | None = None
    until_generation: int | None = None
    ended: str | None = None


@dataclass
class TopologyRow(Row):
    """A row of `streams_topology`."""

    table = "streams_topology"
    key = ("record_offset", "subtopology", "topic", "usage")

    topology_epoch: int | None
    subtopology: str
    topic: str
    usage: str
    partitions: int | None
    replication_factor: int | None
    known_from: int
    known_until: int | None = None


OwnershipKey = tuple[str, int, str]
"""A topic, a partition of it, and a member's id."""

TaskKey = tuple[Task, str]
"""A task, and a member's id."""


@dataclass
class OpenRows:
    """The rows of one group that may still change, and all rows that changed since they were last written.

    `earlier_rebalances` are those before `rebalance` that another may still follow within a minute.
    """

    generation: GenerationRow | None = None
    state: GroupStateRow | None = None
    memberships: dict[str, MembershipRow] = field(default_factory=dict)
    ownership: dict[OwnershipKey, OwnershipRow] = field(default_factory=dict)
    rebalance: RebalanceRow | None = None
    earlier_rebalances: list[RebalanceRow] = field(default_factory=list)
    tasks: dict[TaskKey, TaskRow] = field(default_factory=dict)
    topology: list[TopologyRow] = field(default_factory=list)
    _changed: dict[int, Row] = field(default_factory=dict)

    def mark(self, row: Row) -> None:
        """Mark a row as changed."""
        self._changed[id(row)] = row

    def update(self, row: Row, **values: Any) -> None:
        """Change columns of a row, and mark it as changed if a value differs."""
        if any(getattr(row, name) != value for name, value in values.items()):
            vars(row).update(values)
            self.mark(row)

    def close(self, row: Row, **values: Any) -> None:
        """Set a row's last values and close it."""
        vars(row).update(values, is_open=False)
        self.mark(row)

    def changed(self) -> list[Row]:
        """Return all rows that changed, each once, as it is now; of two with the same key the later one."""
        by_key = {(row.table, *map(vars(row).get, row.key)): row for row in self._changed.values()}
        return list(by_key.values())

    def copy(self) -> OpenRows:
        """Return open rows that can be changed on their own, none of them marked as changed."""
        return OpenRows(
            generation=self.generation and self.generation.copy(),
            state=self.state and self.state.copy(),
            memberships={name: row.copy() for name, row in self.memberships.items()},
            ownership={key: row.copy() for key, row in self.ownership.items()},
            rebalance=self.rebalance and self.rebalance.copy(),
            earlier_rebalances=[row.copy() for row in self.earlier_rebalances],
            tasks={key: row.copy() for key, row in self.tasks.items()},
            topology=[row.copy() for row in self.topology],
        )

"""Models of the pages and of the API's responses, and their parameters.

They hold the data and describe it for OpenAPI. A field that is a column of a table has its name, and its
description from the table's contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from grouptrail import contracts
from grouptrail.console.times import parsed_moment
from grouptrail.query.views import utc_now
from grouptrail.report.layout import visible


def _column(table: str, name: str) -> Any:
    """Return a field that is described as a column of a table."""
    return _described(next(column for column in contracts.tables()[table].columns if column.name == name))


def _described(column: contracts.Column) -> Any:
    null = f" Null: {column.null_means}." if column.null_means else ""
    return Field(description=f"{column.about[:1].upper()}{column.about[1:]}.{null}")


def _column_of_view(view: str, name: str) -> Any:
    """Return a field that is described as a column of a view."""
    return _described(next(column for column in contracts.views()[view].columns if column.name == name))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(_Strict):
    """Part of an answer."""


class Parameters(_Strict):
    """Query parameters of a page or a path of the API."""


class Problem(Answer):
    """Why there is no answer, as application/problem+json (RFC 9457)."""

    type: str = "about:blank"
    title: str = Field(description="the status in words")
    status: int = Field(description="the HTTP status")
    detail: str = Field(description="what is wrong, and what to do")
    near: list[str] = Field(default=[], description="names like the one that was not found")


class Notice(Answer):
    """Something to know about the figures: that there are none yet, or that they are old."""

    kind: Literal["empty", "reading", "stale", "failed"]
    cluster: str
    title: str
    detail: str = Field(description="what to do about it")


_IS_STALE = "Whether these figures are too old to show the present: older than five minutes and three samples."


class GroupSummary(Answer):
    """A group now, or if the pipeline has stopped, as it was then. A deleted group has none."""

    as_of: datetime | None = Field(
        description="The time of these figures: that of the newest sample of lag, or else of the newest batch read."
    )
    is_stale: bool = Field(description=_IS_STALE)
    cluster: str = _column("consumer_lag", "cluster")
    group_id: str = _column("consumer_lag", "group_id")
    status: str | None = Field(description="Its worst partition's verdict. Null: no lag is sampled.")
    lag: int | None = Field(description="Its unread offsets, of all partitions. Null: unknown.")
    lag_is_least: bool = Field(description="Whether some partition's lag is unknown.")
    lag_seconds: float | None = Field(description="The worst partition's lag in seconds. Null: unknown.")
    lag_seconds_is_least: bool = Field(description="Whether it may be more.")
    time_to_loss_seconds: float | None = Field(
        description="When retention deletes a record that it has not read, at the earliest. Null: none is foreseen."
    )
    lost_records: int | None = Field(description="Offsets that were deleted unread, of all partitions.")
    most_deliveries: int | None = Field(
        description="How often the record of a share group that came back most often was delivered. Null: unknown."
    )
    partitions: int = Field(description="How many partitions it has committed offsets of.")
    state: str | None = _column("group_states", "state")
    generation: int | None = _column("generations", "generation")
    member_count: int | None = _column("generations", "member_count")
    rebalances_last_hour: int = Field(description="Its rebalances in the last hour.")
    commit_at: datetime | None = Field(description="Its newest commit. Null: unknown.")
    trend: list[int | None] = Field(
        description="Its lag in the last hour, every two minutes, the newest last. Null: not sampled."
    )


class Groups(Answer):
    """A page of the groups."""

    notices: list[Notice]
    total: int = Field(description="How many groups match.")
    page: int
    pages: int
    statuses: dict[str, int] = Field(description="How many groups have each verdict, before `status` selects some.")
    clusters: list[str] = Field(description="All clusters.")
    sampled_at: datetime | None = Field(
        description="The time of the newest sample of lag for which a broker answered."
    )
    is_stale: bool = Field(description="Whether those of any cluster are too old to show the present.")
    groups: list[GroupSummary]


def _listed(value: Any) -> Any:
    """Return a parameter as a list: `status=STOP,WARN` is `status=STOP&status=WARN`."""
    values = value if isinstance(value, list) else [value]
    return [part.strip() for text in values for part in str(text).split(",") if part.strip()]


def _one_of(names: Sequence[str]) -> Any:
    """Return what makes text one of some names."""

    def check(text: str) -> str:
        if text not in names:
            raise ValueError(f"{visible(text)} is none of {', '.join(names)}")
        return text

    return AfterValidator(check), WithJsonSchema({"type": "string", "enum": list(names)})


STATUSES = (*contracts.statuses(), "NONE")
"""The verdicts, the worst first; NONE stands for groups without lag."""

SORTS = (
    *("status", "cluster", "group_id", "lag", "lag_seconds", "state", "member_count", "rebalances_last_hour"),
    *("commit_at", "time_to_loss_seconds"),
)

_is_status, _status_schema = _one_of(STATUSES)
_is_sort, _sort_schema = _one_of([*SORTS, *(f"-{name}" for name in SORTS)])


class GroupsQuery(Parameters):
    """The parameters of the groups."""

    status: Annotated[list[Annotated[str, _is_status, _status_schema]], BeforeValidator(_listed)] = Field(
        default=[], description="Only groups with one of these verdicts; NONE: without lag."
    )
    group: str = Field(
        default="",
        max_length=1000,
        description="Only groups whose name has this text, or matches this shell pattern.",
    )
    cluster: str = Field(default="", max_length=1000, description="Only groups of this cluster.")
    state: str = Field(default="", max_length=100, description="Only groups in this state.")
    sort: Annotated[str, _is_sort, _sort_schema] = Field(
        default="status", description="The order; with - the greatest first. By status the worst come first."
    )
    page: int = Field(default=1, ge=1, le=1_000_000)
    per_page: int = Field(default=50, ge=1, le=500)


# Kafka's times begin in 1970; calculations with later years would leave Python's range.
_FIRST_YEAR, _LAST_YEAR = 1970, 2999


def _moment(value: Any) -> Any:
    """Return a time that is written as for --from and --to of the commands."""
    if not isinstance(value, str):
        return value
    try:
        moment = parsed_moment(value, utc_now())
    except (ValueError, OverflowError):
        moment = None
    if moment is None or not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        wanted = f"from {_FIRST_YEAR} to {_LAST_YEAR}, such as 2026-11-21T14:55:00Z, or 2h for two hours ago"
        raise ValueError(f"{visible(value)} is no time {wanted}")
    return moment


Moment = Annotated[datetime, BeforeValidator(_moment)]


# Browsers take these segments of a path for folders, even percent-encoded.
_NAME: Any = Field(default=None, description="The name, in place of the path: for `.`, `..` and the empty name.")


class Period(Parameters):
    """The time to show."""

    since: Moment | None = Field(
        default=None, alias="from", description="Begin of the time to show. Default: a day before its end."
    )
    until: Moment | None = Field(default=None, alias="to", description="Its end. Default: the newest data.")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.since and self.until and self.since >= self.until:
            raise ValueError("`to` is not after `from`")
        return self


class GroupQuery(Period):
    """The parameters of a group."""

    cluster: str = Field(
        default="", max_length=1000, description="Its cluster, if several have a group of this name."
    )
    at: Moment | None = Field(default=None, description="Members, owners and lag as of this time. Default: now.")
    name: str | None = _NAME


class GroupMember(Answer):
    """A member of a group, and what it owned."""

    member_id: str = _column("memberships", "member_id")
    instance_id: str | None = _column("memberships", "instance_id")
    client_id: str | None = _column("memberships", "client_id")
    client_host: str | None = _column("memberships", "client_host")
    joined_at: datetime = _column("memberships", "joined_at")
    began: str | None = _column("memberships", "began")
    partitions: dict[str, list[int]] | None = Field(
        description="The partitions that it owned, by topic. Null: its assignment could not be read."
    )
    tasks: dict[str, dict[str, list[int]]] = Field(
        description="The tasks of Kafka Streams or Connect that it had, by role and subtopology or connector."
    )
    process_id: str | None = _column("task_assignments", "process_id")
    endpoint: str | None = _column("task_assignments", "endpoint")


class SubtopologyTopic(Answer):
    """A topic that a subtopology of Kafka Streams used."""

    subtopology: str = _column("streams_topology", "subtopology")
    topic: str = _column("streams_topology", "topic")
    usage: str = _column("streams_topology", "usage")
    partitions: int | None = _column("streams_topology", "partitions")
    replication_factor: int | None = _column("streams_topology", "replication_factor")


class UnreadyTopic(Answer):
    """A topic without which a topology of Kafka Streams is not ready."""

    topic: str = Field(description="The topic.")
    subtopologies: list[str] = Field(description="The subtopologies that need it.")
    problem: str = Field(description="What is wrong with it, such as that it was deleted.")
    certainty: str = Field(description="recorded; likely without a sample that shows the topic, or since then.")


class Unready(Answer):
    """Why a streams group was NotReady, as far as samples of the cluster show."""

    topics: list[UnreadyTopic] = Field(description="Topics that are missing or do not fit.")
    note: str | None = Field(description="Why no topic is found, or that samples are older. Null: neither.")


class TaskLag(Answer):
    """A task of Kafka Streams now, and the lag of the partitions that it reads."""

    subtopology: str = _column("task_assignments", "subtopology")
    task: int = _column("task_assignments", "task")
    role: str = _column("task_assignments", "role")
    member_id: str = _column("task_assignments", "member_id")
    client_id: str = _column("task_assignments", "client_id")
    endpoint: str | None = _column("task_assignments", "endpoint")
    lag: int | None = Field(description="The sum of the lag of these partitions. Null: unknown, see problem.")
    max_lag_seconds: float | None = Field(
        description="The highest lag in seconds of these partitions. Null: unknown."
    )
    topics_without_lag: int | None = Field(
        description="How many of its topics have no known lag in this partition. Null: not an active task."
    )
    offset_sum: int | None = _column("task_assignments", "offset_sum")
    offset_sum_at: datetime | None = _column("task_assignments", "offset_sum_at")
    problem: str | None = Field(description="Why lag is null or may lack some.")


class Coordinator(Answer):
    """The broker that led a group's partition of __consumer_offsets at a time, by the samples of the cluster."""

    broker_id: int = _column("coordinators", "broker_id")
    host: str | None = Field(description="The host that it advertised. Null: it was not listed.")
    leader_epoch: int = _column("coordinators", "leader_epoch")
    valid_from: datetime = _column("coordinators", "valid_from")
    valid_to: datetime | None = _column("coordinators", "valid_to")
    last_seen_at: datetime | None = _column("coordinators", "last_seen_at")
    may_have_moved: bool = Field(description="At the time asked for, no later sample showed it any more.")


class GroupState(Answer):
    """A group at a time according to the history, as `grouptrail show group` shows it."""

    group_kind: str | None = _column("generations", "group_kind")
    protocol_type: str | None = _column("generations", "protocol_type")
    protocol: str | None = _column("generations", "protocol")
    generation: int | None = _column("generations", "generation")
    incarnation: int | None = _column("generations", "incarnation")
    state: str | None = _column("group_states", "state")
    state_since: datetime | None = Field(default=None, description="When this state began.")
    state_note: str | None = Field(default=None, description="The note on the state.")
    evidence: str | None = _column("group_states", "evidence")
    coordinator_partition: int | None = Field(description="The partition of __consumer_offsets of this name.")
    coordinator: Coordinator | None = Field(description="Null: no sample of the cluster shows it.")
    coordinator_now: Coordinator | None = Field(description="The one now, of a group at another time.")
    partition_count: int | None = _column("generations", "partition_count")
    skew: int | None = _column("generations", "skew")
    is_assignors_own: bool | None = _column("generations", "is_assignors_own")
    assignment_note: str | None = _column("generations", "assignment_note")
    members: list[GroupMember]
    unready: Unready | None = Field(description="Of a streams group in the state NotReady; null for others.")
    topology: list[SubtopologyTopic] = Field(description="Of a Kafka Streams application; empty for others.")
    task_lag: list[TaskLag] = Field(
        description="Of a Kafka Streams application now; empty for others, and at another time."
    )


class Fact(Answer):
    """What a cause, an end or a verdict rests on."""

    source: str = Field(description="record, commit, sample or broker log.")
    at: datetime = Field(description="When it was written, or sampled.")
    record_partition: int | None = Field(description="Its partition of __consumer_offsets. Null: not in a record.")
    record_offset: int | None = Field(description="Its offset there. Null: not in a record, or not looked up.")
    shows: str = Field(description="What it shows.")


class Ending(Answer):
    """How a member that a rebalance shows to be gone had left."""

    member_id: str = _column("memberships", "member_id")
    instance_id: str | None = _column("memberships", "instance_id")
    client_id: str | None = _column("memberships", "client_id")
    client_host: str | None = _column("memberships", "client_host")
    ended: str = _column("memberships", "ended")
    ended_because: str | None = _column("memberships", "ended_because")
    rule: str | None = _column("memberships", "rule")
    ruled_out: str | None = _column("memberships", "ruled_out")
    evidence: list[Fact] | None = _column("memberships", "evidence")


class Rebalance(Answer):
    """A rebalance in the time shown."""

    from_generation: int | None = _column("rebalances", "from_generation")
    to_generation: int = _column("rebalances", "to_generation")
    at: datetime = _column("rebalances", "at")
    ended_at: datetime | None = _column("rebalances", "ended_at")
    cause: str = _column("rebalances", "cause")
    certainty: str | None = _column("rebalances", "certainty")
    cause_note: str | None = _column("rebalances", "cause_note")
    rule: str | None = _column("rebalances", "rule")
    ruled_out: str | None = _column("rebalances", "ruled_out")
    evidence: list[Fact] | None = _column("rebalances", "evidence")
    members_joined: list[str] | None = _column("rebalances", "members_joined")
    members_left: list[str] | None = _column("rebalances", "members_left")
    endings: list[Ending] = Field(description="How these had left, as far as their memberships are known.")
    partitions_moved: int | None = _column("rebalances", "partitions_moved")
    partitions_kept: int | None = _column("rebalances", "partitions_kept")
    skipped: int | None = _column("rebalances", "skipped")
    duration_ms: int | None = _column("rebalances", "duration_ms")
    duration_of: str | None = _column("rebalances", "duration_of")


class LagPoint(Answer):
    """The lag in a slice of time."""

    at: datetime = Field(description="The begin of the slice.")
    lag: int | None = Field(description="The greatest lag in the slice. Null: unknown.")


class PartitionPoint(LagPoint):
    """A partition's newest sample in a slice of time."""

    committed_offset: int | None = _column("consumer_lag", "committed_offset")
    log_end_offset: int | None = _column("consumer_lag", "log_end_offset")


class GroupPartition(Answer):
    """A partition that a group consumes: its newest sample at the time, and its samples in the time shown."""

    topic: str = _column("consumer_lag", "topic")
    partition: int = _column("consumer_lag", "partition")
    sampled_at: datetime | None = _column("consumer_lag", "sampled_at")
    status: str | None = _column("consumer_lag", "status")
    status_reason: str | None = _column("consumer_lag", "status_reason")
    rule: str | None = _column("consumer_lag", "rule")
    ruled_out: str | None = _column("consumer_lag", "ruled_out")
    evidence: list[Fact] = Field(description="What the verdict rests on: the commit and the sample.")
    committed_offset: int | None = _column("consumer_lag", "committed_offset")
    commit_at: datetime | None = _column("consumer_lag", "commit_at")
    log_start_offset: int | None = _column("consumer_lag", "log_start_offset")
    log_end_offset: int | None = _column("consumer_lag", "log_end_offset")
    lag: int | None = _column("consumer_lag", "lag")
    lag_error: int | None = _column("consumer_lag", "lag_error")
    lag_seconds: float | None = _column("consumer_lag", "lag_seconds")
    time_to_loss_seconds: float | None = _column("consumer_lag", "time_to_loss_seconds")
    time_to_loss_most_seconds: float | None = _column("consumer_lag", "time_to_loss_most_seconds")
    time_to_loss_reason: str | None = _column("consumer_lag", "time_to_loss_reason")
    lost_records: int | None = _column("consumer_lag", "lost_records")
    delivery_complete_count: int | None = _column("consumer_lag", "delivery_complete_count")
    awaiting_redelivery: int | None = _column("consumer_lag", "awaiting_redelivery")
    most_deliveries: int | None = _column("consumer_lag", "most_deliveries")
    most_delivered_offset: int | None = _column("consumer_lag", "most_delivered_offset")
    points: list[PartitionPoint]


class Handover(Answer):
    """A partition that changed its owner while records may have been processed but not committed."""

    at: datetime = _column("rebalances", "at")
    to_generation: int = _column("rebalances", "to_generation")
    topic: str
    partition: int
    from_member: str | None
    to_member: str | None
    committed_offset: int | None = Field(description="The previous owner's last commit. Null: none was found.")
    commit_age_ms: int | None = Field(description="Its age when the partition was given up.")
    may_be_read_twice: int = Field(description="An estimate of the records that the new owner reads again.")


class Reset(Answer):
    """A commit that moved an offset back, or changed it while the group had no members: the view `resets`."""

    at: datetime
    topic: str
    partition: int
    kind: str = Field(description="rewind or jump")
    before_offset: int | None
    after_offset: int
    moved_by: int | None = Field(description="The difference; if negative, records are read again.")
    owner_member_id: str | None = Field(description="The member that owned the partition. Null: none.")
    owner_client_id: str | None
    group_state: str | None


class Group(Answer):
    """A group at a time, and its history in the time shown."""

    notices: list[Notice]
    cluster: str = _column("generations", "cluster")
    group_id: str = _column("generations", "group_id")
    at: datetime | None = Field(description="The time of `now` and `partitions`. Null: `as_of`.")
    as_of: datetime | None = Field(description="The time of the newest figures, as in the list of groups.")
    is_stale: bool = Field(description="Whether they are too old to show the time asked for.")
    summary: GroupSummary | None = Field(description="Its row in the list of groups. Null: it was deleted.")
    deleted_at: datetime | None = Field(description="When it was deleted. Null: it was not.")
    now: GroupState | None = Field(description="Null: the tables have no history of its members.")
    since: datetime = Field(serialization_alias="from")
    until: datetime = Field(serialization_alias="to")
    rebalances: list[Rebalance] = Field(description="The newest first, at most 500.")
    partitions: list[GroupPartition] = Field(description="The worst first, at most 200.")
    handovers: list[Handover] = Field(description="Possible re-reads at rebalances, the greatest first, at most 100.")
    resets: list[Reset] = Field(description="The newest first, at most 100.")


TOPIC_SORTS = ("status", "cluster", "topic", "groups", "partitions", "lag", "lag_seconds", "produce_rate")

_is_topic_sort, _topic_sort_schema = _one_of([*TOPIC_SORTS, *(f"-{name}" for name in TOPIC_SORTS)])


class TopicsQuery(Parameters):
    """The parameters of the topics."""

    topic: str = Field(
        default="",
        max_length=1000,
        description="Only topics whose name has this text, or matches this shell pattern.",
    )
    cluster: str = Field(default="", max_length=1000, description="Only topics of this cluster.")
    sort: Annotated[str, _is_topic_sort, _topic_sort_schema] = Field(
        default="status", description="The order; with - the greatest first. By status the worst come first."
    )
    page: int = Field(default=1, ge=1, le=1_000_000)
    per_page: int = Field(default=50, ge=1, le=500)


class TopicSummary(Answer):
    """A topic that groups consume, and the group that is furthest behind in it."""

    cluster: str = _column("consumer_lag", "cluster")
    topic: str = _column("consumer_lag", "topic")
    is_stale: bool = Field(description=_IS_STALE)
    status: str | None = Field(description="The worst verdict of its consumers. Null: not held at this size.")
    groups: int = Field(description="How many groups have committed offsets of it.")
    partitions: int | None = Field(description="How many of its partitions. Null: not held at this size.")
    slowest_group_id: str | None = Field(
        description="The group that is furthest behind, in seconds, then in offsets."
    )
    lag: int | None = Field(description="That group's unread offsets in it. Null: unknown.")
    lag_seconds: float | None = Field(description="That group's worst partition in seconds. Null: unknown.")
    produce_rate: float | None = Field(description="Records per second, of all partitions. Null: unknown.")
    lost_records: int | None = Field(description="Offsets that were deleted before some group had read them.")
    most_deliveries: int | None = Field(
        description="How often the record of a share group that came back most often was delivered. Null: unknown."
    )


class Topics(Answer):
    """The topics that groups consume."""

    notices: list[Notice]
    total: int = Field(description="How many topics the parameters select.")
    page: int
    pages: int
    clusters: list[str] = Field(description="All clusters.")
    sampled_at: datetime | None = Field(description="The time of the newest sample for which a broker answered.")
    topics: list[TopicSummary]


class ChangesQuery(Parameters):
    """The parameters of what has changed."""

    since: Literal["deploy"] | Moment | None = Field(
        default=None,
        union_mode="left_to_right",
        description="The time to compare with, or `deploy`: the begin of the newest rollout. Default: an hour ago.",
    )
    cluster: str = Field(default="", max_length=1000, description="The cluster. Default: the first.")
    page: int = Field(default=1, ge=1, le=1_000_000)
    per_page: int = Field(default=100, ge=1, le=500)


class GroupChange(Answer):
    """A group that is not as it was."""

    group_id: str = _column_of_view("group_changes", "group_id")
    status_then: str | None = _column_of_view("group_changes", "status_then")
    status: str | None = _column_of_view("group_changes", "status")
    severity_then: int | None = _column_of_view("group_changes", "severity_then")
    severity: int | None = _column_of_view("group_changes", "severity")
    lag_then: int | None = _column_of_view("group_changes", "lag_then")
    lag: int | None = _column_of_view("group_changes", "lag")
    members_then: int | None = _column_of_view("group_changes", "members_then")
    members: int | None = _column_of_view("group_changes", "members")
    rebalances: int = _column_of_view("group_changes", "rebalances")
    new_at: datetime | None = _column_of_view("group_changes", "new_at")
    vanished_at: datetime | None = _column_of_view("group_changes", "vanished_at")


class NewestRollout(Answer):
    """The rollout that is compared with."""

    group_id: str = _column_of_view("rollouts", "group_id")
    started_at: datetime = _column_of_view("rollouts", "started_at")


class Changes(Answer):
    """The groups of a cluster that are not as they were at a time, the most worrying first."""

    notices: list[Notice]
    cluster: str = _column("rebalances", "cluster")
    clusters: list[str] = Field(description="All clusters.")
    since: datetime = Field(description="The time that is compared with.")
    until: datetime = Field(description="Now, or when the pipeline stopped.")
    is_stale: bool = Field(description=_IS_STALE)
    rollout: NewestRollout | None = Field(description="The newest rollout, if it is compared with.")
    total: int = Field(description="How many groups have changed.")
    page: int
    pages: int
    changes: list[GroupChange]


class RebalancesQuery(Period):
    """The parameters of the rebalances of all groups."""

    cause: str = Field(default="", max_length=100, description="Only rebalances with this cause.")
    group: str = Field(
        default="", max_length=1000, description="Only groups whose name has this text, or matches this pattern: a*."
    )
    cluster: str = Field(default="", max_length=1000, description="Their cluster. Default: the first.")
    page: int = Field(default=1, ge=1, le=1_000_000)
    per_page: int = Field(default=50, ge=1, le=500)


class GroupRebalance(Answer):
    """A rebalance of one of many groups."""

    group_id: str = _column("rebalances", "group_id")
    group_kind: str | None = _column("rebalances", "group_kind")
    at: datetime = _column("rebalances", "at")
    from_generation: int | None = _column("rebalances", "from_generation")
    to_generation: int = _column("rebalances", "to_generation")
    cause: str = _column("rebalances", "cause")
    certainty: str | None = _column("rebalances", "certainty")
    cause_note: str | None = _column("rebalances", "cause_note")
    members_joined: int | None = Field(description="How many members are new.")
    members_left: int | None = Field(description="How many members are gone.")
    partitions_moved: int | None = _column("rebalances", "partitions_moved")
    duration_ms: int | None = _column("rebalances", "duration_ms")
    duration_of: str | None = _column("rebalances", "duration_of")
    is_deleted: bool = Field(description="The group does not exist any more.")


class Rebalances(Answer):
    """The rebalances of all groups of a cluster between two times, the newest first."""

    notices: list[Notice]
    cluster: str = _column("rebalances", "cluster")
    clusters: list[str] = Field(description="All clusters.")
    since: datetime = Field(serialization_alias="from")
    until: datetime = Field(serialization_alias="to")
    causes: dict[str, int] = Field(description="How many rebalances have each cause, the most frequent first.")
    groups: int = Field(description="How many groups had one.")
    total: int = Field(description="How many rebalances the parameters select.")
    page: int
    pages: int
    rebalances: list[GroupRebalance]


class RolloutsQuery(Parameters):
    """The parameters of a group's rollouts."""

    cluster: str = Field(
        default="", max_length=1000, description="Its cluster, if several have a group of this name."
    )
    since: Moment | None = Field(
        default=None, alias="from", description="Only those that were not over before this time. Default: all."
    )
    until: Moment | None = Field(default=None, alias="to", description="Only those that began up to this time.")
    name: str | None = _NAME


class Rollout(Answer):
    """A deploy or another restart of at least half of a group's members, one after another or all at once."""

    incarnation: int = _column_of_view("rollouts", "incarnation")
    started_at: datetime = _column_of_view("rollouts", "started_at")
    ended_at: datetime | None = _column_of_view("rollouts", "ended_at")
    way: str | None = _column_of_view("rollouts", "way")
    members: int = _column_of_view("rollouts", "members")
    of_members: int = _column_of_view("rollouts", "of_members")
    is_static: bool = _column_of_view("rollouts", "is_static")
    evidence: str = _column_of_view("rollouts", "evidence")
    certainty: str = _column_of_view("rollouts", "certainty")
    rebalances: int = _column_of_view("rollouts", "rebalances")
    first_generation: int | None = _column_of_view("rollouts", "first_generation")
    last_generation: int | None = _column_of_view("rollouts", "last_generation")
    seconds: float | None = Field(description="How long it took. Null: more members may follow.")
    seconds_without_owner: float | None = _column_of_view("rollouts", "seconds_without_owner")
    longest_without_owner_seconds: float | None = _column_of_view("rollouts", "longest_without_owner_seconds")


class Rollouts(Answer):
    """The rollouts of a group: the view `rollouts`."""

    cluster: str = _column("generations", "cluster")
    group_id: str = _column("generations", "group_id")
    total: int = Field(description="How many there are in this time.")
    rollouts: list[Rollout] = Field(description="The newest first, at most 500.")


class TopicQuery(Period):
    """The parameters of a topic."""

    since: Moment | None = Field(
        default=None, alias="from", description="Begin of the lag over time. Default: an hour before its end."
    )
    cluster: str = Field(default="", max_length=1000, description="Its cluster. Default: the first that has it.")
    name: str | None = _NAME


class TopicConsumer(Answer):
    """A group that consumes a topic."""

    group_id: str = _column("consumer_lag", "group_id")
    status: str = Field(description="Its worst partition's verdict in this topic.")
    partitions: int = Field(description="How many partitions of the topic it has committed offsets of.")
    lag: int | None = Field(description="Its unread offsets in this topic. Null: unknown.")
    lag_seconds: float | None = Field(description="Its worst partition's lag in seconds. Null: unknown.")
    consume_rate: float | None = Field(description="Records per second, of all partitions. Null: unknown.")
    lost_records: int | None = Field(description="Offsets that were deleted before it had read them.")
    most_deliveries: int | None = Field(
        description="How often the record of a share group that came back most often was delivered. Null: unknown."
    )
    state: str | None = _column("group_states", "state")
    member_count: int | None = _column("generations", "member_count")
    points: list[LagPoint] = Field(description="Its unread offsets over time: of each partition the most, summed up.")


class TopicPartition(Answer):
    """A partition, and the group that is furthest behind in it."""

    partition: int = _column("consumer_lag", "partition")
    log_start_offset: int | None = _column("consumer_lag", "log_start_offset")
    log_end_offset: int | None = _column("consumer_lag", "log_end_offset")
    slowest_group_id: str | None = Field(description="The group with the least committed offset.")
    committed_offset: int | None = Field(description="That offset.")
    lag: int | None = Field(description="That group's lag.")
    headroom: int | None = Field(
        description="committed_offset - log_start_offset: how much retention may delete before it takes unread "
        "records. Below 0, it has."
    )
    produce_rate: float | None = _column("consumer_lag", "produce_rate")
    delete_rate: float | None = Field(
        description="How fast the log's start advanced in the last day, in records per second. Null: not sampled."
    )
    time_to_loss_seconds: float | None = Field(
        description="When retention deletes a record that some group has not read, at the earliest. Null: none is "
        "foreseen."
    )
    seconds_to_loss: float | None = Field(
        description="When retention overtakes the slowest group at these rates. Null: it does not, or it is unknown, "
        "as always if the figures are stale."
    )


class Topic(Answer):
    """A topic: its partitions, the groups that consume it, and how far retention is from the slowest."""

    notices: list[Notice]
    cluster: str = _column("consumer_lag", "cluster")
    topic: str = _column("consumer_lag", "topic")
    sampled_at: datetime | None = Field(description="The time of the newest sample for which a broker answered.")
    is_stale: bool = Field(description=_IS_STALE)
    produce_rate: float | None = Field(description="Records per second, of all partitions. Null: unknown.")
    since: datetime = Field(serialization_alias="from", description="Begin of the lag over time.")
    until: datetime = Field(serialization_alias="to")
    consumers: list[TopicConsumer] = Field(description="The slowest first.")
    partitions: list[TopicPartition]


class BrokersQuery(Parameters):
    """The parameters of brokers that stop together."""

    cluster: str = Field(default="", max_length=1000, description="Their cluster. Default: the first.")
    name: str | None = Field(default=None, max_length=1000, description="Their ids, in place of the path: 3, or 3,4.")
    rack: str = Field(default="", max_length=1000, description="All brokers of this rack, too.")
    at: Moment | None = Field(default=None, description="If they had stopped at this time. Default: now.")


class StoppedBroker(Answer):
    """A broker that stops."""

    broker_id: int = _column("brokers", "broker_id")
    host: str | None = Field(description="The host that it advertised last. Null: no sample shows it.")
    rack: str | None = _column("brokers", "rack")
    is_listed: bool = Field(description="Whether the cluster lists it as alive. If not, it has stopped already.")
    last_seen_at: datetime | None = Field(description="When it was last listed. Null: it still is, or never was.")


class TroubledPartitions(Answer):
    """Partitions of one of Kafka's own topics that would be in trouble, or are already."""

    topic: str = _column("topic_partitions", "topic")
    effect: str = Field(description="As in the view what_if_broker.")
    partitions: list[int]
    meaning: str = Field(description="What it means.")


class StoppedTopic(Answer):
    """A topic with replicas on brokers that stop."""

    topic: str = _column("topic_partitions", "topic")
    min_insync_replicas: int | None = _column("topic_configs", "min_insync_replicas")
    partitions_led: int = Field(description="How many of its partitions they lead.")
    partitions: dict[str, list[int]] = Field(
        description="Those with a replica there by effect, as in the view what_if_broker, the worst first."
    )


class StoppedGroup(Answer):
    """A group that a stop of brokers has consequences for."""

    group_id: str = _column("group_states", "group_id")
    state: str | None = _column("group_states", "state")
    member_count: int | None = _column("generations", "member_count")
    lag: int | None = Field(description="Its unread offsets, of all partitions. Null: unknown.")
    consequences: list[str] = Field(
        description="The worst first: cannot_commit, cannot_read, may_not_commit, cannot_commit_already, "
        "cannot_read_already, coordinator_moves, leaders_move."
    )
    meaning: list[str] = Field(description="The same in words.")
    coordinator_partition: int | None = Field(description="Its partition of __consumer_offsets. Null: not known.")
    is_coordinated_there: bool = Field(description="Whether one of the brokers coordinates it.")
    partitions: int = Field(description="How many partitions it reads.")
    partitions_led: int = Field(description="How many of these the brokers lead.")
    partitions_offline: int = Field(description="How many of these would be offline.")
    partitions_offline_already: int


class Stop(Answer):
    """What would happen if brokers stopped together."""

    notices: list[Notice]
    cluster: str = _column("brokers", "cluster")
    at: datetime | None = Field(description="The time of the stop. Null: now.")
    verdict: Literal["safe", "unsafe", "unknown"] = Field(
        description="unsafe: partitions would be offline or refuse writes with acks=all; unknown: they might."
    )
    summary: str = Field(description="The verdict as a line, with its figures or what is not known.")
    brokers: list[StoppedBroker]
    listed: list[int] = Field(description="All brokers that the cluster lists as alive.")
    counts: dict[str, int] = Field(description="How many partitions with a replica there have each effect.")
    elsewhere: dict[str, int] = Field(description="How many other partitions are in trouble already, by effect.")
    partitions_led: int = Field(description="How many partitions the brokers lead.")
    groups_coordinated: int | None = Field(description="How many groups they coordinate. Null: not known.")
    notes: list[str] = Field(description="What is not as usual, or not known.")
    internal: list[TroubledPartitions]
    topics_total: int
    topics: list[StoppedTopic] = Field(description="The worst first, at most 500.")
    groups_total: int
    groups: list[StoppedGroup] = Field(description="The worst first, at most 500.")
    changed_at: datetime = Field(description="The last change of the facts that this follows from.")
    sampled_at: datetime = Field(description="When they were last seen to be so.")
    is_stale: bool = Field(description="Whether they are too old to show the time asked for.")


MAX_SQL = 50_000
"""Characters of a query: the server accepts addresses of 64 KB."""

Export = Literal["csv", "jsonl", "markdown", "parquet", "reset-offsets"]


class SqlParameters(Parameters):
    """Parameters that the page of a query and its JSON share."""

    q: str = Field(max_length=MAX_SQL, description="The query, as for `grouptrail sql`.")
    cluster: str = Field(default="", max_length=1000, description="The cluster that views read. Default: the first.")


class SqlPageQuery(SqlParameters):
    """The parameters of the page of SQL."""

    q: str = Field(default="", max_length=MAX_SQL, description="The query. Default: only the editor is shown.")
    view: Literal["table", "chart"] = Field(default="table", description="How the result is shown.")


class SqlQuery(SqlParameters):
    """The parameters of a query."""

    format: Literal["json", Export] = Field(
        default="json",
        description="json: one object; jsonl: an object a line; csv; markdown; parquet; reset-offsets: the CSV that "
        "`kafka-consumer-groups --from-file` reads.",
    )
    guard: bool = Field(
        default=True,
        description="Whether in csv an apostrophe begins each text that a spreadsheet would take for a formula.",
    )


class SqlColumn(Answer):
    """A column of a result."""

    name: str
    type: str = Field(description="As in the contracts of the tables, such as string, bigint or timestamp.")


class SqlRows(Answer):
    """The rows of a query."""

    cluster: str = Field(description="The cluster that views read.")
    columns: list[SqlColumn]
    rows: list[dict[str, Any]] = Field(description="By name of the column; times are UTC in ISO 8601, bytes base64.")
    is_cut: bool = Field(description="Whether the query has more rows than the limits allow.")
    note: str | None = Field(description="How old the data are, if they do not show what views are asked for.")
    seconds: float = Field(description="How long the query took.")

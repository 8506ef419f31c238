"""What each page knows and each path of the API answers, and what may be asked for.

The models hold the answers and describe them for OpenAPI. A field that is a column of a table has its name, and its
description from the table's contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from grouptrail import contracts
from grouptrail.report.layout import visible


def _column(table: str, name: str) -> Any:
    """Return a field that is described as a column of a table."""
    column = next(column for column in contracts.tables()[table].columns if column.name == name)
    null = f" Null: {column.null_means}." if column.null_means else ""
    return Field(description=f"{column.about[:1].upper()}{column.about[1:]}.{null}")


class Answer(BaseModel):
    """Part of an answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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


class GroupSummary(Answer):
    """A group now."""

    cluster: str = _column("consumer_lag", "cluster")
    group_id: str = _column("consumer_lag", "group_id")
    status: str | None = Field(description="Its worst partition's verdict. Null: no lag is sampled.")
    lag: int | None = Field(description="Its unread offsets, of all partitions. Null: unknown.")
    lag_is_least: bool = Field(description="Whether some partition's lag is unknown.")
    lag_seconds: float | None = Field(description="The worst partition's lag in seconds. Null: unknown.")
    lag_seconds_is_least: bool = Field(description="Whether it may be more.")
    lost_records: int | None = Field(description="Offsets that were deleted unread, of all partitions.")
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
    sampled_at: datetime | None = Field(description="The time of the newest sample of lag.")
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
    "commit_at",
)

_is_status, _status_schema = _one_of(STATUSES)
_is_sort, _sort_schema = _one_of([*SORTS, *(f"-{name}" for name in SORTS)])


class GroupsQuery(BaseModel):
    """The parameters of the groups."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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

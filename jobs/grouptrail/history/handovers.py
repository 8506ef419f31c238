"""What the commits say of partitions that changed their owner: how old the last was, and what may be read twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from grouptrail.tables import literal

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_AT = ("record_partition", "group_id", "topic", "partition")
_FEW_GROUPS = 2_000


@dataclass(frozen=True)
class Span:
    """When partitions were given up, and in which groups."""

    first: Any
    last: Any
    groups: list[str]

    @staticmethod
    def aggregates(rebalances: str) -> list[Column]:
        """What `of` needs, over a column of rows of `rebalances` beside `group_id`."""
        from pyspark.sql import functions as F

        given_up = F.col(f"{rebalances}.handed_over.given_up_at")
        return [
            F.min(F.array_min(given_up)).alias("first"),
            F.max(F.array_max(given_up)).alias("last"),
            F.collect_set(F.when(F.size(given_up) > 0, F.col("group_id"))).alias("groups"),
        ]

    @classmethod
    def of(cls, row: Any) -> Self | None:
        """From a row of the aggregates; None where nothing was handed over."""
        return cls(row["first"], row["last"], row["groups"]) if row["groups"] else None


def with_commits(rebalances: DataFrame, span: Span, commits: DataFrame, lookback_minutes: float) -> DataFrame:
    """Rows of `rebalances` with the commit columns of `handed_over` filled in.

    The last commit is sought among those of the `lookback_minutes` before a partition was given up; how many records
    may be read twice is its age times the pace of the last two. In and out: rows of `rebalances`.
    """
    from pyspark.sql import functions as F

    key = ["group_id", "record_offset"]
    handed = rebalances.select("record_partition", *key, F.posexplode("handed_over").alias("position", "handover"))
    handed = handed.select(*handed.columns, "handover.topic", "handover.partition", "handover.given_up_at")
    lookback = F.expr(f"INTERVAL {round(lookback_minutes * 60)} SECONDS")
    near = commits.where(
        (F.col("record_at") >= F.lit(span.first) - lookback)
        & (F.col("record_at") <= F.lit(span.last))
        & F.col("committed_offset").isNotNull()
    ).withColumn("commit", F.struct("record_at", "committed_offset"))
    if len(span.groups) <= _FEW_GROUPS:
        # As text: each argument of a function is a call from Python into Java.
        near = near.where(f"group_id IN ({', '.join(map(literal, span.groups))})")
        near = near.join(F.broadcast(handed.select(*_AT).distinct()), list(_AT), "left_semi")
    # One pass in the order of time over both, as a join would pair each handover with all commits of the lookback.
    events = near.select(*_AT, "record_offset", F.col("record_at").alias("given_up_at"), "commit").unionByName(
        handed, allowMissingColumns=True
    )
    in_time = f"OVER (PARTITION BY {', '.join(_AT)} ORDER BY given_up_at, handover IS NOT NULL, record_offset)"
    told = events.select(
        *events.columns,
        *(
            F.expr(f"lag(commit, {back}) IGNORE NULLS {in_time}").alias(name)
            for name, back in (("last", 1), ("before", 2))
        ),
    ).where(F.col("handover").isNotNull())
    for name in ("last", "before"):
        is_near = F.col(f"{name}.record_at") >= F.col("given_up_at") - lookback
        told = told.withColumn(name, F.when(is_near, F.col(name)))
    age_ms = F.unix_millis("given_up_at") - F.unix_millis("last.record_at")
    between_ms = F.unix_millis("last.record_at") - F.unix_millis("before.record_at")
    read_between = F.col("last.committed_offset") - F.col("before.committed_offset")
    pace = F.when((between_ms > 0) & (read_between >= 0), read_between / between_ms)
    filled = told.groupBy(*key).agg(
        F.sort_array(
            F.collect_list(
                F.struct(
                    "position",
                    F.col("handover")
                    .withField("committed_offset", F.col("last.committed_offset"))
                    .withField("commit_age_ms", age_ms)
                    .withField("may_be_read_twice", F.round(pace * age_ms).cast("bigint"))
                    .alias("handover"),
                )
            )
        ).alias("filled")
    )
    return (
        rebalances.join(filled.hint("merge"), key, "left")
        .withColumn("handed_over", F.coalesce("filled.handover", "handed_over"))
        .select(*rebalances.columns)
    )

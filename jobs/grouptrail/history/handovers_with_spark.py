"""The last commits of partitions that changed their owner, for any number of handovers: as `handovers`, with Spark.

Rebuilds of long logs have more commits than a machine's memory, so they are searched in sorted partitions of Spark,
by the same function as on the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grouptrail.history.handovers import (
    COMMIT_COLUMNS,
    COMMIT_DDL,
    IN_TIME,
    NEEDS_COMMITS,
    PARTITION,
    CommitSpan,
    last_commits,
)
from grouptrail.storage.sql import spark_literal

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import Column, DataFrame

_FEW_GROUPS = 2_000


def span_aggregates(rebalances: str) -> list[Column]:
    """Return the aggregates that `span` needs, over a column with rows of `rebalances` and `group_id`."""
    from pyspark.sql import functions as F

    times = F.concat(*(F.coalesce(f"{rebalances}.{name}.{time}", F.array()) for name, time in NEEDS_COMMITS.items()))
    return [
        F.min(F.array_min(times)).alias("first"),
        F.max(F.array_max(times)).alias("last"),
        F.collect_set(F.when(F.size(times) > 0, F.col("group_id"))).alias("groups"),
    ]


def span(row: Any) -> CommitSpan | None:
    """Return the span in a row of the aggregates; None where no commits are needed."""
    return CommitSpan(row["first"], row["last"], row["groups"]) if row["groups"] else None


def fill_commits_with_spark(
    rebalances: DataFrame, span: CommitSpan, commits: DataFrame, lookback: timedelta
) -> DataFrame:
    """Fill the commit columns of `handed_over` in rows of `rebalances` from rows of `offset_commits`."""
    from pyspark.sql import functions as F

    key = ["group_id", "record_offset"]
    handed = rebalances.select("record_partition", *key, F.posexplode("handed_over").alias("position", "handover"))
    handed = handed.select(*handed.columns[:-1], "handover.topic", "handover.partition", "handover.given_up_at")
    near = commits.where(F.col("record_at").between(span.first - lookback, span.last))
    near = near.where("committed_offset IS NOT NULL")
    if len(span.groups) <= _FEW_GROUPS:
        # As text: each argument of a function is a call from Python into Java.
        near = near.where(f"group_id IN ({', '.join(map(spark_literal, span.groups))})")
    near = near.select(*PARTITION, "record_offset", F.col("record_at").alias("at"), "committed_offset")
    events = near.unionByName(handed.withColumnRenamed("given_up_at", "at"), allowMissingColumns=True)
    events = events.withColumn("is_handover", F.col("position").isNotNull())
    in_order = events.repartition(*PARTITION).sortWithinPartitions(*PARTITION, *IN_TIME)
    of_handovers = in_order.mapInArrow(last_commits(lookback), COMMIT_DDL)
    by_rebalance = of_handovers.groupBy(*key).agg(
        F.sort_array(F.collect_list(F.struct("position", *COMMIT_COLUMNS))).alias("commits")
    )

    def fill(handover: Column, commit: Column) -> Column:
        for name in COMMIT_COLUMNS:
            handover = handover.withField(name, commit[name])
        return handover

    return (
        rebalances.join(by_rebalance.hint("merge"), key, "left")
        .withColumn("handed_over", F.coalesce(F.zip_with("handed_over", "commits", fill), "handed_over"))
        .select(*rebalances.columns)
    )

"""What the commits say of partitions that changed their owner: how old the last was, and what may be read twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_AT = ("record_partition", "group_id", "topic", "partition")
_FEW_GROUPS = 200


def with_commits(rebalances: DataFrame, commits: DataFrame, lookback_minutes: float) -> DataFrame:
    """Rows of `rebalances` with the commit columns of `handed_over` filled in.

    The last commit is sought among those of the `lookback_minutes` before a partition was given up; how many records
    may be read twice is its age times the pace of the last two. In and out: rows of `rebalances`.
    """
    from pyspark.sql import functions as F

    key = ["group_id", "record_offset"]
    handed = rebalances.select(
        "record_partition", *key, F.posexplode("handed_over").alias("position", "handover")
    ).select("record_partition", *key, "position", "handover", "handover.topic", "handover.partition")
    span = handed.agg(
        F.min("handover.given_up_at").alias("first"),
        F.max("handover.given_up_at").alias("last"),
        F.collect_set("group_id").alias("groups"),
    ).first()
    if span is None or span["first"] is None:
        return rebalances
    lookback = F.expr(f"INTERVAL {round(lookback_minutes * 60)} SECONDS")
    near = commits.where(
        (F.col("record_at") >= F.lit(span["first"]) - lookback)
        & (F.col("record_at") <= F.lit(span["last"]))
        & F.col("committed_offset").isNotNull()
    )
    if len(span["groups"]) <= _FEW_GROUPS:
        near = near.where(F.col("group_id").isin(*span["groups"]))
    near = near.select(*_AT, F.struct("record_at", "record_offset", "committed_offset").alias("commit"))
    last_two = (
        near.join(handed.withColumnRenamed("record_offset", "rebalance_offset"), list(_AT))
        .where(
            (F.col("commit.record_at") <= F.col("handover.given_up_at"))
            & (F.col("commit.record_at") >= F.col("handover.given_up_at") - lookback)
        )
        .groupBy("group_id", F.col("rebalance_offset").alias("record_offset"), "position")
        .agg(F.slice(F.sort_array(F.collect_list("commit"), asc=False), 1, 2).alias("commits"))
    )
    last, before = F.col("commits")[0], F.try_element_at("commits", F.lit(2))
    age_ms = F.unix_millis("handover.given_up_at") - F.unix_millis(last["record_at"])
    between_ms = F.unix_millis(last["record_at"]) - F.unix_millis(before["record_at"])
    read_between = last["committed_offset"] - before["committed_offset"]
    pace = F.when((between_ms > 0) & (read_between >= 0), read_between / between_ms)
    found = handed.join(last_two, [*key, "position"], "left").select(
        *key,
        "position",
        F.struct(
            "handover.topic",
            "handover.partition",
            "handover.from_member",
            "handover.to_member",
            "handover.given_up_at",
            "handover.taken_at",
            last["committed_offset"].alias("committed_offset"),
            age_ms.alias("commit_age_ms"),
            F.round(pace * age_ms).cast("bigint").alias("may_be_read_twice"),
        ).alias("handover"),
    )
    filled = found.groupBy(*key).agg(
        F.transform(
            F.sort_array(F.collect_list(F.struct("position", "handover"))), lambda one: one["handover"]
        ).alias("filled")
    )
    names = rebalances.columns
    return (
        rebalances.join(filled, key, "left")
        .withColumn("handed_over", F.coalesce("filled", "handed_over"))
        .select(*names)
    )

"""The commits of members that are gone, for any number of them: as `departure_commits`, with Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.history.departure_commits import (
    FIGURES,
    FIGURES_DDL,
    MEMBERSHIP,
    NEAR,
    OTHERS,
    commit_figures,
    judged,
    with_departures,
)
from grouptrail.history.departures import LEAST_WINDOW, asks_others, is_decided, window
from grouptrail.history.handovers import PARTITION
from grouptrail.storage.schema import ddl_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from grouptrail.history.handovers import CommitSpan

_REBALANCE = ("record_partition", "group_id", "rebalance_offset")
_DEPARTURE = (*_REBALANCE, "position")

# Commits and departures are joined by partition and by pieces of time of this length, and those next to them.
_PIECE_SECONDS = 1_800


def fill_departures_with_spark(
    rebalances: DataFrame, span: CommitSpan, commits: DataFrame, lookback: timedelta
) -> DataFrame:
    """Fill the commits in `departed` of rows of `rebalances`, and what follows from them there and for the cause."""
    from pyspark.sql import functions as F

    departed = rebalances.select(
        "record_partition",
        "group_id",
        F.col("record_offset").alias("rebalance_offset"),
        F.posexplode("departed").alias("position", "departure"),
    ).where("size(departure.owned) > 0")
    left = F.unix_timestamp("departure.left_at")
    timeouts = (F.coalesce(f"departure.{name}", F.lit(0)) for name in ("session_timeout_ms", "rebalance_timeout_ms"))
    back = F.least(F.lit(lookback.total_seconds()), F.greatest(*timeouts) / 1000 + LEAST_WINDOW.total_seconds())
    pieces = F.sequence(F.floor((left - back) / _PIECE_SECONDS), F.floor(left / _PIECE_SECONDS))
    owned = (
        departed.select(*_DEPARTURE, "departure", F.explode("departure.owned").alias("owned"))
        .withColumn("departure", F.col("departure").withField("owned", F.array()))
        .select(*_DEPARTURE, "departure", "owned.*")
        .withColumn("piece", F.explode(pieces))
    )
    plain = (
        commits.where(F.col("record_at").between(span.first - lookback, span.last))
        .where("committed_offset IS NOT NULL AND NOT is_transactional")
        .select(
            *PARTITION,
            "record_offset",
            F.col("record_at").alias("at"),
            "committed_offset",
            F.floor(F.unix_timestamp("record_at") / _PIECE_SECONDS).alias("piece"),
        )
    )
    events = owned.join(plain, [*PARTITION, "piece"]).where(
        "record_offset > since_offset AND record_offset < rebalance_offset AND at <= departure.left_at"
    )
    figures = events.groupBy(*_DEPARTURE).applyInArrow(_figures_of(lookback), _FIGURES_DDL)
    since = F.expr("last_commit_at + make_dt_interval(0, 0, 0, coalesce(longest_gap_ms, 0) / 1000)")
    asking = (
        figures.where("asks_others")
        .select(*_DEPARTURE, since.alias("since"))
        .join(owned.select(*_DEPARTURE, "topic", "piece", "departure.left_at").distinct(), list(_DEPARTURE))
        .join(plain, ["record_partition", "group_id", "topic", "piece"])
        .where("at > since AND at <= left_at AND record_offset < rebalance_offset")
    )
    advanced = asking.groupBy(*_DEPARTURE, "topic", "partition").agg(
        (F.max("committed_offset") > F.min("committed_offset")).alias("advanced")
    )
    others = advanced.where("advanced").select(*_DEPARTURE, F.lit(True).alias(OTHERS)).distinct()
    figures = figures.join(others, list(_DEPARTURE), "left")
    found = figures.groupBy(*_REBALANCE).agg(F.collect_list(F.struct("position", *FIGURES, OTHERS)).alias("found"))
    found = found.withColumnRenamed("rebalance_offset", "record_offset")
    key = ["record_partition", "group_id", "record_offset"]
    return (
        rebalances.join(found.hint("merge"), key, "left")
        .select(*rebalances.columns, "found")
        .mapInArrow(_judge, rebalances.schema)
    )


def end_by_commits_with_spark(memberships: DataFrame, rebalances: DataFrame) -> DataFrame:
    """Return rows of `memberships` that end as the departures in filled rows of `rebalances` say."""
    departed = departed_members(rebalances).select(*MEMBERSHIP, "departure")
    joined = memberships.join(departed.hint("merge"), list(MEMBERSHIP), "left")
    return joined.select(*memberships.columns, "departure").mapInArrow(_end, memberships.schema)


def _end(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        departed = rows["departure"].to_pylist()
        yield from with_departures(rows.drop(["departure"]), departed).to_batches()


def departed_members(rebalances: DataFrame) -> DataFrame:
    """Return the members that are gone by rows of `rebalances`: `MEMBERSHIP`, and the `departure` of each."""
    from pyspark.sql import functions as F

    departed = rebalances.select(
        "group_id",
        "incarnation",
        F.col("to_generation").alias("left_generation"),
        F.explode("departed").alias("departure"),
    )
    return departed.withColumn("member_id", F.col("departure.member_id"))


def _figures_of(lookback: timedelta) -> Any:
    def figures(key: tuple[Any, ...], events: pa.Table) -> pa.Table:
        """Return the figures of the commits of one departure: of the last minute if they decide it."""
        departure = events["departure"][0].as_py()
        events = events.drop(["departure"]).append_column("departure", pa.array([0] * len(events), pa.int32()))
        found: dict[str, Any] = {}
        for within in (min(NEAR, lookback), window(departure, lookback)):
            near = events.filter(pc.greater_equal(events["at"], pa.scalar(departure["left_at"] - within)))
            found = commit_figures(near).get(0, found)
            if found and is_decided({**departure, **found}):
                break
        values = [one.as_py() if isinstance(one, pa.Scalar) else one for one in key]
        asks = bool(found) and asks_others({**departure, **found})
        row = {**dict(zip(_DEPARTURE, values, strict=True)), **found, "asks_others": asks}
        return pa.Table.from_pylist([row] if found else [], _FIGURES_SCHEMA)

    return figures


_FIGURES_DDL = (
    "record_partition int, group_id string, rebalance_offset bigint, position int, "
    f"{FIGURES_DDL}, asks_others boolean"
)
_FIGURES_SCHEMA = ddl_schema(_FIGURES_DDL)


def _judge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        found = {
            (row, one.pop("position")): one
            for row, figures in enumerate(rows["found"].to_pylist())
            for one in figures or ()
        }
        yield from judged(rows.drop(["found"]), found).to_batches()

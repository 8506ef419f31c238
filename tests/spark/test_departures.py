"""How members left, by their commits: Spark says the same as the driver, of recorded departures of real clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds

from grouptrail.history.departure_commits import ended_by_commits, fill_departures
from grouptrail.history.departures_with_spark import end_by_commits_with_spark, fill_departures_with_spark
from grouptrail.history.handovers import CommitSpan
from proof.recorded_departures import LOOKBACK, commits_table, folded_tables, load_departures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def in_order(rows: pa.Table) -> list[dict[str, object]]:
    key = [(name, "ascending") for name in ("group_id", "record_offset", "member_id") if name in rows.column_names]
    return list(rows.sort_by(key).to_pylist())


def test_departures_filled_with_spark_are_those_of_the_driver(spark: SparkSession) -> None:
    recording = load_departures()[-1]
    commits, (memberships, rebalances) = commits_table(recording), folded_tables(recording)
    expected = fill_departures(rebalances, lambda *_: ds.dataset(commits), "default", LOOKBACK)
    assert "member_expired" in expected["cause"].to_pylist()
    span = CommitSpan.of(rebalances)
    assert span is not None
    filled = fill_departures_with_spark(
        spark.createDataFrame(rebalances), span, spark.createDataFrame(commits), LOOKBACK
    ).persist()
    assert in_order(filled.toArrow()) == in_order(expected)
    ended = end_by_commits_with_spark(spark.createDataFrame(memberships), filled).toArrow()
    assert in_order(ended) == in_order(ended_by_commits(memberships, expected))
    filled.unpersist()

"""What the session's settings keep Spark from."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_what_is_cached_is_planned_in_the_session_itself(spark: SparkSession) -> None:
    """A clone for it would stay for good (SPARK-54753)."""
    rows = spark.range(3).persist()
    try:
        cached = spark._jsparkSession.sharedState().cacheManager().lookupCachedData(rows._jdf).get()
        planned_in = cached.cachedRepresentation().cacheBuilder().cachedPlan().session()
        assert planned_in.equals(spark._jsparkSession)
    finally:
        rows.unpersist()

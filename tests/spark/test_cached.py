"""What Spark keeps of a DataFrame that was cached."""

from __future__ import annotations

import re
import subprocess

import pytest
from pyspark.sql import SparkSession

from grouptrail.spark.java import find_java

ROUNDS = 10


def test_cached_dataframes_after_unpersist_leave_no_session_behind(spark: SparkSession) -> None:
    """Before Spark 4.0.2, each left a clone of the session that was never freed (SPARK-54753)."""
    before = _live_sessions(spark)
    for _ in range(ROUNDS):
        rows = spark.range(3).persist()
        rows.count()
        rows.unpersist()
    assert _live_sessions(spark) < before + ROUNDS / 2


def _live_sessions(spark: SparkSession) -> int:
    """Instances that survive a full collection."""
    jcmd = find_java().home / "bin" / "jcmd"
    if not jcmd.is_file():
        pytest.skip("this Java has no jcmd: only a JDK can count what its heap holds")
    assert spark._jvm is not None
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    command = [str(jcmd), str(pid), "GC.class_histogram"]
    histogram = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    [count] = re.findall(
        r"^ *\d+: +(\d+) +\d+ +org\.apache\.spark\.sql\.classic\.SparkSession\b(?!\$)", histogram, re.M
    )
    return int(count)

"""Failures of Spark in one line: real chains of Java exceptions, and commands on damaged tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from grouptrail.config import Config
from grouptrail.errors import first_cause
from grouptrail.spark.classes import java_class
from support.cli_in_process import Cli
from support.small_tables import at, lay

pytestmark = pytest.mark.spark


def thrown(spark: SparkSession, throwable: Any) -> Exception:
    """Return what py4j raises if Java throws an exception."""
    failed = java_class(spark, "java.util.concurrent.CompletableFuture")()
    failed.completeExceptionally(throwable)
    with pytest.raises(Exception) as raised:  # noqa: PT011
        failed.get()
    return raised.value


def java(spark: SparkSession, name: str, *arguments: Any) -> Any:
    return java_class(spark, name)(*arguments)


def test_first_cause_of_nested_java_exceptions_is_the_innermost_message(spark: SparkSession) -> None:
    """The future's ExecutionException is around them all."""
    disk = java(spark, "java.io.IOException", "No space left on device")
    task = java(spark, "org.apache.spark.SparkException", "Task failed while writing rows", disk)
    job = java(spark, "org.apache.spark.SparkException", "Job aborted.", task)
    awaited = java(spark, "org.apache.spark.SparkException", "Exception thrown in awaitResult: ", job)
    called = java(spark, "java.lang.reflect.InvocationTargetException", awaited)
    proxy = java(spark, "java.lang.reflect.UndeclaredThrowableException", called)
    assert first_cause(thrown(spark, proxy)) == "No space left on device"


def test_first_cause_of_a_null_pointer_names_the_place(spark: SparkSession) -> None:
    pointer = java(spark, "java.lang.NullPointerException")
    awaited = java(spark, "org.apache.spark.SparkException", "Exception thrown in awaitResult: ", pointer)
    line = first_cause(thrown(spark, awaited))
    assert line.startswith("Exception thrown in awaitResult (NullPointerException in ")
    assert "\n" not in line


def test_first_cause_of_java_exceptions_without_a_message_is_what_was_suppressed(spark: SparkSession) -> None:
    closing = java(spark, "java.io.IOException", "the store has closed the stream")
    aborted = java(spark, "org.apache.spark.SparkException", "Job aborted.", None)
    aborted.addSuppressed(closing)
    assert first_cause(thrown(spark, aborted)) == "the store has closed the stream"


def test_first_cause_of_a_failed_broadcast_is_the_error_in_it(spark: SparkSession) -> None:
    failing = spark.range(10).selectExpr("id", "raise_error('not a number') AS x").hint("broadcast")
    with pytest.raises(Exception, match="not a number") as raised:
        spark.range(10).join(failing, "id").collect()
    assert first_cause(raised.value) == "[USER_RAISED_EXCEPTION] not a number"


def _batch_of_python(_rows: Any, _batch: int) -> None:
    raise KeyError("orders")


def _batch_of_spark(rows: Any, _batch: int) -> None:
    rows.selectExpr("raise_error('not a number')").collect()


@pytest.mark.parametrize(
    ("process", "line"),
    [(_batch_of_python, "KeyError: 'orders'"), (_batch_of_spark, "[USER_RAISED_EXCEPTION] not a number")],
)
def test_first_cause_of_a_streaming_query_is_the_error_in_its_batch(
    spark: SparkSession, tmp_path: Path, process: Callable[[Any, int], None], line: str
) -> None:
    ticks = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1).load()
    writer = ticks.writeStream.foreachBatch(process).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(Exception, match="STREAM_FAILED") as raised:
        query.awaitTermination()
    assert first_cause(raised.value) == line


@pytest.fixture
def damaged(config: Config) -> tuple[Config, str]:
    """Return a warehouse in which one of the two files of a table is cut off, and the name of the file."""
    for minute in (0, 1):
        row = {"cluster": config.cluster, "topic": "orders", "partition": 1, "sampled_at": at(minute), "status": "OK"}
        lay(config, "consumer_lag", row)
    file = sorted(Path(config.warehouse, "consumer_lag").glob("**/*.parquet"))[0]
    file.write_bytes(file.read_bytes()[:40])
    return config, file.name


@pytest.mark.parametrize(
    "command",
    [
        ("maintain", "consumer_lag"),
        ("sql", "--engine", "spark", "SELECT max(status) FROM consumer_lag"),
    ],
)
def test_command_that_spark_fails_prints_one_line_with_the_cause(
    damaged: tuple[Config, str], cli: Cli, command: tuple[str, ...]
) -> None:
    """Also where Spark only says: Exception thrown in awaitResult."""
    config, file = damaged
    run = cli(config, *command)
    [line] = [line for line in run.printed.splitlines() if line.startswith("grouptrail: ")]
    assert run.returncode == 1, run.printed
    assert file in line
    for said_of_nothing in ("awaitResult", "Py4JJavaError", "An error occurred while calling", "Task failed"):
        assert said_of_nothing not in run.printed
    assert "\tat " not in run.printed
    assert "Traceback" not in run.printed

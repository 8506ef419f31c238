"""Spark as the engine of `grouptrail sql`: temporary views over the tables, and the views of `schemas/views/`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from arro3.core import RecordBatch, Schema
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from grouptrail.query.spark.guard import Guard, Scope, UnknownSourceError, prepare_session
from grouptrail.query.views import SPARK
from grouptrail.query.warehouse import missing_table, refused
from grouptrail.spark.session import start_session
from grouptrail.storage.tables import read_all, table_exists

if TYPE_CHECKING:
    from grouptrail.config import Config
    from grouptrail.spark.jars import Report


class SparkEngine:
    """Answers queries with a Spark session; the whole result is in memory before its first row is returned."""

    dialect = SPARK

    def __init__(self, spark: SparkSession, config: Config) -> None:
        self.spark = spark
        self._config = config
        spark.conf.set("spark.sql.ansi.doubleQuotedIdentifiers", "true")
        prepare_session(spark)
        # This logger writes the stack trace of every failed query to stderr.
        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True

    def answer(self, text: str, names: Collection[str]) -> tuple[Schema, Iterator[RecordBatch]]:
        tables = {name for name in names if table_exists(self.spark, self._config, name)}
        try:
            Guard(self.spark, Scope(tables)).check_statement(text)
            for name in tables:
                read_all(self.spark, self._config, name).createOrReplaceTempView(name)
            table = self.spark.sql(text).toArrow()
        except UnknownSourceError as error:
            raise missing_table(self._config, error.name) from error
        except PySparkException as error:
            message = " ".join(str(error).strip().split("\n", maxsplit=1)[0].split())
            raise refused(re.sub(r"^\[[A-Z_.0-9]+\] | SQLSTATE: \w+.*$", "", message).rstrip(". ")) from error
        return Schema.from_arrow(table.schema), (RecordBatch.from_arrow(batch) for batch in table.to_batches())


@contextmanager
def spark_engine(config: Config, report: Report) -> Iterator[SparkEngine]:
    """Yield an engine with a new session."""
    spark = start_session(config, "grouptrail-sql", report)
    try:
        yield SparkEngine(spark, config)
    finally:
        spark.stop()

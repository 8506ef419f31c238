"""Spark as the engine of `grouptrail sql`: temporary views over the tables, and the views of `schemas/views/`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from arro3.core import RecordBatch, Schema
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from grouptrail.errors import first_cause
from grouptrail.query.spark.guard import Guard, Scope, UnknownSourceError, prepare_session
from grouptrail.query.views import SPARK
from grouptrail.storage.sql_snapshot import missing_table, refused
from grouptrail.storage.warehouse import Warehouse


class SparkEngine:
    """Answers queries in the warehouse's session; the whole result is in memory before its first row is returned."""

    dialect = SPARK

    def __init__(self, warehouse: Warehouse) -> None:
        self.spark = spark = warehouse.session
        self._warehouse = warehouse
        spark.conf.set("spark.sql.ansi.doubleQuotedIdentifiers", "true")
        prepare_session(spark)
        # This logger writes the stack trace of every failed query to stderr.
        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True

    def answer(self, text: str, names: Collection[str]) -> tuple[Schema, Iterator[RecordBatch]]:
        tables = {table.name: table for table in self._warehouse.tables(names) if table.exists()}
        try:
            Guard(self.spark, Scope(tables.keys())).check_statement(text)
            for name, table in tables.items():
                table.all_clusters().createOrReplaceTempView(name)
            result = self.spark.sql(text).toArrow()
        except UnknownSourceError as error:
            raise missing_table(self._warehouse, error.name) from error
        except PySparkException as error:
            message = " ".join(first_cause(error).split())
            raise refused(re.sub(r"^\[[A-Z_.0-9]+\] | SQLSTATE: \w+.*$", "", message).rstrip(". ")) from error
        return Schema.from_arrow(result.schema), (RecordBatch.from_arrow(batch) for batch in result.to_batches())

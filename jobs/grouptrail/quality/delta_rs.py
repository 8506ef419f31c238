"""Evaluate the expectations with delta-rs, without a JVM: what `grouptrail check` does unless Spark is needed."""

from __future__ import annotations

import json
import time
from datetime import datetime
from tempfile import TemporaryDirectory
from typing import Any, Self

from grouptrail import contracts
from grouptrail.quality import suites
from grouptrail.quality.results import SAMPLES, Result, TableResult, not_evaluated, unreadable
from grouptrail.quality.snapshot import Snapshot
from grouptrail.query.views import DELTA_RS
from grouptrail.storage import reader
from grouptrail.storage.creation import create_table
from grouptrail.storage.damage import require_undamaged
from grouptrail.storage.datafusion import DataFusion, null_of
from grouptrail.storage.errors import TableError
from grouptrail.storage.location import TableLocation
from grouptrail.storage.reader import Commit, OpenTable
from grouptrail.storage.result_rows import column_names, first_rows, rows
from grouptrail.storage.sql import datafusion_literal
from grouptrail.storage.warehouse import Warehouse


class CheckedTables:
    """The tables of a snapshot with the rows of one cluster; a context manager.

    A missing table has no rows, and a column that an older table lacks is null. `unreadable` has the error of each
    table that cannot be read.
    """

    def __init__(self, warehouse: Warehouse, taken: Snapshot) -> None:
        self._warehouse = warehouse
        self._taken = taken
        self._empty = TemporaryDirectory(prefix="grouptrail-check-")
        self.unreadable = dict(taken.unreadable)
        self._tables: dict[str, OpenTable] = {}

    def __enter__(self) -> Self:
        for name in (name for name in contracts.tables() if name not in self.unreadable):
            try:
                table = self._open(name)
                require_undamaged(table)
                self._tables[name] = table
            except TableError as error:
                self.unreadable[name] = str(error)
        self._engine = DataFusion(
            {f"all_{name}": table for name, table in self._tables.items()}, self._warehouse.options
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._empty.cleanup()

    def _open(self, name: str) -> OpenTable:
        commit = self._taken.versions.get(name)
        if commit is not None and (table := self._warehouse.table(name).open(commit.version)) is not None:
            return table
        return create_table(TableLocation(name, f"{self._empty.name}/{name}", {}, self._warehouse.cluster))

    def check(self, name: str, at: Commit, since: datetime | None) -> TableResult:
        """Return the results of a table's expectations on its rows since a time."""
        started = time.monotonic()
        expected = suites.expectations(contracts.tables()[name], lacking=at.lacking, dialect=DELTA_RS)
        try:
            [(count,)] = rows(self._answer("SELECT count(*) FROM {batch}", name, since)[1])
            results = tuple(self._result(one, name, at, since) for one in expected)
        except Exception as error:  # a missing or damaged file: the other tables are still checked
            return unreadable(name, at.version, reader.one_line(str(error)))
        return TableResult(name, at.version, count, results, time.monotonic() - started, at.lacking)

    def _result(self, one: suites.Expectation, name: str, at: Commit, since: datetime | None) -> Result:
        if gone := suites.tables_read(one) & set(self.unreadable):
            return not_evaluated(one, gone)
        meaning = one["description"]
        if column := one["kwargs"].get("column"):
            type_ = "" if column in at.lacking else self._type(name, column)
            problem = f"it is {type_}" if type_ not in ("", one["kwargs"]["type_"]) else None
            return Result(one["meta"]["name"], meaning, problem is None, None if problem else 0, problem=problem)
        keys, count = self._unexpected(one, name, since)
        samples = (json.dumps(key, default=str, ensure_ascii=False) for key in keys)
        return Result(one["meta"]["name"], meaning, not count, count, tuple(samples))

    def _type(self, name: str, column: str) -> str:
        """Return the type of a column as the expectations name it."""
        fields = {field.name: field.type for field in self._tables[name].schema().fields}
        return f"{str(fields[column].type).capitalize()}Type"

    def _unexpected(
        self, one: suites.Expectation, name: str, since: datetime | None
    ) -> tuple[list[dict[str, Any]], int]:
        """Return the keys of the first rows that a query finds, and how many it finds."""
        columns = one["meta"].get("json_columns")
        if columns:
            return self._not_json(columns, name, since)
        schema, batches = self._answer(one["kwargs"]["unexpected_rows_query"], name, since)
        first, count = first_rows(batches, SAMPLES)
        return [dict(zip(column_names(schema), row, strict=True)) for row in first], count

    def _not_json(self, columns: list[str], name: str, since: datetime | None) -> tuple[list[dict[str, Any]], int]:
        """Return the same of rows in which a column is no JSON, which DataFusion's SQL has no function for."""
        keys = suites.key_columns(contracts.tables()[name])
        samples, count = [], 0
        query = f"SELECT {', '.join([*keys, *columns])} FROM {{batch}}"
        for row in rows(self._answer(query, name, since, streams=True)[1]):
            texts = row[len(keys) :]
            if texts[0] is None or not all(map(_is_json, texts)):
                count += 1
                if count <= SAMPLES:
                    samples.append(dict(zip(keys, row, strict=False)))
        return samples, count

    def _answer(self, query: str, name: str, since: datetime | None, *, streams: bool = False) -> Any:
        """Run a query in which each table has this cluster's rows, and `{batch}` those of a table since a time."""
        table = contracts.tables()[name]
        newer = f"WHERE {table.time_column} >= {datafusion_literal(since)}" if since and table.time_column else ""
        views = [f"{one} AS ({self._own_rows(one)})" for one in sorted({name} | suites.tables_in(query))]
        views.append(f"batch_rows AS (SELECT * FROM {name} {newer})")
        run = self._engine.stream if streams else self._engine.rows
        answer = run(f"WITH {', '.join(views)} {query.replace('{batch}', 'batch_rows')}")
        return answer.schema, iter(answer)

    def _own_rows(self, name: str) -> str:
        commit = self._taken.versions.get(name)
        lacking = set(commit.lacking if commit else ())
        nulls = (
            f", {null_of(column.type)} AS {column.name}"
            for column in contracts.tables()[name].columns
            if column.name in lacking
        )
        return (
            f"SELECT *{''.join(nulls)} FROM all_{name} WHERE cluster = {datafusion_literal(self._warehouse.cluster)}"
        )


def _is_json(text: str | None) -> bool:
    try:
        return text is None or json.loads(text) is not None
    except ValueError:
        return False

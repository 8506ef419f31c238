"""SQL queries of tables at one version each, with DataFusion, the engine of delta-rs; its errors become one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from arro3.core import RecordBatch, Schema

from grouptrail import contracts
from grouptrail.storage import reader
from grouptrail.storage.errors import QueryError, TableError, UnknownGroupError
from grouptrail.storage.result_rows import column_names, rows
from grouptrail.storage.sql import datafusion_literal
from grouptrail.storage.warehouse import Warehouse

_NOT_FOUND = re.compile(r"table (?:function )?'(?:datafusion\.public\.)?([^']+)' not found")


class SqlSnapshot:
    """Some tables of a warehouse; all queries see the versions that were current when it was opened.

    `versions` has the tables that exist. Raises QueryError if one cannot be read.
    """

    def __init__(self, warehouse: Warehouse, names: Iterable[str]) -> None:
        self._warehouse = warehouse
        try:
            tables = {name: table for name in names if (table := warehouse.table(name).open()) is not None}
        except TableError as error:
            raise QueryError(str(error)) from error
        self._engine = reader.query_engine(tables, {"datafusion.catalog.information_schema": "true"})
        self.versions = {name: table.version() for name, table in tables.items()}

    def answer(self, text: str) -> tuple[Schema, Iterator[RecordBatch]]:
        """Run a query. Raises QueryError, also while the batches are read."""
        try:
            result = self._engine.execute(text)
        except reader.READ_ERRORS as error:
            raise self._explained(error) from error
        return result.schema, self._checked(result)

    def rows(self, text: str) -> list[dict[str, Any]]:
        """Return the rows of a query as dicts, with values as in `result_rows.rows`."""
        schema, batches = self.answer(text)
        names = column_names(schema)
        return [dict(zip(names, row, strict=True)) for row in rows(batches)]

    def require_group(self, group_id: str, *names: str) -> None:
        """Raise UnknownGroupError if none of the named tables, `generations` by default, has rows of a group."""
        names = names or ("generations",)
        cluster = self._warehouse.cluster
        ours = f"cluster = {datafusion_literal(cluster)}"
        there = [name for name in names if name in self.versions] or names
        if any(
            self.rows(f"SELECT 1 FROM {name} WHERE {ours} AND group_id = {datafusion_literal(group_id)} LIMIT 1")
            for name in there
        ):
            return
        listed = " UNION ".join(f"SELECT group_id FROM {name} WHERE {ours}" for name in there)
        known = sorted({row["group_id"] for row in self.rows(listed)})
        near = get_close_matches(group_id, known, n=3)
        if near:
            hint = f"did you mean {' or '.join(near)}?"
        elif known:
            hint = f"`grouptrail sql 'SELECT DISTINCT group_id FROM {there[0]}'` lists them"
        else:
            hint = "the cluster has none at all: run `grouptrail run`, or check --cluster"
        what = "history" if "generations" in names else f"row in {names[0]}"
        raise UnknownGroupError(f"there is no {what} of a group {group_id!r} in cluster {cluster}: {hint}", near)

    def _checked(self, batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        """Yield the batches; errors raised while they are computed become QueryError."""
        try:
            yield from batches
        except Exception as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> QueryError:
        missing = _NOT_FOUND.search(str(error))
        if missing is None:
            return refused(reader.one_line(str(error)))
        return missing_table(self._warehouse, missing[1])


def refused(reason: str) -> QueryError:
    """Return the error of a query that the engine rejects."""
    return QueryError(f"{reason}: correct the query (`grouptrail tables NAME` lists the columns)")


def missing_table(warehouse: Warehouse, name: str) -> QueryError:
    """Return the error of a query of a table that does not exist."""
    if name in contracts.tables():
        return QueryError(
            f"nothing has landed in {name} under {warehouse.location} yet: run `grouptrail run`, or check --warehouse"
        )
    return QueryError(no_such_table(name))


def no_such_table(name: str) -> str:
    """Return the message for an unknown name, with the closest known name."""
    views = contracts.views()
    if name in views:
        return f"{name} is a view: write {views[name].signature}, as in {views[name].example}"
    near = get_close_matches(name, [*contracts.tables(), *views], n=1)
    meant = [views[name].signature if name in views else name for name in near]
    hint = f"did you mean {meant[0]}?" if meant else "`grouptrail tables` lists them"
    return f"there is no table {name}: {hint}"

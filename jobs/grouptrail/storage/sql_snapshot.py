"""SQL queries of tables at one version each, with DataFusion, the engine of delta-rs; its errors become one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from arro3.core import RecordBatch, RecordBatchReader, Schema

from grouptrail import contracts
from grouptrail.storage import reader
from grouptrail.storage.damage import noting_unreadable
from grouptrail.storage.datafusion import DataFusion
from grouptrail.storage.errors import QueryError, UnknownGroupError, UnreadableTableError
from grouptrail.storage.result_rows import column_names, rows
from grouptrail.storage.sql import datafusion_literal
from grouptrail.storage.warehouse import Warehouse

_NOT_FOUND = re.compile(r"table (?:function )?'(?:datafusion\.public\.)?([^']+)' not found")


class SqlSnapshot:
    """Some tables of a warehouse; all queries see the versions that were current when it was opened.

    `versions` has the tables that exist and whose log can be read; a query of another raises QueryError. Rows in
    damaged files are missing, unless `skips_damaged` is false: they raise DamagedFileError then.
    """

    def __init__(self, warehouse: Warehouse, names: Iterable[str], *, skips_damaged: bool = True) -> None:
        self.warehouse = warehouse
        self._unreadable: dict[str, str] = {}
        tables = dict(self._opened(names, skips_damaged=skips_damaged))
        settings = {"datafusion.catalog.information_schema": "true"}
        self._engine = DataFusion(tables, warehouse.options, skips_damaged=skips_damaged, settings=settings)
        self.versions = {name: table.version() for name, table in tables.items()}

    def _opened(self, names: Iterable[str], *, skips_damaged: bool) -> Iterator[tuple[str, reader.OpenTable]]:
        for stored in self.warehouse.tables(list(names)):
            try:
                with noting_unreadable(stored.path):
                    table = stored.open()
            except UnreadableTableError as error:
                if not skips_damaged:
                    raise
                self._unreadable[stored.name] = str(error)
                continue
            if table is not None:
                yield stored.name, table

    def answer(self, text: str) -> tuple[Schema, Iterator[RecordBatch]]:
        """Run a query, all of whose rows are computed before the first is returned. Raises QueryError."""
        result = self._run(self._engine.rows, text)
        return result.schema, iter(result)

    def stream(self, text: str) -> tuple[Schema, Iterator[RecordBatch]]:
        """Run a query with any number of rows, in a process that may end: see `DataFusion.stream`.

        Raises QueryError, also while the batches are read.
        """
        result = self._run(self._engine.stream, text)
        return result.schema, self._without_damage(result, text)

    def rows(self, text: str) -> list[dict[str, Any]]:
        """Return the rows of a query as dicts, with values as in `result_rows.rows`."""
        schema, batches = self.answer(text)
        names = column_names(schema)
        return [dict(zip(names, row, strict=True)) for row in rows(batches)]

    def require_group(self, group_id: str, *names: str) -> None:
        """Raise UnknownGroupError if none of the named tables, `generations` by default, has rows of a group."""
        names = names or ("generations",)
        cluster = self.warehouse.cluster
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

    def _run(self, run: Callable[[str], RecordBatchReader], text: str) -> RecordBatchReader:
        try:
            return run(text)
        except reader.READ_ERRORS as error:
            raise self._explained(error) from error

    def _without_damage(self, result: RecordBatchReader, text: str) -> Iterator[RecordBatch]:
        """Yield the batches; if a file turns out to be damaged before the first, those of the other files."""
        has_begun = False
        while True:
            try:
                for batch in result:
                    has_begun = True
                    yield batch
                return
            except Exception as error:
                if not self._engine.finds_damage(text, error):
                    raise self._explained(error) from error
                if has_begun:
                    raise QueryError("a file turned out to be damaged while it was read: repeat the query") from error
            result = self._run(self._engine.stream, text)

    def _explained(self, error: Exception) -> QueryError:
        missing = _NOT_FOUND.search(str(error))
        if missing is None:
            return refused(reader.one_line(str(error)))
        if missing[1] in self._unreadable:
            return QueryError(self._unreadable[missing[1]])
        return missing_table(self.warehouse, missing[1])


def refused(reason: str) -> QueryError:
    """Return the error of a query that the engine rejects."""
    return QueryError(f"{reason}: correct the query (`grouptrail tables NAME` lists the columns)")


def missing_table(warehouse: Warehouse, name: str) -> QueryError:
    """Return the error of a query of a table that does not exist."""
    if name in contracts.tables():
        return QueryError(
            f"nothing has landed in {name} under {warehouse.shown} yet: run `grouptrail run`, or check --warehouse"
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

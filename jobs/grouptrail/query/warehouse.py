"""Queries of Delta tables with the engine of delta-rs; its errors become one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from arro3.core import RecordBatch, Schema
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from grouptrail import contracts
from grouptrail.query.errors import QueryError
from grouptrail.query.formats import column_names, rows
from grouptrail.storage.sql import datafusion_literal

if TYPE_CHECKING:
    from grouptrail.config import Config

_NOT_FOUND = re.compile(r"table (?:function )?'(?:datafusion\.public\.)?([^']+)' not found")


class Warehouse:
    """Some tables of a warehouse; all queries see the versions that were current when it was opened.

    `versions` has the tables that exist.
    """

    def __init__(self, config: Config, names: Iterable[str]) -> None:
        self._config = config
        self._engine = QueryBuilder({"datafusion.catalog.information_schema": "true"})
        self.versions: dict[str, int] = {}
        for name in names:
            table = open_table(config, name)
            if table is not None:
                self._engine.register(name, table)
                self.versions[name] = table.version()

    def answer(self, text: str) -> tuple[Schema, Iterator[RecordBatch]]:
        """Run a query. Raises QueryError, also while the batches are read."""
        try:
            reader = self._engine.execute(text)
        except (DeltaError, OSError, ValueError) as error:
            raise self._explained(error) from error
        return reader.schema, self._checked(reader)

    def rows(self, text: str) -> list[dict[str, Any]]:
        """Return the rows of a query as dicts, with values as in `formats.rows`."""
        schema, batches = self.answer(text)
        names = column_names(schema)
        return [dict(zip(names, row, strict=True)) for row in rows(batches)]

    def require_group(self, group_id: str, table: str = "generations") -> None:
        """Raise QueryError if the table has no rows of a group."""
        cluster = self._config.cluster
        among = f"FROM {table} WHERE cluster = {datafusion_literal(cluster)}"
        if self.rows(f"SELECT 1 {among} AND group_id = {datafusion_literal(group_id)} LIMIT 1"):
            return
        known = [row["group_id"] for row in self.rows(f"SELECT DISTINCT group_id {among}")]
        near = get_close_matches(group_id, known, n=3)
        if near:
            hint = f"did you mean {' or '.join(near)}?"
        elif known:
            hint = f"`grouptrail sql 'SELECT DISTINCT group_id FROM {table}'` lists them"
        else:
            hint = "the cluster has none at all: run `grouptrail run`, or check --cluster"
        what = "history" if table == "generations" else f"row in {table}"
        raise QueryError(f"there is no {what} of a group {group_id!r} in cluster {cluster}: {hint}")

    def _checked(self, batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        """Yield the batches; errors raised while they are computed become QueryError."""
        try:
            yield from batches
        except Exception as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> QueryError:
        missing = _NOT_FOUND.search(str(error))
        if missing is None:
            return refused(_one_line(str(error)))
        return missing_table(self._config, missing[1])


def open_table(config: Config, name: str) -> DeltaTable | None:
    """Open a table; None if it does not exist yet. Raises QueryError if it cannot be read."""
    path = config.table_path(name)
    try:
        return DeltaTable(path, storage_options=config.storage_options())
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError) as error:
        reason = _one_line(str(error))
        raise QueryError(f"{path} cannot be read ({reason}): correct the warehouse, or the rights to it") from error


def refused(reason: str) -> QueryError:
    """Return the error of a query that the engine rejects."""
    return QueryError(f"{reason}: correct the query (`grouptrail tables NAME` lists the columns)")


def missing_table(config: Config, name: str) -> QueryError:
    """Return the error of a query of a table that does not exist."""
    if name in contracts.tables():
        return QueryError(
            f"nothing has landed in {name} under {config.warehouse} yet: run `grouptrail run`, or check --warehouse"
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


def _one_line(message: str) -> str:
    """Return DataFusion's message in one line, without prefixes and lists of all valid names."""
    message = re.sub(r"\x1b\[[\d;]*m", "", message).split("Valid fields are")[0].split("Column names are case")[0]
    parser = re.search(r'ParserError\("(.*)"\)', message)
    text = parser[1] if parser else message
    text = re.sub(r"^((Error during planning|Schema error|External error|Arrow error|Internal error): )+", "", text)
    lines = [line.strip(" ↳") for line in text.splitlines() if line.strip()]
    return " ".join(lines)[:300].rstrip(".:? ") or "it failed without a word"

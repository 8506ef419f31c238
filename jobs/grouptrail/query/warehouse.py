"""The engine of delta-rs over the Delta tables of a warehouse; whatever it refuses is told in one line."""

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
    """Some of a warehouse's tables, all queries seeing them as they were when they were opened.

    `versions` has those that are there.
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
        """What a query gives, batch by batch. Raises QueryError, also while the batches are read."""
        try:
            reader = self._engine.execute(text)
        except (DeltaError, OSError, ValueError) as error:
            raise self._explained(error) from error
        return reader.schema, self._told(reader)

    def rows(self, text: str) -> list[dict[str, Any]]:
        """What a query gives, each row by column, with values as in `formats.rows`."""
        schema, batches = self.answer(text)
        names = column_names(schema)
        return [dict(zip(names, row, strict=True)) for row in rows(batches)]

    def require_group(self, group_id: str, table: str = "generations") -> None:
        """Raises QueryError for a group that the table does not hold."""
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
            hint = "the cluster has none at all: run `grouptrail run`, or correct --cluster"
        what = "history" if table == "generations" else f"row in {table}"
        raise QueryError(f"there is no {what} of a group {group_id!r} in cluster {cluster}: {hint}")

    def _told(self, batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        """The batches; what fails only while they are computed is told like all else."""
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
    """The table of that name; None while there is none. Raises QueryError if it cannot be read."""
    path = config.table_path(name)
    try:
        return DeltaTable(path, storage_options=config.storage_options())
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError) as error:
        reason = _one_line(str(error))
        raise QueryError(f"{path} cannot be read ({reason}): correct the warehouse, or the rights to it") from error


def refused(reason: str) -> QueryError:
    """That an engine does not take the query."""
    return QueryError(f"{reason}: correct the query (`grouptrail tables NAME` lists the columns)")


def missing_table(config: Config, name: str) -> QueryError:
    """That a query asks for a table that is not there."""
    if name in contracts.tables():
        return QueryError(
            f"nothing has landed in {name} under {config.warehouse} yet: run `grouptrail run`, or correct --warehouse"
        )
    return QueryError(no_such_table(name))


def no_such_table(name: str) -> str:
    """That there is none of that name, and what may have been meant."""
    views = contracts.views()
    if name in views:
        return f"{name} is a view: write {views[name].signature}, as in {views[name].example}"
    near = get_close_matches(name, [*contracts.tables(), *views], n=1)
    meant = [views[name].signature if name in views else name for name in near]
    hint = f"did you mean {meant[0]}?" if meant else "`grouptrail tables` lists them"
    return f"there is no table {name}: {hint}"


def _one_line(message: str) -> str:
    """DataFusion's message in one line, without its wrappings and its lists of everything there is."""
    message = re.sub(r"\x1b\[[\d;]*m", "", message).split("Valid fields are")[0].split("Column names are case")[0]
    parser = re.search(r'ParserError\("(.*)"\)', message)
    text = parser[1] if parser else message
    text = re.sub(r"^((Error during planning|Schema error|External error|Arrow error|Internal error): )+", "", text)
    lines = [line.strip(" ↳") for line in text.splitlines() if line.strip()]
    return " ".join(lines)[:300].rstrip(".:? ") or "it failed without a word"

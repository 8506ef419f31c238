"""SQL with DataFusion, the engine of delta-rs, over open tables; no damaged file ends the process."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from tempfile import TemporaryDirectory

from arro3.core import RecordBatchReader
from deltalake import QueryBuilder

from grouptrail import contracts
from grouptrail.storage.damage import (
    damaged_files,
    find_damage,
    find_wrong_footers,
    note_damage,
    of_files,
    require_openable,
    require_undamaged,
    undamaged_paths,
)
from grouptrail.storage.reader import READ_ERRORS, OpenTable, by_file, column_names, one_line, panics_as_errors
from grouptrail.storage.sql import datafusion_identifier

_CASTS = {
    "binary": "CAST({} AS BYTEA)",
    "boolean": "CAST({} AS BOOLEAN)",
    "smallint": "CAST({} AS SMALLINT)",
    "int": "CAST({} AS INT)",
    "bigint": "CAST({} AS BIGINT)",
    "double": "CAST({} AS DOUBLE)",
    "string": "CAST({} AS VARCHAR)",
    "timestamp": "arrow_cast({}, 'Timestamp(Microsecond, Some(\"UTC\"))')",
}
# Not NULL: delta-rs 1.6 takes a filter that is always null, such as NULL = 1, for one that all rows pass.
_NULL = "nullif(cluster, cluster)"
_NOTHING: Mapping[str, str] = {}
# Beginnings of errors that the query is to blame for, not a file.
_OF_QUERY = re.compile(
    r"(Error during planning|Schema error|SQL error|This feature is not implemented|Execution error|Optimizer rule"
    r"|Arrow error: (Divide by zero|Cast|Compute|Parser|Arithmetic overflow|Invalid argument) )"
)
_SMALL_BYTES = 16_000_000
# Beyond this, each file on its own takes too long.
_MOST_FILES_TRIED = 1000


class DataFusion:
    """Runs queries over the versions of some open tables.

    Columns that the contract got after a table was written last are null, and renamed ones have their new names.
    Queries raise one of `reader.READ_ERRORS`. If a file is damaged they raise DamagedFileError, or with
    `skips_damaged` have the rows of the other files. `options` are delta-rs's options of the store.
    """

    def __init__(
        self,
        tables: Mapping[str, OpenTable],
        options: Mapping[str, str] = _NOTHING,
        *,
        skips_damaged: bool = False,
        settings: Mapping[str, str] = _NOTHING,
    ) -> None:
        self._tables = dict(tables)
        self._options = options
        self._skips_damaged = skips_damaged
        self._settings = dict(settings)
        self._logs: list[TemporaryDirectory[str]] = []
        self._engine = self._over_undamaged()

    def rows(self, query: str) -> RecordBatchReader:
        """Return the rows of a query, all of which are computed before the first is returned."""
        while True:
            try:
                return computed(self._engine, query)
            except READ_ERRORS as error:
                if not self.finds_damage(query, error):
                    raise

    def stream(self, query: str) -> RecordBatchReader:
        """Return the rows of a query, which are computed while they are read: for results of any size.

        A panic ends the process then, as Arrow's interface between languages lets none through. So small tables are
        read as by `rows`, and no file is read whose footer cannot be right: use it in processes that may end.
        """
        named = list(self._named_in(query))
        if sum(sum(by_file(table, "size_bytes").values()) for table in named) <= _SMALL_BYTES:
            try:
                return self.rows(query)
            except READ_ERRORS as error:  # of SHOW, DESCRIBE, EXPLAIN and columns of one name no table is made
                if not _OF_QUERY.match(str(error)):
                    raise
        found = [find_wrong_footers(table) for table in named]
        if any(found):
            self._engine = self._over_undamaged()
        with panics_as_errors():
            return self._engine.execute(query)

    def _over_undamaged(self) -> QueryBuilder:
        engine = QueryBuilder(dict(self._settings))
        for name, whole in self._tables.items():
            table = self._undamaged(whole)
            columns = _columns_of_contract(name, table)
            engine.register(f"stored_{name}" if columns else name, table)
            if columns:
                list(engine.execute(f"CREATE VIEW {name} AS SELECT {', '.join(columns)} FROM stored_{name}"))
        return engine

    def _undamaged(self, table: OpenTable) -> OpenTable:
        if not self._skips_damaged:
            require_openable(table)
            return table
        if not damaged_files(table):
            return table
        self._logs.append(TemporaryDirectory(prefix="grouptrail-"))
        return of_files(table, set(undamaged_paths(table)), self._logs[-1].name)

    def _named_in(self, query: str) -> Iterator[OpenTable]:
        return (table for name, table in self._tables.items() if re.search(rf"\b{re.escape(name)}\b", query))

    def finds_damage(self, query: str, error: Exception) -> bool:
        """Look for damaged files in the tables of a failed query; return whether it is worth another try.

        Raises DamagedFileError if all rows are needed.
        """
        if _OF_QUERY.match(str(error)):
            return False
        named = list(self._named_in(query))
        found = [find_damage(table, self._options) or self._find_unusable(table) for table in named]
        if not self._skips_damaged:
            for table in named:
                require_undamaged(table)
        elif any(found):
            self._engine = self._over_undamaged()
            return True
        return False

    def _find_unusable(self, table: OpenTable) -> bool:
        """Look for files that only this engine cannot read."""
        paths, partitioned_by = undamaged_paths(table), table.metadata().partition_columns
        column = next(field.name for field in table.schema().fields if field.name not in partitioned_by)
        # Only with a condition it reads what files say about their pages.
        queries = ("SELECT * FROM alone", f"SELECT * FROM alone WHERE {datafusion_identifier(column)} IS NOT NULL")
        found = {}
        for path in paths if len(paths) <= _MOST_FILES_TRIED else ():
            with TemporaryDirectory(prefix="grouptrail-") as folder:
                engine = QueryBuilder().register("alone", of_files(table, [path], folder))
                try:
                    for query in queries:
                        computed(engine, query)
                except READ_ERRORS as error:
                    found[path] = one_line(str(error))
        note_damage(table, found)
        return bool(found)


_numbers = itertools.count()


def computed(engine: QueryBuilder, query: str) -> RecordBatchReader:
    """Return the rows of a query from a table in the engine's memory, which it fills first: see `DataFusion.stream`.

    Raises one of `reader.READ_ERRORS`.
    """
    answer = f"answer_{next(_numbers)}"
    with panics_as_errors():
        engine.execute(f"CREATE TABLE {answer} AS {query}")
        try:
            return engine.execute(f"SELECT * FROM {answer}")
        finally:
            engine.execute(f"DROP TABLE {answer}")


def _columns_of_contract(name: str, table: OpenTable) -> list[str]:
    """Return a table's columns (SQL) by its contract; none if the table has them as they are, or is of no version."""
    contract = contracts.tables().get(name)
    there = column_names(table)
    missing = [] if contract is None else [column for column in contract.columns if column.name not in there]
    renamed = {column.formerly: column.name for column in missing if column.formerly in there}
    added = [column for column in missing if column.name not in renamed.values()]
    if not missing or not all(column.null_means for column in added):
        return []
    kept = [
        f"{datafusion_identifier(field.name)} AS {datafusion_identifier(renamed.get(field.name, field.name))}"
        for field in table.schema().fields
    ]
    return [*kept, *(f"{null_of(column.type)} AS {column.name}" for column in added)]


def null_of(type_: str) -> str:
    """Return a null of a column type (SQL), in a query of a table that has the column `cluster`."""
    if type_ in _CASTS:
        return _CASTS[type_].format(_NULL)
    return f"CASE WHEN {_NULL} IS NOT NULL THEN {_of_nulls(type_)} END"


def _of_nulls(type_: str) -> str:
    """Return a value of a column type in which each element is null (SQL)."""
    from grouptrail.storage.schema import struct_fields

    if type_.startswith("array<"):
        return f"make_array({_of_nulls(type_[len('array<') : -1])})"
    if type_.startswith("struct<"):
        fields = struct_fields(type_[len("struct<") : -1])
        named = (f"'{name}', {_of_nulls(of)}" for name, of in fields)
        return f"named_struct({', '.join(named)})"
    return _CASTS[type_].format("NULL")

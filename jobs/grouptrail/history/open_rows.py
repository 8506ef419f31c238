"""The rows of a group's history that may still change, and all that changed since they were last written."""

from __future__ import annotations

from typing import Any

from grouptrail import contracts

Row = dict[str, Any]

TABLES = ("generations", "group_states", "memberships", "partition_ownership", "rebalances")


class OpenRows:
    """Open rows by table and name; `changed` has every row, open or closed, that a writer must bring up to date."""

    def __init__(self, group_id: str, saved: dict[str, list[tuple[str, Row]]] | None = None) -> None:
        self._group_id = group_id
        self._open: dict[str, dict[str, Row]] = {table: dict((saved or {}).get(table, ())) for table in TABLES}
        self._changed: dict[tuple[Any, ...], tuple[str, Row]] = {}

    def begin(self, table: str, name: str, row: Row) -> Row:
        """A new row, under a name by which it is found again while it is open."""
        row = {"group_id": self._group_id, **row, "is_open": True}
        self._open[table][name] = row
        self._mark(table, row)
        return row

    def add(self, table: str, row: Row) -> None:
        """A row that is complete at once."""
        self._mark(table, {"group_id": self._group_id, **row, "is_open": False})

    def end(self, table: str, name: str, values: Row) -> Row:
        """Closes a row with its last values."""
        row = self._open[table].pop(name)
        row.update(values, is_open=False)
        self._mark(table, row)
        return row

    def update(self, table: str, name: str, values: Row) -> None:
        """Changes an open row."""
        row = self._open[table][name]
        if any(row.get(column) != value for column, value in values.items()):
            row.update(values)
            self._mark(table, row)

    def rename(self, table: str, name: str, new_name: str) -> None:
        """Keeps an open row under another name."""
        self._open[table][new_name] = self._open[table].pop(name)

    def get(self, table: str, name: str) -> Row | None:
        """An open row."""
        return self._open[table].get(name)

    def names(self, table: str) -> list[str]:
        """The names of a table's open rows."""
        return list(self._open[table])

    def count(self, table: str) -> int:
        """How many rows of a table are open."""
        return len(self._open[table])

    def changed(self) -> list[tuple[str, Row]]:
        """(table, row) of all that changed, each row once, as it is now."""
        return list(self._changed.values())

    def saved(self) -> dict[str, list[tuple[str, Row]]]:
        """The open rows as JSON values."""
        return {table: list(rows.items()) for table, rows in self._open.items() if rows}

    def _mark(self, table: str, row: Row) -> None:
        key = contracts.tables()[table].key[2:]  # cluster and group are the same for all
        self._changed[(table, *(row[column] for column in key))] = (table, row)

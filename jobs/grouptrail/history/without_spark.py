"""Fold few decoded records on the driver: those of a small micro-batch or of a small rebuild."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.history import records
from grouptrail.history.batch import own_rows, retention_ms, waiting
from grouptrail.history.tasks import INPUT_SCHEMA, POSITIONS, fold_groups
from grouptrail.spark import object_stores
from grouptrail.storage.buckets import bucket_of
from grouptrail.storage.rows import select_arrow
from grouptrail.storage.schema import table_schema
from grouptrail.storage.sql import datafusion_literal

if TYPE_CHECKING:
    from grouptrail.config import Config
    from grouptrail.storage.progress import OffsetRanges

_MOST_BYTES = 256 << 20

# A record of a classic group has all its members.
RECORDS_AT_A_TIME = 256


@dataclass
class FewRows:
    """Changed rows by table, and the buckets of their groups."""

    _parts: defaultdict[str, list[pa.Table]] = field(default_factory=lambda: defaultdict(list))
    _buckets: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def add(self, changed: pa.Table) -> None:
        """Add an output of `fold_groups`.

        Its rows have the columns of all tables; only those of their own are kept, a tenth of the memory.
        """
        for table in pc.unique(changed["of"]).to_pylist():
            own = changed.filter(pc.equal(changed["of"], table))
            self._buckets[table].update(pc.unique(own["open_bucket"]).to_pylist())
            self._parts[table].append(own_rows(own, table))

    @property
    def counts(self) -> dict[str, int]:
        """How many rows each table has."""
        return {table: sum(map(len, parts)) for table, parts in self._parts.items()}

    def buckets(self, table: str) -> set[int]:
        """Return the buckets of a table's groups."""
        return self._buckets[table]

    def of(self, table: str) -> pa.Table:
        """Return a table's rows."""
        return pa.concat_tables(self._parts.get(table) or [table_schema(table).empty_table()])

    def taken(self, table: str) -> pa.Table:
        """Return a table's rows, and release them."""
        rows = self.of(table)
        self._parts.pop(table, None)
        return rows


def are_supported(config: Config) -> bool:
    """Return whether delta-rs can read and write the warehouse."""
    return object_stores.is_known(config.warehouse)


def few_records(config: Config, covered: OffsetRanges) -> pa.Table | None:
    """Return the groups' records (`tasks.INPUT_DDL`) in these ranges; None if they take too much memory."""
    where = f"AND ({covered.condition(datafusion_literal)})"
    found: list[pa.Table] = []
    size = 0
    for table, columns in records.COLUMNS.items():
        rest = f"{where} AND is_tombstone" if table == "offset_commits" else where
        for rows in select_arrow(config, table, columns, rest, rows_at_a_time=RECORDS_AT_A_TIME):
            found.append(records.from_rows(table, rows))
            size += found[-1].nbytes
            if size > _MOST_BYTES:
                return None
    return pa.concat_tables([*found, INPUT_SCHEMA.empty_table()])


def few_states(config: Config, fresh: pa.Table, covered: OffsetRanges) -> pa.Table:
    """Return the saved states (`tasks.INPUT_DDL`) of the groups of records, and of those that wait for more."""
    groups = pc.unique(fresh["group_id"])
    buckets = sorted(set(map(bucket_of, groups.to_pylist())))
    own = f"open_bucket IN ({', '.join(map(str, buckets))})" if buckets else "false"
    found = [rows.filter(pc.is_in(rows["group_id"], groups)) for rows in _positions(config, own)]
    others = (
        rows.filter(pc.invert(pc.is_in(rows["group_id"], groups))) for rows in _positions(config, waiting(covered))
    )
    found += others
    return pa.concat_tables([INPUT_SCHEMA.empty_table(), *map(records.states_of, found)])


def _positions(config: Config, condition: str) -> Iterator[pa.Table]:
    columns = ("record_partition", "group_id", "state")
    return select_arrow(config, POSITIONS, columns, f"AND {condition}", rows_at_a_time=RECORDS_AT_A_TIME)


def fold_few(found: pa.Table, complete_to: dict[int, int], names: dict[str, str], config: Config) -> FewRows:
    """Return the changed rows of all tables; `found` are records and saved states in any order."""
    folds = fold_groups(complete_to, names, retention_ms(config))
    rows = FewRows()
    in_order = found.sort_by([(name, "ascending") for name in records.ORDER])
    for batch in folds(in_order.to_batches(RECORDS_AT_A_TIME)):
        rows.add(pa.Table.from_batches([batch]))
    return rows

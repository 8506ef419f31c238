"""The engine delta-rs: no JVM, and milliseconds for small writes and reads."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import (
    CommitProperties,
    PostCommitHookProperties,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.transaction import AddAction

from grouptrail.storage import reader
from grouptrail.storage.buckets import in_buckets
from grouptrail.storage.creation import create_table
from grouptrail.storage.engines.engine import Once, Rows, TaskRows
from grouptrail.storage.engines.retries import one_writer
from grouptrail.storage.errors import NeedsSparkError
from grouptrail.storage.files import with_all_columns
from grouptrail.storage.location import TableLocation
from grouptrail.storage.rows import has_columns, select
from grouptrail.storage.schema import table_schema
from grouptrail.storage.sql import datafusion_literal

_COMPRESSED = WriterProperties(compression="ZSTD")
# delta-rs may remove logs that are still needed (delta-rs#3692): `grouptrail maintain` removes them.
_LOGS_KEPT = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


class DeltaRs:
    """Does what `engine.Engine` describes."""

    name = "delta-rs"

    def create(self, table: TableLocation) -> None:
        """Create the table, without clustering. Raises NeedsSparkError if it exists and lacks columns."""
        there = reader.open_table(table)
        if there is None:
            create_table(table)
        elif not has_columns(there, table_schema(table.name)):
            raise NeedsSparkError(f"{table.path} lacks columns of this version: `grouptrail run` adds them")

    def append(self, table: TableLocation, rows: Rows, once: Once | None) -> None:
        """Append rows, unless `once` has been done."""
        there = reader.existing_table(table)
        if once is not None and once.is_done_in(there):
            return
        if isinstance(rows, TaskRows):
            rows = rows.records.mapInArrow(rows.function, rows.ddl).toArrow()
        if isinstance(rows, pa.Table):
            write_deltalake(
                there,
                _as_stored(rows, table),
                mode="append",
                writer_properties=_COMPRESSED,
                commit_properties=_noting(once),
                post_commithook_properties=_LOGS_KEPT,
            )
        else:
            actions = map(json.loads, rows(table))
            there.create_write_transaction(
                [_add_action(action["add"]) for action in actions if "add" in action],
                "append",
                there.schema(),
                there.metadata().partition_columns,
                commit_properties=_noting(once),
                post_commithook_properties=_LOGS_KEPT,
            )

    def upsert(self, table: TableLocation, rows: Any, buckets: Collection[int], once: Once) -> None:
        """Merge rows into the open rows of these buckets."""
        changed = _as_stored(_on_driver(rows), table)
        same = " AND ".join(f"there.{column} = changed.{column}" for column in table.contract.key)
        ours = f"there.cluster = {datafusion_literal(table.cluster)} AND {in_buckets(buckets, 'there.open_bucket')}"

        def merge() -> None:
            there = reader.existing_table(table)
            if once.is_done_in(there):
                return
            merger = there.merge(
                changed,
                f"{ours} AND {same}",
                source_alias="changed",
                target_alias="there",
                writer_properties=_COMPRESSED,
                commit_properties=_noting(once),
                post_commithook_properties=_LOGS_KEPT,
            )
            merger.when_matched_update_all().when_not_matched_insert_all().execute()

        one_writer(merge, table)

    def replace(self, table: TableLocation, rows: Any) -> None:
        """Overwrite the cluster's rows."""
        ours = _as_stored(_on_driver(rows), table)

        def write() -> None:
            write_deltalake(
                reader.existing_table(table),
                ours,
                mode="overwrite",
                predicate=f"cluster = {datafusion_literal(table.cluster)}",
                writer_properties=_COMPRESSED,
                post_commithook_properties=_LOGS_KEPT,
            )

        one_writer(write, table)

    def last_version(self, table: TableLocation, app: str) -> int:
        """Return the newest version that an app has written; -1 if there is none."""
        there = reader.open_table(table)
        version = None if there is None else there.transaction_version(app)
        return -1 if version is None else version

    def select(self, table: TableLocation, columns: str, rest: str) -> list[dict[str, Any]]:
        """Run a query with DataFusion."""
        return select(table, columns, rest)


def _on_driver(rows: Any) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else rows.toArrow()


def _as_stored(rows: pa.Table, table: TableLocation) -> pa.Table:
    """Return rows with all of the table's columns, as delta-rs writes them."""
    # Java omits the offsets of empty lists, which Rust reads all the same; `take` restores them.
    return with_all_columns(rows, table).take(np.arange(len(rows)))


def _noting(once: Once | None) -> CommitProperties | None:
    return None if once is None else CommitProperties(app_transactions=[Transaction(once.app, once.version)])


def _add_action(file: dict[str, Any]) -> AddAction:
    return AddAction(
        file["path"],
        file["size"],
        file["partitionValues"],
        file["modificationTime"],
        file["dataChange"],
        file["stats"],
    )

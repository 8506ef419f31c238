"""The engine delta-rs: no JVM, and milliseconds for small writes and reads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import DeltaError
from deltalake.table import TableMerger

from grouptrail.storage import reader
from grouptrail.storage.buckets import in_buckets
from grouptrail.storage.creation import create_table
from grouptrail.storage.damage import naming_damage
from grouptrail.storage.engines.commits import append_files, commit
from grouptrail.storage.engines.engine import Once, Rows, TaskRows, WriteFiles
from grouptrail.storage.engines.retries import lock, one_writer, require_version
from grouptrail.storage.errors import NeedsSparkError
from grouptrail.storage.files import with_all_columns, write
from grouptrail.storage.location import TableLocation
from grouptrail.storage.rows import has_columns, select
from grouptrail.storage.rows_by_version import note
from grouptrail.storage.schema import table_schema
from grouptrail.storage.sql import datafusion_literal
from grouptrail.storage.unclustering import remove_clustering

_COMPRESSED = WriterProperties(compression="ZSTD")
# delta-rs may remove logs that are still needed (delta-rs#3692): `grouptrail maintain` removes them.
_LOGS_KEPT = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


class DeltaRs:
    """Does what `engine.Engine` describes."""

    name = "delta-rs"

    def create(self, table: TableLocation) -> None:
        """Create the table if it does not exist. Raises NeedsSparkError if only Spark can bring it up to date."""
        there = create_if_missing(table)
        remove_clustering(table, there, None)
        if not has_columns(there, table_schema(table.name)):
            raise NeedsSparkError(f"{table.shown} lacks columns of this version: `grouptrail run` adds them")

    def append(self, table: TableLocation, rows: Rows, once: Once | None) -> None:
        """Append rows, unless `once` has been done: as files that Arrow writes."""
        assert not isinstance(rows, TaskRows), "only Spark has tasks"
        there = reader.existing_table(table)
        if once is not None and once.is_done_in(there):
            return
        if table.contract.partition_by:
            one_writer(lambda: _append_partitioned(table, _on_driver(rows), once), table)
            return
        files = write(rows.to_batches(), table) if isinstance(rows, pa.Table) else rows(table)
        version = append_files(table, there, files, once)
        if version is not None and isinstance(rows, pa.Table):
            note(table, version, rows)

    def upsert(self, table: TableLocation, rows: Any, buckets: Collection[int], once: Once) -> None:
        """Merge rows into the open rows of these buckets."""
        changed = _as_stored(_on_driver(rows), table)

        def merge() -> None:
            there = reader.existing_table(table)
            if once.is_done_in(there):
                return
            merger = _merger(there, changed, table, _noting(once), f" AND {in_buckets(buckets, 'there.open_bucket')}")
            with naming_damage(there, table.options):
                merger.when_matched_update_all().when_not_matched_insert_all().execute()

        one_writer(merge, table)

    def update(self, table: TableLocation, rows: pa.Table, version: int) -> None:
        """Merge rows into those with their key, in the commit that follows `version`."""
        there = reader.existing_table(table)
        require_version(table, there.version(), version)
        merger = _merger(there, _as_stored(rows, table), table, CommitProperties(max_commit_retries=0))
        with lock(table), naming_damage(there, table.options):
            merger.when_matched_update_all().execute()

    def replace(self, table: TableLocation, rows: Any) -> None:
        """Overwrite the cluster's rows.

        WriteFiles: files are replaced where each has rows of one cluster only. Of a table whose files have rows of
        several clusters, or deleted rows, this cluster's rows are deleted in a commit before.
        """
        if callable(rows):
            one_writer(lambda: _replace_files(table, rows), table)
            return
        ours = _as_stored(_on_driver(rows), table)

        def overwrite() -> None:
            there = reader.existing_table(table)
            with naming_damage(there, table.options):
                write_deltalake(
                    there,
                    ours,
                    mode="overwrite",
                    predicate=_own_rows(table),
                    writer_properties=_COMPRESSED,
                    post_commithook_properties=_LOGS_KEPT,
                )

        one_writer(overwrite, table)

    def last_version(self, table: TableLocation, app: str) -> int:
        """Return the newest version that an app has written; -1 if there is none."""
        there = reader.open_table(table)
        version = None if there is None else there.transaction_version(app)
        return -1 if version is None else version

    def select(self, table: TableLocation, columns: str, rest: str) -> list[dict[str, Any]]:
        """Run a query with DataFusion."""
        return select(table, columns, rest)


def create_if_missing(table: TableLocation) -> reader.OpenTable:
    """Open the table, which is created if it does not exist."""
    there = reader.open_table(table)
    try:
        return create_table(table) if there is None else there
    except DeltaError:
        if (there := reader.open_table(table)) is None:
            raise
        return there  # another process was first


def _on_driver(rows: Any) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else rows.toArrow()


def _merger(
    there: DeltaTable, changed: pa.Table, table: TableLocation, commit: CommitProperties, among: str = ""
) -> TableMerger:
    """Return what merges rows into those of the cluster with their key, in one commit."""
    same = (f" AND there.{column} = changed.{column}" for column in table.contract.key)
    return there.merge(
        changed,
        f"there.cluster = {datafusion_literal(table.cluster)}{among}{''.join(same)}",
        source_alias="changed",
        target_alias="there",
        writer_properties=_COMPRESSED,
        commit_properties=commit,
        post_commithook_properties=_LOGS_KEPT,
    )


def _as_stored(rows: pa.Table, table: TableLocation) -> pa.Table:
    """Return rows with all of the table's columns, as delta-rs writes them."""
    # Java omits the offsets of empty lists, which Rust reads all the same; `take` restores them.
    return with_all_columns(rows, table).take(np.arange(len(rows)))


def _noting(once: Once | None, max_commit_retries: int | None = None) -> CommitProperties:
    noted = [] if once is None else [Transaction(once.app, once.version)]
    return CommitProperties(app_transactions=noted, max_commit_retries=max_commit_retries)


def _append_partitioned(table: TableLocation, rows: pa.Table, once: Once | None) -> None:
    there = reader.existing_table(table)
    if once is None or not once.is_done_in(there):
        write_deltalake(
            there,
            _as_stored(rows, table),
            mode="append",
            writer_properties=_COMPRESSED,
            commit_properties=_noting(once, max_commit_retries=0),
            post_commithook_properties=_LOGS_KEPT,
        )


def _own_rows(table: TableLocation) -> str:
    return f"cluster = {datafusion_literal(table.cluster)}"


def _replace_files(table: TableLocation, files: WriteFiles) -> None:
    there = reader.existing_table(table)
    ours = own_files(there, table.cluster)
    if ours is None:
        with naming_damage(there, table.options):
            there.delete(
                _own_rows(table),
                writer_properties=_COMPRESSED,
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=_LOGS_KEPT,
            )
    commit(table, there, files(table), instead_of=ours or {})


def own_files(there: reader.OpenTable, cluster: str) -> dict[str, int] | None:
    """Return the sizes of a table's files with rows of a cluster, by path.

    None if one may have rows of other clusters, too, or deleted rows.
    """
    if "deletionVectors" in (there.protocol().writer_features or ()):
        return None
    ours = {}
    for file in pa.table(there.get_add_actions(flatten=True)).to_pylist():
        least, most = file.get("min.cluster"), file.get("max.cluster")
        if least is None or most is None or least < cluster < most:
            return None
        if cluster in (least, most):
            if least != most:
                return None
            ours[file["path"]] = file["size_bytes"]
    return ours

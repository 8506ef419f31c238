"""The Delta tables: created from their contracts, extended when a contract gains columns, appended to and updated."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError

from grouptrail.contracts import Column, Table, tables
from grouptrail.spark import object_stores
from grouptrail.storage import appends, delta, reader
from grouptrail.storage.appending import create_as_spark_does
from grouptrail.storage.errors import TableError, TableVersionError
from grouptrail.storage.files import ADDED, Rows, TableLocation, with_all_columns, writing
from grouptrail.storage.files import write as write_files
from grouptrail.storage.layout import CHECKPOINT_INTERVAL, EARLIER_INTERVALS, meaning, spark_properties
from grouptrail.storage.positions import KEYS
from grouptrail.storage.rows import has_columns
from grouptrail.storage.rows import select as select_rows
from grouptrail.storage.schema import table_schema, written_out
from grouptrail.storage.sql import Value, datafusion_literal, spark_identifier, spark_literal

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

    from grouptrail.config import Config


T = TypeVar("T")
Write = Callable[[TableLocation], Iterable[str]]
"""Writes files of a table; returns Delta's `add` actions of them, as JSON."""

TRIES = 5

# So many rows are collected on the driver: some hundred megabytes at most.
_FEW_ROWS = 200_000

_NOTHING: Mapping[str, Any] = MappingProxyType({})


_COMPRESSED = WriterProperties(compression="ZSTD")

# For the clusters of one application; conflicts with other applications are retried.
_locks: defaultdict[str, Lock] = defaultdict(Lock)


def check_warehouse(config: Config) -> None:
    """Check that a local warehouse can be written (its folder is created), or that an object store can be reached."""
    from grouptrail.config import is_uri

    if is_uri(config.warehouse):
        if reason := reader.store_fault(config.warehouse, config.storage_options()):
            raise TableError(
                f"the warehouse {config.warehouse} cannot be reached ({reason}): "
                "check --warehouse, [storage] and the access rights"
            )
        return
    try:
        Path(config.warehouse).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=config.warehouse):
            pass
    except OSError as error:
        raise TableError(
            f"the warehouse {config.warehouse} cannot be written ({error.strerror}): "
            "choose another with --warehouse, or grant the right to write there"
        ) from error


def check_warehouse_exists(config: Config) -> None:
    """Like `check_warehouse`, for commands that need tables: raises TableError where there is no folder."""
    from grouptrail.config import is_uri

    if not is_uri(config.warehouse) and not Path(config.warehouse).is_dir():
        raise TableError(f"there is no warehouse {config.warehouse}: check --warehouse, or run grouptrail run first")
    check_warehouse(config)


def ensure_table(spark: SparkSession, config: Config, name: str) -> None:
    """Create the table if it does not exist, and add the columns that its contract has gained."""
    with _locks[config.table_path(name)]:  # jobs that start at once need some of the same tables
        _remove_checksum(config, name)
        is_known = object_stores.is_known(config.warehouse)
        there = reader.open_table(config, name) if is_known else None
        if there is None and is_known and _is_created_locally(config, name):
            return
        if not has_columns(there, table_schema(name)):
            _create_or_alter(spark, config, name)
        if there is not None:
            _set_checkpoint_interval(spark, config, there, name)


def _is_created_locally(config: Config, name: str) -> bool:
    from grouptrail.config import is_uri

    if is_uri(config.warehouse):
        return False
    try:
        create_as_spark_does(name, Path(config.table_path(name)))
    except OSError:  # such as file systems without hard links
        return False
    return True


def _create_or_alter(spark: SparkSession, config: Config, name: str) -> None:
    table, path = tables()[name], config.table_path(name)
    if not table_exists(spark, config, name):
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in _properties(config, name).items())
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {table_in_sql(config, name)} ({_columns(table.columns)}) USING delta "
            f"{_layout(table)} COMMENT {spark_literal(table.about)} "
            f"TBLPROPERTIES ({properties})"
        )
        return
    there = {field.name: field.dataType.simpleString() for field in read_all(spark, config, name).schema}
    wanted = {column.name: _simple(column.type) for column in table.columns}
    differing = [
        f"{column} is {there[column]}, should be {wanted[column]}"
        for column in wanted
        if column in there and there[column] != wanted[column]
    ]
    if differing:
        raise TableVersionError(
            f"table {path} does not fit this version of grouptrail ({'; '.join(differing)}): "
            "use another warehouse, or the version that wrote it"
        )
    missing = [column for column in table.columns if column.name not in there]
    if missing:
        spark.sql(f"ALTER TABLE {table_in_sql(config, name)} ADD COLUMNS ({_columns(missing)})")


def _set_checkpoint_interval(spark: SparkSession, config: Config, there: DeltaTable, name: str) -> None:
    """Let Spark write as many checkpoints as in new tables, if it writes them as an older grouptrail wanted."""
    is_ours = there.metadata().configuration.get(CHECKPOINT_INTERVAL) in EARLIER_INTERVALS
    if is_ours and _takes_files(config, name):
        interval = f"'{CHECKPOINT_INTERVAL}' = '{_properties(config, name)[CHECKPOINT_INTERVAL]}'"
        spark.sql(f"ALTER TABLE {table_in_sql(config, name)} SET TBLPROPERTIES ({interval})")


def _remove_checksum(config: Config, name: str) -> None:
    """Remove the checksum of `_last_checkpoint` that an older grouptrail wrote for Hadoop.

    That file is now replaced without its checksum, and Spark would try to read it for three seconds.
    """
    from grouptrail.config import is_uri

    if not is_uri(config.table_path(name)):
        Path(config.table_path(name), "_delta_log", "._last_checkpoint.crc").unlink(missing_ok=True)


def ensure_tables(spark: SparkSession, config: Config, names: Collection[str]) -> None:
    """Do `ensure_table` for several tables at once: each mostly waits."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: ensure_table(spark, config, name), names))


def table_in_sql(config: Config, name: str) -> str:
    """Return the table's name in Spark's SQL."""
    return f"delta.{spark_identifier(config.table_path(name))}"


def versions(spark: SparkSession, config: Config, name: str) -> list[tuple[int, datetime]]:
    """Return a table's versions that its log still has, newest first, and when each was committed."""
    rows = spark.sql(f"DESCRIBE HISTORY {table_in_sql(config, name)}").select("version", "timestamp").collect()
    return [(row.version, row.timestamp) for row in rows]


def table_exists(spark: SparkSession, config: Config, name: str) -> bool:
    """Return whether the warehouse has the table."""
    from delta.tables import DeltaTable as Table

    return bool(Table.isDeltaTable(spark, config.table_path(name)))


def append(
    spark: SparkSession,
    rows: pa.Table,
    config: Config,
    name: str,
    *,
    same: Mapping[str, Any] = _NOTHING,
    app: str | None = None,
    version: int = 0,
) -> None:
    """Append rows that are on the driver, unless this `app` has already appended this `version`.

    A batch that is repeated is thus written once. The rows get this cluster and the values in `same` for columns of
    these names that the table has; other missing columns that may be null are null.
    """
    if not _takes_files(config, name):
        frame = spark.createDataFrame(written_out(rows)).coalesce(1)
        _append_frame(frame, config, name, same=same, app=app, version=version)
        return
    append = _append(spark, config, name, app, version)
    if not append.is_done:
        location = _location(config, name, same)
        added = list(write_files(rows.to_batches(), location))
        appends.note(location, append.commit(added), rows)


def append_new(spark: SparkSession, rows: list[dict[str, Any]], config: Config, name: str) -> None:
    """Append a few rows."""
    append(spark, pa.Table.from_pylist(rows, table_schema(name)), config, name)


def append_made(
    records: DataFrame,
    rows: Rows,
    ddl: str,
    config: Config,
    name: str,
    *,
    same: Mapping[str, Any],
    app: str,
    version: int,
) -> None:
    """Append what tasks compute from records by `rows`, with columns `ddl`, as `append` does.

    No task runs if this `app` has already appended this `version`.
    """
    if not _takes_files(config, name):
        _append_frame(records.mapInArrow(rows, ddl), config, name, same=same, app=app, version=version)
        return

    def write(location: TableLocation) -> list[str]:
        return [row.added for row in records.mapInArrow(writing(rows, location), ADDED).collect()]

    append_files(records.sparkSession, write, config, name, same=same, app=app, version=version)


def append_files(
    spark: SparkSession,
    write: Write,
    config: Config,
    name: str,
    *,
    same: Mapping[str, Any] = _NOTHING,
    app: str,
    version: int,
) -> None:
    """Append the files that `write` writes, as `append` does; it is not called if there is nothing to do."""
    append = _append(spark, config, name, app, version)
    if not append.is_done:
        append.commit(list(write(_location(config, name, same))))


def landed(spark: SparkSession, config: Config, name: str, *, app: str) -> int:
    """Return the newest version that an app has appended to a table, or updated it with; -1 if there is none."""
    if not object_stores.is_known(config.warehouse):
        return delta.landed(spark, config.table_path(name), _app_id(app, name))
    return reader.landed(config, name, _app_id(app, name))


def _takes_files(config: Config, name: str) -> bool:
    """Return whether `files` can write the table: delta-rs knows its store, and it has no partitions."""
    return object_stores.is_known(config.warehouse) and not tables()[name].partition_by


def _app_id(app: str, name: str) -> str:
    return f"{app}-{name}"


def _append(spark: SparkSession, config: Config, name: str, app: str | None, version: int) -> delta.Append:
    once = None if app is None else _app_id(app, name)
    return delta.Append(spark, config.table_path(name), config.storage_options(), app=once, version=version)


def _location(config: Config, name: str, same: Mapping[str, Any] = _NOTHING) -> TableLocation:
    return TableLocation(name, config.table_path(name), config.storage_options(), {"cluster": config.cluster, **same})


def _append_frame(
    rows: DataFrame, config: Config, name: str, *, same: Mapping[str, Any], app: str | None, version: int
) -> None:
    from pyspark.sql import functions as F

    known = {"cluster": config.cluster, **same}
    absent = {
        column.name: F.lit(known.get(column.name)).cast(column.type)
        for column in tables()[name].columns
        if column.name not in rows.columns and (column.null_means is not None or column.name in known)
    }
    filled = rows.withColumns(absent).select(*(column.name for column in tables()[name].columns))
    writer = filled.write.format("delta").mode("append")
    if app is not None:
        writer = writer.options(txnAppId=_app_id(app, name), txnVersion=version)
    writer.save(config.table_path(name))


def are_few(config: Config, rows: int) -> bool:
    """Return whether so few rows are to be written by `merge`, which takes a tenth of the time of `update`."""
    return rows <= _FEW_ROWS and object_stores.is_known(config.warehouse)


def merge(rows: pa.Table, buckets: Collection[int], config: Config, name: str, *, app: str, version: int) -> None:
    """Do `update` by delta-rs for a few rows that are on the driver."""
    changed = _for_rust(rows, config, name)
    once = Transaction(_app_id(app, name), version)
    _one_writer(lambda: _merge(changed, buckets, config, name, once), config, name)


def update(rows: DataFrame, buckets: Collection[int], config: Config, name: str, *, app: str, version: int) -> None:
    """Write rows by the table's key in place of open rows, in one commit, once for each `app` and `version`.

    The rows are of `buckets` only; the cost depends on the open rows of these, not on the table's size.
    """
    changed = _whole(rows, config, name)
    key = tables()[name].key
    ours = f"{own_rows(config)} AND {_among(buckets)}"
    there = read_all(changed.sparkSession, config, name).where(ours)
    kept = there.join(changed.select(*key), list(key), "left_anti")
    rewritten = kept.select(*changed.columns).unionByName(changed).repartition("open_bucket")
    _overwrite(rewritten, ours, config, name, {"txnAppId": _app_id(app, name), "txnVersion": version})


def _for_rust(rows: pa.Table, config: Config, name: str) -> pa.Table:
    """Return rows with all of the table's columns, as delta-rs writes them."""
    # Java omits the offsets of empty lists, which Rust reads all the same; `take` restores them.
    return with_all_columns(rows, _location(config, name)).take(np.arange(len(rows)))


def _among(buckets: Collection[int]) -> str:
    return f"open_bucket IN ({', '.join(map(str, sorted(buckets)))})"


def _merge(changed: pa.Table, buckets: Collection[int], config: Config, name: str, once: Transaction) -> None:
    there = DeltaTable(config.table_path(name), storage_options=config.storage_options())
    if delta.has_landed(there, once.app_id, once.version):
        return
    same = " AND ".join(f"there.{column} = changed.{column}" for column in tables()[name].key)
    merger = there.merge(
        changed,
        f"there.cluster = {datafusion_literal(config.cluster)} AND there.{_among(buckets)} AND {same}",
        source_alias="changed",
        target_alias="there",
        writer_properties=_COMPRESSED,
        commit_properties=CommitProperties(app_transactions=[once]),
    )
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def replace(rows: DataFrame, config: Config, name: str) -> None:
    """Replace all rows of this cluster."""
    _overwrite(_whole(rows, config, name), own_rows(config), config, name, {})


def replace_few(rows: pa.Table, config: Config, name: str) -> None:
    """Do `replace` by delta-rs for a few rows that are on the driver."""
    path, options = config.table_path(name), config.storage_options()
    ours = _for_rust(rows, config, name)

    def write() -> None:
        write_deltalake(
            DeltaTable(path, storage_options=options),
            ours,
            mode="overwrite",
            predicate=f"cluster = {datafusion_literal(config.cluster)}",
            writer_properties=_COMPRESSED,
        )

    _one_writer(write, config, name)


def replace_files(spark: SparkSession, write: Write, config: Config, name: str) -> None:
    """Do `replace` by replacing files where each has rows of one cluster only; Spark would read what is replaced.

    Only one writer at a time may write rows of a cluster. In a table whose files have rows of several clusters, or
    deleted rows, this cluster's rows are deleted in a commit before.
    """

    def replace() -> None:
        ours = _own_files(config, name)
        if ours is None:
            spark.sql(f"DELETE FROM {table_in_sql(config, name)} WHERE {own_rows(config)}")
        transaction = _append(spark, config, name, None, 0)
        transaction.commit(list(write(_location(config, name))), instead_of=ours or {})

    _one_writer(replace, config, name)


def _own_files(config: Config, name: str) -> dict[str, int] | None:
    """Return the sizes of the table's files with rows of this cluster, by path.

    None if one may have rows of other clusters, too, or deleted rows, or if `files` cannot write the table.
    """
    table = reader.open_table(config, name) if _takes_files(config, name) else None
    if table is None or "deletionVectors" in (table.protocol().writer_features or ()):
        return None
    ours = {}
    for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        least, most = file.get("min.cluster"), file.get("max.cluster")
        if least is None or most is None or least < config.cluster < most:
            return None
        if config.cluster in (least, most):
            if least != most:
                return None
            ours[file["path"]] = file["size_bytes"]
    return ours


def replace_where(spark: SparkSession, rows: list[dict[str, Any]], condition: str, config: Config, name: str) -> None:
    """Replace this cluster's rows that match an SQL condition by a few rows, which must match it, too, in one commit.

    It is not repeated after a conflict: rows computed from the table's content have to be computed again
    (`with_retries`).
    """
    frame = spark.createDataFrame(rows, tables()[name].ddl()).coalesce(1)
    overwriting(frame, f"{own_rows(config)} AND {condition}").save(config.table_path(name))


def own_rows(config: Config) -> str:
    """Return an SQL condition: a row is of this cluster."""
    return f"cluster = {spark_literal(config.cluster)}"


def _overwrite(rows: DataFrame, where: str, config: Config, name: str, options: Mapping[str, str | int]) -> None:
    writer = overwriting(rows, where).options(**options)
    _one_writer(lambda: writer.save(config.table_path(name)), config, name)


def overwriting(rows: DataFrame, where: str) -> DataFrameWriter:
    """Return a writer that replaces the rows that match an SQL condition, in one commit."""
    return rows.write.format("delta").mode("overwrite").option("replaceWhere", where)


def _one_writer(write: Callable[[], None], config: Config, name: str) -> None:
    """Write, and retry after a conflict with another writer.

    Delta treats two concurrent replacements of rows of a table as a conflict, even for rows of different clusters,
    and `grouptrail maintain` sorts the files of some tables while jobs run.
    """
    with _locks[config.table_path(name)]:
        with_retries(write, TRIES)


def with_retries(work: Callable[[], T], tries: int) -> T:
    """Return what `work` returns; after a conflict with another writer it is repeated from the table's new state."""
    for _ in range(tries - 1):
        try:
            return work()
        except Exception as error:
            if not is_conflict(error):
                raise
    return work()


def is_conflict(error: Exception) -> bool:
    """Return whether an error is a conflict with another writer; Spark's exceptions have no class in common."""
    return isinstance(error, CommitFailedError) or "[DELTA_CONCURRENT_" in str(error)


def move(rows: DataFrame, config: Config, *, source: str, target: str) -> None:
    """Insert rows into a table and delete those with the same key from another one.

    They are inserted first, unless the target has their key: after an interruption it can be repeated.
    """
    from delta.tables import DeltaTable as Table

    def merger(name: str) -> DeltaMergeBuilder:
        same = " AND ".join(f"there.{column} = row.{column}" for column in tables()[name].key)
        there = Table.forPath(rows.sparkSession, config.table_path(name))
        return there.alias("there").merge(rows.alias("row"), same)

    merger(target).whenNotMatchedInsertAll().execute()
    merger(source).whenMatchedDelete().execute()


def register(spark: SparkSession, config: Config, name: str, catalog_name: str) -> str | None:
    """Create a table of Spark's catalog, given by its quoted name, at the table's location.

    Return the location of a table that has this name already, None if it is the same one.
    """
    path = config.table_path(name)
    spark.sql(f"CREATE TABLE IF NOT EXISTS {catalog_name} USING delta LOCATION {spark_literal(path)}")
    registered, here = (
        spark.sql(f"DESCRIBE DETAIL {table}").collect()[0].location
        for table in (catalog_name, table_in_sql(config, name))
    )
    return None if registered == here else registered


def _whole(rows: DataFrame, config: Config, name: str) -> DataFrame:
    from pyspark.sql import functions as F

    columns = (column.name for column in tables()[name].columns)
    return rows.withColumn("cluster", F.lit(config.cluster)).select(*columns)


def read(spark: SparkSession, config: Config, name: str, version: int | None = None) -> DataFrame:
    """Return a table's rows of this cluster, of the newest version or an earlier one."""
    from pyspark.sql import functions as F

    return read_all(spark, config, name, version).where(F.col("cluster") == config.cluster)


def read_all(spark: SparkSession, config: Config, name: str, version: int | None = None) -> DataFrame:
    """Return a table's rows of all clusters, of the newest version or an earlier one."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return reader.load(config.table_path(name))


def read_newest(spark: SparkSession, config: Config, name: str) -> list[dict[str, Any]]:
    """Return this cluster's newest row of each key (`positions.KEYS`) of a decoded table."""
    from pyspark.sql import functions as F

    rows = read(spark, config, name)
    last = F.max_by(F.struct(*rows.columns), "record_offset").alias("row")
    found: list[dict[str, Any]] = rows.groupBy(*KEYS[name]).agg(last).select("row.*").toArrow().to_pylist()
    return found


def read_appends(
    spark: SparkSession, config: Config, name: str, *, files_a_batch: int = 1000, version: int | None = None
) -> DataFrame:
    """Read a table's appended rows as a stream, each once; with `version`, from that commit on.

    Commits that delete or rewrite rows are skipped.
    """
    reader = spark.readStream.format("delta").option("maxFilesPerTrigger", files_a_batch)
    if version is not None:
        reader = reader.option("startingVersion", version)
    return reader.option("skipChangeCommits", "true").load(config.table_path(name))


def select(
    spark: SparkSession | None, config: Config, name: str, columns: str, rest: str = ""
) -> list[dict[str, Any]]:
    """Return rows of this cluster: `columns` of a table and the `rest` of the query after its WHERE condition.

    Uses delta-rs where it supports the store, and else Spark: its first queries in a session take seconds.
    """
    if spark is None or object_stores.is_known(config.warehouse):
        return select_rows(config, name, columns, rest)
    query = f"SELECT {columns} FROM {table_in_sql(config, name)} WHERE {own_rows(config)} {rest}"
    return [row.asDict() for row in spark.sql(query).collect()]


def literal(config: Config) -> Callable[[Value], str]:
    """Return the function that writes values in the SQL of the engine that `select` uses."""
    return datafusion_literal if object_stores.is_known(config.warehouse) else spark_literal


def has_rows(spark: SparkSession, config: Config, name: str, where: str = "true") -> bool:
    """Return whether a table has rows of this cluster that match an SQL condition."""
    return bool(select(spark, config, name, "cluster", f"AND ({where}) LIMIT 1"))


def _layout(table: Table) -> str:
    """Return the partitioning or clustering; files of partitioned tables are sorted by `grouptrail maintain`."""
    if table.partition_by:
        return f"PARTITIONED BY ({', '.join(table.partition_by)})"
    return f"CLUSTER BY ({', '.join(table.cluster_by)})"


def _columns(columns: tuple[Column, ...] | list[Column]) -> str:
    return ", ".join(f"`{column.name}` {column.type} COMMENT {spark_literal(meaning(column))}" for column in columns)


def _properties(config: Config, name: str) -> dict[str, str]:
    return spark_properties(tables()[name], takes_files=_takes_files(config, name))


def _simple(ddl: str) -> str:
    """Return a contract's type as `DataType.simpleString` spells it."""
    return re.sub(r"\s+", "", ddl)

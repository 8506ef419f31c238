"""The Delta tables: made from their contracts, and brought up to them when a contract has grown."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError

from grouptrail.contracts import Column, Table, tables
from grouptrail.errors import GrouptrailError
from grouptrail.spark import object_stores
from grouptrail.storage import delta
from grouptrail.storage.files import ADDED, Place, Rows, whole, write, written
from grouptrail.storage.schema import table_schema
from grouptrail.storage.sql import datafusion_literal, spark_literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.config import Config


T = TypeVar("T")

OPEN_BUCKETS = 8

_TRIES = 5

# They come to the driver, some hundred megabytes at most.
_FEW_ROWS = 200_000

# Spark's own default; that of delta-rs is 100 files to read whenever a table is looked at.
_COMMITS_A_CHECKPOINT = 10

# Of the clusters of one application; those of others are met by trying again.
_one_at_a_time: defaultdict[str, Lock] = defaultdict(Lock)


class TableError(GrouptrailError):
    """A table is not what its contract says and cannot be made so."""


def check_warehouse(config: Config) -> None:
    """Makes a local warehouse's folder and writes a file into it; looks into an object store."""
    from grouptrail.config import is_uri

    if is_uri(config.warehouse):
        if reason := object_stores.fault(config.warehouse, config.storage_options()):
            raise TableError(
                f"the warehouse {config.warehouse} cannot be reached ({reason}): "
                "correct --warehouse or [storage], or the rights there"
            )
        return
    try:
        Path(config.warehouse).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=config.warehouse):
            pass
    except OSError as error:
        raise TableError(
            f"the warehouse {config.warehouse} cannot be written ({error.strerror}): "
            "give another with --warehouse, or the right to write there"
        ) from error


def ensure_table(spark: SparkSession, config: Config, name: str) -> None:
    """Creates the table where it is not, and adds the columns that its contract has gained."""
    table, path = tables()[name], config.table_path(name)
    if not table_exists(spark, config, name):
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS delta.`{path}` ({_columns(table.columns)}) USING delta "
            f"{_layout(table)} COMMENT {spark_literal(table.about)} "
            f"TBLPROPERTIES ('delta.dataSkippingStatsColumns' = '{_stats(table)}', "
            f"'delta.checkpointInterval' = '{_COMMITS_A_CHECKPOINT}')"
        )
        return
    there = {field.name: field.dataType.simpleString() for field in spark.read.format("delta").load(path).schema}
    wanted = {column.name: _simple(column.type) for column in table.columns}
    differing = [
        f"{column} is {there[column]}, should be {wanted[column]}"
        for column in wanted
        if column in there and there[column] != wanted[column]
    ]
    if differing:
        raise TableError(
            f"table {path} does not fit this version of grouptrail ({'; '.join(differing)}): "
            "use another warehouse, or the version that wrote it"
        )
    missing = [column for column in table.columns if column.name not in there]
    if missing:
        spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS ({_columns(missing)})")


def ensure_tables(spark: SparkSession, config: Config, names: Collection[str]) -> None:
    """As `ensure_table`, all at once: each mostly waits."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: ensure_table(spark, config, name), names))


def is_new(spark: SparkSession, config: Config, name: str) -> bool:
    """Whether nothing has been done with a table since it was made."""
    return delta.version(spark, config.table_path(name)) == 0


def versions(spark: SparkSession, config: Config, name: str) -> list[tuple[int, datetime]]:
    """Return a table's versions that are still known, the newest first, and when each was committed."""
    rows = spark.sql(f"DESCRIBE HISTORY delta.`{config.table_path(name)}`").select("version", "timestamp").collect()
    return [(row.version, row.timestamp) for row in rows]


def table_exists(spark: SparkSession, config: Config, name: str) -> bool:
    """Whether the warehouse has the table."""
    from delta.tables import DeltaTable as Table

    return bool(Table.isDeltaTable(spark, config.table_path(name)))


def append(
    spark: SparkSession,
    rows: pa.Table,
    config: Config,
    name: str,
    *,
    source: str | None = None,
    app: str | None = None,
    version: int = 0,
) -> None:
    """Appends rows that are on the driver, unless this `app` has already appended this `version`: a batch done again
    lands once. They are of this cluster and `source`; what else they lack, and may be null, is null."""
    if not _takes_files(config, name):
        _append_frame(spark.createDataFrame(rows).coalesce(1), config, name, source=source, app=app, version=version)
        return
    append = _append(spark, config, name, app, version)
    if not append.is_done:
        append.commit(list(write(rows.to_batches(), _place(config, name, source))))


def append_new(spark: SparkSession, rows: list[dict[str, Any]], config: Config, name: str) -> None:
    """Appends a few rows."""
    append(spark, pa.Table.from_pylist(rows, table_schema(name)), config, name)


def append_made(
    records: DataFrame, rows: Rows, ddl: str, config: Config, name: str, *, source: str | None, app: str, version: int
) -> None:
    """Appends what tasks make of records by `rows`, which gives `ddl`, as `append` does; no task runs where that was
    done already."""
    if not _takes_files(config, name):
        _append_frame(records.mapInArrow(rows, ddl), config, name, source=source, app=app, version=version)
        return
    append = _append(records.sparkSession, config, name, app, version)
    if not append.is_done:
        added = records.mapInArrow(written(rows, _place(config, name, source)), ADDED).collect()
        append.commit([row.added for row in added])


def landed(spark: SparkSession, config: Config, name: str, *, app: str) -> int:
    """The newest version that an app has appended to a table, or updated it with; -1 where there is none."""
    return delta.landed(spark, config.table_path(name), _of_table(app, name))


def _takes_files(config: Config, name: str) -> bool:
    """Whether `files` can write for it: where delta-rs does, and a file need not be cut up by partition."""
    return object_stores.is_known(config.warehouse) and not tables()[name].partition_by


def _of_table(app: str, name: str) -> str:
    return f"{app}-{name}"


def _append(spark: SparkSession, config: Config, name: str, app: str | None, version: int) -> delta.Append:
    once = None if app is None else _of_table(app, name)
    return delta.Append(spark, config.table_path(name), config.storage_options(), app=once, version=version)


def _place(config: Config, name: str, source: str | None) -> Place:
    same = {"cluster": config.cluster, "source": source}
    return Place(name, config.table_path(name), config.storage_options(), same)


def _append_frame(
    rows: DataFrame, config: Config, name: str, *, source: str | None, app: str | None, version: int
) -> None:
    from pyspark.sql import functions as F

    same = {"cluster": config.cluster, "source": source}
    absent = {
        column.name: F.lit(same.get(column.name)).cast(column.type)
        for column in tables()[name].columns
        if column.name not in rows.columns and (column.null_means is not None or column.name in same)
    }
    filled = rows.withColumns(absent).select(*(column.name for column in tables()[name].columns))
    writer = filled.write.format("delta").mode("append")
    if app is not None:
        writer = writer.options(txnAppId=_of_table(app, name), txnVersion=version)
    writer.save(config.table_path(name))


def with_open_bucket(rows: DataFrame) -> DataFrame:
    """Adds `open_bucket`, by which the open rows of a few groups are found and written again."""
    from pyspark.sql import functions as F

    bucket = F.pmod(F.hash("group_id"), F.lit(OPEN_BUCKETS))
    is_open = F.col("is_open") if "is_open" in rows.columns else F.lit(True)
    return rows.withColumn("open_bucket", F.when(is_open, bucket))


def are_few(config: Config, rows: int) -> bool:
    """Whether so many rows are for `merge`, which takes a tenth of the time of `update`."""
    return rows <= _FEW_ROWS and object_stores.is_known(config.warehouse)


def merge(rows: pa.Table, buckets: Collection[int], config: Config, name: str, *, app: str, version: int) -> None:
    """As `update`, of a few rows that are on the driver, with their `open_bucket`; delta-rs writes them."""
    # Java leaves the offsets of empty lists away, which Rust reads all the same; taken, they are there.
    changed = whole(rows, _place(config, name, None)).take(np.arange(len(rows)))
    once = Transaction(_of_table(app, name), version)
    _one_writer(lambda: _merge(changed, buckets, config, name, once), config, name)


def update(rows: DataFrame, buckets: Collection[int], config: Config, name: str, *, app: str, version: int) -> None:
    """Writes rows by the table's key, in place of those that are open there; once for each `app` and `version`.

    The rows are of `buckets` only. In one commit, whose cost follows what is open in these, not the table.
    """
    changed = _whole(with_open_bucket(rows), config, name)
    key = tables()[name].key
    ours = f"cluster = {spark_literal(config.cluster)} AND {_among(buckets)}"
    there = changed.sparkSession.read.format("delta").load(config.table_path(name)).where(ours)
    kept = there.join(changed.select(*key), list(key), "left_anti")
    rewritten = kept.select(*changed.columns).unionByName(changed).repartition("open_bucket")
    _overwrite(rewritten, ours, config, name, {"txnAppId": _of_table(app, name), "txnVersion": version})


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
        writer_properties=WriterProperties(compression="ZSTD"),
        commit_properties=CommitProperties(app_transactions=[once]),
    )
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def replace(rows: DataFrame, config: Config, name: str) -> None:
    """Puts rows in place of all that the table has of this cluster."""
    _overwrite(
        _whole(with_open_bucket(rows), config, name), f"cluster = {spark_literal(config.cluster)}", config, name, {}
    )


def _overwrite(rows: DataFrame, where: str, config: Config, name: str, options: Mapping[str, str | int]) -> None:
    writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", where).options(**options)
    _one_writer(lambda: writer.save(config.table_path(name)), config, name)


def _one_writer(write: Callable[[], None], config: Config, name: str) -> None:
    """Writes, and tries again where another writer was quicker.

    Delta takes two writes in place of rows of a table at once for a conflict, though they touch rows of different
    clusters, and `grouptrail maintain` sorts the files of some tables while jobs run.
    """
    with _one_at_a_time[config.table_path(name)]:
        tried_again(write, _TRIES)


def tried_again(work: Callable[[], T], tries: int) -> T:
    """What work gives: where another writer came between, it is done once more, from what is there then."""
    for _ in range(tries - 1):
        try:
            return work()
        except Exception as error:
            if not is_conflict(error):
                raise
    return work()


def is_conflict(error: Exception) -> bool:
    """Whether another writer's commit came before this one's. Spark's exceptions for it have no class in common."""
    return isinstance(error, CommitFailedError) or "[DELTA_CONCURRENT_" in str(error)


def _whole(rows: DataFrame, config: Config, name: str) -> DataFrame:
    from pyspark.sql import functions as F

    columns = (column.name for column in tables()[name].columns)
    return rows.withColumn("cluster", F.lit(config.cluster)).select(*columns)


def read(spark: SparkSession, config: Config, name: str) -> DataFrame:
    """A table's rows of this cluster."""
    from pyspark.sql import functions as F

    return spark.read.format("delta").load(config.table_path(name)).where(F.col("cluster") == config.cluster)


def _layout(table: Table) -> str:
    """Delta does not cluster a table that has partitions; `grouptrail maintain` sorts its files then."""
    if table.partition_by:
        return f"PARTITIONED BY ({', '.join(table.partition_by)})"
    return f"CLUSTER BY ({', '.join(table.cluster_by)})"


def _columns(columns: tuple[Column, ...] | list[Column]) -> str:
    return ", ".join(f"`{column.name}` {column.type} COMMENT {spark_literal(_meaning(column))}" for column in columns)


def _meaning(column: Column) -> str:
    return column.about if column.null_means is None else f"{column.about}; null: {column.null_means}"


def in_ranges(ranges: dict[int, tuple[int, int]]) -> str:
    """SQL: whether a row's record lies in its partition's range of offsets [start, end)."""
    conditions = (
        f"record_partition = {partition} AND record_offset >= {start} AND record_offset < {end}"
        for partition, (start, end) in sorted(ranges.items())
    )
    return " OR ".join(f"({condition})" for condition in conditions) or "false"


def _stats(table: Table) -> str:
    return ",".join(column.name for column in table.columns if column.stats and column.name not in table.partition_by)


def _simple(ddl: str) -> str:
    """A contract's type as `DataType.simpleString` spells it."""
    return re.sub(r"\s+", "", ddl)

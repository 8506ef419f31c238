"""A Delta table of a cluster: what can be done with it, whichever engine does it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from grouptrail.contracts import Table as Contract
from grouptrail.storage import reader
from grouptrail.storage.engines.choice import EngineName, choose, running
from grouptrail.storage.location import TableLocation
from grouptrail.storage.reader import Commit, OpenTable

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.storage.checkpoints import Checkpoint
    from grouptrail.storage.engines.engine import Engine, Once, Rows
    from grouptrail.storage.following import Process, Query
    from grouptrail.storage.rows import NewRows

_NOTHING: Mapping[str, Any] = {}


class Table:
    """A table of a warehouse, which need not exist yet. Rows are those of one cluster, unless said otherwise.

    `spark` is None where no session runs: what only Spark can do raises NeedsSparkError then. `only` is the engine to
    use whatever the rule says, for tests.
    """

    def __init__(self, location: TableLocation, spark: SparkSession | None, only: EngineName | None = None) -> None:
        self.location = location
        self._spark = spark
        self._only = only

    @property
    def name(self) -> str:
        """The name of its contract."""
        return self.location.name

    @property
    def path(self) -> str:
        """Its folder or URI."""
        return self.location.path

    @property
    def cluster(self) -> str:
        """The cluster whose rows are meant."""
        return self.location.cluster

    @property
    def contract(self) -> Contract:
        """Its contract."""
        return self.location.contract

    @property
    def schema(self) -> pa.Schema:
        """The contract's columns, as in Arrow."""
        from grouptrail.storage.schema import table_schema

        return table_schema(self.name)

    # Reading with delta-rs, without a JVM

    def open(self, version: int | None = None) -> OpenTable | None:
        """Open its newest version, or another one; None if there is no table. Raises TableError."""
        return reader.open_table(self.location, version)

    def newest_commit(self) -> Commit | None:
        """Return its newest commit; None if there is no table. Raises one of `reader.READ_ERRORS`."""
        return reader.newest_commit(self.location)

    def files(self, *statistics: str) -> pa.Table | None:
        """Return the files that may have rows of the cluster, with their statistics, as `rows.own_files` does."""
        from grouptrail.storage.rows import own_files

        return own_files(self.cluster, self.open(), *statistics)

    def dataset(self, where: str, *, coded: Sequence[str] = ()) -> ds.Dataset:
        """Return the files of an existing table as a dataset with rows of all clusters, as `rows.dataset` does."""
        from grouptrail.storage.rows import dataset

        return dataset(self.location, where, coded=coded)

    def read(
        self, columns: pa.Schema, among: ds.Expression | None = None, opened: OpenTable | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows that match `among`, many at a time: of the version that was `opened`, or of the newest.

        There are none if there is no table.
        """
        from grouptrail.storage.rows import read_rows

        return read_rows(self.location, columns, among, opened or self.open())

    def select_arrow(
        self, columns: Sequence[str], rest: str = "", *, rows_at_a_time: int, opened: OpenTable | None = None
    ) -> Iterator[pa.Table]:
        """Yield `columns`, and the `rest` of the query after its WHERE condition, some rows at a time.

        They are those of the version that was `opened`, or of the newest.
        """
        from grouptrail.storage.rows import select_arrow

        computes_all = self._spark is not None  # otherwise a command's process, which may end
        return select_arrow(
            self.location, columns, rest, rows_at_a_time=rows_at_a_time, computes_all=computes_all, opened=opened
        )

    def new_rows(
        self, columns: pa.Schema, among: ds.Expression | None = None, after: OpenTable | None = None
    ) -> NewRows:
        """Return a reader of the rows that come after the version `after`, or of all."""
        from grouptrail.storage.rows import NewRows

        return NewRows(self.location, columns, among, after)

    # Reading with Spark

    def dataframe(self, version: int | None = None) -> DataFrame:
        """Return the rows in Spark, of the newest version or an earlier one."""
        from pyspark.sql import functions as F

        return self.all_clusters(version).where(F.col("cluster") == self.cluster)

    def all_clusters(self, version: int | None = None) -> DataFrame:
        """Return the rows of all clusters in Spark, of the newest version or an earlier one."""
        from grouptrail.storage.engines.spark import read_all

        return read_all(self.session, self.location, version)

    def newest(self) -> list[dict[str, Any]]:
        """Return the newest row of each key (`positions.KEYS`) of a decoded table."""
        from pyspark.sql import functions as F

        from grouptrail.storage.positions import KEYS

        rows = self.dataframe()
        last = F.max_by(F.struct(*rows.columns), "record_offset").alias("row")
        newest: list[dict[str, Any]] = rows.groupBy(*KEYS[self.name]).agg(last).select("row.*").toArrow().to_pylist()
        return newest

    # Reading with either engine

    def exists(self) -> bool:
        """Return whether there is a table."""
        if choose(self.path, self._spark, only=self._only) == "delta-rs":
            return self.open() is not None
        from grouptrail.storage.engines.spark import exists

        return exists(self.session, self.location)

    def select(self, columns: str, rest: str = "") -> list[dict[str, Any]]:
        """Return `columns` (SQL) and the `rest` of the query after its WHERE condition."""
        return self._engine().select(self.location, columns, rest)

    def has_rows(self, where: str = "true") -> bool:
        """Return whether rows match an SQL condition."""
        return bool(self.select("cluster", f"AND ({where}) LIMIT 1"))

    def last_version(self, app: str) -> int:
        """Return the newest version that an app has written (`Once`); -1 if there is none."""
        return self._engine().last_version(self.location, self._app(app))

    def versions(self) -> list[tuple[int, datetime]]:
        """Return the versions that its log still has, newest first, and when each was committed."""
        from grouptrail.storage.engines.spark import table_in_sql

        rows = self.session.sql(f"DESCRIBE HISTORY {table_in_sql(self.location)}").select("version", "timestamp")
        return [(row.version, row.timestamp) for row in rows.collect()]

    # Writing

    def ensure(self) -> None:
        """Create the table if it does not exist, and add the columns that its contract has gained."""
        engine = self._engine() if self._spark is None or self._only is not None else self._named("spark")
        engine.create(self.location)

    def append(self, rows: Rows, once: Once | None = None, *, shared: Mapping[str, Any] = _NOTHING) -> None:
        """Append rows, unless `once` has been done: a batch that is repeated is thus written once.

        The rows get the cluster and the `shared` values of columns that the table has; other missing columns that may
        be null are null.
        """
        self._engine_for(rows).append(
            self.location.sharing(shared), rows, None if once is None else self._marked(once)
        )

    def append_rows(self, rows: Iterable[Mapping[str, Any]], once: Once | None = None) -> None:
        """Append a few rows by column, without the cluster; columns that are missing are null."""
        import pyarrow as pa

        from grouptrail.storage.schema import table_schema

        self.append(pa.Table.from_pylist(list(rows), table_schema(self.name, without=("cluster",))), once)

    def upsert(self, rows: Any, buckets: Collection[int], once: Once) -> None:
        """Write rows (Arrow or DataFrame) in place of open rows of `buckets` with their key, once, in one commit."""
        self._engine_for(rows).upsert(self.location, rows, buckets, self._marked(once))

    def update(self, rows: pa.Table, version: int) -> None:
        """Write rows in place of those with their key, open or not, which were read from a version, in one commit.

        It is not repeated after a conflict: the rows have to be computed again (`retries.with_retries`).
        """
        self._engine_for(rows).update(self.location, rows, version)

    def replace(self, rows: Any) -> None:
        """Replace all rows of the cluster by rows (Arrow, DataFrame or a function that writes files)."""
        self._engine_for(rows).replace(self.location, rows)

    def replace_where(self, rows: Iterable[Mapping[str, Any]], condition: str) -> None:
        """Replace the rows that match an SQL condition by a few, as for `append_rows`, which must match it, too.

        It is one commit, and not repeated after a conflict: rows computed from the table's content have to be
        computed again (`retries.with_retries`).
        """
        from grouptrail.storage.engines.spark import overwriting, own_rows

        whole = [{**row, "cluster": self.cluster} for row in rows]
        frame = self.session.createDataFrame(whole, self.contract.ddl()).coalesce(1)
        overwriting(frame, f"{own_rows(self.location)} AND {condition}").save(self.path)

    def follow(
        self,
        checkpoint: Checkpoint,
        *,
        process: Process,
        once: bool,
        is_written_here: bool,
        every_seconds: float,
        version: int | None = None,
        files_a_batch: int = 1000,
    ) -> Query:
        """Start a query of the appends from a version on, by default first of all rows: see `following.follow`."""
        from grouptrail.storage.following import Appends, follow

        return follow(
            Appends(self.location, version, files_a_batch),
            checkpoint,
            process=process,
            once=once,
            is_written_here=is_written_here,
            every_seconds=every_seconds,
        )

    # Engines

    @property
    def session(self) -> SparkSession:
        """The Spark session. Raises NeedsSparkError if none runs."""
        return running(self._spark, self.path)

    def _engine_for(self, rows: Any) -> Engine:
        """Return the engine for rows to write: those on the driver need not be read by Spark if they are few."""
        is_on_driver = callable(rows) or hasattr(rows, "num_rows")
        return self._engine(rows=getattr(rows, "num_rows", 0)) if is_on_driver else self._named("spark")

    def _engine(self, *, rows: int = 0) -> Engine:
        return self._named(choose(self.path, self._spark, rows=rows, only=self._only))

    def _named(self, name: EngineName) -> Engine:
        if name == "spark":
            from grouptrail.storage.engines.spark import Spark

            return Spark(self.session)
        from grouptrail.storage.engines.delta_rs import DeltaRs

        return DeltaRs()

    def _marked(self, once: Once) -> Once:
        """Return what is noted in the table's log."""
        return replace(once, app=self._app(once.app))

    def _app(self, app: str) -> str:
        return f"{app}-{self.name}"

"""A warehouse: the Delta tables of one cluster at one location, and the checkpoints of the jobs that write them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from grouptrail.locations import is_uri, shown
from grouptrail.storage import reader
from grouptrail.storage.engines.choice import EngineName, choose, running
from grouptrail.storage.errors import TableError
from grouptrail.storage.location import TableLocation
from grouptrail.storage.sql import Value, datafusion_literal, spark_literal
from grouptrail.storage.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.storage.checkpoints import Checkpoint


@dataclass(frozen=True)
class Warehouse:
    """The tables of a cluster.

    `location` is a folder or URI, `options` are delta-rs's options of the store, secrets in clear. `checkpoints` is
    the folder of this cluster's checkpoints. `spark` is the session for what delta-rs cannot do; it does not follow
    into other processes. `only` is the engine to use whatever the rule (`engines.choice`) says, for tests.
    """

    location: str = field(repr=False)
    cluster: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    checkpoints: str = field(default="", repr=False)
    spark: SparkSession | None = field(default=None, repr=False, compare=False)
    only: EngineName | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "spark": None}

    def table(self, name: str) -> Table:
        """Return a table by the name of its contract; it need not exist."""
        location = TableLocation(name, f"{self.location}/{name}", self.options, self.cluster)
        return Table(location, self.spark, self.only)

    def tables(self, names: Collection[str]) -> list[Table]:
        """Return several tables."""
        return [self.table(name) for name in names]

    def with_spark(self, spark: SparkSession | None) -> Warehouse:
        """Return the warehouse for work in a session."""
        return replace(self, spark=spark)

    def of_cluster(self, cluster: str) -> Warehouse:
        """Return the tables of another cluster, without its checkpoints."""
        return replace(self, cluster=cluster, checkpoints="")

    @property
    def shown(self) -> str:
        """The location as it may be printed."""
        return shown(self.location)

    @property
    def session(self) -> SparkSession:
        """The Spark session. Raises NeedsSparkError if none runs."""
        return running(self.spark, self.location)

    @property
    def is_readable_without_spark(self) -> bool:
        """Whether delta-rs supports the store."""
        return choose(self.location, None, only=self.only) == "delta-rs"

    def choose(self, *, rows: int = 0, size_bytes: int = 0) -> EngineName:
        """Return the engine for work with so many rows: see `engines.choice`."""
        return choose(self.location, self.spark, rows=rows, size_bytes=size_bytes, only=self.only)

    def literal(self, value: Value) -> str:
        """Return a value in the SQL of `Table.select` and `Table.has_rows`."""
        return datafusion_literal(value) if self.choose() == "delta-rs" else spark_literal(value)

    def checkpoint_path(self, job: str) -> str:
        """Return the folder of a job's checkpoint."""
        return f"{self.checkpoints}/{job}"

    def checkpoint(self, job: str) -> Checkpoint:
        """Return a job's checkpoint; needs a session."""
        from grouptrail.storage.checkpoints import Checkpoint

        return Checkpoint(self.session, self.cluster, job, self.checkpoint_path(job))

    def ensure(self, names: Collection[str]) -> None:
        """Create the tables that do not exist, and add the columns that contracts have gained: each mostly waits."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: self.table(name).ensure(), names))

    def check(self) -> None:
        """Check that a local warehouse can be written (its folder is created), or that its store can be reached."""
        if is_uri(self.location):
            if reason := reader.store_fault(self.location, self.options):
                raise TableError(
                    f"the warehouse {self.shown} cannot be reached ({reason}): "
                    "check --warehouse, [storage] and the access rights"
                )
            return
        try:
            Path(self.location).mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self.location):
                pass
        except OSError as error:
            raise TableError(
                f"the warehouse {self.shown} cannot be written ({error.strerror}): "
                "choose another with --warehouse, or grant the right to write there"
            ) from error

    def check_exists(self) -> None:
        """Like `check`, for commands that need tables: raises TableError where there is no folder."""
        if not is_uri(self.location) and not Path(self.location).is_dir():
            raise TableError(f"there is no warehouse {self.shown}: check --warehouse, or run grouptrail run first")
        self.check()


StartSpark = Callable[[], AbstractContextManager[Warehouse]]
"""Starts a Spark session and returns the warehouse in it; the session is stopped at the end."""

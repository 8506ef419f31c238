"""A shard of a cluster's groups, and the requests to the process that computes its lag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.dataset as ds

from grouptrail.errors import GrouptrailError

if TYPE_CHECKING:
    import pyarrow as pa

    from grouptrail.config.job_settings import LagSettings
    from grouptrail.storage.lineage import SourceVersion
    from grouptrail.storage.location import TableLocation
    from grouptrail.storage.warehouse import Warehouse


@dataclass(frozen=True)
class Shard:
    """The groups whose partition of `__consumer_offsets`, divided by `count`, leaves the remainder `number`.

    All commits of a group are in one partition of that topic.
    """

    number: int = 0
    count: int = 1

    @property
    def is_all(self) -> bool:
        """Whether it has all groups."""
        return self.count == 1

    def has(self, partition: int) -> bool:
        """Return whether it has the groups of a partition of `__consumer_offsets`."""
        return partition % self.count == self.number

    def condition(self) -> ds.Expression | None:
        """Return a condition on the column record_partition; None where all rows match."""
        if self.is_all:
            return None
        partition = pc.field("record_partition")
        return partition - pc.divide(partition, self.count) * self.count == self.number

    def condition_in_sql(self) -> str:
        """Return the condition in SQL; it begins with the column."""
        return f"record_partition % {self.count} = {self.number}"


ALL = Shard()


@dataclass(frozen=True)
class LagInputs:
    """What lag is computed from: the tables, the brokers (settings of Kafka's client, secrets in clear), settings.

    `once`: the job ends with the samples that are there.
    """

    warehouse: Warehouse
    kafka: Mapping[str, str]
    settings: LagSettings
    once: bool = False


class ShardError(GrouptrailError):
    """A shard's process failed, or did not start."""


@dataclass(frozen=True)
class Samples:
    """A request to write the lag at samples (rows of `log_offsets`) to files of `consumer_lag`.

    `after` identifies the request before it and `request` this one. A process that did not answer the one before
    restores its state from the tables.
    """

    rows: pa.Table
    location: TableLocation
    request: str
    after: str


@dataclass(frozen=True)
class WrittenLag:
    """The answer: Delta's `add` actions of the files, the number of rows by status, and whether commits are new."""

    files: tuple[str, ...]
    counts: Mapping[str, int]
    has_new_commits: bool


@dataclass(frozen=True)
class Commits:
    """A request to write the newest commits to files of `committed_offsets`."""

    location: TableLocation


@dataclass(frozen=True)
class WrittenCommits:
    """The answer: Delta's `add` actions of the files, and up to where `offset_commits` was read."""

    files: tuple[str, ...]
    source: SourceVersion

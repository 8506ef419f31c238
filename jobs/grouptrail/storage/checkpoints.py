"""A job's checkpoint: whether its query can resume from it, and where a new query begins after `grouptrail recover`.

Spark numbers a query's batches in its checkpoint, and Delta ignores a batch that a query with that id has committed
before: a query that resumed from less than its tables hold would read records and drop them. So a checkpoint that is
lost, unreadable or older than the tables is refused.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from grouptrail.contracts import Table as Contract
from grouptrail.errors import GrouptrailError
from grouptrail.kafka.coordinator import OFFSETS_TOPIC
from grouptrail.spark import hadoop
from grouptrail.storage.schema import SEGMENTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Start = Mapping[str, Any]
"""The position, as JSON, at which a query without a checkpoint starts; empty for the beginning."""

START_FILE = "recovered.json"
"""The file in the checkpoint's folder that says where a new query begins, until its first batch."""


class CheckpointError(GrouptrailError):
    """No query can resume from a job's checkpoint."""


class CheckpointGoneError(GrouptrailError):
    """The checkpoint of a job that has run is not there any more."""


class WrittenTable(Protocol):
    """A table that a job writes."""

    @property
    def contract(self) -> Contract:
        """Its contract."""

    def last_version(self, app: str) -> int:
        """Return the newest version that an app has written; -1 if there is none."""

    def has_rows(self, where: str = "true") -> bool:
        """Return whether rows of the cluster match an SQL condition."""


class Checkpoint:
    """The checkpoint of a job's query of a cluster: a folder, local or in an object store, in Spark's format."""

    def __init__(self, spark: SparkSession, cluster: str, job: str, folder: str) -> None:
        self.spark = spark
        self.job = job
        self.folder = folder
        self.query_name = f"{cluster}/{job}"

    def refuse_gone(self) -> None:
        """Raise CheckpointGoneError if the checkpoint of a job that has run is gone, as after an unmount.

        A query that started without it would start another warehouse there.
        """
        if self.text("metadata") is None:
            raise CheckpointGoneError(
                f"the checkpoint {self.folder} is gone: mount or restore the folder of the warehouse"
            )

    def open(self, writes: Collection[WrittenTable]) -> Start:
        """Return the start that `recover` has written for the job's first batch; empty if there is none.

        `writes` are the job's tables, which must exist; the job appends to them with the batch's number as version.
        Raises CheckpointError, with the remedy, before anything is read.
        """
        if reason := self.fault(writes):
            raise CheckpointError(f"the checkpoint of job {self.job}, {self.folder}, {reason}")
        self._remove_unfinished()
        text = self.text(START_FILE)
        start: dict[str, Any] = json.loads(text) if text else {}
        if self.has_finished_batch():
            # The first batch is committed; Delta may have removed that version of a table since.
            start.pop("version", None)
        return start

    def fault(self, writes: Collection[WrittenTable]) -> str | None:
        """Return why no query can resume from it, and what to do; None if one can or the job has never run."""
        metadata = self.text("metadata")
        batches = {log: self.newest(log) for log in ("offsets", "commits")}
        if metadata is None and batches["offsets"] is None:
            if self.text(START_FILE) or not any(map(_has_rows_of_a_job, writes)):
                return None
            remedy = "check the setting checkpoints; if it is lost, run grouptrail recover"
            return f"does not exist, but its tables have rows: {remedy}"
        read = "metadata"
        try:
            identity = json.loads(metadata or "")["id"]
            for log, number in batches.items():
                if number is not None:
                    read = f"{log}/{number}"
                    _parse(self.text(read), lines=3 if log == "offsets" else 2)
        except (ValueError, KeyError, TypeError):
            return f"cannot be read ({read}): run grouptrail recover"
        known = -1 if batches["offsets"] is None else batches["offsets"]
        written = max((table.last_version(identity) for table in writes), default=-1)
        if known < max(written, -1 if batches["commits"] is None else batches["commits"]):
            return f"is older than the tables (its newest batch is {known}, theirs {written}): run grouptrail recover"
        return None

    def has_finished_batch(self) -> bool:
        """Return whether a query has finished a batch: its start no longer matters then."""
        return self.newest("commits") is not None

    def newest(self, log: str) -> int | None:
        """Return the newest batch in one of its logs, `offsets` or `commits`; None if it is empty."""
        return max((int(name) for name in self.names(log) if name.isdigit()), default=None)

    def newest_offsets(self) -> str | None:
        """Return the text of the newest file of offsets; None if there is none."""
        batch = self.newest("offsets")
        return None if batch is None else self.text(f"offsets/{batch}")

    def put_aside(self) -> str | None:
        """Rename the folder; return its new path, None if there was none."""
        aside = f"{self.folder}.aside-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"
        return aside if hadoop.rename(self.spark, self.folder, aside) else None

    def write_start(self, start: Start) -> None:
        """Write the start that `open` returns."""
        self.write_text(START_FILE, json.dumps(start))

    def ensure_query_id(self) -> None:
        """Write an id for a query that Spark does not start, unless there is one."""
        if self.text("metadata") is None:
            hadoop.write_whole(self.spark, f"{self.folder}/metadata", json.dumps({"id": str(uuid.uuid4())}))

    def query_id(self) -> str:
        """Return the query's id, which is the application of its writes (`Once`)."""
        identity: str = json.loads(self.read("metadata"))["id"]
        return identity

    def end_offsets(self, batch: int) -> Mapping[int, int]:
        """Return a micro-batch's end offsets by partition of the offsets topic; none for a batch before the first.

        The log of offsets is written before a batch runs: a line with its format, one with the batch's settings, then
        one for each source.
        """
        if batch < 0:
            return {}
        by_topic = json.loads(self.read(f"offsets/{batch}").splitlines()[2])
        return {int(partition): offset for partition, offset in by_topic[OFFSETS_TOPIC].items()}

    def read(self, name: str) -> str:
        """Return the text of a file. Raises FileNotFoundError."""
        text = self.text(name)
        if text is None:
            raise FileNotFoundError(f"{self.folder}/{name}")
        return text

    def write_text(self, name: str, text: str) -> None:
        """Write or replace a file."""
        hadoop.write_text(self.spark, f"{self.folder}/{name}", text)

    def names(self, folder: str) -> list[str]:
        """Return the names in one of its folders; none if that does not exist."""
        return hadoop.names(self.spark, f"{self.folder}/{folder}")

    def text(self, name: str) -> str | None:
        """Return the text of a file; None if there is none."""
        return hadoop.read_text(self.spark, f"{self.folder}/{name}")

    def _remove_unfinished(self) -> None:
        """Remove what a first batch left that could not write its offsets, as on a full disk: Spark refuses them."""
        logs = ("offsets", "commits")
        if all(self.newest(log) is None for log in logs):
            for log in logs:
                for name in self.names(log):
                    hadoop.delete(self.spark, f"{self.folder}/{log}/{name}")


def _parse(text: str | None, *, lines: int) -> None:
    """Check a file of Spark's logs: `v1`, then lines of JSON, or `-` for a source without an offset.

    Raises ValueError.
    """
    version, *rest = (text or "").splitlines()
    if not version.startswith("v") or len(rest) < lines - 1:
        raise ValueError
    for line in rest:
        if line != "-":
            json.loads(line)


def _has_rows_of_a_job(table: WrittenTable) -> bool:
    """Return whether a job has written rows: those of log segments do not come from a job."""
    has_source = any(column.name == "source" for column in table.contract.columns)
    return table.has_rows(f"source IS NULL OR source <> '{SEGMENTS}'" if has_source else "true")

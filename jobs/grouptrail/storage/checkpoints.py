"""A job's checkpoint: whether its query can resume from it, and where a new query begins after `grouptrail recover`.

Spark numbers a query's batches in its checkpoint, and Delta ignores a batch that a query with that id has committed
before: a query that resumed from less than its tables hold would read records and drop them. So a checkpoint that is
lost, unreadable or older than the tables is refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from grouptrail import contracts
from grouptrail.errors import GrouptrailError
from grouptrail.jobs import Start
from grouptrail.spark import hadoop
from grouptrail.storage import tables
from grouptrail.storage.schema import SEGMENTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config

START_FILE = "recovered.json"
"""The file in the checkpoint's folder that says where a new query begins, until its first batch."""


class CheckpointError(GrouptrailError):
    """No query can resume from a job's checkpoint."""


class CheckpointGoneError(GrouptrailError):
    """The checkpoint of a job that has run is not there any more."""


def refuse_gone(spark: SparkSession, config: Config, job: str) -> None:
    """Raise CheckpointGoneError if the checkpoint of a job that has run is gone, as after an unmount.

    A query that started without it would begin another warehouse there.
    """
    folder = config.checkpoint_path(job)
    if hadoop.read_text(spark, f"{folder}/metadata") is None:
        raise CheckpointGoneError(f"the checkpoint {folder} is gone: mount or restore the folder of the warehouse")


def begin(spark: SparkSession, config: Config, job: str, writes: Collection[str]) -> Start:
    """Return the start that `recover` has written for the job's first batch; empty if there is none.

    `writes` are the job's tables, which must exist; the job appends to them with the batch's number as version.
    Raises CheckpointError, with the remedy, before anything is read.
    """
    if reason := fault(spark, config, job, writes):
        raise CheckpointError(f"the checkpoint of job {job}, {config.checkpoint_path(job)}, {reason}")
    _remove_unfinished(spark, config.checkpoint_path(job))
    text = hadoop.read_text(spark, f"{config.checkpoint_path(job)}/{START_FILE}")
    start: dict[str, Any] = json.loads(text) if text else {}
    if has_finished_batch(spark, config, job):
        # The first batch is committed; Delta may have removed that version of a table since.
        start.pop("version", None)
    return start


def fault(spark: SparkSession, config: Config, job: str, writes: Collection[str]) -> str | None:
    """Return why no query can resume from a checkpoint, and what to do; None if one can or the job has never run."""
    folder = config.checkpoint_path(job)
    metadata = hadoop.read_text(spark, f"{folder}/metadata")
    batches = {log: newest(spark, f"{folder}/{log}") for log in ("offsets", "commits")}
    if metadata is None and batches["offsets"] is None:
        if hadoop.read_text(spark, f"{folder}/{START_FILE}") or not _has_landed(spark, config, writes):
            return None
        remedy = "check the setting checkpoints; if it is lost, run grouptrail recover"
        return f"does not exist, but its tables have rows: {remedy}"
    read = "metadata"
    try:
        identity = json.loads(metadata or "")["id"]
        for log, number in batches.items():
            if number is not None:
                read = f"{log}/{number}"
                _parse(hadoop.read_text(spark, f"{folder}/{read}"), lines=3 if log == "offsets" else 2)
    except (ValueError, KeyError, TypeError):
        return f"cannot be read ({read}): run grouptrail recover"
    known = -1 if batches["offsets"] is None else batches["offsets"]
    landed = max((tables.landed(spark, config, table, app=identity) for table in writes), default=-1)
    if known < max(landed, -1 if batches["commits"] is None else batches["commits"]):
        return f"is older than the tables (its newest batch is {known}, theirs {landed}): run grouptrail recover"
    return None


def has_finished_batch(spark: SparkSession, config: Config, job: str) -> bool:
    """Return whether a query with the job's checkpoint has finished a batch: its start no longer matters then."""
    return newest(spark, f"{config.checkpoint_path(job)}/commits") is not None


def newest_offsets(spark: SparkSession, config: Config, job: str) -> str | None:
    """Return the text of the checkpoint's newest file of offsets; None if there is none."""
    log = f"{config.checkpoint_path(job)}/offsets"
    batch = newest(spark, log)
    return None if batch is None else hadoop.read_text(spark, f"{log}/{batch}")


def put_aside(spark: SparkSession, config: Config, job: str) -> str | None:
    """Rename the checkpoint's folder; return its new path, None if there was none."""
    folder = config.checkpoint_path(job)
    aside = f"{folder}.aside-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"
    return aside if hadoop.rename(spark, folder, aside) else None


def write_start(spark: SparkSession, config: Config, job: str, start: Start) -> None:
    """Write the start that `begin` returns."""
    hadoop.write_text(spark, f"{config.checkpoint_path(job)}/{START_FILE}", json.dumps(start))


def _remove_unfinished(spark: SparkSession, folder: str) -> None:
    """Remove what a first batch left that could not write its offsets, as on a full disk: Spark refuses them."""
    logs = [f"{folder}/{log}" for log in ("offsets", "commits")]
    if all(newest(spark, log) is None for log in logs):
        for log in logs:
            for name in hadoop.names(spark, log):
                hadoop.delete(spark, f"{log}/{name}")


def newest(spark: SparkSession, log: str) -> int | None:
    """Return the newest batch in a log of a checkpoint, `offsets` or `commits` in its folder; None if it is empty."""
    return max((int(name) for name in hadoop.names(spark, log) if name.isdigit()), default=None)


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


def _has_landed(spark: SparkSession, config: Config, writes: Collection[str]) -> bool:
    """Return whether a job has written rows: those of log segments do not come from a job."""
    for table in writes:
        has_source = any(column.name == "source" for column in contracts.tables()[table].columns)
        where = f"source IS NULL OR source <> '{SEGMENTS}'" if has_source else "true"
        if tables.has_rows(spark, config, table, where):
            return True
    return False

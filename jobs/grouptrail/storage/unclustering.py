"""Remove liquid clustering from a table of an earlier version, as delta-rs does not commit to one that has it.

Delta's protocol lets a commit take a feature out of a table that no longer uses it, but Delta has no statement for
this one. Rows, files and the table's id stay as they are, so that streams go on and earlier versions can be read.
"""

from __future__ import annotations

import json
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from grouptrail.locations import is_uri
from grouptrail.spark import hadoop
from grouptrail.storage.errors import NeedsSparkError, TableError
from grouptrail.storage.location import TableLocation
from grouptrail.storage.reader import CLUSTERING, OpenTable, existing_table, is_clustered
from grouptrail.storage.table_log import log_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The first needs the second; row tracking does, too.
_DOMAINS, _ROW_TRACKING = "domainMetadata", "rowTracking"


def remove_clustering(table: TableLocation, there: OpenTable, spark: SparkSession | None) -> None:
    """Remove the clustering, unless the table has none: in one commit, before or after those of other writers.

    A transaction of Spark that began before it fails, as Delta sees that the protocol was lowered. Raises
    NeedsSparkError if there is no session for a store in which delta-rs cannot write the log.
    """
    while is_clustered(there):
        _create(f"{table.path}/{log_file(there.version() + 1)}", _commit(there), spark)
        there = existing_table(table)


def _commit(there: OpenTable) -> str:
    protocol = there.protocol()
    features = set(protocol.writer_features or ())
    gone = {CLUSTERING} if _ROW_TRACKING in features else {CLUSTERING, _DOMAINS}
    lowered: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "writerFeatures": sorted(features - gone),
    }
    if protocol.reader_features is not None:
        lowered["readerFeatures"] = sorted(protocol.reader_features)
    now = int(time.time() * 1000)
    info = {"timestamp": now, "operation": "DROP FEATURE", "operationParameters": {"featureName": CLUSTERING}}
    actions = (
        {"commitInfo": {**info, "engineInfo": "grouptrail"}},
        {"protocol": lowered},
        {"domainMetadata": {"domain": "delta.clustering", "configuration": "{}", "removed": True}},
    )
    return "".join(f"{json.dumps(action)}\n" for action in actions)


def _create(path: str, text: str, spark: SparkSession | None) -> None:
    """Write a file, whole, unless there is one."""
    if not is_uri(path) or urlsplit(path).scheme == "file":
        try:
            _link(Path(urlsplit(path).path if is_uri(path) else path), text)
        except OSError as error:
            raise TableError(f"{path} cannot be written ({error.strerror}): check the access rights") from error
    elif spark is None:
        raise NeedsSparkError(f"{path} can only be written with Spark, which does not run here: run grouptrail run")
    else:
        hadoop.create(spark, path, text)


def _link(path: Path, text: str) -> None:
    draft = path.with_name(f".unclustering-{uuid.uuid4()}")  # others may read it as they may read the log
    try:
        draft.write_text(text)
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)

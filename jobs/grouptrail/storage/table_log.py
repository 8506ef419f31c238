"""A Delta table's folder and the commits in its log, read without Spark (Delta's protocol: "Delta Log Entries")."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, PyFileSystem

_FOLDER = "_delta_log"
_VERSION = re.compile(r"\d{20}(?=\.)")
# A checkpoint in one file, of either version.
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint(\.[0-9a-f-]{36})?\.(parquet|json)")
_RETENTION = re.compile(r"(?:interval )?(\d+) (week|day|hour|minute|second)s?")
_DEFAULT_RETENTION = "interval 30 days"


class Commit(NamedTuple):
    """The files that a commit added and removed, and of each whether rows changed by it (`dataChange`)."""

    added: Mapping[str, bool]
    removed: Mapping[str, bool]


def table_folder(path: str, storage: Mapping[str, str] | None = None) -> PyFileSystem:
    """Return a table's folder; `storage` are delta-rs's storage options of the table."""
    return PyFileSystem(DeltaStorageHandler(path, dict(storage or {})))


def transaction(app: str, version: int) -> str:
    """Return the action, as JSON, that notes an app's `txnVersion` (there: "Transaction Identifiers")."""
    return json.dumps({"txn": {"appId": app, "version": version, "lastUpdated": int(time.time() * 1000)}})


def log_file(version: int) -> str:
    """Return the path of a commit in the table's folder."""
    return f"{_FOLDER}/{version:020}.json"


def read_commit(folder: PyFileSystem, version: int) -> Commit:
    """Return what a commit did. Raises FileNotFoundError if the log does not have it yet, or not any more."""
    with folder.open_input_file(log_file(version)) as log:
        actions = [json.loads(line) for line in log.read().splitlines()]
    added, removed = ([one[kind] for one in actions if kind in one] for kind in ("add", "remove"))
    return Commit(*({unquote(one["path"]): bool(one.get("dataChange")) for one in some} for some in (added, removed)))


def remove_old_logs(table: DeltaTable, folder: PyFileSystem) -> None:
    """Remove what is in the log for versions before the newest checkpoint that is older than the log's retention.

    All versions from that one on can still be read. (There: "Metadata Cleanup".)
    """
    settings = table.metadata().configuration
    retention = _RETENTION.fullmatch(settings.get("delta.logRetentionDuration", _DEFAULT_RETENTION).lower())
    if retention is None or settings.get("delta.enableExpiredLogCleanup", "true").lower() != "true":
        return
    oldest = datetime.now(UTC) - timedelta(**{f"{retention[2]}s": int(retention[1])})
    files = {file.base_name: file for file in folder.get_file_info(FileSelector(_FOLDER)) if file.is_file}
    versions = {name: int(match[0]) for name in files if (match := _VERSION.match(name))}
    first = max(
        (versions[name] for name, file in files.items() if _CHECKPOINT.fullmatch(name) and file.mtime < oldest),
        default=0,
    )
    for name in (name for name, version in versions.items() if version < first):
        folder.delete_file(f"{_FOLDER}/{name}")

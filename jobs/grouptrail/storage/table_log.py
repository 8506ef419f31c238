"""A Delta table's folder and the commits in its log, read without Spark (Delta's protocol: "Delta Log Entries")."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem


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
    return f"_delta_log/{version:020}.json"


def read_commit(folder: PyFileSystem, version: int) -> Commit:
    """Return what a commit did. Raises FileNotFoundError if the log does not have it yet, or not any more."""
    with folder.open_input_file(log_file(version)) as log:
        actions = [json.loads(line) for line in log.read().splitlines()]
    added, removed = ([one[kind] for one in actions if kind in one] for kind in ("add", "remove"))
    return Commit(*({unquote(one["path"]): bool(one.get("dataChange")) for one in some} for some in (added, removed)))

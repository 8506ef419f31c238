"""Commits of files that are in a table's folder already, by delta-rs: each is the next version, or none.

delta-rs must not repeat a commit that comes too late: whether it has been done already, and whether the files that it
replaces are still there, has to be looked up again in the newer version.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from deltalake import CommitProperties, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from grouptrail.storage.engines.engine import Once
from grouptrail.storage.layout import COMMITS_A_CHECKPOINT
from grouptrail.storage.location import TableLocation
from grouptrail.storage.reader import READ_ERRORS, REARRANGES, OpenTable, existing_table

# Checkpoints are written below; delta-rs may remove logs that are still needed (delta-rs#3692).
_NOTHING_AFTERWARDS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_NOTHING: Mapping[str, int] = MappingProxyType({})


def append_files(table: TableLocation, there: OpenTable, actions: Iterable[str], once: Once | None) -> int | None:
    """Add files, unless `once` has been done; return the new version, None if there is none.

    `there` is the table as it was before `once` was looked up. `actions` are those of Delta's log, as JSON.
    """
    given = list(actions)
    while True:
        try:
            return commit(table, there, given, once)
        except CommitFailedError:
            newest = existing_table(table)
            if newest.version() == there.version():  # no other writer was first
                raise
            there = newest
        if _is_done(there, given, once):
            return None


def commit(
    table: TableLocation,
    there: OpenTable,
    actions: Iterable[str],
    once: Once | None = None,
    *,
    instead_of: Mapping[str, int] = _NOTHING,
    rearranges: bool = False,
) -> int:
    """Commit files as the version that follows an open one; return it.

    `instead_of` are the sizes of the files of `there` that they replace, by path; `rearranges`: with the same rows.
    Raises CommitFailedError if another writer has committed that version: nothing has changed then.
    """
    given = [json.loads(one) for one in actions]
    noted = [one["txn"] for one in given if "txn" in one]
    transactions = [Transaction(one["appId"], one["version"], one["lastUpdated"]) for one in noted]
    if once is not None:
        transactions.append(Transaction(once.app, once.version))
    now = int(time.time() * 1000)
    there.create_write_transaction(
        [
            *(RemoveAction(path, not rearranges, now, size, {}) for path, size in instead_of.items()),
            *(_add_action(one["add"], is_new=not rearranges) for one in given if "add" in one),
        ],
        "append",
        there.schema(),
        commit_properties=CommitProperties(
            max_commit_retries=0,
            app_transactions=transactions,
            custom_metadata={REARRANGES: True} if rearranges else None,
        ),
        post_commithook_properties=_NOTHING_AFTERWARDS,
    )
    version = there.version() + 1
    if version % COMMITS_A_CHECKPOINT == 0:
        with suppress(*READ_ERRORS):  # the rows are in the table all the same
            existing_table(table).create_checkpoint()
    return version


def _is_done(there: OpenTable, actions: Iterable[str], once: Once | None) -> bool:
    """Return whether a commit that seemed to fail has been made: a store's answer may have been lost."""
    if once is not None:
        return once.is_done_in(there)
    files = {action["add"]["path"] for action in map(json.loads, actions) if "add" in action}
    return not files.isdisjoint(there.get_add_actions()["path"].to_pylist())


def _add_action(file: Mapping[str, Any], *, is_new: bool) -> AddAction:
    return AddAction(
        file["path"], file["size"], file["partitionValues"], file["modificationTime"], is_new, file["stats"]
    )

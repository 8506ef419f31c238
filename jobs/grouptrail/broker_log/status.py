"""What the job `broker-log` knows of the files that it follows, noted beside its checkpoint for the metrics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from grouptrail.storage.reader import READ_ERRORS
from grouptrail.storage.table_log import table_folder

if TYPE_CHECKING:
    from grouptrail.storage.warehouse import Warehouse

NOTE_SECONDS = 60.0
"""A status is noted this often even if nothing has changed."""

_FILE = "followed_files.json"
_STALE_INTERVALS = 3


@dataclass(frozen=True)
class FollowedFile:
    """A file that is followed, or a setting that no file matches.

    Counts are those of its lines since it is followed, rotated files included. `unread_bytes` is None while it cannot
    be read, which `problem` says; `last_line_at`, in seconds since 1970, while no line had a time.
    """

    path: str
    lines: int = 0
    events: int = 0
    unmatched: int = 0
    malformed: int = 0
    unread_bytes: int | None = None
    last_line_at: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class FollowStatus:
    """All files that are followed at a time."""

    at: datetime
    interval_seconds: float
    files: tuple[FollowedFile, ...] = ()

    def is_stale(self, now: datetime | None = None) -> bool:
        """Return whether it is too old to show the present: the job does not run."""
        age = (now or datetime.now(UTC)) - self.at
        return age > timedelta(seconds=_STALE_INTERVALS * self.interval_seconds + 2 * NOTE_SECONDS)


class TextFolder(Protocol):
    """A folder to write small files in: a job's checkpoint."""

    def write_text(self, name: str, text: str) -> None:
        """Write or replace a file."""


def write_status(folder: TextFolder, status: FollowStatus) -> None:
    """Note a status in a folder."""
    noted = asdict(status) | {"at": status.at.isoformat()}
    folder.write_text(_FILE, json.dumps(noted))


def read_status(warehouse: Warehouse, job: str) -> FollowStatus | None:
    """Return the status that a job has noted; None if there is none that can be read."""
    try:
        folder = table_folder(warehouse.checkpoint_path(job), warehouse.options)
        with folder.open_input_file(_FILE) as file:
            noted = json.loads(file.read())
        files: Sequence[FollowedFile] = [FollowedFile(**one) for one in noted["files"]]
        return FollowStatus(datetime.fromisoformat(noted["at"]), float(noted["interval_seconds"]), tuple(files))
    except (*READ_ERRORS, KeyError, TypeError, ValueError):
        return None

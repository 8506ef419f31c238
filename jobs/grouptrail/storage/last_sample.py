"""When a job took its last sample: its tables do not tell, if it writes only what has changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from grouptrail.storage.reader import READ_ERRORS
from grouptrail.storage.table_log import table_folder

if TYPE_CHECKING:
    from grouptrail.storage.checkpoints import Checkpoint
    from grouptrail.storage.warehouse import Warehouse

_FILE = "last_sample.json"
_STALE_INTERVALS = 3
_STALE_SECONDS = 60


@dataclass(frozen=True)
class LastSample:
    """What the tables say was so `at` this time: when the last sample that was answered was asked for.

    `interval_seconds` is the time between samples. `problems` says what the sample does not answer, as in the log;
    `missing` is what it did not find, and is gone if the next one does not find it.
    """

    at: datetime
    interval_seconds: float
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def is_stale(self, now: datetime | None = None) -> bool:
        """Return whether it is too old to show the present: the job does not run, or no broker answers it."""
        age = (now or datetime.now(UTC)) - self.at
        return age > timedelta(seconds=_STALE_INTERVALS * self.interval_seconds + _STALE_SECONDS)


def write_last_sample(checkpoint: Checkpoint, sample: LastSample) -> None:
    """Note a sample beside a job's checkpoint, after it was written to the tables."""
    noted = {
        "at": sample.at.isoformat(),
        "interval_seconds": sample.interval_seconds,
        "problems": sample.problems,
        "missing": sample.missing,
    }
    checkpoint.write_text(_FILE, json.dumps(noted))


def read_last_sample(warehouse: Warehouse, job: str) -> LastSample | None:
    """Return the last sample of a job (its name in `jobs`); None if there is none that can be read."""
    try:
        folder = table_folder(warehouse.checkpoint_path(job), warehouse.options)
        with folder.open_input_file(_FILE) as file:
            noted = json.loads(file.read())
        return LastSample(
            at=datetime.fromisoformat(noted["at"]),
            interval_seconds=float(noted["interval_seconds"]),
            problems=tuple(map(str, noted["problems"])),
            missing=tuple(map(str, noted["missing"])),
        )
    except (*READ_ERRORS, KeyError, TypeError, ValueError):
        return None

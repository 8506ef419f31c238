"""The note of a job's last sample, without the job and without Spark."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from grouptrail.storage.last_sample import LastSample, write_last_sample
from grouptrail.storage.warehouse import Warehouse


def note_sample(warehouse: Warehouse, job: str, at: datetime, *, interval_seconds: float = 60) -> None:
    """Note that a job took its last sample at a time."""
    folder = Path(warehouse.checkpoint_path(job))
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = SimpleNamespace(write_text=lambda name, text: (folder / name).write_text(text))
    write_last_sample(cast("Any", checkpoint), LastSample(at, interval_seconds))

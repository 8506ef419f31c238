"""The removal of a table's old logs: what is left can be read, and nothing is removed that may be needed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from grouptrail.storage.table_log import remove_old_logs, table_folder
from support.racing_writers import append_batches, table_at

DAY = 86_400
COMMITS = 25


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a table with commits up to version 25 and checkpoints of versions 10 and 20, all of now."""
    table = table_at(str(tmp_path), {})
    table.ensure()
    append_batches(table, 0, COMMITS, 1)
    return Path(table.path, "_delta_log")


def age(log: Path, *, up_to: int, days: int) -> None:
    for one in log.glob("0*"):
        if int(one.name[:20]) <= up_to:
            os.utime(one, (time.time() - days * DAY,) * 2)


def clean(log: Path) -> list[int]:
    """Remove old logs; return the versions of the commits that are left."""
    remove_old_logs(DeltaTable(log.parent), table_folder(str(log.parent)))
    left = sorted(int(one.stem) for one in log.glob("*.json"))
    rows = DeltaTable(log.parent).to_pyarrow_table()["log_end_offset"].to_pylist()
    assert sorted(rows) == list(range(COMMITS))
    for version in left:
        if version >= 10 or left[0] == 0:
            assert len(DeltaTable(log.parent, version=version).to_pyarrow_table()) == min(version, COMMITS)
    return left


@pytest.mark.parametrize(("up_to", "first"), [(9, 0), (10, 10), (19, 10), (20, 20), (25, 20)])
def test_remove_old_logs_keeps_all_from_the_newest_old_checkpoint_on(log: Path, up_to: int, first: int) -> None:
    age(log, up_to=up_to, days=31)
    assert clean(log) == list(range(first, COMMITS + 1))
    assert clean(log) == list(range(first, COMMITS + 1))
    assert sorted(int(one.name[:20]) for one in log.glob("*.checkpoint.parquet")) == [10, 20][first // 20 :]


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({"logRetentionDuration": "interval 60 days"}, 0),
        ({"logRetentionDuration": "interval 1 week"}, 20),
        ({"logRetentionDuration": "INTERVAL 40 DAYS"}, 20),
        ({"logRetentionDuration": "interval 1 month 3 hours"}, 0),  # it is not understood
        ({"enableExpiredLogCleanup": "false"}, 0),
    ],
)
def test_remove_old_logs_follows_the_tables_properties(log: Path, settings: dict[str, str], first: int) -> None:
    properties = {f"delta.{name}": value for name, value in settings.items()}
    DeltaTable(log.parent).alter.set_table_properties(properties)
    age(log, up_to=COMMITS, days=50)
    assert clean(log)[0] == first


def test_remove_old_logs_does_not_rely_on_a_checkpoint_in_several_files(log: Path) -> None:
    """One of them may be missing."""
    whole = log / f"{20:020}.checkpoint.parquet"
    whole.rename(log / f"{20:020}.checkpoint.0000000001.0000000002.parquet")
    (log / "_last_checkpoint").unlink()
    age(log, up_to=COMMITS, days=31)
    remove_old_logs(DeltaTable(log.parent), table_folder(str(log.parent)))
    assert min(int(one.stem) for one in log.glob("*.json")) == 10

"""What became of a micro-batch's offsets."""

from __future__ import annotations

import pytest

from grouptrail.decode.progress import BatchError, batch_progress
from grouptrail.decode.tasks import PartitionCounts
from grouptrail.kafka.log import LogBounds


def counts(commits: int, first_offset: int) -> PartitionCounts:
    counted = PartitionCounts(first_offset=first_offset, earliest=0, latest=0)
    counted.rows["offset_commits"] = commits
    return counted


def test_batch_progress_splits_offsets_into_rows_holes_and_lost() -> None:
    bounds = {3: LogBounds(log_start_offset=20, last_stable_offset=60, log_end_offset=60)}
    [row] = batch_progress({3: counts(25, 22)}, start={3: 10}, end={3: 60}, bounds=bounds)
    assert (row["lost"], row["offset_commits"], row["holes"]) == (10, 25, 15)


def test_batch_progress_more_rows_than_offsets_raises() -> None:
    """It is raised before the progress is written, because the next batch would not see the mismatch."""
    [row] = batch_progress({3: counts(50, 10)}, start={3: 10}, end={3: 60}, bounds={})
    assert row["holes"] == 0
    with pytest.raises(BatchError, match="partition 3 has 51 rows for offsets 10 to 60"):
        list(batch_progress({3: counts(51, 10)}, start={3: 10}, end={3: 60}, bounds={}))

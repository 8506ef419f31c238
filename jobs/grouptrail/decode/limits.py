"""The size up to which the decode job decodes records, for each of its micro-batches.

A micro-batch that is repeated must put each record into the same table as before: its appends to some tables may have
been committed. So a new value of `decode.max_record_bytes` applies to batches that have not been tried yet. The
checkpoint's folder `limits` has a file for each value, named by the first batch that it applies to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from grouptrail.jobs import DECODE
from grouptrail.spark import hadoop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.config import Config

# Of batches that were tried by a version without a limit.
_NO_LIMIT = (1 << 31) - 1


def begin(spark: SparkSession, config: Config) -> Callable[[int], int]:
    """Let the configured limit apply to all batches that have not been tried; return the limit of a batch."""
    folder = config.checkpoint_path(DECODE.name)
    limits = {-1: _NO_LIMIT}
    for name in hadoop.names(spark, f"{folder}/limits"):
        text = hadoop.read_text(spark, f"{folder}/limits/{name}") if name.isdigit() else None
        if text:  # a file without text was being written: no batch was tried with it
            limits[int(name)] = int(text)

    def limit_of(batch: int) -> int:
        return limits[max(first for first in limits if first <= batch)]

    tried = (int(name) for name in hadoop.names(spark, f"{folder}/offsets") if name.isdigit())
    following = max(tried, default=-1) + 1
    if limit_of(following) != config.decode.max_record_bytes:
        limits[following] = config.decode.max_record_bytes
        hadoop.write_text(spark, f"{folder}/limits/{following}", str(config.decode.max_record_bytes))
    return limit_of

"""Which engine does what: the only rule, and the only threshold.

delta-rs does it if it can and the driver has room for it; otherwise Spark does.

- It can if it supports the store.
- The driver has room for `MOST_ROWS` rows and `MOST_BYTES` bytes at a time: writing so many takes it a second or two.
  Work that takes longer for each row than writing it is counted in rows, too: a caller passes so many times as many.
- Where no Spark session runs, starting one takes as long as writing `WITHOUT_SESSION` times as many rows.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from grouptrail.locations import shown
from grouptrail.storage.errors import NeedsSparkError
from grouptrail.storage.reader import supports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EngineName = Literal["delta-rs", "spark"]

MOST_ROWS = 200_000
MOST_BYTES = 256 << 20
WITHOUT_SESSION = 25

_log = logging.getLogger("grouptrail.engine")


def choose(
    location: str,
    spark: SparkSession | None,
    *,
    rows: int = 0,
    size_bytes: int = 0,
    only: EngineName | None = None,
) -> EngineName:
    """Return the engine for an operation on a table or warehouse at a location.

    `rows` and `size_bytes` are what the driver would have to hold. `only` overrides the rule, for tests. With
    `--debug` each choice is logged.
    """
    allowed = 1 if spark is not None else WITHOUT_SESSION
    is_little = rows <= allowed * MOST_ROWS and size_bytes <= MOST_BYTES
    chosen: EngineName = "delta-rs" if supports(location) and is_little else "spark"
    chosen = only or chosen
    _log.debug("%s: %s rows, %s bytes: %s", shown(location), f"{rows:,}", f"{size_bytes:,}", chosen)
    return chosen


def running(spark: SparkSession | None, location: str) -> SparkSession:
    """Return the session, for work at a location that only Spark can do. Raises NeedsSparkError if none runs."""
    if spark is None:
        raise NeedsSparkError(f"{shown(location)} can only be used with Spark, which does not run here")
    return spark


def rule() -> str:
    """Return the rule in one line, for `grouptrail doctor`."""
    return f"delta-rs for up to {MOST_ROWS:,} rows and {MOST_BYTES >> 20} MB at a time, Spark for more"

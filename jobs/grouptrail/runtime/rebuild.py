"""`grouptrail rebuild history`: recomputes all group history from the decoded records."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING

from grouptrail.config import Config, is_uri
from grouptrail.console.progress import print_now
from grouptrail.history.rebuild import rebuild
from grouptrail.jobs import HISTORY, Progress
from grouptrail.runtime.lease import sole_driver
from grouptrail.storage import tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rebuild_history(config: Config, report: Progress = print_now) -> None:
    """Rebuild while no other driver runs the history job, in a Spark session of its own if one is needed."""
    tables.check_warehouse_exists(config)
    with ExitStack() as held:

        @cache
        def start_spark() -> SparkSession:
            from grouptrail.spark.session import session

            return held.enter_context(session(config, "grouptrail-rebuild-history", report))

        # A lease is a file that Spark writes; a lock on a local file needs no Spark.
        driver = start_spark() if is_uri(config.checkpoint_path(HISTORY.name)) else None
        held.enter_context(sole_driver(driver, config, [HISTORY.name], report))
        rebuild(start_spark, config, report)

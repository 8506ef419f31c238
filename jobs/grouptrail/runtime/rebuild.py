"""`grouptrail rebuild history`: recomputes all group history from the decoded records."""

from __future__ import annotations

from grouptrail.config import Config
from grouptrail.console.progress import print_now
from grouptrail.history.rebuild import rebuild
from grouptrail.jobs import HISTORY, Progress
from grouptrail.runtime.lease import sole_driver
from grouptrail.spark.session import session
from grouptrail.storage import tables


def rebuild_history(config: Config, report: Progress = print_now) -> None:
    """Rebuild in a Spark session of its own, while no other driver runs the history job."""
    tables.check_warehouse_exists(config)
    with (
        session(config, "grouptrail-rebuild-history", report) as spark,
        sole_driver(spark, config, [HISTORY.name], report),
    ):
        rebuild(spark, config, report)

"""`grouptrail rebuild history`: recomputes all group history from the decoded records."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING

from grouptrail.console.progress import Log, print_now
from grouptrail.history.rebuild import rebuild
from grouptrail.jobs import HISTORY
from grouptrail.locations import is_uri
from grouptrail.runtime.lease import sole_driver
from grouptrail.runtime.warehouses import context_of, warehouse_in_session, warehouse_of

if TYPE_CHECKING:
    from grouptrail.config import Config
    from grouptrail.storage.warehouse import Warehouse


def rebuild_history(config: Config, log: Log = print_now) -> None:
    """Rebuild while no other driver runs the history job, in a Spark session of its own if one is needed."""
    warehouse = warehouse_of(config)
    warehouse.check_exists()
    with ExitStack() as held:

        @cache
        def start_spark() -> Warehouse:
            return held.enter_context(warehouse_in_session(config, "rebuild-history", log))

        # A lease is a file that Spark writes; a lock on a local file needs no Spark.
        needs_spark = is_uri(warehouse.checkpoint_path(HISTORY.name))
        held.enter_context(sole_driver(start_spark() if needs_spark else warehouse, [HISTORY.name], log))
        rebuild(context_of(HISTORY, config, warehouse, log), start_spark)

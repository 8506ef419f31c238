"""`grouptrail recover`: replace a lost or unreadable checkpoint by one that begins where the job's tables end.

Rows carry the coordinates of their records, so nothing is written twice; the old checkpoint is renamed. After an
interruption the command can be run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grouptrail.console.progress import Log, print_now
from grouptrail.jobs import Job, jobs_for
from grouptrail.locations import shown
from grouptrail.runtime.lease import sole_driver
from grouptrail.runtime.warehouses import context_of, session_settings, warehouse_of
from grouptrail.spark.session import session

if TYPE_CHECKING:
    from grouptrail.config import Config
    from grouptrail.storage.warehouse import Warehouse


def recover(configs: Sequence[Config], jobs: tuple[str, ...] = (), log: Log = print_now) -> None:
    """Recover, in every cluster, the jobs that no query can continue, or the named ones in any case."""
    for config in configs:
        warehouse_of(config).check_exists()
    with session(session_settings(configs[0]), "grouptrail-recover", log) as spark:
        for config in configs:
            warehouse, wanted = warehouse_of(config, spark), jobs_for(config, jobs)
            with sole_driver(warehouse, [job.name for job in wanted], log):
                for job in wanted:
                    _recover(warehouse, config, job, log, by_name=bool(jobs))


def _recover(warehouse: Warehouse, config: Config, job: Job, log: Log, *, by_name: bool) -> None:
    writes = () if job.resumes_from_tables else job.writes
    warehouse.ensure(writes)
    checkpoint = warehouse.checkpoint(job.name)
    if checkpoint.fault(warehouse.tables(writes)) is None and not by_name:
        log(f"{job.name}: its checkpoint is intact, or it has never run: nothing to do")
        return
    start = job.start_after_loss(context_of(job, config, warehouse, log))
    aside = checkpoint.put_aside()
    checkpoint.write_start(start)
    old = f"the old checkpoint is {shown(aside)}" if aside else "there was no checkpoint"
    log(f"{job.name}: the next run begins where its tables end; {old}")

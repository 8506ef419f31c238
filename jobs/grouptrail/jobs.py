"""Start here: the jobs in the order data flows, what each reads and what it writes.

    __consumer_offsets --decode--> offset_commits, group_metadata, group_records, undecodable_records, ingest_progress
    or brokers' groups --poll----> the same tables, with `source = "admin"`
    offset_commits + brokers --log-offsets-> log_offsets
    brokers --cluster-> brokers, topics, topic_partitions, topic_configs, group_configs, coordinators,
                         cluster_info, log_sizes
    __share_group_state --share-state-> share_group_state, share_deliveries
    or share groups' coordinators --share-state-> share_group_offsets
    brokers' log files --broker-log-> broker_log_events, and what they prove in the history
    decoded tables     --history-> generations, group_states, memberships, partition_ownership, rebalances,
                                   task_assignments, streams_topology, tombstone_checks
    all tables above       --lag-> consumer_lag, committed_offsets

Each job is one query per cluster, of Spark or in a thread, with a checkpoint of its own. The runner, the command line
and `recover` read this registry: a new job needs an entry in `JOBS` and a folder with a `job.py`. Only `jobs_for`
decides which jobs a cluster has by its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    import pyarrow as pa

    from grouptrail.config import Config
    from grouptrail.console.progress import Log
    from grouptrail.storage.checkpoints import Start
    from grouptrail.storage.following import Query
    from grouptrail.storage.warehouse import Warehouse

S = TypeVar("S")


@dataclass(frozen=True)
class LagFeed:
    """How the lag job serves the newest lag without the tables.

    `publish` gets rows of `consumer_lag`, the newest of every position; texts may have dictionary codes. `live`
    returns rows of `offset_commits` written since the last call, which the table may not have yet.
    """

    publish: Callable[[pa.Table], None]
    live: Callable[[], pa.Table] | None = None


class Applied(Protocol):
    """What became of the history: false if nothing changed; as text, what has changed, or why nothing could."""

    @property
    def reason(self) -> str | None:
        """Why nothing could change; None if that was possible."""

    def __bool__(self) -> bool: ...


ApplyEvents = Callable[["datetime", "datetime"], Applied]
"""Applies the events of brokers' logs in the table that were logged between two times to the history."""


@dataclass(frozen=True)
class JobContext(Generic[S]):
    """What a job is given.

    `warehouse` has a Spark session when the job is started. `kafka` are the settings of Kafka's client, secrets in
    clear, `settings` those of the job (`config.job_settings`). With `once` its query ends after the data that is
    available now. `is_written_here`: the job that writes the table which it follows runs in the same process.
    `apply_events` is for what a job reads of brokers' logs.
    """

    warehouse: Warehouse
    kafka: Mapping[str, str]
    settings: S
    log: Log
    once: bool = False
    is_written_here: bool = False
    feed: LagFeed | None = None
    apply_events: ApplyEvents | None = None


@dataclass(frozen=True)
class Job:
    """A job, whose functions are those of a module, imported when one is called: most need Spark.

    `name` is that of its checkpoint's folder, and for `--job`; `about` continues a sentence about it in `--help`.
    `reads` are the tables that it reads, and topics of coordinators; `writes` those that its batches are written to.
    `follows` is the table whose appends are its stream; None if they do not come from a table. `publishes_lag`: it
    uses the context's `feed`. `resumes_from_tables`: its tables are enough to resume, so that its checkpoint may be
    lost.
    """

    name: str
    about: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    module: str
    follows: str | None = None
    publishes_lag: bool = False
    resumes_from_tables: bool = False

    def settings(self, config: Config) -> Any:
        """Return the settings that it takes: what the function of its package in `config.job_settings` returns."""
        from grouptrail.config import job_settings

        settings = getattr(job_settings, self.module.split(".")[-2], None)
        return None if settings is None else settings(config)

    def check(self, context: JobContext[Any]) -> None:
        """Raise a GrouptrailError if the job cannot run. Called before Spark is started."""
        import_module(self.module).check(context)

    def start(self, context: JobContext[Any]) -> Query:
        """Start the query."""
        query: Query = import_module(self.module).start(context)
        return query

    def start_after_loss(self, context: JobContext[Any]) -> Start:
        """Return where the job resumes after its checkpoint was lost: at the end of its tables."""
        start: Start = import_module(self.module).start_after_loss(context)
        return start


DECODE = Job(
    name="decode",
    about="decodes every record of the offsets topic into exactly one table",
    reads=("__consumer_offsets",),
    writes=("offset_commits", "group_metadata", "group_records", "undecodable_records", "ingest_progress"),
    module="grouptrail.decode.job",
)
POLL = Job(
    # It takes the place of decode: warehouses have its checkpoint and its lease under this name.
    name=DECODE.name,
    about='with `source = "admin"`: polls the groups from the brokers and writes their changes as decoded records',
    reads=(),
    writes=DECODE.writes,
    module="grouptrail.polling.job",
    resumes_from_tables=True,
)
LOG_OFFSETS = Job(
    name="log-offsets",
    about="asks the brokers where the logs of committed and owned partitions begin and end",
    # It looks at who owns what, too, and at the state of share groups, as far as that is there.
    reads=("offset_commits",),
    writes=("log_offsets",),
    module="grouptrail.log_offsets.job",
)
CLUSTER = Job(
    name="cluster",
    about="samples the cluster's brokers, topics, partitions and settings of topics, and writes what has changed",
    reads=(),
    writes=(
        *("brokers", "topics", "topic_partitions", "topic_configs", "group_configs", "coordinators", "cluster_info"),
        "log_sizes",
    ),
    module="grouptrail.cluster_facts.job",
    resumes_from_tables=True,
)
SHARE_STATE = Job(
    name="share-state",
    about="reads what share coordinators store of share groups' progress, if there are any",
    # Where that may not be read, it looks at the groups' states, too, as far as they are there.
    reads=("__share_group_state",),
    writes=("share_group_state", "share_deliveries", "share_group_offsets"),
    module="grouptrail.share_state.job",
    resumes_from_tables=True,
)
BROKER_LOG = Job(
    name="broker-log",
    about="follows the brokers' log files of `broker_log.files`, and applies what they prove to the history",
    reads=(),
    # It also updates rows of `rebalances` and `memberships`.
    writes=("broker_log_events",),
    module="grouptrail.broker_log.job",
    resumes_from_tables=True,
)
HISTORY = Job(
    name="history",
    about="reconstructs each group's generations, states, members, ownership and rebalances from its records",
    # It looks at the brokers' log, too, as far as that has been read.
    reads=("ingest_progress", "offset_commits", "group_metadata", "group_records", "undecodable_records"),
    writes=(
        "generations",
        "group_states",
        "memberships",
        "partition_ownership",
        "rebalances",
        "task_assignments",
        "streams_topology",
        "topic_names",
        "history_positions",
        "tombstone_checks",
    ),
    module="grouptrail.history.job",
    follows="ingest_progress",
)
LAG = Job(
    name="lag",
    about="computes how far each group is behind, in offsets and in seconds, and judges it",
    reads=(
        *("log_offsets", "offset_commits", "ingest_progress", "group_metadata", "group_records"),
        *("group_states", "generations", "memberships", "partition_ownership", "history_positions"),
        *("tombstone_checks", "share_group_state", "share_group_offsets", "topic_names"),
        *("topic_configs", "topic_partitions", "log_sizes"),
    ),
    writes=("consumer_lag", "committed_offsets"),
    module="grouptrail.lag.job",
    follows="log_offsets",
    publishes_lag=True,
)

JOBS: tuple[Job, ...] = (DECODE, LOG_OFFSETS, CLUSTER, SHARE_STATE, BROKER_LOG, HISTORY, LAG)


def jobs_for(config: Config, names: Collection[str] = ()) -> tuple[Job, ...]:
    """Return the jobs of a cluster, in the order data flows: those named, or all that the settings leave enabled."""
    jobs = (POLL if job is DECODE and not config.reads_topic else job for job in JOBS)
    if names:
        return tuple(job for job in jobs if job.name in names)
    disabled = {
        CLUSTER: not config.cluster_facts.enabled,
        SHARE_STATE: not config.share_state.enabled,
        BROKER_LOG: not config.broker_log.files,
    }
    return tuple(job for job in jobs if not disabled.get(job))


def one_after_the_other(jobs: Collection[Job]) -> tuple[Job, ...]:
    """Return jobs in the order in which each finds what the others have written.

    The job log-offsets samples what members own, as the history says, also in the first run of a warehouse.
    """
    others = [job for job in jobs if job is not LOG_OFFSETS]
    if len(others) < len(jobs):
        others.insert(others.index(HISTORY) + 1 if HISTORY in others else list(jobs).index(LOG_OFFSETS), LOG_OFFSETS)
    return tuple(others)

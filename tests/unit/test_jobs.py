"""The registry of jobs: what each reads and writes fits together."""

from __future__ import annotations

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.jobs import (
    BROKER_LOG,
    CLUSTER,
    DECODE,
    HISTORY,
    JOBS,
    LAG,
    LOG_OFFSETS,
    POLL,
    SHARE_STATE,
    jobs_for,
    one_after_the_other,
)

# Tables written by commands: so far only by `grouptrail check`.
NO_JOBS = {"check_results"}

FILES = {"files": ["/logs/server.log"]}
TOPIC, ADMIN = (Config(source=source, broker_log=FILES) for source in ("topic", "admin"))  # type: ignore[arg-type]


def test_jobs_write_each_table_of_the_contracts_once() -> None:
    written = [table for job in JOBS for table in job.writes]
    assert sorted(written) == sorted(set(contracts.tables()) - NO_JOBS)


def test_jobs_read_topics_and_tables_of_jobs_before_them() -> None:
    available = {"__consumer_offsets", "__share_group_state"}
    for job in JOBS:
        assert set(job.reads) <= available, job.name
        available |= set(job.writes)


def test_jobs_for_admin_source_poll_takes_the_place_and_the_name_of_decode() -> None:
    """`--job decode`, its checkpoint and its lease stay what they were in warehouses that are polled."""
    assert jobs_for(TOPIC) == JOBS
    assert jobs_for(ADMIN) == (POLL, *JOBS[1:])
    assert (POLL.name, POLL.writes) == (DECODE.name, DECODE.writes)
    assert (jobs_for(TOPIC, ["decode"]), jobs_for(ADMIN, ["decode"])) == ((DECODE,), (POLL,))
    assert [job.name for job in jobs_for(ADMIN, ("lag", "history"))] == ["history", "lag"]


def test_jobs_for_cluster_switched_off_runs_only_if_named() -> None:
    switched_off = Config(cluster_facts={"enabled": False}, broker_log=FILES)  # type: ignore[arg-type]
    assert jobs_for(switched_off) == tuple(job for job in JOBS if job is not CLUSTER)
    assert jobs_for(switched_off, ["cluster"]) == (CLUSTER,)


def test_jobs_for_share_state_switched_off_runs_only_if_named() -> None:
    switched_off = Config(share_state={"enabled": False}, broker_log=FILES)  # type: ignore[arg-type]
    assert jobs_for(switched_off) == tuple(job for job in JOBS if job is not SHARE_STATE)
    assert jobs_for(switched_off, ["share-state"]) == (SHARE_STATE,)


def test_jobs_for_no_files_of_brokers_logs_follows_them_only_if_named() -> None:
    assert jobs_for(Config()) == tuple(job for job in JOBS if job is not BROKER_LOG)
    assert jobs_for(Config(), ["broker-log"]) == (BROKER_LOG,)


def test_jobs_one_after_the_other_sample_the_log_ends_of_what_members_own() -> None:
    """With --once the history of what was just decoded says what that is."""
    assert one_after_the_other(JOBS) == (DECODE, CLUSTER, SHARE_STATE, BROKER_LOG, HISTORY, LOG_OFFSETS, LAG)
    assert one_after_the_other((POLL, LOG_OFFSETS, HISTORY)) == (POLL, HISTORY, LOG_OFFSETS)
    for some in ((), (DECODE,), (LOG_OFFSETS,), (DECODE, LOG_OFFSETS, LAG), (DECODE, HISTORY, LAG)):
        assert one_after_the_other(some) == some

"""The registry of jobs: what each reads and writes fits together."""

from __future__ import annotations

from grouptrail import contracts
from grouptrail.jobs import JOBS

# Tables written by commands: so far only by `grouptrail check`.
NO_JOBS = {"check_results"}


def test_jobs_write_each_table_of_the_contracts_once() -> None:
    written = [table for job in JOBS for table in job.writes]
    assert sorted(written) == sorted(set(contracts.tables()) - NO_JOBS)


def test_jobs_read_the_topic_and_tables_of_jobs_before_them() -> None:
    available = {"__consumer_offsets"}
    for job in JOBS:
        assert set(job.reads) <= available, job.name
        available |= set(job.writes)

"""All four jobs, and what reads their tables, with the warehouse and the checkpoints in an S3 store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from clients import commit, make_orders, producer
from command import Grouptrail
from demo.kafka import Broker, read_records
from grouptrail.config import Config
from objects import BUCKET, object_store

pytestmark = pytest.mark.broker

GROUP = "billing"
COMMITTED, END = 3, 8


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with object_store(tmp_path_factory.mktemp("objects")) as options:
        yield options


def ran(config: Config, options: dict[str, str], *arguments: str) -> tuple[int, str]:
    environ = {f"GROUPTRAIL_STORAGE__{name.upper()}": value for name, value in options.items()}
    run = Grouptrail(config, *arguments, environ=environ)
    printed = run.finished()
    return run.process.returncode, printed


def commit_some(broker: Broker) -> None:
    make_orders(broker.bootstrap)
    with producer(broker) as producing:
        for _ in range(END):
            producing.produce("orders", b"x", partition=0)
    commit(broker.bootstrap, GROUP, COMMITTED)


def test_the_pipeline_lands_there_and_its_tables_are_asked_there(
    broker: Broker, config: Config, options: dict[str, str]
) -> None:
    """A second run goes on from the checkpoint there; neither credentials nor traces are printed."""
    commit_some(broker)
    config = config.model_copy(update={"warehouse": f"s3a://{BUCKET}/grouptrail"})
    for samples in (1, 2):
        status, printed = ran(config, options, "run", "--once")
        assert status == 0, printed
        assert "Traceback" not in printed
        assert options["aws_secret_access_key"] not in printed
        commits = rows(config, options, "offset_commits")
        landed = {(row["record_partition"], row["record_offset"]) for row in commits}
        assert landed == {(record.partition, record.offset) for record in read_records(broker.bootstrap)}
        assert len(commits) == len(landed)
        assert [row["lag"] for row in rows(config, options, "consumer_lag")] == [END - COMMITTED] * samples
    query = "SELECT group_id, committed_offset FROM committed_offsets"
    status, printed = ran(config, options, "sql", query, "--format", "json")
    assert json.loads(printed) == {"group_id": GROUP, "committed_offset": COMMITTED}


def rows(config: Config, options: dict[str, str], table: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = (
        DeltaTable(config.table_path(table), storage_options=options).to_pyarrow_table().to_pylist()
    )
    return found


def test_a_bucket_that_is_not_there_is_one_line(config: Config, options: dict[str, str], tmp_path: Path) -> None:
    """Before Spark is started."""
    config = config.model_copy(update={"warehouse": "s3a://nobodys/grouptrail"})
    status, printed = ran(config, options, "run", "--once")
    assert status == 1
    [line] = printed.splitlines()
    assert line.startswith("grouptrail: the warehouse s3a://nobodys/grouptrail cannot be reached (")

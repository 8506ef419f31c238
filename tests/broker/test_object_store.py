"""All jobs, and what reads their tables, with the warehouse and the checkpoints in an S3 store."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable
from pydantic import SecretStr

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.storage.reader import is_clustered
from servers.kafka import Broker
from servers.object_store import BUCKET, object_store, upload
from support import landed
from support.cli_process import Grouptrail
from support.frozen_warehouse import thaw
from support.kafka_clients import await_that, make_orders, producer

pytestmark = pytest.mark.full

GROUP = "billing"
COMMITTED, END = 3, 8


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with object_store(tmp_path_factory.mktemp("objects")) as options:
        yield options


def ran(config: Config, *arguments: str) -> tuple[int, str]:
    environ = {f"GROUPTRAIL_STORAGE__{name.upper()}": value for name, value in config.storage_options().items()}
    run = Grouptrail(config, *arguments, environ=environ)
    printed = run.finished()
    return run.process.returncode, printed


def there(config: Config, options: dict[str, str], folder: str) -> Config:
    """Return the configuration with its warehouse in the object store."""
    storage = {name: SecretStr(value) for name, value in options.items()}
    return config.model_copy(update={"warehouse": f"s3a://{folder}", "storage": storage})


def read_some(broker: Broker) -> None:
    """Let a member of a group read, commit and leave."""
    make_orders(broker.bootstrap)
    with producer(broker) as producing:
        for _ in range(END):
            producing.produce("orders", b"x", partition=0)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
    with contextlib.closing(consumer):
        consumer.subscribe(["orders"])
        await_that(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2)
        consumer.commit(offsets=[TopicPartition("orders", 0, COMMITTED)], asynchronous=False)


def test_run_warehouse_on_s3_lands_resumes_and_answers_queries(
    broker: Broker, config: Config, options: dict[str, str]
) -> None:
    """A second run resumes from the checkpoint in the bucket; neither credentials nor tracebacks are printed."""
    read_some(broker)
    config = there(config, options, f"{BUCKET}/grouptrail")
    for samples in (1, 2):
        status, printed = ran(config, "run", "--once")
        assert status == 0, printed
        assert "Traceback" not in printed
        assert options["aws_secret_access_key"] not in printed
        assert landed.records(config) == landed.in_topic(broker.bootstrap)
        assert [row["lag"] for row in landed.rows(config, "consumer_lag")] == [END - COMMITTED] * samples
        (generation,) = [row for row in landed.rows(config, "generations") if row["member_count"]]
        (member,) = landed.rows(config, "memberships")
        assert (generation["group_id"], member["client_id"], member["is_open"]) == (GROUP, "rdkafka", False)
        owned = landed.rows(config, "partition_ownership")
        assert sorted((row["topic"], row["partition"], row["is_open"]) for row in owned) == [
            ("orders", partition, False) for partition in range(2)
        ]
    query = "SELECT group_id, committed_offset FROM committed_offsets"
    status, printed = ran(config, "sql", query, "--format", "json")
    assert json.loads(printed) == {"group_id": GROUP, "committed_offset": COMMITTED}


def test_run_s3_bucket_missing_exits_with_one_line(config: Config, options: dict[str, str]) -> None:
    """It is detected before Spark starts."""
    status, printed = ran(there(config, options, "nobodys/grouptrail"), "run", "--once")
    assert status == 1
    [line] = printed.splitlines()
    assert line.startswith("grouptrail: the warehouse s3a://nobodys/grouptrail cannot be reached (")


def test_maintain_on_s3_removes_clustering_of_version_0_1_once_and_keeps_rows(
    config: Config, options: dict[str, str], tmp_path: Path
) -> None:
    thaw(Config(warehouse=str(tmp_path)))
    location = f"s3://{BUCKET}/frozen"
    upload(tmp_path, options, "frozen")
    tables = [name for name, contract in contracts.tables().items() if not contract.partition_by]

    def opened() -> dict[str, DeltaTable]:
        return {name: DeltaTable(f"{location}/{name}", storage_options=options) for name in tables}

    def rows() -> dict[str, int]:
        thinned = ("log_offsets", "consumer_lag")
        return {name: len(table.to_pyarrow_table()) for name, table in opened().items() if name not in thinned}

    before = rows()
    assert all(map(is_clustered, opened().values()))
    config = there(config.model_copy(update={"cluster": "test"}), options, f"{BUCKET}/frozen")
    for _ in range(2):
        status, printed = ran(config, "maintain")
        assert status == 0, printed
        assert not any(map(is_clustered, opened().values()))
        assert rows() == before
        for table in opened().values():
            assert [one["operation"] for one in table.history()].count("DROP FEATURE") == 1

"""The decode job on a real broker: everything lands, once, whatever is killed, and Kafka's own tools agree."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from demo.workload import Workload
from grouptrail.config import Config, load_config
from grouptrail.decode import job
from grouptrail.decode.times import from_time
from grouptrail.jobs import DECODE
from grouptrail.wire.records import decode_record
from grouptrail.wire.text import record_json
from servers import processes
from servers.kafka import GROUP_METADATA_FORMATTER, OFFSETS_FORMATTER, Broker
from servers.offsets_topic import load_raw
from support import landed
from support.cli_in_process import Cli, succeeded
from support.cli_process import Grouptrail
from support.contexts import context
from support.deadlines import until
from support.kafka_clients import PATIENCE_SECONDS, await_that

WORKLOAD_SECONDS = 25


@pytest.fixture(scope="module")
def worked(broker: Broker) -> Workload:
    """A broker on which every kind of group has lived for a while."""
    workload = Workload(broker.bootstrap, prefix="once-", report=lambda _actor, _event: None)
    workload.run_for(WORKLOAD_SECONDS)
    return workload


@pytest.mark.parametrize(
    "kills", [pytest.param((1,), id="once"), pytest.param((0, 1, 2), id="again and again", marks=pytest.mark.full)]
)
def test_decode_job_driver_sigkill_at_random_times_lands_each_record_once(
    broker: Broker, worked: Workload, config: Config, cli: Cli, kills: tuple[int, ...]
) -> None:
    """Killed within batches or between them, after so many, a run that is let finish has it all, once."""
    moments = random.Random(7)
    small = config.model_copy(update={"decode": config.decode.model_copy(update={"max_records_per_batch": 100})})
    for batches_first in kills:
        run = Grouptrail(small, "run", "--job", "decode")
        for seen, _ in enumerate(_batches(run)):
            if seen >= batches_first:
                time.sleep(moments.uniform(0, 1.5))
                break
        assert run.process.poll() is None, run.finished()
        run.kill()
    assert "batch" in succeeded(cli(config, "run", "--job", "decode", "--once"))

    assert landed.records(config) == landed.in_topic(broker.bootstrap)
    landed.assert_progress_adds_up(config)


@pytest.mark.parametrize(
    "batches_first",
    [pytest.param(0, id="as Spark starts", marks=pytest.mark.full), pytest.param(2, id="within batches")],
)
def test_decode_job_sigint_exits_without_traceback_and_lands_each_record_once(
    broker: Broker, worked: Workload, config: Config, cli: Cli, batches_first: int
) -> None:
    """To all processes, as a terminal sends it; the last batch lands.

    Not as Python itself starts: there no code of grouptrail runs yet, and Python prints a traceback.
    """
    moments = random.Random(8)
    small = config.model_copy(update={"decode": config.decode.model_copy(update={"max_records_per_batch": 100})})
    run = Grouptrail(small, "run", "--job", "decode")
    until(lambda: processes.descendants(run.process.pid))
    seen = list(islice(_batches(run), batches_first))
    time.sleep(moments.uniform(0, 1))
    os.killpg(run.process.pid, signal.SIGINT)
    printed = "".join(seen) + run.finished()
    assert run.process.returncode == 128 + signal.SIGINT, printed
    assert "Traceback" not in printed, printed
    assert "Exception" not in printed, printed
    assert "batch" in succeeded(cli(config, "run", "--job", "decode", "--once"))
    assert landed.records(config) == landed.in_topic(broker.bootstrap)
    landed.assert_progress_adds_up(config)


def _batches(run: Grouptrail) -> Iterator[str]:
    return (line for line in run.lines() if line.startswith("batch"))


@pytest.fixture(scope="module")
def decoded(broker: Broker, worked: Workload, cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Where one run has landed it all."""
    warehouse = str(tmp_path_factory.mktemp("decoded"))
    config = load_config(None, {"warehouse": warehouse, "kafka.bootstrap.servers": broker.bootstrap}, {})
    assert "batch" in succeeded(cli(config, "run", "--job", "decode", "--once"))
    return config


@pytest.fixture(scope="module")
def dumped(broker: Broker, worked: Workload) -> dict[landed.Coordinates, dict[str, Any]]:
    """What DumpLogSegments prints of each record."""
    return {(row["partition"], row["offset"]): row for row in broker.dumped()}


def test_decoded_tables_match_dump_log_segments_and_kafka_formatters(
    broker: Broker, decoded: Config, dumped: dict[landed.Coordinates, dict[str, Any]]
) -> None:
    """Every landed record decodes to what Kafka's tools print of it: offset commits column by column too."""
    landed_records = landed.records(decoded)
    # DumpLogSegments decodes the members' blobs of group metadata, which the formatter does not.
    printed = dumped | {(row["partition"], row["offset"]): row for row in broker.formatted(GROUP_METADATA_FORMATTER)}
    types = set()
    for where, (key, value) in landed_records.items():
        ours, theirs = record_json(decode_record(key, value)), printed[where]
        types.add(ours["key"]["type"])
        assert _as_text(ours["key"], "type") == _as_text(theirs["key"], "type"), where
        assert _as_text(ours["value"], "version") == _as_text(theirs["value"], "version"), where
    assert {1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16} <= types

    commits = {(row["record_partition"], row["record_offset"]): row for row in landed.rows(decoded, "offset_commits")}
    formatted = broker.formatted(OFFSETS_FORMATTER)
    assert len(formatted) == len(commits)
    for line in formatted:
        row = commits[line["partition"], line["offset"]]
        key, value = line["key"]["data"], line["value"]
        assert (row["group_id"], row["topic"], row["partition"]) == (key["group"], key["topic"], key["partition"])
        assert row["is_tombstone"] == (value is None)
        if value is not None:
            assert row["committed_offset"] == value["data"]["offset"]
            assert from_time(row["commit_at"]) == value["data"]["commitTimestamp"]
            assert row["topic_id"] == value["data"].get("topicId")
            assert row["metadata"] == value["data"]["metadata"]


@pytest.fixture(params=["on the driver", pytest.param("in tasks", marks=pytest.mark.full)])
def decoded_either_way(
    request: pytest.FixtureRequest, worked: Workload, config: Config, spark: SparkSession
) -> Config:
    """Where a run has landed it all as a small batch, or as a large one."""
    lines: list[str] = []
    given = context(DECODE, config, spark, lines.append, once=True)
    warehouse = replace(given.warehouse, only="spark") if request.param == "in tasks" else given.warehouse
    assert job.start(replace(given, warehouse=warehouse)).awaitTermination(PATIENCE_SECONDS * 2)
    assert any("batch" in line for line in lines)
    return config


def test_decode_job_commits_are_transactional_if_dump_log_segments_says_so_of_their_batches(
    dumped: dict[landed.Coordinates, dict[str, Any]], worked: Workload, decoded_either_way: Config
) -> None:
    rows = landed.rows(decoded_either_way, "offset_commits")
    assert {row["is_transactional"] for row in rows} == {True, False}
    for row in rows:
        in_topic = dumped[row["record_partition"], row["record_offset"]]
        assert row["is_transactional"] is in_topic["is_transactional"], row
    transactional = {row["group_id"] for row in rows if row["is_transactional"]}
    assert transactional == {group for group, kind in worked.ledger.groups().items() if kind == "transactional"}


def _as_text(part: dict[str, object] | None, number: str) -> dict[str, object] | None:
    """DumpLogSegments prints types and versions as text."""
    return None if part is None else {**part, number: str(part[number])}


def test_offset_commits_newest_row_matches_last_acknowledged_commit(worked: Workload, decoded: Config) -> None:
    """The newest row of each (group, topic, partition) is the last commit that was acknowledged to the client."""
    newest = {
        (row["group_id"], row["topic"], row["partition"]): row["committed_offset"]
        for row in sorted(landed.rows(decoded, "offset_commits"), key=lambda row: row["record_offset"])
    }
    unsure = worked.ledger.unsure()
    expected = {key: offset for key, offset in worked.ledger.committed().items() if key not in unsure}
    assert len(expected) > 20
    assert {key: newest[key] for key in expected} == expected


def test_decode_job_second_run_without_new_records_adds_no_rows(decoded: Config, cli: Cli) -> None:
    """A run without new records reads nothing again and adds no row."""
    before = landed.records(decoded)
    printed = succeeded(cli(decoded, "run", "--job", "decode", "--once"))
    assert landed.records(decoded) == before
    assert "batch" not in printed, printed


@pytest.mark.full
def test_decode_job_broker_killed_and_restarted_lands_each_record_once(
    tmp_path: Path, config: Config, cli: Cli
) -> None:
    """The job survives a broker that is killed and restarted, and lands every record once.

    One of them is undecodable, which leaves three of four partitions without a coordinator.
    """
    with Broker(tmp_path / "kafka", properties={"offsets.topic.num.partitions": "4"}) as broker:
        config = config.model_copy(update={"kafka": {"bootstrap.servers": broker.bootstrap}})
        with Workload(broker.bootstrap, leave_out=("notifications",), report=lambda _actor, _event: None) as workload:
            workload.run_for(8)
        cut = [(partition, b"\x00\x01\x00", None) for partition in (1, 2, 3)]
        load_raw(broker.bootstrap, [(0, b"\x00\x63garbage", b"\xff"), *cut])
        run = Grouptrail(config, "run", "--job", "decode")
        next(_batches(run))
        broker.kill()
        broker.start()
        in_topic = landed.in_topic(broker.bootstrap)

        def has_landed() -> bool:
            assert run.process.poll() is None, run.finished()
            return landed.records(config) == in_topic

        await_that(has_landed, 2 * PATIENCE_SECONDS)
        run.kill()
        assert len(landed.rows(config, "undecodable_records")) == 4
        landed.assert_progress_adds_up(config)

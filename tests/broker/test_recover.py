"""Two drivers by mistake, and checkpoints that are lost or damaged: refused, recovered; nothing lost or doubled."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.workload import Workload
from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.decode.schema import RARE_TABLES
from grouptrail.runtime.warehouses import warehouse_of
from servers.kafka import Broker
from servers.offsets_topic import load_raw
from support import landed
from support.cli_in_process import Cli, succeeded
from support.cli_process import Grouptrail
from support.history_batches import commit, metadata
from support.kafka_clients import PATIENCE_SECONDS, await_that

WORKLOAD_SECONDS = 10
HISTORY = ("generations", "group_states", "memberships", "partition_ownership", "rebalances")


@pytest.fixture
def running(broker: Broker, config: Config) -> Iterator[Grouptrail]:
    """A pipeline that has landed all records of active groups and has computed their lag."""
    with Workload(broker.bootstrap, prefix="recover-", report=lambda _actor, _event: None) as workload:
        workload.run_for(WORKLOAD_SECONDS)
    settings = {"LOG_OFFSETS__INTERVAL_SECONDS": "1", "DECODE__MAX_RECORDS_PER_BATCH": "400"}
    run = Grouptrail(config, "run", environ={f"GROUPTRAIL_{name}": value for name, value in settings.items()})

    def has_landed_all() -> bool:
        assert run.process.poll() is None, run.finished()
        there = all(landed.rows(config, table) for table in ("group_states", "consumer_lag"))
        return there and landed.records(config) == landed.in_topic(broker.bootstrap)

    await_that(has_landed_all, 4 * PATIENCE_SECONDS)
    yield run
    if run.process.poll() is None:
        run.kill()


def newest(folder: Path) -> Path:
    return max((file for file in folder.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))


def write(file: Path, content: bytes) -> None:
    """Write a file without Hadoop's checksum file, which would reveal the damage."""
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    file.write_bytes(content)


def break_off_the_last_batch(config: Config) -> int:
    """Keep only the last batch's offset_commits, as if the driver had been killed; return the number of missing
    records."""
    last = max(row["batch_id"] for row in landed.rows(config, "ingest_progress"))
    assert last > 0
    before = len(landed.records(config))
    for table in (*RARE_TABLES, "ingest_progress"):
        log = Path(warehouse_of(config).table(table).path) / "_delta_log"
        commit = max(log.glob("*.json"))
        if re.search(rf'-{table}","version":{last}[,}}]', commit.read_text()):
            assert not (log / "_last_checkpoint").exists()
            for file in log.glob(f"*{commit.stem}*"):
                file.unlink()
    assert max(row["batch_id"] for row in landed.rows(config, "ingest_progress")) == last - 1
    return before - len(landed.records(config))


def assert_keys_unique(config: Config) -> None:
    for name, table in contracts.tables().items():
        rows = landed.rows(config, name)
        keys = Counter(tuple(row[column] for column in table.key) for row in rows)
        twice = [key for key, count in keys.items() if count > 1]
        assert not twice, (name, twice[:3])


def history(config: Config) -> dict[str, list[str]]:
    return {table: sorted(map(str, landed.rows(config, table))) for table in HISTORY}


def refused(cli: Cli, config: Config) -> str:
    run = cli(config, "run", "--once")
    assert run.returncode == 1, run.printed
    assert "Traceback" not in run.printed
    return run.printed.splitlines()[-1]


@pytest.mark.full
def test_recover_second_driver_is_refused_and_damaged_checkpoints_lose_no_records(
    broker: Broker, config: Config, running: Grouptrail, cli: Cli
) -> None:
    line = refused(cli, config)
    assert f"job decode is already run by pid {running.process.pid} on {os.uname().nodename} since 2" in line
    assert "stop that one first" in line
    running.kill()
    # The last batch must have a record of each kind, the commit after the other.
    last = [metadata("recovered", 1, {"a": [0]}), commit("recovered", 0, 5)]
    load_raw(broker.bootstrap, [(0, key, value) for key, value in last])
    succeeded(cli(config, "run", "--job", "decode", "--job", "history", "--once"))

    history_before = history(config)
    samples_before = {row["sampled_at"] for row in landed.rows(config, "consumer_lag")}
    load_raw(broker.bootstrap, [(at, b"\x00\x63garbage", bytes([at])) for at in (0, 1)])
    missing = break_off_the_last_batch(config)
    decode, log_offsets, of_history, lag = (
        Path(warehouse_of(config).checkpoint_path(job)) for job in ("decode", "log-offsets", "history", "lag")
    )
    shutil.rmtree(decode)
    write(log_offsets / "metadata", b"{")
    write(newest(of_history / "offsets"), newest(of_history / "offsets").read_bytes()[:20])
    write(newest(lag / "commits"), b"\xff\x00garbage")
    assert f"job decode, {decode}, does not exist, but its tables have rows" in (line := refused(cli, config))
    assert line.endswith("run grouptrail recover")

    printed = succeeded(cli(config, "recover"))
    # Records after the last commit of a partition are read by the next run.
    match = re.search(r"([\d,]+) of its records were missing and have been written", printed)
    assert match, printed
    assert 0 < int(match[1].replace(",", "")) <= missing
    assert "decode: the next run begins where its tables end; there was no checkpoint" in printed
    assert f"lag: the next run begins where its tables end; the old checkpoint is {lag}.aside-" in printed

    succeeded(cli(config, "run", "--once"))
    assert landed.records(config) == landed.in_topic(broker.bootstrap)
    landed.assert_progress_adds_up(config)
    assert_keys_unique(config)
    assert history(config) == history_before
    samples = {row["sampled_at"] for row in landed.rows(config, "consumer_lag")}
    assert samples > samples_before
    assert max(samples) == max(row["sampled_at"] for row in landed.rows(config, "log_offsets"))

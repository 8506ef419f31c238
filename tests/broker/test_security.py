"""Authentication and ACLs on a real broker, and that passwords are not exposed."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.kafka.cluster import GROUP_PREFIX
from servers.kafka import PASSWORDS, Broker
from servers.offsets_topic import OFFSETS_TOPIC, ensure_offsets_topic
from support import landed
from support.certificates import Authority
from support.cli_in_process import Cli, run_cli, succeeded
from support.cli_process import Grouptrail
from support.kafka_clients import PATIENCE_SECONDS, await_that, commit_all, producer

USER, PASSWORD = "watcher", "scram-Geheim-4711"
EXPORTER_PASSWORD, KEY_PASSWORD, STORAGE_KEY = "metrics-Geheim-4712", "keystore-Geheim-4713", "storage-Geheim-4714"
SECRETS = (PASSWORD, EXPORTER_PASSWORD, KEY_PASSWORD, STORAGE_KEY)
VISIBLE, HIDDEN = "visible", "hidden"
RECORDS = 3


def login(mechanism: str, user: str = USER, password: str = PASSWORD) -> dict[str, str]:
    """Return the environment of a user that authenticates with SASL."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    jaas = f'org.apache.kafka.common.security.{module} required username="{user}" password="{password}";'
    return {
        "GROUPTRAIL_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "GROUPTRAIL_KAFKA__SASL_MECHANISM": mechanism,
        "GROUPTRAIL_KAFKA__SASL_JAAS_CONFIG": jaas,
    }


@pytest.fixture(scope="module")
def broker(broker: Broker) -> Broker:
    """A broker with a SCRAM user and a group with commits to two topics, one of which the user may not DESCRIBE."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    kinds = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    for kind in kinds:
        made = UserScramCredentialUpsertion(USER, ScramCredentialInfo(kind, 4096), PASSWORD.encode())
        client.alter_user_scram_credentials([made])[USER].result(PATIENCE_SECONDS)
    fill_and_commit(broker, VISIBLE, HIDDEN)
    return broker


def fill_and_commit(broker: Broker, *topics: str) -> None:
    """Write three records to each topic, and commit offset 0 of each for a group."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    for answer in client.create_topics([NewTopic(name, 1, 1) for name in topics]).values():
        answer.result(PATIENCE_SECONDS)
    with producer(broker) as producing:
        for name in topics * RECORDS:
            producing.produce(name, b"x", partition=0)
    ensure_offsets_topic(broker.bootstrap)
    commit_all(broker.bootstrap, "billing", {(name, 0): 0 for name in topics})


@contextlib.contextmanager
def watched(run: Grouptrail) -> Iterator[set[str]]:
    """Yield the command lines of all processes that a run starts, as shown by `ps`."""
    seen: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                with contextlib.suppress(OSError):
                    if os.getsid(int(pid)) == run.process.pid:
                        seen.add(Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        ended.set()
        looking.join()


def only_line(printed: str) -> str:
    (line,) = printed.strip().splitlines()
    return line


def assert_no_secret(*texts: str) -> None:
    assert [secret for secret in SECRETS for text in texts if secret in text] == []


def test_run_names_each_missing_acl_and_exposes_no_secret(broker: Broker, config: Config, tmp_path: Path) -> None:
    """All jobs with the fewest ACLs, added one by one; DESCRIBE on the cluster is not among them."""
    settings = tmp_path / "settings" / "grouptrail.toml"
    settings.parent.mkdir()
    settings.touch(0o600)
    settings.write_text(f'[spark]\n"spark.hadoop.fs.s3a.secret.key" = "{STORAGE_KEY}"\n')
    environ = login("SCRAM-SHA-512") | {
        "GROUPTRAIL_CONFIG": str(settings),
        "GROUPTRAIL_KAFKA__BOOTSTRAP_SERVERS": broker.sasl_bootstrap,
        "GROUPTRAIL_KAFKA__SSL_KEY_PASSWORD": KEY_PASSWORD,
        "GROUPTRAIL_EXPORTER__BASIC_AUTH_USER": "prometheus",
        "GROUPTRAIL_EXPORTER__BASIC_AUTH_PASSWORD": EXPORTER_PASSWORD,
        "GROUPTRAIL_EXPORTER__REFRESH_SECONDS": "1",
        "GROUPTRAIL_LAG__EXACT_GROUPS": "billing",
        "GROUPTRAIL_LOG_OFFSETS__INTERVAL_SECONDS": "1",
    }

    def refused(*arguments: str) -> str:
        run = run_cli(config, *arguments, environ=environ)
        assert run.returncode == 1, run.printed
        assert_no_secret(run.printed)
        return run.printed

    assert "DESCRIBE" in only_line(refused("run"))
    broker.allow(USER, "DESCRIBE", "TOPIC", OFFSETS_TOPIC)
    assert "READ" in only_line(refused("run"))
    broker.allow(USER, "READ", "TOPIC", OFFSETS_TOPIC)
    printed = refused("run", "--once", "--job", "decode", "--debug")
    assert "Traceback" in printed
    assert f"allow DESCRIBE on the group prefix {GROUP_PREFIX}" in printed.splitlines()[-1]
    broker.allow(USER, "DESCRIBE", "GROUP", GROUP_PREFIX, "PREFIXED")
    broker.allow(USER, "DESCRIBE", "TOPIC", VISIBLE)

    run = Grouptrail(config, "run", environ=environ)
    printed = ""
    with watched(run) as command_lines:
        for line in run.lines():
            printed += line
            if match := re.search(r"served at (http://\S+)", line):
                served = match[1]
            if "lag batch" in line and "exact_groups cannot be fetched" in printed:
                break
        await_that(lambda: "kafka_consumer_group_lag{" in scraped(served))
        shown = scraped(served)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(served)
        run.process.send_signal(signal.SIGTERM)
        printed += run.finished()
    assert run.process.returncode == 143, printed

    assert "grant the principal READ on the topics of lag.exact_groups" in printed
    errors = {(row["topic"], row["error"]) for row in landed.rows(config, "log_offsets")}
    assert errors == {(VISIBLE, None), (HIDDEN, "DESCRIBE is denied")}
    lags = {(row["topic"], row["lag"], row["problem"]) for row in landed.rows(config, "consumer_lag")}
    assert (VISIBLE, RECORDS, None) in lags
    assert {lag for topic, lag, _ in lags if topic == HIDDEN} == {None}
    assert 'topic="visible"' in shown

    assert any("java" in line and "SparkSubmit" in line for line in command_lines)
    assert_no_secret(printed, shown, *command_lines)
    rows = [str(landed.rows(config, table)) for table in contracts.tables()]
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != settings]
    assert {path.parent.name for path in files} >= {"_delta_log", "offsets", "commits"}
    assert_no_secret(*rows, *(path.read_bytes().decode("latin-1") for path in files))


def scraped(url: str) -> str:
    """Return the metrics as seen with valid credentials; empty before the first snapshot."""
    credentials = base64.b64encode(f"prometheus:{EXPORTER_PASSWORD}".encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {credentials}"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            text: str = answer.read().decode()
            return text
    except urllib.error.HTTPError as refusal:
        if refusal.code != 503:
            raise
        return ""


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl_login_valid_password_connects_and_wrong_one_exits_with_one_line(
    broker: Broker, config: Config, mechanism: str
) -> None:
    """The line about a wrong password names the setting and does not contain the password."""
    name, password = ("admin", PASSWORDS["admin"]) if mechanism == "PLAIN" else (USER, PASSWORD)
    through_sasl = {"GROUPTRAIL_KAFKA__BOOTSTRAP_SERVERS": broker.sasl_bootstrap}
    known = run_cli(config, "doctor", environ=login(mechanism, name, password) | through_sasl).printed
    assert re.search(rf"^ok    broker .*{broker.sasl_bootstrap}", known, re.MULTILINE), known
    if name == "admin":  # it needs DESCRIBE_CONFIGS on the cluster
        assert re.search(r"^ok    retention .*as assumed$", known, re.MULTILINE), known
    wrong = run_cli(config, "run", environ=login(mechanism, name, "hunter2") | through_sasl)
    line = only_line(wrong.printed)
    assert wrong.returncode == 1
    assert 'refuses this user or password: check kafka."sasl.jaas.config"' in line
    assert "hunter2" not in known + line


def test_run_client_certificate_authenticates_and_without_one_exits_with_one_line(
    tmp_path: Path, config: Config, cli: Cli
) -> None:
    """The certificate's subject is the principal of the ACLs; without a certificate the connection is refused."""
    authority = Authority(tmp_path, "authority")
    properties = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.signed("broker")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "ssl.client.auth": "required",
        "offsets.topic.num.partitions": "1",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    environ = {
        "GROUPTRAIL_KAFKA__SECURITY_PROTOCOL": "SSL",
        "GROUPTRAIL_KAFKA__SSL_TRUSTSTORE_TYPE": "PEM",
        "GROUPTRAIL_KAFKA__SSL_TRUSTSTORE_LOCATION": str(authority.certificate),
    }
    certificate = {
        "GROUPTRAIL_KAFKA__SSL_KEYSTORE_TYPE": "PEM",
        "GROUPTRAIL_KAFKA__SSL_KEYSTORE_LOCATION": str(authority.signed("watcher")),
    }
    with Broker(tmp_path / "kafka", properties=properties, security="tls") as broker:
        environ["GROUPTRAIL_KAFKA__BOOTSTRAP_SERVERS"] = broker.tls_bootstrap
        fill_and_commit(broker, VISIBLE)
        broker.allow("CN=watcher", "READ", "TOPIC", OFFSETS_TOPIC)
        broker.allow("CN=watcher", "DESCRIBE", "GROUP", GROUP_PREFIX, "PREFIXED")
        succeeded(cli(config, "run", "--once", "--job", "decode", environ=environ | certificate))
        assert [row["committed_offset"] for row in landed.rows(config, "offset_commits")][-1:] == [0]
        nobody = run_cli(config, "run", "--once", "--job", "decode", environ=environ)
    line = only_line(nobody.printed)
    assert nobody.returncode == 1
    assert "ssl.keystore.location" in line

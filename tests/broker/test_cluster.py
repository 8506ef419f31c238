"""All jobs by spark-submit on a real Spark cluster, whose Python has only what the submission brings."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.commits import commits
from demo.scenarios import SCENARIOS
from demo.workload import Workload
from grouptrail.config import Config
from grouptrail.history.rows import TABLES as HISTORY
from grouptrail.kafka.cluster import GROUP_PREFIX
from grouptrail.spark.session import msk_jars
from servers.kafka import Broker
from servers.offsets_topic import OFFSETS_TOPIC, ensure_offsets_topic, load_raw
from servers.spark_cluster import SparkCluster
from spark.archive import archive_package, archive_requirements
from support import landed
from support.cli_process import Grouptrail
from support.kafka_clients import await_that, commit_all
from support.kerberos_broker import CLIENT as KERBEROS_CLIENT
from support.kerberos_broker import kerberos_broker
from support.msk_broker import ACCESS_KEY, PRINCIPAL, REGION, SECRET_KEY, msk_broker, verifier
from support.token_server import CLIENT, SECRET, oauth_broker, token_server

# Spark gives a Python process of the driver ten seconds to call back, whatever else the machine does.
pytestmark = [pytest.mark.alone, pytest.mark.full]

WORKLOAD_SECONDS = 12
BULK = 120_000
DEADLINE_SECONDS = 240
PARTITIONS = 4
LIFE_SECONDS = 20


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return both archives, and the second one unpacked for the driver."""
    folder = tmp_path_factory.mktemp("archives")
    archive_package(folder)
    archive_requirements(folder, ["msk"])
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


class Submitted:
    """A driver started by spark-submit, and its output."""

    def __init__(
        self,
        cluster: SparkCluster,
        archives: Path,
        config: Config,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        **submission: Any,
    ) -> None:
        self.config = config
        environ = cluster.environment() | {
            "PYTHONPATH": "grouptrail.zip:site-packages",
            "GROUPTRAIL_CLUSTER": config.cluster,
            "GROUPTRAIL_WAREHOUSE": config.warehouse,
            "GROUPTRAIL_KAFKA__BOOTSTRAP_SERVERS": config.kafka_settings()["bootstrap.servers"],
            "GROUPTRAIL_EXPORTER__LISTEN": "127.0.0.1:0",
            "GROUPTRAIL_DECODE__TRIGGER_SECONDS": "1",
            "GROUPTRAIL_DECODE__MAX_RECORDS_PER_BATCH": "15000",
            "GROUPTRAIL_LAG__SHARDS": "2",
            **(environ or {}),
        }
        self.process = subprocess.Popen(
            [*cluster.submission(archives, **submission), *arguments],
            env=environ,
            cwd=archives,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.printed: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.printed.extend(iter(self.process.stdout.readline, ""))

    def batches(self, of: str = "batch") -> int:
        """Return the number of batches that have landed."""
        assert self.process.poll() is None, "".join(self.printed)
        return sum(line.startswith(f"{of} ") for line in self.printed)

    def finished(self) -> str:
        try:
            self.process.wait(DEADLINE_SECONDS)
        finally:
            self.kill()
        return "".join(self.printed)

    def terminated(self) -> None:
        """End the driver by SIGTERM, as a scheduler does; no child process remains."""
        self.process.terminate()
        self.process.wait(DEADLINE_SECONDS)
        await_that(self._is_gone, DEADLINE_SECONDS)

    def _is_gone(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()


def test_cluster_python_without_archives_cannot_import_grouptrail(cluster: SparkCluster, archives: Path) -> None:
    """Without the archives neither the package nor its dependencies can be imported; with them both can."""
    program = [cluster.python, "-c", "import grouptrail.log_offsets.source, pyarrow; print(grouptrail.__file__)"]
    bare = subprocess.run(program, env=cluster.environment(), capture_output=True, text=True, check=False)
    assert "No module named 'grouptrail'" in bare.stderr


def test_spark_submit_oauthbearer_executors_log_in_and_renew_their_tokens(
    cluster: SparkCluster, archives: Path, tmp_path: Path
) -> None:
    """Java's client and kafka-python, in the driver and in executors, through two lives of a token."""
    with token_server() as tokens, oauth_broker(tmp_path / "kafka", tokens, session_seconds=LIFE_SECONDS) as broker:
        tokens.lives_seconds = LIFE_SECONDS
        config = prepared(broker, CLIENT, tmp_path)
        settings = tokens.settings().items()
        environ = {f"GROUPTRAIL_KAFKA__{name.replace('.', '_').upper()}": value for name, value in settings}
        printed = run_through(2.5 * LIFE_SECONDS, Submitted(cluster, archives, config, environ=environ), broker)
    assert_nothing_failed(printed, config)
    assert not [secret for secret in (SECRET, *tokens.issued) if secret in printed]


def test_spark_submit_kerberos_executors_log_in_with_the_keytab_that_the_submission_brings(
    cluster: SparkCluster, archives: Path, tmp_path: Path
) -> None:
    """As the test before, with a krb5.conf that each process has in its working folder, too."""
    with kerberos_broker(tmp_path / "kerberos", session_seconds=LIFE_SECONDS) as kerberos:
        kerberos.kdc.limit(KERBEROS_CLIENT, LIFE_SECONDS)
        config = prepared(kerberos.broker, KERBEROS_CLIENT, tmp_path)
        for file in (kerberos.keytab, kerberos.kdc.config):
            shutil.copy(file, archives)
        names = (kerberos.keytab.name, kerberos.kdc.config.name)
        environ = kerberos.environment(Path(names[1]), **kerberos.keytab_options(Path(names[0])))
        run = Submitted(cluster, archives, config, environ=environ, files=names)
        printed = run_through(2.5 * LIFE_SECONDS, run, kerberos.broker)
    assert_nothing_failed(printed, config)


def test_spark_submit_msk_iam_executors_log_in_with_the_credentials_of_their_variables(
    cluster: SparkCluster, archives: Path, tmp_path: Path
) -> None:
    """As the tests before, with AWS's library among the submitted jars and its signer among the packages."""
    with verifier() as logins, msk_broker(tmp_path / "kafka", logins) as broker:
        logins.session_seconds = LIFE_SECONDS
        config = prepared(broker, PRINCIPAL, tmp_path)
        of_aws = {"AWS_REGION": REGION, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        login = {"GROUPTRAIL_KAFKA__PRESET": "msk-iam", "GROUPTRAIL_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT"}
        of_executors = {f"spark.executorEnv.{name}": value for name, value in of_aws.items()}
        run = Submitted(
            cluster, archives, config, environ=of_aws | login, jars=msk_jars().glob("*.jar"), settings=of_executors
        )
        printed = run_through(2.5 * LIFE_SECONDS, run, broker)
        assert min(logins.logins.count("token"), logins.logins.count("payload")) >= 3, logins.logins
        assert not logins.refusals
        assert not [secret for secret in (SECRET_KEY, *logins.signatures) if secret in printed]
    assert_nothing_failed(printed, config)


def prepared(broker: Broker, client: str, folder: Path) -> Config:
    """Create a topic and a group, and give the client of the jobs its rights."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(DEADLINE_SECONDS)
    ensure_offsets_topic(broker.bootstrap)
    commit_all(broker.bootstrap, "billing", {("orders", 0): 0})
    broker.allow(client, "READ", "TOPIC", OFFSETS_TOPIC)
    broker.allow(client, "DESCRIBE", "GROUP", GROUP_PREFIX, "PREFIXED")
    broker.allow(client, "DESCRIBE", "TOPIC", "orders")
    return landed.config_of(broker.sasl_bootstrap, folder / "warehouse")


def run_through(seconds: float, run: Submitted, broker: Broker) -> str:
    """Commit ascending offsets for so long, each after the one before has landed; return what the driver printed."""
    try:
        await_that(lambda: run.batches("lag batch") > 0, DEADLINE_SECONDS)
        ends_at = time.monotonic() + seconds
        for offset in itertools.count(1):
            commit_all(broker.bootstrap, "billing", {("orders", 0): offset})
            await_that(lambda offset=offset: offset in committed(run.config), DEADLINE_SECONDS)  # type: ignore[misc]
            if time.monotonic() > ends_at:
                break
        run.terminated()
    finally:
        run.kill()
        sys.stdout.writelines(run.printed)  # shown if the test fails
    return "".join(run.printed)


def committed(config: Config) -> set[int]:
    return {row["committed_offset"] for row in landed.rows(config, "offset_commits")}


def assert_nothing_failed(printed: str, config: Config) -> None:
    assert "restarting it in" not in printed
    assert committed(config) == set(range(max(committed(config)) + 1))
    # A sample while a commit is written has the offsets topic, too: its last stable offset is behind its end then.
    answers = {(row["topic"], row["error"]) for row in landed.rows(config, "log_offsets")}
    assert answers - {(OFFSETS_TOPIC, None)} == {("orders", None)}


def test_spark_submit_executor_and_python_worker_killed_lands_each_record_once(
    cluster: SparkCluster, archives: Path, broker: Broker, config: Config
) -> None:
    """Whichever job they run; the history equals that of a rebuild."""
    others = set(SCENARIOS) - {"producer", "billing", "shipping", "export"}
    workload = Workload(broker.bootstrap, prefix="cluster-", leave_out=others, report=lambda _actor, _event: None)
    workload.run_for(WORKLOAD_SECONDS)
    load_raw(broker.bootstrap, ((partition % PARTITIONS, key, value) for partition, key, value in commits(BULK)))
    run = Submitted(cluster, archives, config)
    chance = random.Random(8)
    try:
        await_that(lambda: run.batches() > 0, DEADLINE_SECONDS)
        victim = chance.choice(cluster.executors())
        os.kill(victim, signal.SIGKILL)
        seen = run.batches()
        await_that(lambda: run.batches() > seen, DEADLINE_SECONDS)
        await_that(lambda: len(cluster.executors()) == 2, DEADLINE_SECONDS)
        await_that(lambda: bool(cluster.python_workers()), DEADLINE_SECONDS)
        os.kill(chance.choice(cluster.python_workers()), signal.SIGKILL)
        assert victim not in cluster.executors()
        in_topic = landed.in_topic(broker.bootstrap)
        await_that(lambda: _count(config) >= len(in_topic) or run.batches() < 0, DEADLINE_SECONDS)
        run.terminated()
    finally:
        run.kill()
    finishing = Submitted(cluster, archives, config, "--once")
    printed = finishing.finished()
    assert finishing.process.returncode == 0, printed

    assert landed.records(config) == in_topic
    landed.assert_progress_adds_up(config)
    newest = {(row["group_id"], row["topic"], row["partition"]) for row in landed.rows(config, "consumer_lag")}
    assert {key for key in workload.ledger.committed() if key not in workload.ledger.unsure()} <= newest
    history = _history(config)
    assert history["generations"]
    rebuilt = Grouptrail(config, "rebuild", "history")
    printed = rebuilt.finished()
    assert rebuilt.process.returncode == 0, printed
    assert _history(config) == history


def _count(config: Config) -> int:
    return sum(row["end_offset"] - row["start_offset"] for row in landed.rows(config, "ingest_progress"))


def _history(config: Config) -> dict[str, list[str]]:
    return {table: sorted(map(repr, landed.rows(config, table))) for table in HISTORY}

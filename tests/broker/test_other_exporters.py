"""The pages of KMinion and kafka_exporter beside ours, series by series, on a cluster that loses a broker.

With `KMINION` and `KAFKA_EXPORTER`, the paths of their binaries, the test runs them (`tests/data/pages/README.md`).
Otherwise it compares with the pages that they served when the test last ran with `RECORD_PAGES=1`; values that differ
from run to run are not compared then.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families as parse_text

from grouptrail.exporter.alias import ALIASES, NOT_SERVED
from servers.kafka_cluster import KafkaCluster
from servers.ports import free_port
from support.cli_process import Grouptrail
from support.kafka_clients import PATIENCE_SECONDS, await_that, commit_all
from support.landed import config_of

PAGES = Path(__file__).parents[1] / "data/pages"
Series = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]

# Labels and series whose values differ from run to run.
OF_THE_RUN = {"port", "controller_id", "cluster_id", "is_controller", "coordinator_id"}
VALUES_OF_THE_RUN = {
    "kminion_kafka_broker_log_dir_size_total_bytes",
    "kminion_kafka_topic_log_dir_size_total_bytes",
    "kminion_kafka_consumer_group_offset_commits_total",
}

# What differs, as the aliases say: with KRaft KMinion's controller is any broker, as its metadata have it, and a
# release newer than it knows is "at least v4.1".
LABEL_DIFFERS = {"controller_id", "is_controller", "cluster_version"}
VALUE_DIFFERS = ("kminion_exporter_offset_consumer_records_consumed_total",)
# KMinion has no watermarks of internal topics; grouptrail no state of groups that never had members.
INTERNAL = re.compile(r"kminion_kafka_topic_(partition_)?(high|low)_water_mark")
NEVER_HAD_MEMBERS = {
    "kminion_kafka_consumer_group_info",
    "kminion_kafka_consumer_group_members",
    "kafka_consumergroup_members",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers: a topic with a group, one that no group reads, a compacted one, and the internal one.

    The group has more members than partitions; another has committed and has none.
    """
    folder = tmp_path_factory.mktemp("kafka")
    with KafkaCluster(folder, properties={"offsets.topic.num.partitions": "3"}) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topics = [
            NewTopic("orders", 3, replica_assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]]),
            NewTopic("audit", 2, replica_assignment=[[1, 2], [3, 1]]),
            NewTopic("state", 1, replica_assignment=[[2, 3, 1]], config={"cleanup.policy": "compact"}),
        ]
        await_that(lambda: _are_created(admin, topics))
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for topic in topics:
            for partition in range(len(topic.replica_assignment)):
                for _ in range(10 * (partition + 1)):
                    producer.produce(topic.topic, b"value", b"key", partition=partition)
        assert producer.flush(PATIENCE_SECONDS) == 0
        commit_all(cluster.bootstrap, "done", {("orders", 0): 3, ("orders", 1): 20})
        with members(cluster.bootstrap, 4):
            yield cluster


def _are_created(admin: AdminClient, topics: list[NewTopic]) -> bool:
    there = admin.list_topics(timeout=PATIENCE_SECONDS).topics
    if all(topic.topic in there for topic in topics):
        return True
    for answer in admin.create_topics([one for one in topics if one.topic not in there]).values():
        with contextlib.suppress(Exception):
            answer.result(PATIENCE_SECONDS)
    return False


@contextmanager
def members(bootstrap: str, count: int) -> Iterator[None]:
    """Run members of the group `billing`, which read all of `orders` and commit it once."""
    ended = threading.Event()

    def consume(number: int) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "billing",
                "client.id": f"member-{number}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 45_000,
            }
        )
        consumer.subscribe(["orders"])
        while not ended.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                consumer.commit(message, asynchronous=False)
        consumer.close()

    threads = [threading.Thread(target=consume, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)


@contextmanager
def running(command: list[str], environ: Mapping[str, str], log: Path) -> Iterator[None]:
    with log.open("w") as out:
        process = subprocess.Popen(command, env={**os.environ, **environ}, stdout=out, stderr=out)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@contextmanager
def exporter(name: str, bootstrap: str, folder: Path) -> Iterator[Callable[[str], str]]:
    """Yield a function that returns the page of another exporter at a moment of the test."""
    binary = os.environ.get(name.upper())
    if binary is None:
        yield lambda moment: (PAGES / f"{name}-{moment}.txt").read_text("utf-8")
        return
    port = free_port()
    if name == "kminion":
        command = [binary]
        environ = {
            "KAFKA_BROKERS": bootstrap,
            "MINION_CONSUMERGROUPS_SCRAPEMODE": "offsetsTopic",
            "EXPORTER_HOST": "127.0.0.1",
            "EXPORTER_PORT": str(port),
        }
    else:
        servers = [f"--kafka.server={server}" for server in bootstrap.split(",")]
        command = [binary, *servers, f"--web.listen-address=127.0.0.1:{port}", "--refresh.metadata=1s"]
        environ = {}

    def page(_moment: str) -> str:
        with contextlib.suppress(OSError):
            return fetched(f"http://127.0.0.1:{port}/metrics")
        return ""

    with running(command, environ, folder / f"{name}.log"):
        yield page


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        text: str = answer.read().decode()
    return text


def series_of(page: str, prefix: str) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(page)
        for sample in family.samples
        if sample.name.startswith(prefix) and not sample.name.endswith("_created")
    }


def comparable(series: Series, exporter: str, *, is_recorded: bool) -> Series:
    """Return series without what differs by design, and in a recorded page without what differs from run to run."""
    masked = LABEL_DIFFERS | (OF_THE_RUN if is_recorded else set())
    uncommitted = Counter(
        (dict(labels)["consumergroup"], dict(labels)["topic"])
        for (name, labels), value in series.items()
        if name == "kafka_consumergroup_current_offset" and value == -1
    )
    found = {}
    for (name, labels), value in series.items():
        if name.startswith((*NOT_SERVED[exporter], "kafka_exporter_")):
            continue
        if exporter == "kafka_exporter" and value == -1:
            continue  # an unknown value
        shown = dict(labels)
        is_internal = "__consumer_offsets" in (shown.get("topic"), shown.get("topic_name"))
        if (is_internal and INTERNAL.match(name)) or (
            name in NEVER_HAD_MEMBERS and "done" in (shown.get("group_id"), shown.get("consumergroup"))
        ):
            continue
        if name == "kminion_exporter_up":
            shown.pop("version", None)
        shown |= dict.fromkeys(masked & shown.keys(), "*")
        if is_recorded and "address" in shown:
            shown["address"] = re.sub(r":\d+$", ":*", shown["address"])
        less = (
            uncommitted[shown["consumergroup"], shown["topic"]]
            if name == "kafka_consumergroup_current_offset_sum"
            else 0
        )
        varies = name in VALUE_DIFFERS or (is_recorded and (is_internal or name in VALUES_OF_THE_RUN))
        found[name, tuple(sorted(shown.items()))] = 0 if varies else value + less
    return found


@pytest.fixture
def healthy(cluster: KafkaCluster) -> KafkaCluster:
    """The cluster without a lost broker: an earlier test may have killed one."""
    if not cluster.brokers[2].running:
        cluster.brokers[2].start()
        for topic, partitions in (("orders", 3), ("audit", 2), ("state", 1)):
            cluster.elect_preferred(topic, partitions)
    return cluster


@pytest.mark.parametrize("name", ["kminion", pytest.param("kafka_exporter", marks=pytest.mark.full)])
def test_page_has_the_series_of_the_other_exporter(healthy: KafkaCluster, tmp_path: Path, name: str) -> None:
    config = config_of(healthy.bootstrap, tmp_path / "warehouse")
    port = free_port()
    run = Grouptrail(
        config,
        "run",
        environ={
            "GROUPTRAIL_EXPORTER__LISTEN": f"127.0.0.1:{port}",
            "GROUPTRAIL_EXPORTER__ALSO_AS": name,
            "GROUPTRAIL_EXPORTER__REFRESH_SECONDS": "1",
            "GROUPTRAIL_LOG_OFFSETS__INTERVAL_SECONDS": "2",
            "GROUPTRAIL_CLUSTER_FACTS__INTERVAL_SECONDS": "2",
            "GROUPTRAIL_CLUSTER_FACTS__LOG_SIZES_INTERVAL_SECONDS": "2",
        },
    )
    lines: list[str] = []
    threading.Thread(target=lambda: lines.extend(run.lines()), daemon=True).start()
    is_recorded = name.upper() not in os.environ
    prefix = "kminion_" if name == "kminion" else "kafka_"
    served = {alias.name for alias in ALIASES[name]}
    missing: dict[str, object] = {}

    def are_equal(theirs: Callable[[str], str], moment: str) -> bool:
        with contextlib.suppress(OSError):
            page = theirs(moment)
            other = comparable(series_of(page, prefix), name, is_recorded=is_recorded)
            all_ours = series_of(fetched(f"http://127.0.0.1:{port}/metrics"), prefix)
            own = {key: value for key, value in all_ours.items() if key[0] in served}
            ours = comparable(own, name, is_recorded=is_recorded)
            missing.clear()
            missing["theirs"] = sorted(set(other.items()) - set(ours.items()))
            missing["ours"] = sorted(set(ours.items()) - set(other.items()))
            if other and not missing["theirs"] and not missing["ours"]:
                if os.environ.get("RECORD_PAGES"):
                    PAGES.mkdir(exist_ok=True)
                    kept = [line for line in page.splitlines() if line.startswith(prefix)]
                    (PAGES / f"{name}-{moment}.txt").write_text("\n".join(kept) + "\n", "utf-8")
                return True
        return False

    def await_equal(theirs: Callable[[str], str], moment: str) -> None:
        try:
            await_that(lambda: are_equal(theirs, moment))
        except AssertionError:
            pytest.fail(f"{moment}: {missing}\n" + "".join(lines[-20:]))

    try:
        with exporter(name, healthy.bootstrap, tmp_path) as theirs:
            await_equal(theirs, "healthy")
            healthy.brokers[2].kill()
            await_equal(theirs, "broker-3-lost")
    finally:
        run.kill()

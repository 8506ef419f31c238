"""How real consumers leave, and what the history says of it with their commits."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import product

import pytest
from confluent_kafka import ConsumerGroupState, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.admin import MemberToRemove

from proof.recorded_departures import Departure, RecordedDepartures, Way, counted, judge, record, save
from proof.recorded_runs import id_text
from servers.kafka import VERSIONS, Broker
from servers.offsets_topic import ensure_offsets_topic
from support.deadlines import scaled
from support.departing_clients import DepartingClient, DepartingProcess, End, Library
from support.kafka_clients import await_that

pytestmark = pytest.mark.full

SESSION_MS, POLL_MS, IDLE_SECONDS = 10_000, 25_000, 12
RHYTHM_SECONDS = 32
PATIENCE_SECONDS = scaled(120)
PARTITIONS = 4
ENDS: Mapping[Way, End] = {"close": "close", "close when idle": "close", "poll timeout": "stall"}
LIBRARIES: tuple[Library, ...] = ("kafka-python", "librdkafka", "cooperative", "kip-848")
PROPERTIES = {
    "offsets.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
}
NEW_COORDINATOR = {
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
}


def planned(libraries: tuple[Library, ...]) -> Iterator[Departure]:
    """Every way of leaving, with every library, and the commits that matter for it."""
    plans = [
        *product(["close"], ["client"], [0.1, 1.0, 5.0, 60.0], [False]),
        *product(["close"], ["application", "nobody"], [1.0], [False]),
        *product(["crash", "poll timeout"], ["client"], [0.1, 1.0, 3.0], [False]),
        *product(["crash", "close", "poll timeout"], ["client"], [1.0], [True]),
        ("crash", "application", 1.0, False),
        ("crash", "nobody", 1.0, False),
        ("removed", "client", 1.0, False),
        *product(["close when idle"], ["client", "nobody"], [1.0], [False]),
    ]
    for library in libraries:
        for way, commits, seconds, is_last in plans:
            if way == "removed" and library == "kip-848":
                continue  # kafka-python's admin client asks the classic coordinator
            name = f"{library}-{way.replace(' ', '-')}-{commits}-{seconds:g}{'-last' if is_last else ''}"
            yield Departure(name, library, way, commits, seconds, is_last)


@contextmanager
def traffic(bootstrap: str) -> Iterator[Callable[[], None]]:
    """Write records to each partition of the topic `busy`; the function returned writes one to each of `idle`."""
    producer, ended = Producer({"bootstrap.servers": bootstrap, "log_level": 2}), threading.Event()

    def write(topic: str) -> None:
        for partition in range(PARTITIONS):
            producer.produce(topic, b"record", partition=partition)
        producer.poll(0)

    def keep_writing() -> None:
        while not ended.wait(0.2):
            write("busy")

    def write_to_idle() -> None:
        write("idle")
        producer.flush(10)

    write_to_idle()
    writing = threading.Thread(target=keep_writing)
    writing.start()
    try:
        yield write_to_idle
    finally:
        ended.set()
        writing.join()
        producer.flush(10)


def play(broker: Broker, version: str, departures: list[Departure]) -> RecordedDepartures:
    """Let all clients consume for a while, and leave."""
    ensure_offsets_topic(broker.bootstrap)
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        topics = {name: {"num_partitions": PARTITIONS, "replication_factor": 1} for name in ("busy", "idle")}
        admin.create_topics(topics, wait_for_metadata=True)

    def client(departure: Departure, name: str) -> DepartingClient:
        is_idle = departure.way == "close when idle"
        return DepartingClient(
            departure.group,
            name,
            broker.bootstrap,
            "idle" if is_idle else "busy",
            departure.library,
            departure.commits,
            departure.commit_seconds,
            SESSION_MS,
            POLL_MS,
        )

    departing = {one.group: client(one, "departing") for one in departures}
    described = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})

    def members(group: str) -> dict[str, str]:
        """Return the ids of the members that have partitions, by their clients' names, once the group is stable."""
        while True:
            with contextlib.suppress(KafkaException):  # it has no coordinator yet
                of = described.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS)
                if of.state in (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY):
                    break
        return {one.client_id: one.member_id for one in of.members if one.assignment.topic_partitions}

    with traffic(broker.bootstrap) as write_to_idle:
        crashing, removed, others, _ = processes = [
            DepartingProcess([departing[one.group] for one in departures if one.way == "crash"]),
            DepartingProcess([departing[one.group] for one in departures if one.way == "removed"]),
            DepartingProcess([departing[one.group] for one in departures if one.way not in ("crash", "removed")]),
            DepartingProcess([client(one, "staying") for one in departures if not one.is_last]),
        ]
        try:
            _await_members(departures, members, {"departing"})
            threading.Event().wait(RHYTHM_SECONDS - IDLE_SECONDS)
            write_to_idle()
            threading.Event().wait(IDLE_SECONDS)
            crashing.kill()
            removed.kill()
            for one in departures:
                if one.way == "removed":
                    _remove(broker.bootstrap, one.group, members(one.group)["departing"])
                elif one.way in ENDS:
                    others.end(departing[one.group], ENDS[one.way])
            _await_members(departures, members, set())
            return record(broker, version, departures, topic_names(described))
        finally:
            for process in processes:
                process.kill()


def _await_members(departures: list[Departure], members: Callable[[str], dict[str, str]], besides: set[str]) -> None:
    """Wait until each group has the client that stays, if there is one, and others `besides`."""
    for one in departures:
        wanted = besides | (set() if one.is_last else {"staying"})
        await_that(lambda: members(one.group).keys() == wanted, PATIENCE_SECONDS)  # noqa: B023


def topic_names(admin: AdminClient) -> dict[str, str]:
    """Return the names of the topics by their ids, as records write these."""
    described = admin.describe_topics(TopicCollection(["busy", "idle"]))
    return {id_text(one.result().topic_id): name for name, one in described.items()}


def _remove(bootstrap: str, group: str, member_id: str) -> None:
    """Remove a member, as an administrator does."""
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        admin.remove_group_members(group, [MemberToRemove(member_id=member_id)])


@pytest.mark.parametrize("version", VERSIONS)
def test_history_says_how_real_consumers_left_and_is_never_wrong(
    version: str, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    libraries = LIBRARIES[:-1] if version == VERSIONS[-1] else LIBRARIES
    properties = PROPERTIES | ({} if version == VERSIONS[-1] else NEW_COORDINATOR)
    with Broker(tmp_path_factory.mktemp("kafka"), version=version, properties=properties) as broker:
        recording = play(broker, version, list(planned(libraries)))
    save(recording, tmp_path_factory.getbasetemp())
    said = list(judge(recording))
    with capsys.disabled():
        for (way, library), counts in counted(said).items():
            sys.stdout.write(f"{version} {way} {library}: {dict(counts)}\n")
    assert [one for one in said if one.now == "wrong"] == []
    assert sum(one.now == "right" for one in said) >= len(said) / 2

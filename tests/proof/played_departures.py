"""Let real consumers leave their groups in every way, on one broker and on three, and record it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import groupby, product

from confluent_kafka import ConsumerGroupState, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.admin import MemberToRemove

from proof.recorded_departures import Departure, RecordedDepartures, Way, record
from proof.recorded_runs import id_text
from servers.kafka import VERSIONS, Broker
from servers.kafka_cluster import KafkaCluster
from servers.offsets_topic import OFFSETS_TOPIC, ensure_offsets_topic
from support.deadlines import scaled
from support.departing_clients import Command, DepartingClient, DepartingProcesses, Library, Programs
from support.kafka_clients import await_that
from support.observed_groups import now_ms

LIBRARIES: tuple[Library, ...] = ("kafka-python", "java", "librdkafka", "java-kip-848", "cooperative", "kip-848")
_AT_ONCE = 2
BY_KAFKAS_ADMIN = "member was removed by an admin"
"""The reason that Kafka's own admin client gives."""
SESSION_MS, POLL_MS, IDLE_SECONDS = 10_000, 25_000, 12
RHYTHM_SECONDS = 32
PATIENCE_SECONDS = scaled(180)
PARTITIONS = 4
ROLLING = 3
BUSY, IDLE = "busy", "idle"
_WRITE_SECONDS = 0.4

# A member that misses a rebalance is removed before its session expires only if that is longer.
_LONG_SESSION_MS, _SHORT_POLL_MS = 40_000, 15_000

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
OLD_COORDINATOR = {"group.coordinator.rebalance.protocols": "classic", "group.coordinator.new.enable": "false"}

_CRASHING = frozenset[Way]({"crash", "removed", "rebalance timeout", "crash in a move"})
_COMMANDS: Mapping[Way, Command] = {
    "close": "close",
    "close when idle": "close",
    "poll timeout": "stall",
    "poll timeout in a rebalance": "stall",
    "static expired": "close",
    "static removed": "close",
    "forced rebalance": "force",
}
_STATIC = frozenset[Way]({"static expired", "static removed", "static restart"})
_RETURNING = frozenset[Way]({"static restart", "rolling deploy"})
_MISSING = frozenset[Way]({"poll timeout in a rebalance", "rebalance timeout"})


def properties(version: str) -> dict[str, str]:
    """Return a broker's settings: the oldest release has the coordinator in Scala, its default."""
    return PROPERTIES | (OLD_COORDINATOR if version == VERSIONS[-1] else NEW_COORDINATOR)


def libraries(version: str, programs: Programs) -> list[Library]:
    """Return the clients that can be played: no KIP-848 with the coordinator in Scala, no Java without a compiler."""
    listed = [one for one in LIBRARIES if version != VERSIONS[-1] or not one.endswith("kip-848")]
    return [one for one in listed if not one.startswith("java") or programs.java is not None]


def planned(listed: Sequence[Library]) -> Iterator[Departure]:
    """Every way of leaving that needs one broker, with every library, and the commits that matter for it."""
    plans: list[tuple[Way, str, float, bool]] = [
        *product(("close",), ("client",), (0.1, 1.0, 5.0, 60.0), (False,)),
        *product(("close",), ("application", "nobody"), (1.0,), (False,)),
        *product(("crash", "poll timeout"), ("client",), (0.1, 1.0, 3.0), (False,)),
        *product(("crash", "close", "poll timeout"), ("client",), (1.0,), (True,)),
        *product(("crash",), ("application", "nobody"), (1.0,), (False,)),
        *product(("close when idle",), ("client", "nobody"), (1.0,), (False,)),
        *product(("poll timeout in a rebalance", "static expired", "rolling deploy"), ("client",), (1.0,), (False,)),
        *product(("removed", "static removed", "rebalance timeout", "static restart"), ("client",), (1.0,), (False,)),
        *product(("forced rebalance",), ("client",), (1.0,), (False,)),
    ]
    for library in listed:
        for way, commits, seconds, is_last in plans:
            if _is_possible(way, library):
                group = f"{library}-{way.replace(' ', '-')}-{commits}-{seconds:g}{'-last' if is_last else ''}"
                one = Departure(group, library, way, commits, seconds, is_last)
                yield from _each(one)


def planned_moves(listed: Sequence[Library]) -> Iterator[Departure]:
    """Every way of leaving as a coordinator moves, with every library."""
    ways: tuple[Way, ...] = ("crash in a move", "close after a move", "rebalance in a move")
    for way, library in product(ways, listed):
        if _is_possible(way, library):
            yield from _each(Departure(f"{library}-{way.replace(' ', '-')}", library, way))


def _each(one: Departure) -> Iterator[Departure]:
    """Yield the departures of a group's members."""
    if one.way == "rolling deploy":
        yield from (replace(one, client=f"departing-{number}") for number in range(ROLLING))
    elif one.way == "forced rebalance":
        yield from (replace(one, client=name) for name in ("staying", "departing"))
    elif one.way == "rebalance in a move":
        yield replace(one, client="staying")
    else:
        yield one


def _is_possible(way: Way, library: Library) -> bool:
    is_classic = not library.endswith("kip-848")
    if way in ("forced rebalance", "rebalance in a move"):
        return library == "java"
    if way == "rebalance timeout":
        return library in ("java", "kafka-python")  # librdkafka has no session longer than that
    # kafka-python's admin client asks the classic coordinator.
    return is_classic or way not in ("removed", "static removed")


class _Groups:
    """The members of all groups, as an admin client describes them again and again."""

    def __init__(self, bootstrap: str, groups: Sequence[str]) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        self._groups = groups
        self._members: dict[str, dict[str, str]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_describing)

    def __enter__(self) -> _Groups:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _keep_describing(self) -> None:
        while not self._ended.wait(0.3):
            # librdkafka aborts if it is asked about many groups at once while they have no coordinator.
            for group in self._groups:
                try:
                    described = self._admin.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS)
                except KafkaException:
                    continue  # it has no coordinator yet
                if described.state in (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY):
                    self._members[group] = {
                        one.client_id: one.member_id for one in described.members if one.assignment.topic_partitions
                    }

    def of(self, group: str) -> dict[str, str]:
        """Return the ids of the members that have partitions, by their clients' names, when it was last stable."""
        return self._members.get(group, {})

    def await_members(self, group: str, names: set[str], *, without: str | None = None) -> None:
        """Wait until a group has some clients, none under an id that is gone."""

        def has_them() -> bool:
            members = self.of(group)
            return members.keys() == names and without not in members.values()

        try:
            await_that(has_them, PATIENCE_SECONDS)
        except AssertionError:
            raise AssertionError(f"{group} has {self.of(group)}, not {names}") from None


@contextmanager
def _traffic(bootstrap: str) -> Iterator[Callable[[], None]]:
    """Write records to each partition of the topic `busy`; the function returned writes one to each of `idle`."""
    producer, ended = Producer({"bootstrap.servers": bootstrap, "log_level": 2}), threading.Event()

    def write(topic: str) -> None:
        for partition in range(PARTITIONS):
            producer.produce(topic, b"record", partition=partition)
        producer.poll(0)

    def keep_writing() -> None:
        while not ended.wait(_WRITE_SECONDS):
            write(BUSY)

    def write_to_idle() -> None:
        write(IDLE)
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


class _Stage:
    """The clients of all departures on some brokers.

    `by_name` has those that run at first, `later` those that start when told to.
    """

    def __init__(self, kafka: Broker | KafkaCluster, programs: Programs, departures: Sequence[Departure]) -> None:
        self.bootstrap = kafka.bootstrap
        self._programs = programs
        self.departures = departures
        self.by_name: dict[tuple[str, str], DepartingClient] = {}
        self.later: dict[tuple[str, str], DepartingClient] = {}
        self._ways = {one.group: one.way for one in departures}
        for one in departures:
            self.by_name[one.group, one.client] = self._client(one, one.client)
            if self.stays(one):
                self.by_name[one.group, "staying"] = self._client(one, "staying")
            if one.way in ("rebalance in a move", "forced rebalance"):
                self.by_name[one.group, "departing"] = self._client(one, "departing")
            if one.way in _RETURNING:
                self.later[one.group, one.client] = replace(self._client(one, one.client), waits=True)
            if one.way in _MISSING:
                self.later[one.group, "joining"] = replace(self._client(one, "joining"), waits=True)
        self.groups = _Groups(self.bootstrap, sorted(self._ways))
        self._running: dict[tuple[str, str], DepartingProcesses] = {}
        self._processes: list[DepartingProcesses] = []
        self.crashing: DepartingProcesses | None = None

    def stays(self, one: Departure) -> bool:
        """Return whether a client of its group stays."""
        return not one.is_last and one.way != "rolling deploy"

    def _client(self, one: Departure, name: str) -> DepartingClient:
        missed = one.way == "rebalance timeout"
        seconds = one.commit_seconds if name.startswith("departing") else max(one.commit_seconds, 1.0)
        is_static = one.way in _STATIC and name == "departing"
        return DepartingClient(
            one.group,
            name,
            self.bootstrap,
            IDLE if one.way == "close when idle" else BUSY,
            one.library,
            one.commits,
            seconds,
            _LONG_SESSION_MS if missed else SESSION_MS,
            _SHORT_POLL_MS if missed else POLL_MS,
            f"{one.group}-1" if is_static else None,
        )

    def start(self) -> None:
        """Start those that stay, which lead their groups, then all others; wait until all have partitions."""
        self._start([key for key in self.by_name if key[1] == "staying"])
        for one in self.departures:
            if self.stays(one):
                self.groups.await_members(one.group, {"staying"})
        others = [key for key in self.by_name if key[1] != "staying"]
        self.crashing = self._start([key for key in others if self._ways[key[0]] in _CRASHING])
        self._start([key for key in others if self._ways[key[0]] not in _CRASHING])
        self._processes.append(DepartingProcesses(self._programs, list(self.later.values())))
        for group in self._ways:
            self.groups.await_members(group, {name for of, name in self.by_name if of == group})

    def _start(self, keys: Sequence[tuple[str, str]]) -> DepartingProcesses:
        processes = DepartingProcesses(self._programs, [self.by_name[key] for key in keys])
        self._processes.append(processes)
        self._running.update(dict.fromkeys(keys, processes))
        return processes

    def command(self, one: Departure, command: Command, name: str | None = None) -> None:
        """Tell a client what to do next."""
        key = (one.group, name or one.client)
        self._running[key].command(self.by_name[key], command)

    def start_later(self, one: Departure, name: str) -> None:
        """Start a client that waits."""
        self._processes[-1].command(self.later[one.group, name], "start")

    def kill(self) -> None:
        """End all processes."""
        for processes in self._processes:
            processes.kill()


def play(broker: Broker, version: str, programs: Programs) -> RecordedDepartures:
    """Let the clients of all groups consume for a while, and leave; two libraries at a time."""
    listed = libraries(version, programs)
    names = _make_topics(broker.bootstrap)
    done: list[Departure] = []
    with _traffic(broker.bootstrap) as write_to_idle:
        for first in range(0, len(listed), _AT_ONCE):
            done += _play_at_once(broker, programs, list(planned(listed[first : first + _AT_ONCE])), write_to_idle)
    return record(version, broker, done, names)


def _play_at_once(
    broker: Broker, programs: Programs, departures: Sequence[Departure], write_to_idle: Callable[[], None]
) -> list[Departure]:
    by_group = {group: list(of) for group, of in groupby(departures, key=lambda one: one.group)}
    stage = _Stage(broker, programs, departures)
    with stage.groups, ThreadPoolExecutor(len(by_group)) as pool:
        try:
            stage.start()
            threading.Event().wait(RHYTHM_SECONDS - IDLE_SECONDS)
            write_to_idle()
            threading.Event().wait(IDLE_SECONDS)
            began_ms = now_ms()
            assert stage.crashing is not None
            stage.crashing.kill()
            played = [pool.submit(_play_group, stage, listed, began_ms) for listed in by_group.values()]
            return [one for future in played for one in future.result()]
        finally:
            stage.kill()


def _play_group(stage: _Stage, listed: Sequence[Departure], began_ms: int) -> list[Departure]:
    """Let the members of a group leave; return their departures with the times."""
    one = listed[0]
    if one.way == "rolling deploy":
        return [_replace(stage, one) for one in listed]
    if one.way == "forced rebalance":
        return [_force(stage, one) for one in listed]
    if one.way == "static restart":
        return [_replace(stage, one, waits_for_group=False)]
    if one.way == "removed":
        _remove(stage.bootstrap, one.group, MemberToRemove(member_id=stage.groups.of(one.group)["departing"]))
    elif one.way in _COMMANDS:
        stage.command(one, _COMMANDS[one.way])
    if one.way == "static removed":
        time.sleep(4)  # it would come back if it were removed before it is closed
        client = stage.by_name[one.group, one.client]
        gone = MemberToRemove(group_instance_id=client.instance_id, reason=BY_KAFKAS_ADMIN)
        _remove(stage.bootstrap, one.group, gone)
    others = {"staying"} if stage.stays(one) else set[str]()
    if one.way in _MISSING:
        time.sleep(1)
        stage.start_later(one, "joining")
        others |= {"joining"}
    stage.groups.await_members(one.group, others)
    return [replace(one, began_ms=began_ms)]


def _replace(stage: _Stage, one: Departure, *, waits_for_group: bool = True) -> Departure:
    """Close a client and start it again."""
    group = stage.groups
    before, began_ms = group.of(one.group), now_ms()
    stage.command(one, "close")
    if waits_for_group:
        group.await_members(one.group, before.keys() - {one.client})
    else:
        time.sleep(2)
    stage.start_later(one, one.client)
    group.await_members(one.group, {*before}, without=before[one.client])
    if waits_for_group:
        time.sleep(SESSION_MS / 1000 + 2)  # the next departure is not within the timeouts of this join
    return replace(one, began_ms=began_ms)


def _force(stage: _Stage, one: Departure) -> Departure:
    began_ms = now_ms()
    stage.command(one, "force")
    time.sleep(8)
    return replace(one, began_ms=began_ms)


def play_moves(cluster: KafkaCluster, version: str, programs: Programs) -> RecordedDepartures:
    """Let clients crash, close and rebalance while the broker that coordinates all groups is stopped."""
    departures = list(planned_moves(libraries(version, programs)))
    names = _make_topics(cluster.bootstrap)
    stage = _Stage(cluster, programs, departures)
    leader = cluster.leader(OFFSETS_TOPIC, 0)
    with _traffic(cluster.bootstrap), stage.groups:
        try:
            stage.start()
            threading.Event().wait(RHYTHM_SECONDS)
            began_ms = now_ms()
            for one in departures:
                if one.way == "rebalance in a move":
                    stage.command(one, "pause", "departing")
                    stage.command(one, "force")
            threading.Event().wait(2)
            assert stage.crashing is not None
            stage.crashing.kill()
            leader.stop()
            assert cluster.leader(OFFSETS_TOPIC, 0) is not leader
            _await(stage, "crash in a move", {"staying"})
            for one in departures:
                if one.way == "close after a move":
                    stage.command(one, "close")
            _await(stage, "close after a move", {"staying"})
            leader.start()
            return record(
                f"{version}-cluster", cluster, [replace(one, began_ms=began_ms) for one in departures], names
            )
        finally:
            stage.kill()


def _await(stage: _Stage, way: Way, names: set[str]) -> None:
    for one in stage.departures:
        if one.way == way:
            stage.groups.await_members(one.group, names)


def _make_topics(bootstrap: str) -> dict[str, str]:
    """Make the topics, also that of offsets; return their names by the ids that records have."""
    ensure_offsets_topic(bootstrap)
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        topics = {name: {"num_partitions": PARTITIONS, "replication_factor": -1} for name in (BUSY, IDLE)}
        admin.create_topics(topics, wait_for_metadata=True)
    describing = AdminClient({"bootstrap.servers": bootstrap})  # kept: what it has been asked fails when it is gone
    names: dict[str, str] = {}

    def is_described() -> bool:
        described = describing.describe_topics(TopicCollection([BUSY, IDLE]))
        with contextlib.suppress(KafkaException):  # another broker does not know them yet
            names.update({id_text(one.result().topic_id): name for name, one in described.items()})
        return len(names) == len(described)

    await_that(is_described, PATIENCE_SECONDS)
    return names


def _remove(bootstrap: str, group: str, member: MemberToRemove) -> None:
    """Remove a member, as an administrator does."""
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        admin.remove_group_members(group, [member])

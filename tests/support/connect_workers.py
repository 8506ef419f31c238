"""Kafka Connect workers, and their state according to their REST interface and their logs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from confluent_kafka.admin import AdminClient

from grouptrail.spark.java import find_java, java_environment
from servers import processes
from servers.kafka import fetch_connect
from servers.ports import free_ports
from support.kafka_clients import await_that
from support.observed_groups import DescribedMember, GroupDescription, Partitions, StableState, await_stable

SESSION_MS = 6_000
DELAY_MS = 5_000
"""How long the leader keeps back what a lost worker had, should it return."""

_ANSWER_SECONDS = 10
_CONNECTOR = -1
_FILES = "org.apache.kafka.connect.file.FileStream{}Connector"


# --- workers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AssignmentEvent:
    """The assignment of a worker in one generation, and how long the leader withholds further tasks."""

    generation: int
    member_id: str
    leader: str
    has: Partitions
    delay_ms: int


class Worker:
    """A Connect worker; its name is its REST address, which is the same after a crash."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        [port] = free_ports(1)
        self.name = f"127.0.0.1:{port}"
        self.is_active = False
        self._log = folder / f"{port}.log"
        self._properties = folder / f"{port}.properties"
        lines = settings | {"listeners": f"http://{self.name}"}
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        java = find_java()
        command = [
            *(str(java.command), "-Xmx160m", "-XX:+UseSerialGC"),
            *os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", "").split(),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.connect.runtime.distributed=info",
            *("-cp", f"{fetch_connect()}/*", "org.apache.kafka.connect.cli.ConnectDistributed"),
            str(self._properties),
        ]
        with self._log.open("ab") as log:
            environ = os.environ | java_environment(java)
            self._process = processes.launch(command, stdout=log, stderr=subprocess.STDOUT, environ=environ)
        self.is_active = True

    def crash(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            processes.kill(self._process)
            self._process = None
        self.is_active = False

    def freeze(self) -> None:
        """Suspend the worker until it is thawed; it keeps its assignment in memory."""
        self._signal(signal.SIGSTOP)
        self.is_active = False

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)
        self.is_active = True

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def request(self, path: str, body: Mapping[str, str] | None = None, *, method: str = "GET") -> Any:
        """Send a request to its REST interface; None if there is no answer, or not yet."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        message = urllib.request.Request(f"http://{self.name}/{path}", data, headers, method=method)
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError),
            urllib.request.urlopen(message, timeout=_ANSWER_SECONDS) as answer,
        ):
            return json.loads(answer.read() or b"true")
        return None

    def assignments(self) -> list[AssignmentEvent]:
        """Return all assignments that the worker received, in order."""
        assert self._process is None or self._process.poll() is None, self._log.read_text()[-4_000:]
        ids: dict[str, str] = {}
        events = []
        for line in self._log.read_text().splitlines(keepends=True) if self._log.exists() else ():
            if not line.endswith("\n"):  # it is being written
                break
            if joined := _JOINED.search(line):
                ids[joined["generation"]] = joined["member"]
            elif assigned := _ASSIGNED.search(line):
                events.append(_assignment_event(ids[assigned["generation"]], assigned))
        return events

    def has_stopped_its_tasks(self) -> bool:
        """Return whether it has lost its coordinator at some time and stopped all its tasks."""
        return _TASKS_STOPPED in self._log.read_text()


# Log lines of Kafka's AbstractCoordinator, and of Connect's WorkerCoordinator and DistributedHerder.
_JOINED = re.compile(
    r"joined group with generation Generation\{generationId=(?P<generation>\d+), memberId='(?P<member>.+?)'"
)
_ASSIGNED = re.compile(
    r"Joined group at generation (?P<generation>\d+) .*leader='(?P<leader>.+?)'.*"
    r" connectorIds=\[(?P<connectors>.*?)\], taskIds=\[(?P<tasks>.*?)\], .*rebalance delay: (?P<delay>\d+)"
)
_TASKS_STOPPED = "Broker coordinator was unreachable"


def _assignment_event(member_id: str, line: re.Match[str]) -> AssignmentEvent:
    has = {(name, _CONNECTOR) for name in line["connectors"].split(", ") if name}
    for task in filter(None, line["tasks"].split(", ")):
        name, _, number = task.rpartition("-")
        has.add((name, int(number)))
    return AssignmentEvent(int(line["generation"]), member_id, line["leader"], frozenset(has), int(line["delay"]))


# --- their group -------------------------------------------------------------------------------------------


class Workers:
    """Two workers of one group and its stable states; a context manager, at whose end they are killed.

    A connector is a topic of the group, and its tasks are the partitions: -1 is the connector itself.
    """

    def __init__(
        self, folder: Path, bootstrap: str, group_id: str, protocol: str, *, session_ms: int = SESSION_MS
    ) -> None:
        self.group_id = group_id
        self.folder = folder / group_id
        self.folder.mkdir()
        settings = _settings(bootstrap, group_id, protocol, session_ms)
        self.workers = [Worker(self.folder, settings) for _ in range(2)]
        self.stable_states: list[StableState] = []
        self._connectors: dict[str, int] = {}
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})

    def __enter__(self) -> Self:
        for worker in self.workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.crash()

    def active(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.is_active]

    def leader(self) -> Worker:
        return next(worker for worker in self.active() if (last := worker.assignments()[-1]).member_id == last.leader)

    def follower(self) -> Worker:
        return next(worker for worker in self.active() if (last := worker.assignments()[-1]).member_id != last.leader)

    def create_connector(self, name: str, kind: str, *, tasks: int = 1) -> None:
        """Create a connector that reads a file (`kind="Source"`) or writes one (`kind="Sink"`)."""
        file = self.folder / f"{name}.txt"
        file.touch()
        topic = f"{self.group_id}-lines"
        body = {"connector.class": _FILES.format(kind), "tasks.max": str(tasks), "file": str(file)}
        body |= {"topic": topic} if kind == "Source" else {"topics": topic}
        await_that(lambda: bool(self.active()[0].request(f"connectors/{name}/config", body, method="PUT")))
        self._connectors[name] = tasks

    def delete_connector(self, name: str) -> None:
        await_that(lambda: bool(self.active()[0].request(f"connectors/{name}", method="DELETE")))
        del self._connectors[name]

    def await_stable(self) -> StableState:
        """Wait until all connectors and tasks run, and the admin client, REST and the workers' logs agree."""
        stable = await_stable(
            self._agreed, lambda: (self.group_id, [worker.assignments()[-1:] for worker in self.active()])
        )
        self.stable_states.append(stable)
        return stable

    def _agreed(self) -> GroupDescription | None:
        # The only call of both Python clients that does not assume a consumer group.
        groups = self._admin.list_groups(self.group_id)
        running = self._running()
        events = {worker.name: worker.assignments()[-1] for worker in self.active() if worker.assignments()}
        by_id = {last.member_id: last for last in events.values()}
        every = {(name, number) for name, tasks in self._connectors.items() for number in range(_CONNECTOR, tasks)}
        is_settled = (
            [group.state for group in groups] == ["Stable"]
            and {one.id for one in groups[0].members} == by_id.keys()
            and len(events) == len(self.active())
            and len({last.generation for last in events.values()}) == 1
            and sorted(unit for last in events.values() for unit in last.has) == sorted(every)
            and all(last.has for last in events.values())
            and running == {name: last.has for name, last in events.items()}
        )
        if not is_settled:
            return None
        [group] = groups
        return GroupDescription(
            state=group.state,
            protocol=group.protocol,
            generation=next(iter(by_id.values())).generation,
            members={
                one.id: DescribedMember(None, one.client_id, one.client_host, by_id[one.id].has)
                for one in group.members
            },
        )

    def _running(self) -> dict[str, Partitions] | None:
        """Return what runs on which worker according to REST; None if something does not run."""
        tasks: dict[str, set[tuple[str, int]]] = {}
        for name, connector in (self.active()[0].request("connectors?expand=status") or {}).items():
            status = connector["status"]
            for number, unit in [(_CONNECTOR, status["connector"]), *((one["id"], one) for one in status["tasks"])]:
                if unit["state"] != "RUNNING":
                    return None
                tasks.setdefault(unit["worker_id"], set()).add((name, number))
        return {name: frozenset(units) for name, units in tasks.items()}


def _settings(bootstrap: str, group_id: str, protocol: str, session_ms: int) -> dict[str, str]:
    converter = "org.apache.kafka.connect.storage.StringConverter"
    topics = {f"{kind}.storage.topic": f"{group_id}-{kind}" for kind in ("config", "offset", "status")}
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group_id,
        "connect.protocol": protocol,
        "session.timeout.ms": str(session_ms),
        "heartbeat.interval.ms": "300",
        "scheduled.rebalance.max.delay.ms": str(DELAY_MS),
        # A sink task cannot stop while its consumer waits for members that died with their worker.
        "task.shutdown.graceful.timeout.ms": "500",
        "plugin.discovery": "service_load",
        "key.converter": converter,
        "value.converter": converter,
        **topics,
        **{name.replace("topic", "replication.factor"): "1" for name in topics},
        "offset.storage.partitions": "1",
        "status.storage.partitions": "1",
    }

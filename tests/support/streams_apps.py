"""Kafka Streams applications: instances of Kafka's own word count, and their state according to their logs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from confluent_kafka.admin import AdminClient, NewTopic

from grouptrail.spark import class_data
from grouptrail.spark.java import find_java, java_environment
from servers import processes
from servers.kafka import VERSIONS, class_data_archive, fetch, fetch_streams
from servers.ports import free_ports
from support.kafka_clients import await_that

INPUT_TOPIC = "streams-plaintext-input"
OUTPUT_TOPIC = "streams-wordcount-output"

_MAIN_CLASS = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
_IN_MEMORY = "org.apache.kafka.streams.state.BuiltInDslStoreSuppliers$InMemoryDslStoreSuppliers"
_ASSIGNOR = "org.apache.kafka.streams.processor.internals.StreamsPartitionAssignor"
_STOP_DEADLINE_SECONDS = 30.0

# Log lines of ConsumerCoordinator and, after it, of TaskManager.
_ASSIGNED = re.compile(
    r"Successfully synced group in generation Generation\{generationId=(?P<generation>\d+), "
    r"memberId='(?P<member>.+?)'(?:(?!Successfully joined group).)*?Handle new assignment with:\n"
    r"\tNew active tasks: \[(?P<active>.*?)\]\n\tNew standby tasks: \[(?P<standby>.*?)\]\n"
    r"\tExisting active tasks: ",
    re.DOTALL,
)

# Log lines of ConsumerCoordinator: a member that was asked to join again at a time, and the generation that follows.
_PROBED = re.compile(
    r"triggered followup rebalance scheduled for [1-9]\d*(?:(?!Request joining group).)*?"
    r"Successfully joined group with generation Generation\{generationId=(?P<generation>\d+), ",
    re.DOTALL,
)

# Log lines of StreamsPartitionAssignor in the leader, and of ConsumerCoordinator after it.
_CLIENTS = re.compile(
    r"standby replicas to client nodes \{(?P<clients>.*)\}\n(?:(?!standby replicas to client nodes).*\n)*?"
    r".*Finished assignment for group at generation (?P<generation>\d+): "
)
_OFFSET_SUMS = re.compile(
    r"(?P<process>[0-9a-f-]{36})=\[activeTasks: .*?changelogOffsetTotalsByTask: \(\[(?P<sums>.*?)\]\)"
)
_TOTAL = re.compile(r"(\w+)=(-?\d+)")

# Log line of KafkaStreams; the id of the client ends with the process id, a UUID.
_TRANSITION = re.compile(r"stream-client \[.*?(?P<process>[0-9a-f-]{36})\] State transition from \w+ to (?P<to>\w+)")


def create_topics(bootstrap: str, *, partitions: int) -> None:
    """Create the topics that the application reads and writes; it creates its internal topics itself."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    topics = [NewTopic(INPUT_TOPIC, partitions, 1), NewTopic(OUTPUT_TOPIC, 1, 1)]
    for created in admin.create_topics(topics).values():
        created.result()


@dataclass(frozen=True)
class TaskEvent:
    """The tasks of a classic member in a generation, as `subtopology_task`."""

    generation: int
    member_id: str
    active: frozenset[str]
    standby: frozenset[str]


class StreamsApp:
    """One instance of the application `application_id`; a context manager, at whose end it is killed.

    It has two subtopologies: 0 reads `INPUT_TOPIC` and writes a repartition topic, 1 counts its words in a store, in
    memory, with a changelog topic. `settings` are further ones of Kafka Streams. `folder` gets its log and its state,
    and must be of this instance alone. `endpoint` is its `application.server`, the same after a restart.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        application_id: str,
        *,
        protocol: Literal["classic", "streams"],
        version: str = VERSIONS[0],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        [port] = free_ports(1)
        self.endpoint = f"127.0.0.1:{port}"
        self.log_file = folder / "streams.log"
        self._version = version
        self._properties = folder / "streams.properties"
        self._started_at = 0
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        lines = {
            "bootstrap.servers": bootstrap,
            "application.id": application_id,
            "application.server": self.endpoint,
            "state.dir": str(folder / "state"),
            "dsl.store.suppliers.class": _IN_MEMORY,
            "commit.interval.ms": "500",
            **_PROTOCOL_SETTINGS[protocol],
            **(settings or {}),
        }
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start the instance, and do not wait for it."""
        java, jars = find_java(), fetch(self._version)
        command = [
            *(str(java.command), "-Xmx100m", "-XX:+UseSerialGC"),
            *os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", "").split(),
            # The archive of the brokers fits, as their jars come first in the class path.
            *class_data.options(class_data_archive(java, jars)).split(),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.streams=info",
            f"-Dorg.slf4j.simpleLogger.log.{_ASSIGNOR}=debug",
            "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.consumer=info",
            *("-cp", os.pathsep.join(f"{folder}/*" for folder in (jars, fetch_streams(self._version)))),
            *(_MAIN_CLASS, str(self._properties)),
        ]
        self._started_at = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            environ = os.environ | java_environment(java)
            self._process = processes.launch(command, stdout=log, stderr=subprocess.STDOUT, environ=environ)

    def stop(self) -> None:
        """Shut down in order: SIGTERM, on which the application closes its client."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=_STOP_DEADLINE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            processes.kill(self._process)
            self._process = None

    def log(self) -> str:
        """Return the complete lines of the log since the last start."""
        text = self.log_file.read_bytes()[self._started_at :].decode(errors="replace")
        return text[: text.rfind("\n") + 1]

    def state(self) -> str | None:
        """Return the state of its client, e.g. `RUNNING`; None before its first transition."""
        transitions = _TRANSITION.findall(self.log())
        return transitions[-1][1] if transitions else None

    def process_id(self) -> str:
        """Return the process id, a UUID; as no store is on disk, each start has a new one."""
        return str(_TRANSITION.findall(self.log())[-1][0])

    def assignments(self) -> list[TaskEvent]:
        """Return all assignments of its classic members that it took over, since its first start, in order."""
        return [
            TaskEvent(int(one["generation"]), one["member"], _tasks(one["active"]), _tasks(one["standby"]))
            for one in _ASSIGNED.finditer(self.log_file.read_text(errors="replace"))
        ]

    def offset_sums(self) -> dict[int, dict[str, dict[str, int]]]:
        """Return the sum of the offsets of each task, by process id, that it knew as leader of each generation."""
        return {
            int(one["generation"]): {
                client["process"]: {task: int(total) for task, total in _TOTAL.findall(client["sums"])}
                for client in _OFFSET_SUMS.finditer(one["clients"])
            }
            for one in _CLIENTS.finditer(self.log_file.read_text(errors="replace"))
        }

    def probed_generations(self) -> list[int]:
        """Return the generations that its members began because their leader had asked them to, at a time."""
        return [int(one["generation"]) for one in _PROBED.finditer(self.log_file.read_text(errors="replace"))]

    def await_running(self) -> None:
        """Wait until its client has its tasks and runs them."""
        await_that(self._runs)

    def _runs(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()[-4_000:]
        return self.state() == "RUNNING"


_PROTOCOL_SETTINGS: dict[str, dict[str, str]] = {
    "classic": {
        "group.protocol": "classic",
        "num.standby.replicas": "1",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "300",
    },
    # A streams group's standby replicas, session timeout and heartbeats are settings of the group, on the brokers.
    "streams": {"group.protocol": "streams"},
}


def _tasks(listed: str) -> frozenset[str]:
    return frozenset(filter(None, listed.split(", ")))

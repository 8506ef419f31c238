"""Real consumers that commit and leave their groups in different ways: `python -m support.departing_clients`.

Each consumer of a process runs until a line on stdin, `GROUP/NAME COMMAND`, ends it or SIGKILL ends the process.
`tests/clients/java/DepartingClients.java` does the same with Kafka's own client.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaException
from kafka import KafkaConsumer
from kafka.errors import KafkaError as KafkaPythonError

from grouptrail.spark.java import find_java
from servers.kafka import fetch
from support.kafka_clients import poll

Library = Literal["kafka-python", "librdkafka", "cooperative", "kip-848", "java", "java-kip-848"]
Command = Literal["start", "close", "stall", "pause", "force"]
"""`start` one that waits; `pause` does not poll for a while, `force` begins a rebalance (Java)."""

HEARTBEAT_MS = 1_000
_POLL_SECONDS = 0.1
_COMPILER = "jdk.compiler"
_JAVA_PROGRAM = Path(__file__).parents[1] / "clients" / "java" / "DepartingClients.java"


@dataclass(frozen=True)
class DepartingClient:
    """A consumer of `topic`, or of several with commas between; `commits` is who commits every `commit_seconds`."""

    group: str
    name: str
    bootstrap: str
    topic: str
    library: Library
    commits: str = "client"
    commit_seconds: float = 1.0
    session_ms: int = 10_000
    poll_ms: int = 300_000
    instance_id: str | None = None
    waits: bool = False
    pause_seconds: int = 8

    @property
    def is_java(self) -> bool:
        return self.library.startswith("java")

    def run(self, commands: queue.SimpleQueue[Command]) -> None:
        """Consume until told to close."""
        if self.waits:
            commands.get()
        consumer = _KafkaPython(self) if self.library == "kafka-python" else _Librdkafka(self)
        commit_at = time.monotonic() + self.commit_seconds
        while (command := _next(commands)) != "close":
            if command == "stall":
                threading.Event().wait()
            elif command == "pause":
                time.sleep(self.pause_seconds)
            consumer.poll()
            if self.commits == "application" and time.monotonic() >= commit_at:
                consumer.commit()
                commit_at += self.commit_seconds
        consumer.close()


def _next(commands: queue.SimpleQueue[Command]) -> Command | None:
    try:
        return commands.get_nowait()
    except queue.Empty:
        return None


class _KafkaPython:
    def __init__(self, client: DepartingClient) -> None:
        self._consumer = KafkaConsumer(
            *client.topic.split(","),
            bootstrap_servers=client.bootstrap.split(","),
            group_id=client.group,
            group_instance_id=client.instance_id,
            client_id=client.name,
            session_timeout_ms=client.session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=client.poll_ms,
            auto_offset_reset="earliest",
            enable_auto_commit=client.commits == "client",
            auto_commit_interval_ms=round(client.commit_seconds * 1000),
            metrics_enabled=False,
        )

    def poll(self) -> None:
        poll(self._consumer, round(_POLL_SECONDS * 1000))

    def commit(self) -> None:
        try:
            self._consumer.commit()
        except KafkaPythonError:
            return  # the group rebalances

    def close(self) -> None:
        self._consumer.close(timeout_ms=5_000)


class _Librdkafka:
    def __init__(self, client: DepartingClient) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": client.bootstrap,
            "group.id": client.group,
            "client.id": client.name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": client.commits == "client",
            "auto.commit.interval.ms": round(client.commit_seconds * 1000),
            "max.poll.interval.ms": client.poll_ms,
            "log_level": 2,
        }
        if client.instance_id is not None:
            settings["group.instance.id"] = client.instance_id
        if client.library == "kip-848":
            settings["group.protocol"] = "consumer"
        else:
            settings |= {
                "partition.assignment.strategy": "cooperative-sticky" if client.library == "cooperative" else "range",
                "session.timeout.ms": client.session_ms,
                "heartbeat.interval.ms": HEARTBEAT_MS,
            }
        self._consumer = Consumer(settings)
        self._consumer.subscribe(client.topic.split(","))

    def poll(self) -> None:
        self._consumer.consume(1000, timeout=_POLL_SECONDS)

    def commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException:
            return  # the group rebalances, or nothing was read since

    def close(self) -> None:
        self._consumer.close()


class Programs:
    """The commands that run consumers; those of Java need the compiler of a JDK."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._folder = TemporaryDirectory()

    @cached_property
    def java(self) -> list[str] | None:
        """The command with the client of a Kafka version; None where Java has no compiler."""
        java = str(find_java().command)
        modules = subprocess.run([java, "--list-modules"], check=True, capture_output=True, text=True).stdout
        if _COMPILER not in modules:
            return None
        jars = os.pathsep.join(map(str, fetch(self._version).glob("*.jar")))
        compiler = [java, "-m", f"{_COMPILER}/com.sun.tools.javac.Main"]
        subprocess.run([*compiler, "-d", self._folder.name, "-cp", jars, str(_JAVA_PROGRAM)], check=True)
        options = ["-Xmx192m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
        return [java, *options, "-cp", f"{self._folder.name}{os.pathsep}{jars}", _JAVA_PROGRAM.stem]

    @property
    def python(self) -> list[str]:
        """The command with the other clients."""
        return [sys.executable, "-m", "support.departing_clients"]


class DepartingProcesses:
    """Consumers that crash together: those of Java in one process, the others in another."""

    def __init__(self, programs: Programs, clients: Sequence[DepartingClient]) -> None:
        self._writing = threading.Lock()
        self._started = {
            is_java: _start(programs.java if is_java else programs.python, listed)
            for is_java in (False, True)
            if (listed := [client for client in clients if client.is_java == is_java])
        }

    def command(self, client: DepartingClient, command: Command) -> None:
        """Tell a consumer what to do next."""
        stdin = self._started[client.is_java].stdin
        assert stdin is not None
        with self._writing:
            stdin.write(f"{client.group}/{client.name} {command}\n")
            stdin.flush()

    def kill(self) -> None:
        """SIGKILL: all its consumers crash at the same moment."""
        for process in self._started.values():
            process.kill()
        for process in self._started.values():
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def _start(command: list[str] | None, clients: Sequence[DepartingClient]) -> subprocess.Popen[str]:
    assert command is not None
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=environ)
    assert process.stdin is not None
    process.stdin.write(json.dumps([asdict(client) for client in clients]) + "\n")
    process.stdin.flush()
    return process


def main(lines: Iterable[str]) -> None:
    """Run the consumers of the first line, and do with them what the others say."""
    given = iter(lines)
    running: dict[str, queue.SimpleQueue[Any]] = {}
    for values in json.loads(next(given)):
        client = DepartingClient(**values)
        commands = running[f"{client.group}/{client.name}"] = queue.SimpleQueue()
        threading.Thread(target=client.run, args=[commands], daemon=True).start()
    for line in given:
        name, command = line.split()
        running[name].put(command)


if __name__ == "__main__":
    main(sys.stdin)

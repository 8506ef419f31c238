"""Real consumers that commit and leave their groups in different ways: `python -m support.departing_clients`.

Each consumer of a process runs until a line on stdin ends it, `NAME close` or `NAME stall`, or SIGKILL ends the
process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaException
from kafka import KafkaConsumer
from kafka.errors import KafkaError as KafkaPythonError

from support.kafka_clients import poll

Library = Literal["kafka-python", "librdkafka", "cooperative", "kip-848"]
End = Literal["close", "stall"]
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class DepartingClient:
    """A consumer; `commits` is who commits every `commit_seconds`."""

    group: str
    name: str
    bootstrap: str
    topic: str
    library: Library
    commits: Literal["client", "application", "nobody"] = "client"
    commit_seconds: float = 1.0
    session_ms: int = 10_000
    poll_ms: int = 300_000

    def run(self, ended: threading.Event, how: list[End]) -> None:
        """Consume until `ended`, and end as `how` says."""
        consumer = _KafkaPython(self) if self.library == "kafka-python" else _Librdkafka(self)
        commit_at = time.monotonic() + self.commit_seconds
        while not ended.is_set():
            consumer.poll()
            if self.commits == "application" and time.monotonic() >= commit_at:
                consumer.commit()
                commit_at += self.commit_seconds
        if how == ["stall"]:
            threading.Event().wait()
        consumer.close()


class _KafkaPython:
    def __init__(self, client: DepartingClient) -> None:
        self._consumer = KafkaConsumer(
            client.topic,
            bootstrap_servers=client.bootstrap,
            group_id=client.group,
            client_id=client.name,
            session_timeout_ms=client.session_ms,
            heartbeat_interval_ms=client.session_ms // 10,
            max_poll_interval_ms=client.poll_ms,
            auto_offset_reset="earliest",
            enable_auto_commit=client.commits == "client",
            auto_commit_interval_ms=round(client.commit_seconds * 1000),
            metrics_enabled=False,
        )

    def poll(self) -> None:
        poll(self._consumer)

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
        if client.library == "kip-848":
            settings["group.protocol"] = "consumer"
        else:
            settings |= {
                "partition.assignment.strategy": "cooperative-sticky" if client.library == "cooperative" else "range",
                "session.timeout.ms": client.session_ms,
                "heartbeat.interval.ms": client.session_ms // 10,
            }
        self._consumer = Consumer(settings)
        self._consumer.subscribe([client.topic])

    def poll(self) -> None:
        self._consumer.consume(1000, timeout=_POLL_SECONDS)

    def commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException:
            return  # the group rebalances, or nothing was read since

    def close(self) -> None:
        self._consumer.close()


class DepartingProcess:
    """A process with consumers."""

    def __init__(self, clients: Sequence[DepartingClient]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.departing_clients"],
            stdin=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        self._stdin.write(json.dumps([asdict(client) for client in clients]) + "\n")
        self._stdin.flush()

    def end(self, client: DepartingClient, how: End) -> None:
        """End a consumer."""
        self._stdin.write(f"{client.group}/{client.name} {how}\n")
        self._stdin.flush()

    def kill(self) -> None:
        """SIGKILL: all its consumers crash at the same moment."""
        self._process.kill()
        self._process.wait()
        self._stdin.close()


def main(lines: Iterable[str]) -> None:
    """Run the consumers of the first line, and end them as the others say."""
    given = iter(lines)
    running: dict[str, tuple[threading.Event, list[Any]]] = {}
    for values in json.loads(next(given)):
        client = DepartingClient(**values)
        state = running[f"{client.group}/{client.name}"] = (threading.Event(), [])
        threading.Thread(target=client.run, args=state, daemon=True).start()
    for line in given:
        name, how = line.split()
        ended, hows = running[name]
        hows.append(how)
        ended.set()


if __name__ == "__main__":
    main(sys.stdin)

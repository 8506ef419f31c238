"""Real consumers that end in different ways, in processes of their own: `python -m support.ending_clients`.

A process gets its consumers as JSON on stdin, prints a line once all of them have committed, and closes them when it
gets SIGTERM, each after its `stays_seconds`. SIGKILL kills them all at the same moment.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from confluent_kafka import Consumer, KafkaException, Producer

COMMIT_EVERY_SECONDS = 1.0
READY = "ready"
_TRANSACTION_SECONDS = 10


@dataclass(frozen=True)
class EndingClient:
    """A consumer of one topic, named as its group.

    `poll_seconds`: its max.poll.interval.ms. One that `stalls` stops polling at SIGTERM, goes on committing until it
    is no longer a member, and dies then.
    """

    group: str
    bootstrap: str
    protocol: Literal["classic", "consumer"]
    is_transactional: bool
    session_seconds: float
    number: int = 0
    stays_seconds: float = 0
    stalls: bool = False
    poll_seconds: float = 300

    def consumer(self) -> Consumer:
        """Return the consumer, subscribed."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "client.id": f"{self.group}-{self.number}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "group.protocol": self.protocol,
            "max.poll.interval.ms": round(self.poll_seconds * 1000),
        }
        if self.protocol == "classic":
            session = round(self.session_seconds * 1000)
            settings |= {"session.timeout.ms": session, "heartbeat.interval.ms": session // 3}
        consumer = Consumer(settings)
        consumer.subscribe([self.group])
        return consumer

    def producer(self) -> Producer | None:
        """Return the producer of its transactions, if it commits in transactions."""
        if not self.is_transactional:
            return None
        name = f"{self.group}-{self.number}"
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": name})
        producer.init_transactions(_TRANSACTION_SECONDS)
        return producer


def run(client: EndingClient, committed: threading.Event, ended: threading.Event) -> None:
    """Consume and commit every second until the end, then close."""
    consumer, producer = client.consumer(), client.producer()
    commit_at = time.monotonic() + COMMIT_EVERY_SECONDS
    leave_at: float | None = None
    while leave_at is None or time.monotonic() < leave_at:
        if ended.is_set() and leave_at is None:
            leave_at = time.monotonic() + client.stays_seconds
            if client.stalls:
                _stall(consumer)
        consumer.consume(1000, timeout=0.2)
        if time.monotonic() >= commit_at:
            _commit(consumer, producer, committed)
            commit_at = time.monotonic() + COMMIT_EVERY_SECONDS
    _commit(consumer, producer, committed)
    consumer.close()


def _commit(consumer: Consumer, producer: Producer | None, committed: threading.Event) -> None:
    positions = [one for one in consumer.position(consumer.assignment()) if one.offset >= 0]
    if not positions:
        return
    try:
        if producer is None:
            consumer.commit(offsets=positions, asynchronous=False)
        else:
            producer.begin_transaction()
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), _TRANSACTION_SECONDS)
            producer.commit_transaction(_TRANSACTION_SECONDS)
        committed.set()
    except KafkaException:  # the group rebalances
        if producer is not None:
            producer.abort_transaction(_TRANSACTION_SECONDS)


def _stall(consumer: Consumer) -> None:
    """Commit one more record every half second without polling, as an application does whose batch takes too long."""
    positions = consumer.position(consumer.assignment())
    for one in positions:
        one.offset -= 1000
    while True:
        for one in positions:
            one.offset += 1
        try:
            consumer.commit(offsets=positions, asynchronous=False)
        except KafkaException:
            os._exit(1)
        time.sleep(0.5)


class ClientProcess:
    """A process with consumers; `await_ready` returns once all have committed."""

    def __init__(self, clients: Sequence[EndingClient]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.ending_clients"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([asdict(client) for client in clients]))
        self._process.stdin.close()

    def await_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == READY

    def end(self) -> None:
        """Let the consumers close, or stall."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    clients = [EndingClient(**values) for values in json.load(sys.stdin)]
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    threads = []
    for client in clients:
        committed = threading.Event()
        thread = threading.Thread(target=run, args=(client, committed, ended))
        thread.start()
        threads.append((thread, committed))
    for _, committed in threads:
        committed.wait()
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    while any(thread.is_alive() for thread, _ in threads):
        time.sleep(0.1)


if __name__ == "__main__":
    main()

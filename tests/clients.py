"""What the broker tests do to a Kafka through real clients, and how long they wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from demo.kafka import Broker

PATIENCE_SECONDS = 60


def await_that(is_so: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def producer(broker: Broker, **settings: str) -> Iterator[Producer]:
    """All that it was given has been written at its end."""
    producing = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0} | settings)
    yield producing
    assert producing.flush(PATIENCE_SECONDS) == 0

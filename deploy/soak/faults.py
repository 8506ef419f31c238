"""The faults that `make soak` injects."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from grouptrail.kafka.coordinator import coordinator_partition
from grouptrail.wire.records import Key, Value, encode_key, encode_value
from servers import processes
from servers.kafka import Broker
from servers.object_store import throttle
from servers.offsets_topic import TransactionEnd, hanging_transaction, load_raw
from servers.pipeline import Pipeline
from servers.proxy import GARBAGE, Proxy
from servers.small_disk import SmallDisk
from soak.tables import topic_bounds

PARTITIONS = 4
"""Of the offsets topic."""
CATCH_UP_SECONDS = 600.0
_PATIENCE_SECONDS = 180.0
_STALL_SECONDS = (5, 20)
_DOWN_SECONDS = (1, 10)
_GARBAGE_SECONDS = (5, 15)
_FULL_SECONDS = (5, 15)
_HANG_SECONDS = (5, 15)
_THROTTLE_SECONDS = (5, 20)
_SLOW_SECONDS = 5
_SLOW_CLIENTS = 1_100
_DESCRIPTORS = 1_024
_SCRAPE_SECONDS = 10  # Prometheus gives up after that
_MANY_COMMITS = 120_000
_HOUR_MS = 3_600_000

Fault = Callable[[], None]


def _commit(group: str, offset: int, at_ms: int) -> tuple[int, bytes, bytes]:
    """Return a commit in `orders` as its partition of the offsets topic, key and value."""
    key = Key(1, {"group": group, "topic": "orders", "partition": 0})
    commit = {"offset": offset, "leaderEpoch": -1, "metadata": "", "commitTimestamp": at_ms}
    value = encode_value(key, Value(3, commit))
    assert value is not None
    return coordinator_partition(group, PARTITIONS), encode_key(key), value


class FaultError(Exception):
    """The pipeline did not do during a fault what it must."""


def plan(first: Sequence[str], others: Sequence[str], count: int, chance: random.Random) -> list[str]:
    """Return the names of `count` faults in random order, each name once before one is repeated.

    In each round `first` come before `others`: they end the driver, and memory is measured of one that has run for a
    while.
    """

    def rounds() -> Iterator[str]:
        while True:
            yield from chance.sample(first, len(first))
            yield from chance.sample(others, len(others))

    return list(itertools.islice(rounds(), count))


class Faults:
    """Faults of a pipeline, its broker and what it writes to; `over` ends their waiting."""

    def __init__(
        self,
        broker: Broker,
        pipeline: Pipeline,
        chance: random.Random,
        over: threading.Event,
        say: Callable[[str], None],
    ) -> None:
        self._broker = broker
        self._pipeline = pipeline
        self._random = chance
        self._over = over
        self._say = say

    def local(self) -> tuple[dict[str, Fault], dict[str, Fault]]:
        """Return the faults that end the driver, and those that it should outlive."""
        fatal = {"kill -9 of the driver": self._pipeline.kill, "restart of the pipeline": self._pipeline.stop}
        others = {
            "broker that answers garbage": self._answer_garbage,
            "clock step of the coordinator": self._step_clock,
            "hanging transaction": self._hang_transaction,
            "kill -9 of a Python worker": self._kill_worker,
            "kill -9 of the broker": self._kill_broker,
            "network stall": self._stall,
            "restart of the broker": self._restart_broker,
            "slow HTTP clients": self._connect_slowly,
        }
        return fatal, others

    def _wait(self, between: tuple[float, float]) -> None:
        """Let a fault last."""
        self._over.wait(self._random.uniform(*between))

    def _kill_worker(self) -> None:
        """Write more commits than the driver decodes by itself, and kill a worker that they need."""
        load_raw(self._broker.bootstrap, [_commit("many", 0, round(time.time() * 1000))] * _MANY_COMMITS)
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while not (workers := processes.python_workers(self._pipeline.pid or 0)):
            if time.monotonic() > deadline:
                raise FaultError("no worker has been started")
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._random.choice(workers), signal.SIGKILL)

    def _kill_broker(self) -> None:
        self._broker.kill()
        self._wait(_DOWN_SECONDS)
        self._broker.start(120)

    def _restart_broker(self) -> None:
        self._broker.stop()
        self._broker.start(120)

    @property
    def _proxy(self) -> Proxy:
        assert self._broker.proxy is not None
        return self._broker.proxy

    def _stall(self) -> None:
        self._proxy.stall()
        self._wait(_STALL_SECONDS)
        self._proxy.resume()

    def _answer_garbage(self) -> None:
        kind = self._random.choice(sorted(GARBAGE))
        self._proxy.garble(GARBAGE[kind])
        self._wait(_GARBAGE_SECONDS)
        self._say(f"garbage ({kind}) on {self._proxy.answer()} connections")

    def _step_clock(self) -> None:
        """Load commits that a coordinator has written while its clock was wrong: ahead, then behind, then right."""
        group = f"stepped-{self._random.randrange(1 << 16)}"
        for offset, hours in enumerate((0.9, -2, 0)):
            at_ms = round(time.time() * 1000 + hours * _HOUR_MS)
            load_raw(self._broker.bootstrap, [_commit(group, offset, at_ms)], timestamp_ms=at_ms)

    def _hang_transaction(self) -> None:
        """Leave a transaction open; then it is aborted, committed, or aborted by the broker because of its age."""
        group = f"hanging-{self._random.randrange(1 << 16)}"
        at = coordinator_partition(group, PARTITIONS)
        ends: list[tuple[TransactionEnd, float]] = [("abort", 600), ("commit", 600), ("timeout", 15)]
        end, seconds = self._random.choice(ends)
        with hanging_transaction(self._broker.bootstrap, group, "orders", 0, seconds=seconds, end=end):
            hanging_to = topic_bounds(self._broker, self._pipeline.config)[at].log_end_offset
            self._wait(_HANG_SECONDS)
            if topic_bounds(self._broker, self._pipeline.config)[at].last_stable_offset >= hanging_to:
                raise FaultError("the transaction held nothing back")
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while topic_bounds(self._broker, self._pipeline.config)[at].last_stable_offset < hanging_to:
            if time.monotonic() > deadline:
                raise FaultError("the transaction did not end")
            time.sleep(1)
        self._say(f"transaction ended by {end}")

    def _connect_slowly(self) -> None:
        """Hold more connections to the metrics than the driver may have open files; scrapes must be answered."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._pipeline.metrics() and time.monotonic() < deadline:
            time.sleep(1)
        if (driver := self._pipeline.pid) is not None:
            hard = resource.prlimit(driver, resource.RLIMIT_NOFILE)[1]
            resource.prlimit(driver, resource.RLIMIT_NOFILE, (_DESCRIPTORS, hard))
        longest = 0.0
        with slow_clients(self._pipeline.config.exporter.listen, _SLOW_CLIENTS):
            until = time.monotonic() + _SLOW_SECONDS
            while time.monotonic() < until:
                asked = time.monotonic()
                if not self._pipeline.metrics():
                    raise FaultError("a scrape beside slow clients was not answered")
                longest = max(longest, time.monotonic() - asked)
        self._say(f"the slowest scrape beside {_SLOW_CLIENTS:,} slow clients took {longest:.1f} s")
        if longest > _SCRAPE_SECONDS:
            raise FaultError("Prometheus would have given up")

    def fill_disk(self, disk: SmallDisk) -> None:
        """Leave the warehouse without room for a while."""
        disk.fill()
        self._wait(_FULL_SECONDS)
        disk.free()

    def throttle_store(self, options: dict[str, str]) -> None:
        """Let the object store refuse half of the requests, or all."""
        share = self._random.choice([0.5, 1.0])
        before = throttle(options, share)
        self._wait(_THROTTLE_SECONDS)
        refused = throttle(options, 0) - before
        self._say(f"the store refused {refused} requests ({share:.0%})")
        if not refused:
            raise FaultError("nothing was throttled")


@contextlib.contextmanager
def slow_clients(listen: str, count: int) -> Iterator[None]:
    """Hold this many connections to `host:port`: half of them silent, the others in the middle of a request."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else hard, hard))
    host, _, port = listen.rpartition(":")
    with contextlib.ExitStack() as clients:
        for number in range(count):
            client = clients.enter_context(socket.create_connection((host, int(port)), timeout=_SCRAPE_SECONDS))
            if number % 2:
                with contextlib.suppress(OSError):  # the server may have closed it for others
                    client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        yield

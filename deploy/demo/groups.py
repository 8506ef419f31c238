"""What all groups of the demo share: the cluster, the ledger, the stop signal, and places for members."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient

from demo.ledger import Ledger, Offsets, Partition
from demo.members import BOOTSTRAP_MS, MemberSpec, Order, Serve, follow_member, start_member

if TYPE_CHECKING:
    from collections.abc import Iterator


Report = Callable[[str, str], None]

TOPICS = {"orders": 12, "payments": 6, "clicks": 8, "audit": 4, "invoices": 6}
COMPACTED = frozenset({"audit"})


class WorkloadError(RuntimeError):
    """An actor of the workload ended in a way it should not have."""


class Context:
    """What all actors share: the cluster, the ledger, the stop signal and the threads."""

    def __init__(self, bootstrap: str, prefix: str, seed: int, rate: int, report: Report) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.rate = rate
        self.ledger = Ledger()
        self.stopping = threading.Event()
        self.failed = threading.Event()
        self.failures: list[tuple[str, BaseException]] = []
        self.late_topic = threading.Event()
        self.statics: set[tuple[str, str]] = set()
        self.processes: set[subprocess.Popen[str]] = set()
        self._seed = seed
        self._report = report
        self._report_lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._threads_lock = threading.Lock()

    def name(self, base: str) -> str:
        return self.prefix + base

    def plain(self, name: str) -> str:
        return name.removeprefix(self.prefix)

    def random(self, actor: str) -> random.Random:
        return random.Random(f"{self._seed}-{actor}")

    def say(self, actor: str, line: str) -> None:
        with self._report_lock:
            self._report(actor, line)

    def pause(self, seconds: float) -> None:
        self.stopping.wait(max(seconds, 0.0))

    def fail(self, actor: str, error: BaseException) -> None:
        self.failures.append((actor, error))
        self.failed.set()

    def spawn(self, actor: str, act: Callable[[], object]) -> None:
        """Run `act` in a thread; what it raises is kept for `check`."""

        def run() -> None:
            try:
                act()
            except BaseException as error:
                self.fail(actor, error)
            finally:
                with self._threads_lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=f"workload-{actor}", daemon=True)
        with self._threads_lock:
            if self.stopping.is_set():
                return
            self._threads.add(thread)
            thread.start()

    def join(self, deadline: float) -> list[str]:
        """Wait for the threads; the names of those still running at the deadline."""
        with self._threads_lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return [thread.name for thread in threads if thread.is_alive()]

    @contextmanager
    def admin(self, patience_ms: int = BOOTSTRAP_MS) -> Iterator[Any]:
        client = KafkaAdminClient(
            bootstrap_servers=self.bootstrap,
            client_id=self.name("administrator"),
            bootstrap_timeout_ms=patience_ms,
            request_timeout_ms=patience_ms,
        )
        try:
            yield client
        finally:
            client.close()

    def create_topics(self, partitions: Mapping[str, int]) -> None:
        with self.admin() as admin:
            present = set(admin.list_topics())
            missing = {self.name(topic): _topic(topic, n) for topic, n in partitions.items()}
            missing = {name: spec for name, spec in missing.items() if name not in present}
            if missing:
                admin.create_topics(missing, wait_for_metadata=True)


class LocalChannel:
    """The channel of a member in this process."""

    def __init__(self, context: Context, spec: MemberSpec, label: str) -> None:
        self._context, self._spec, self._label = context, spec, label
        self._order = Order.WORK
        self.commits = 0

    def give(self, order: Order) -> None:
        self._order = order

    def order(self) -> Order:
        return Order.LEAVE if self._context.stopping.is_set() else self._order

    def committed(self, offsets: Offsets) -> None:
        self.commits += 1
        self._context.ledger.acknowledge(self._spec.group, offsets)

    def unsure(self, offsets: Offsets) -> None:
        self._context.ledger.doubt(self._spec.group, offsets)
        self.say("got no answer to a commit")

    def holds(self, generation: int | None, partitions: Sequence[Partition]) -> None:
        counts = Counter(self._context.plain(topic) for topic, _ in partitions)
        what = ", ".join(f"{count} of {topic}" for topic, count in sorted(counts.items())) or "nothing"
        self.say(f"holds {what}" + (f" (generation {generation})" if generation is not None else ""))

    def say(self, line: str) -> None:
        self._context.say(self._context.plain(self._spec.group), f"{self._label} {line}")

    def did(self, what: str, line: str) -> None:
        self._context.ledger.did(what)
        self.say(line)


class TimedChannel(LocalChannel):
    """Orders its member to leave after some seconds, once it has committed."""

    def __init__(self, context: Context, spec: MemberSpec, label: str, seconds: float) -> None:
        super().__init__(context, spec, label)
        self._enough = time.monotonic() + seconds
        self._at_last = self._enough + 30

    def order(self) -> Order:
        now = time.monotonic()
        if (now >= self._enough and self.commits) or now >= self._at_last:
            return Order.LEAVE
        return super().order()


def _topic(base: str, partitions: int) -> dict[str, Any]:
    configs = {"cleanup.policy": "compact"} if base in COMPACTED else {}
    return {"num_partitions": partitions, "replication_factor": 1, "configs": configs}


class Slot:
    """A member of a group whose client can be started, stopped and restarted."""

    def __init__(self, context: Context, spec: MemberSpec, number: int, serve: Serve, *, apart: bool = False) -> None:
        self._context, self._spec, self._number, self._serve, self._apart = context, spec, number, serve, apart
        self._channel: LocalChannel | None = None

    def take(self) -> None:
        channel = self._channel = LocalChannel(self._context, self._spec, f"member {self._number}")
        channel.did("started", "starts")
        run = self._work_apart if self._apart else self._work
        self._context.spawn(self._spec.client, lambda: run(channel))

    def leave(self) -> None:
        self._order(Order.LEAVE)

    def restart(self) -> None:
        self._order(Order.RESTART)

    def crash(self) -> None:
        if not self._apart:
            raise ValueError(f"{self._spec.client} shares this process, which would die with it")
        self._order(Order.CRASH)

    def _order(self, order: Order) -> None:
        if self._channel is not None:
            self._channel.give(order)

    def _work(self, channel: LocalChannel) -> None:
        while self._serve(self._spec, channel) is Order.RESTART:
            channel.give(Order.WORK)
            channel.did("restarted", "restarts under the same instance id")
        channel.did("left", "stopped; its instance id keeps the place" if self._spec.instance else "left")

    def _work_apart(self, channel: LocalChannel) -> None:
        process = start_member(self._spec)
        self._context.processes.add(process)
        try:
            last = follow_member(process, channel)
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            self._context.processes.discard(process)
        crashed = last is Order.CRASH
        if code != (-signal.SIGKILL if crashed else 0):
            raise WorkloadError(f"the process of {self._spec.client} ended with {code}")
        channel.did(*(("crashed", "crashed without a word") if crashed else ("left", "left")))

"""A workload of real Kafka clients: groups of every kind whose members join, leave, crash and return.

Every client is a real one (kafka-python, confluent-kafka), and the ledger keeps what the brokers acknowledged
to them, so that the topic `__consumer_offsets` can be compared with it.
"""

from __future__ import annotations

import argparse
import heapq
import logging
import signal
import threading
import time
import traceback
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any, Self

from kafka.admin import MemberToRemove
from kafka.errors import KafkaError as ClientError

from demo.groups import TOPICS, Context, Report, WorkloadError
from demo.ledger import Ledger
from demo.members import BOOTSTRAP_MS
from demo.scenarios import SCENARIOS, Step


class Workload:
    """All scenarios against one cluster.

    `prefix` goes before every topic, group and transactional id. `rate` is in records a second. `leave_out`
    names scenarios that a cluster cannot run (an old one: "insights", "notifications"). `report` is called
    from many threads, one call at a time, with names that lack the prefix.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        prefix: str = "",
        seed: int = 7,
        report: Report,
        rate: int = 40,
        leave_out: Collection[str] = (),
    ) -> None:
        unknown = set(leave_out) - set(SCENARIOS)
        if unknown:
            raise ValueError(f"no such scenarios: {', '.join(sorted(unknown))}")
        self._context = Context(bootstrap, prefix, seed, rate, report)
        self._names = [name for name in SCENARIOS if name not in leave_out]
        self._lock = threading.Lock()
        self._started = self._stopped = False

    @property
    def ledger(self) -> Ledger:
        return self._context.ledger

    def start(self) -> None:
        """Create the topics and set everything going; the topics exist when this returns."""
        with self._lock:
            if self._started:
                return
            self._context.create_topics(TOPICS)
            self._started = True
            steps = [step for name in self._names for step in SCENARIOS[name](self._context)]
            self._context.spawn("schedule", lambda: _run_steps(self._context, steps))

    def stop(self, deadline_seconds: float = 20) -> None:
        """Stop every client and wait until the groups are empty; kill what is left at the deadline."""
        deadline = time.monotonic() + deadline_seconds
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self._context.stopping.set()
            if not self._started:
                return
            if self._context.join(deadline):
                self._kill_the_rest()
            self._empty_the_groups(deadline)

    def check(self) -> None:
        """Raise if an actor ended with an exception, naming it."""
        if self._context.failures:
            actor, error = self._context.failures[0]
            names = ", ".join(sorted({name for name, _ in self._context.failures}))
            raise WorkloadError(f"{actor}: {error!r} (failed: {names})") from error

    def run_for(self, seconds: float) -> None:
        """Start, run for some seconds or until an actor fails, stop and check."""
        try:
            self.start()
            self._context.failed.wait(seconds)
        finally:
            self.stop()
        self.check()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if kind is None:
            self.check()

    def _kill_the_rest(self) -> None:
        for process in list(self._context.processes):
            process.kill()
        for name in self._context.join(time.monotonic() + 2):
            self._context.fail(name, WorkloadError("still running after the deadline"))

    def _empty_the_groups(self, deadline: float) -> None:
        """Static members keep their place when they stop, crashed ones until their session ends."""
        patience_ms = max(int((deadline - time.monotonic()) * 1000), 2_000)
        try:
            with self._context.admin(min(patience_ms, BOOTSTRAP_MS)) as admin:
                for group, instance in sorted(self._context.statics):
                    admin.remove_group_members(group, [MemberToRemove(group_instance_id=instance)])
                    self.ledger.did("removed")
                self._await_empty(admin, deadline)
        except ClientError as error:
            self._context.fail("stop", error)

    def _await_empty(self, admin: Any, deadline: float) -> None:
        ours, pause = self.ledger.groups(), threading.Event()
        while busy := [
            group["group_id"]
            for group in admin.list_groups()
            if group["group_id"] in ours and group["group_state"] not in ("Empty", "Dead")
        ]:
            if time.monotonic() > deadline:
                self._context.say("stop", f"groups that still have members: {', '.join(sorted(busy))}")
                return
            pause.wait(0.25)


def _run_steps(context: Context, steps: list[Step]) -> None:
    """Do each step at its time, and put the repeated ones back."""
    start = time.monotonic()
    heapq.heapify(steps)
    while steps:
        step = heapq.heappop(steps)
        context.pause(start + step.at - time.monotonic())
        if context.stopping.is_set():
            return
        step.act()
        if step.every:
            heapq.heappush(steps, replace(step, at=step.at + step.every))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo.workload", description="Run real Kafka clients of every kind."
    )
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--prefix", default="", help="goes before every topic and group")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rate", type=int, default=40, help="records written a second")
    parser.add_argument("--leave-out", nargs="*", default=[], choices=list(SCENARIOS), metavar="SCENARIO")
    return parser.parse_args(argv)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, _terminate)
    start = time.monotonic()

    def report(actor: str, line: str) -> None:
        print(f"{time.monotonic() - start:6.1f} s  {actor:<15} {line}", flush=True)

    workload = Workload(
        arguments.bootstrap,
        prefix=arguments.prefix,
        seed=arguments.seed,
        rate=arguments.rate,
        report=report,
        leave_out=arguments.leave_out,
    )
    try:
        workload.run_for(arguments.seconds)
    except KeyboardInterrupt:
        return 130
    except WorkloadError as error:
        traceback.print_exception(error)
        return 1
    print(_summary(workload.ledger))
    return 0


def _summary(ledger: Ledger) -> str:
    done = ", ".join(f"{count} {action}" for action, count in sorted(ledger.actions().items()))
    transactions = f"{ledger.transactions_committed} committed, {ledger.transactions_aborted} aborted"
    commits = sum(ledger.commit_counts().values())
    return f"{len(ledger.groups())} groups, {commits} offsets acknowledged; transactions: {transactions}; {done}"


if __name__ == "__main__":
    raise SystemExit(main())

"""`make fleet`: run healthy groups of every habit beside the pipeline, and count the samples in which an alert holds.

Idle, bursty, paused, rarely committing, exactly-once and restarting groups, and ones that work from time to time and
close; with the default thresholds. Groups that commit or work rarely are learned: alerts within their first cycles
are counted apart. Exits with 1 if any other sample has the status STOP, STALL or REWIND.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from deltalake import DeltaTable
from kafka.admin import KafkaAdminClient, NewTopic

from servers import processes
from servers.kafka import Broker
from servers.offsets_topic import ensure_offsets_topic
from servers.pipeline import GROUPTRAIL

PARTITIONS = 2
ALERTED = ("STOP", "STALL", "REWIND")
CYCLE_SECONDS = 480
"""How often rare groups commit or work: longer than lag.stop_seconds."""
LEARNED_AFTER_CYCLES = 4
_TRANSACTION_SECONDS = 30
_ENVIRON = {"GROUPTRAIL_EXPORTER__LISTEN": "", "GROUPTRAIL_LAG__GROUP_STOP_SECONDS": "known-*:1200"}


@dataclass(frozen=True)
class Habit:
    """A group, how its consumer works, and how many records a second its topic gets.

    `burst`: all at once, every so many seconds. `is_learned`: the verdict needs some cycles of its history.
    """

    group: str
    work: Callable[[Habit, str, threading.Event], None]
    records: float = 5
    burst: float = 1
    protocol: str = "classic"
    is_learned: bool = False

    def consumer(self, bootstrap: str, **settings: Any) -> Consumer:
        """Return a subscribed consumer."""
        common = {"bootstrap.servers": bootstrap, "group.id": self.group, "group.protocol": self.protocol}
        consumer = Consumer({**common, "auto.offset.reset": "earliest", **settings})
        consumer.subscribe([self.group])
        return consumer


def _steady(habit: Habit, bootstrap: str, ended: threading.Event) -> None:
    """Commit automatically, every five seconds by default."""
    with closing(habit.consumer(bootstrap)) as consumer:
        while not ended.is_set():
            consumer.consume(5_000, timeout=1)


def _exactly_once(habit: Habit, bootstrap: str, ended: threading.Event) -> None:
    """Commit in transactions alone."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": habit.group})
    producer.init_transactions(_TRANSACTION_SECONDS)
    with closing(habit.consumer(bootstrap, **{"enable.auto.commit": False})) as consumer:
        while not ended.is_set():
            if not consumer.consume(5_000, timeout=1):
                continue
            producer.begin_transaction()
            positions = consumer.position(consumer.assignment())
            try:
                members = consumer.consumer_group_metadata()
                producer.send_offsets_to_transaction(positions, members, _TRANSACTION_SECONDS)
                producer.commit_transaction(_TRANSACTION_SECONDS)
            except KafkaException:
                producer.abort_transaction(_TRANSACTION_SECONDS)


def _rare(habit: Habit, bootstrap: str, ended: threading.Event) -> None:
    """Read all the time, and commit once a cycle."""
    with closing(habit.consumer(bootstrap, **{"enable.auto.commit": False})) as consumer:
        commit_at = time.monotonic() + 10
        while not ended.is_set():
            consumer.consume(5_000, timeout=1)
            if time.monotonic() >= commit_at and consumer.assignment():
                consumer.commit(offsets=consumer.position(consumer.assignment()), asynchronous=False)
                commit_at += CYCLE_SECONDS


def _paused(habit: Habit, bootstrap: str, ended: threading.Event) -> None:
    """Stop reading for half of each cycle, while automatic commits go on."""
    with closing(habit.consumer(bootstrap)) as consumer:
        while not ended.is_set():
            is_paused = time.monotonic() % CYCLE_SECONDS < CYCLE_SECONDS / 2
            (consumer.pause if is_paused else consumer.resume)(consumer.assignment())
            consumer.consume(5_000, timeout=1)


def _now_and_then(
    habit: Habit, bootstrap: str, ended: threading.Event, *, works_seconds: float, pauses_seconds: float
) -> None:
    """Work for some time, close, and start again after a pause."""
    while not ended.is_set():
        with closing(habit.consumer(bootstrap)) as consumer:
            done_at = time.monotonic() + works_seconds
            while not ended.is_set() and time.monotonic() < done_at:
                consumer.consume(5_000, timeout=1)
        ended.wait(pauses_seconds)


_nightly = partial(_now_and_then, works_seconds=60, pauses_seconds=CYCLE_SECONDS - 60)
_deployed = partial(_now_and_then, works_seconds=120, pauses_seconds=0)

HABITS: tuple[Habit, ...] = (
    Habit("steady", _steady),
    Habit("steady-kip848", _steady, protocol="consumer"),
    Habit("exactly-once", _exactly_once),
    Habit("exactly-once-kip848", _exactly_once, protocol="consumer"),
    Habit("idle", _steady, records=1, burst=100_000),
    Habit("bursty", _steady, records=2_000, burst=420),
    Habit("paused", _paused),
    Habit("deployed", _deployed),
    Habit("deployed-kip848", _deployed, protocol="consumer"),
    Habit("known-rare", _rare),
    Habit("rare", _rare, is_learned=True),
    Habit("rare-kip848", _rare, protocol="consumer", is_learned=True),
    Habit("nightly", _nightly),
    Habit("nightly-kip848", _nightly, protocol="consumer", is_learned=True),
)


def run_fleet(folder: Path, seconds: float) -> list[dict[str, Any]]:
    """Run the broker, the pipeline and the groups; return the rows of `consumer_lag`."""
    with Broker(folder / "kafka") as broker:
        ensure_offsets_topic(broker.bootstrap)
        with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
            admin.create_topics([NewTopic(one.group, PARTITIONS, 1) for one in HABITS], timeout_ms=60_000)
        ended = threading.Event()
        threads = [threading.Thread(target=one.work, args=(one, broker.bootstrap, ended)) for one in HABITS]
        threads.append(threading.Thread(target=_produce, args=(broker.bootstrap, ended)))
        flags = ["--bootstrap-server", broker.bootstrap, "--warehouse", str(folder / "tables"), "--cluster", "fleet"]
        with (folder / "run.log").open("wb") as log:
            pipeline = processes.launch(
                [str(GROUPTRAIL), "run", *flags], environ=os.environ | _ENVIRON, stdout=log, stderr=log
            )
        try:
            for thread in threads:
                thread.start()
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                print(f"{datetime.now(UTC):%H:%M:%S} {left:.0f} s to go", flush=True)
                time.sleep(min(left, 60))
        finally:
            processes.kill(pipeline)
            ended.set()
            for thread in threads:
                thread.join()
    rows: list[dict[str, Any]] = DeltaTable(folder / "tables/consumer_lag").to_pyarrow_table().to_pylist()
    return rows


def _produce(bootstrap: str, ended: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    due = dict.fromkeys(HABITS, time.monotonic())
    while not ended.wait(0.5):
        for habit, at in due.items():
            if time.monotonic() < at:
                continue
            due[habit] = at + habit.burst
            for number in range(round(max(habit.records, 1))):
                producer.produce(habit.group, b"x", partition=number % PARTITIONS)
            producer.flush()


def verdicts(rows: Sequence[dict[str, Any]]) -> tuple[list[str], int]:
    """Return a table of the samples by group and status, and the number of those that should have no alert."""
    first = min(row["sampled_at"] for row in rows)
    by_group: dict[str, Counter[str]] = defaultdict(Counter)
    alerted, learning = Counter[str](), Counter[str]()
    habits = {one.group: one for one in HABITS}
    for row in rows:
        by_group[row["group_id"]][row["status"]] += 1
        if row["status"] in ALERTED:
            age = (row["sampled_at"] - first).total_seconds()
            is_new = habits[row["group_id"]].is_learned and age < LEARNED_AFTER_CYCLES * CYCLE_SECONDS
            (learning if is_new else alerted)[row["group_id"]] += 1
    lines = ["| group | samples by status | with an alert | while it was learned |", "| --- | --- | --- | --- |"]
    for group, counts in sorted(by_group.items()):
        shown = ", ".join(f"{status} {count}" for status, count in counts.most_common())
        lines.append(f"| {group} | {shown} | {alerted[group]} | {learning[group]} |")
    return lines, sum(alerted.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fleet and print the table."""
    parser = argparse.ArgumentParser(prog="make fleet", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3_600)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="grouptrail-fleet-") as folder:
        lines, alerts = verdicts(run_fleet(Path(folder), options.seconds))
    print(*lines, sep="\n")
    return 1 if alerts else 0


if __name__ == "__main__":
    sys.exit(main())

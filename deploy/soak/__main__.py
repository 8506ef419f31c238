"""`make soak`: run active groups and all jobs with random faults for a given time.

First with tables in a local folder and every kind of fault, then with tables in an S3 store that throttles its
clients. At the end of each part every record of the topic must be in the tables once, as Kafka's own formatters print
it, `grouptrail check` must find nothing, and neither memory nor live files may have grown. The seed decides which
fault comes when; what happens at that moment depends on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from bench.measure import resident
from grouptrail import contracts
from grouptrail.config import Config, without_settings
from grouptrail.decode.rows import encode_row
from grouptrail.decode.schema import TABLES
from grouptrail.kafka.coordinator import coordinator_partition
from grouptrail.kafka.errors import ClusterError
from grouptrail.kafka.log import LogBounds
from grouptrail.kafka.offsets_topic import OffsetsTopic
from grouptrail.query.errors import QueryError
from grouptrail.wire.records import Key, Value, encode_key, encode_value
from servers import processes
from servers.kafka import (
    GROUP_METADATA_FORMATTER,
    OFFSETS_FORMATTER,
    Broker,
    TransactionEnd,
    ensure_offsets_topic,
    hanging_transaction,
    load_raw,
    read_records,
)
from servers.object_store import BUCKET, object_store, throttle
from servers.pipeline import GROUPTRAIL, Ingest, IngestError, query
from servers.proxy import GARBAGE, Proxy
from servers.small_disk import SmallDisk, in_mount_namespace

# One fault in this many seconds: thirty in the 1,200 seconds of a run. Faults from which the pipeline recovers later
# delay the next ones, so that such a run takes longer and has the same faults.
_EVERY_SECONDS = 40.0
# One fault in ten is the object store's: each of the others has a pipeline on a local disk.
_STORE_SHARE = 10
_PARTITIONS = 4
_EPISODE_SECONDS = 90
_CATCH_UP_SECONDS = 600.0
_BETWEEN_FAULTS_SECONDS = (1, 5)
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
_DISK_BYTES = 4 << 30
_HOUR_MS = 3_600_000
_MAINTAIN_EVERY_SECONDS = 240
_SAMPLE_EVERY_SECONDS = 5
_WARM_UP_SECONDS = 180
_MOST_GROWTH = 1.25
_FEW_FILES = 100
_FEW_RECORDS = 1_000

_CONFIG = """
[log_offsets]
interval_seconds = 3
"""

Fault = Callable[[], None]


def _commit(group: str, offset: int, at_ms: int) -> tuple[int, bytes, bytes]:
    """Return a commit in `orders` as its partition of the offsets topic, key and value."""
    key = Key(1, {"group": group, "topic": "orders", "partition": 0})
    commit = {"offset": offset, "leaderEpoch": -1, "metadata": "", "commitTimestamp": at_ms}
    value = encode_value(key, Value(3, commit))
    assert value is not None
    return coordinator_partition(group, _PARTITIONS), encode_key(key), value


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


class Soak:
    """A workload and the pipeline on a broker behind a proxy, with injected faults and a supervisor."""

    def __init__(self, broker: Broker, ingest: Ingest, folder: Path, started: float, chance: random.Random) -> None:
        self._broker = broker
        self._ingest = ingest
        self._folder = folder
        self._started = started
        self._random = chance
        self._over = threading.Event()
        self._restarts = 0
        self.planned: list[str] = []
        self.memory: list[int] = []
        self.files: list[int] = []
        self.tried: Counter[str] = Counter()
        self.survived: Counter[str] = Counter()

    def run(self, faults: Mapping[str, Fault], planned: Sequence[str]) -> list[str]:
        """Inject the planned faults, one after the other, and return the problems found at the end."""
        self.planned += planned
        self._ingest.start()
        try:
            with contextlib.ExitStack() as threads:
                for work in (self._play, self._tend, self._sample, self._maintain):
                    threads.enter_context(self._beside(work))
                self._begun()
                self._harm([(name, faults[name]) for name in planned])
            return self._judge()
        finally:
            self._ingest.kill()

    def local_faults(self) -> tuple[dict[str, Fault], dict[str, Fault]]:
        """Return the faults that end the driver, and those that it should outlive."""
        fatal = {"kill -9 of the driver": self._ingest.kill, "restart of the pipeline": self._ingest.stop}
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

    def _begun(self) -> None:
        """Wait until the groups exist and the pipeline has landed some of their records."""
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        while not any(self._landed().values()) and time.monotonic() < deadline:
            time.sleep(1)
        self.say("the pipeline has landed the first records")

    def _harm(self, faults: Sequence[tuple[str, Fault]]) -> None:
        began = time.monotonic()
        for number, (name, inject) in enumerate(faults):
            self._over.wait(max(0.0, began + number * _EVERY_SECONDS - time.monotonic()))
            self.say(name)
            self.tried[name] += 1
            try:
                inject()
            except FaultError as error:
                self.say(f"NOT SURVIVED: {error}")
                continue
            injected = time.monotonic()
            if self._caught_up():
                self.survived[name] += 1
                self.say(f"recovered in {time.monotonic() - injected:.0f} s")
            self._over.wait(self._random.uniform(*_BETWEEN_FAULTS_SECONDS))

    def wait(self, between: tuple[float, float]) -> None:
        """Let a fault last."""
        self._over.wait(self._random.uniform(*between))

    def _kill_worker(self) -> None:
        """Write more commits than the driver decodes by itself, and kill a worker that they need."""
        load_raw(self._broker.bootstrap, [_commit("many", 0, round(time.time() * 1000))] * _MANY_COMMITS)
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        while not (workers := processes.python_workers(self._ingest.pid or 0)):
            if time.monotonic() > deadline:
                raise FaultError("no worker has been started")
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._random.choice(workers), signal.SIGKILL)

    def _kill_broker(self) -> None:
        self._broker.kill()
        self.wait(_DOWN_SECONDS)
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
        self.wait(_STALL_SECONDS)
        self._proxy.resume()

    def _answer_garbage(self) -> None:
        kind = self._random.choice(sorted(GARBAGE))
        self._proxy.garble(GARBAGE[kind])
        self.wait(_GARBAGE_SECONDS)
        self.say(f"garbage ({kind}) on {self._proxy.answer()} connections")

    def _step_clock(self) -> None:
        """Load commits that a coordinator has written while its clock was wrong: ahead, then behind, then right."""
        group = f"stepped-{self._random.randrange(1 << 16)}"
        for offset, hours in enumerate((0.9, -2, 0)):
            at_ms = round(time.time() * 1000 + hours * _HOUR_MS)
            load_raw(self._broker.bootstrap, [_commit(group, offset, at_ms)], timestamp_ms=at_ms)

    def _hang_transaction(self) -> None:
        """Leave a transaction open; then it is aborted, committed, or aborted by the broker because of its age."""
        group = f"hanging-{self._random.randrange(1 << 16)}"
        at = coordinator_partition(group, _PARTITIONS)
        ends: list[tuple[TransactionEnd, float]] = [("abort", 600), ("commit", 600), ("timeout", 15)]
        end, seconds = self._random.choice(ends)
        with hanging_transaction(self._broker.bootstrap, group, "orders", 0, seconds=seconds, end=end):
            hanging_to = self._bounds()[at].log_end_offset
            self.wait(_HANG_SECONDS)
            if self._bounds()[at].last_stable_offset >= hanging_to:
                raise FaultError("the transaction held nothing back")
        deadline = time.monotonic() + 2 * _EPISODE_SECONDS
        while self._bounds()[at].last_stable_offset < hanging_to:
            if time.monotonic() > deadline:
                raise FaultError("the transaction did not end")
            time.sleep(1)
        self.say(f"transaction ended by {end}")

    def _connect_slowly(self) -> None:
        """Hold more connections to the metrics than the driver may have open files; scrapes must be answered."""
        deadline = time.monotonic() + 2 * _EPISODE_SECONDS
        while not self._ingest.metrics() and time.monotonic() < deadline:
            time.sleep(1)
        if (driver := self._ingest.pid) is not None:
            hard = resource.prlimit(driver, resource.RLIMIT_NOFILE)[1]
            resource.prlimit(driver, resource.RLIMIT_NOFILE, (_DESCRIPTORS, hard))
        longest = 0.0
        with slow_clients(self._ingest.config.exporter.listen, _SLOW_CLIENTS):
            until = time.monotonic() + _SLOW_SECONDS
            while time.monotonic() < until:
                asked = time.monotonic()
                if not self._ingest.metrics():
                    raise FaultError("a scrape beside slow clients was not answered")
                longest = max(longest, time.monotonic() - asked)
        self.say(f"the slowest scrape beside {_SLOW_CLIENTS:,} slow clients took {longest:.1f} s")
        if longest > _SCRAPE_SECONDS:
            raise FaultError("Prometheus would have given up")

    def fill_disk(self, disk: SmallDisk) -> None:
        """Leave the warehouse without room for a while."""
        disk.fill()
        self.wait(_FULL_SECONDS)
        disk.free()

    def throttle_store(self, options: dict[str, str]) -> None:
        """Let the object store refuse half of the requests, or all."""
        share = self._random.choice([0.5, 1.0])
        before = throttle(options, share)
        self.wait(_THROTTLE_SECONDS)
        refused = throttle(options, 0) - before
        self.say(f"the store refused {refused} requests ({share:.0%})")
        if not refused:
            raise FaultError("nothing was throttled")

    def _caught_up(self) -> bool:
        """Return whether everything readable lands in time; at the end the pipeline is not restarted."""
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        wanted = {at: log.last_stable_offset for at, log in self._bounds().items()}
        while any(self._landed().get(at, 0) < end for at, end in wanted.items()):
            if self._over.is_set():
                self._ingest.check()
            if time.monotonic() > deadline:
                self.say(f"not caught up within {_CATCH_UP_SECONDS:.0f} s")
                return False
            time.sleep(0.5)
        return True

    def _bounds(self) -> dict[int, LogBounds]:
        """Return the bounds of the topic's partitions, asked without the proxy."""
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        direct = self._ingest.config.model_copy(update={"kafka": {"bootstrap.servers": self._broker.bootstrap}})
        while True:
            try:
                with OffsetsTopic(direct.kafka_settings()) as topic:
                    return topic.bounds()
            except ClusterError:  # its partitions have no leader yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)

    def _landed(self) -> dict[int, int]:
        text = "SELECT record_partition, max(end_offset) AS landed FROM ingest_progress GROUP BY record_partition"
        try:
            return {row["record_partition"]: row["landed"] for row in query(self._ingest.config, text)}
        except QueryError:
            return {}  # the pipeline has not made its tables yet, or their store is throttled

    @contextlib.contextmanager
    def _beside(self, work: Callable[[], None]) -> Iterator[None]:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(120)

    def _play(self) -> None:
        """Run the workload in a separate process and restart it: a broker that is killed may end its clients."""
        while not self._over.is_set():
            command = [sys.executable, "-m", "demo.workload", "--bootstrap", self._broker.bootstrap]
            command += ["--seconds", str(_EPISODE_SECONDS), "--seed", str(self._random.randrange(1 << 16))]
            with (self._folder / "workload.log").open("ab") as log:
                environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
                playing = processes.launch(command, stdout=log, stderr=log, environ=environ)
            deadline = time.monotonic() + 2 * _EPISODE_SECONDS
            while playing.poll() is None and time.monotonic() < deadline and not self._over.wait(0.5):
                pass
            processes.kill(playing)

    def _tend(self) -> None:
        """Restart the pipeline when it has ended, as systemd would."""
        while not self._over.wait(1):
            try:
                self._ingest.check()
            except IngestError as ended:
                self._restarts += 1
                kept = self._ingest.log_file.rename(self._folder / f"pipeline-{self._restarts}.log")
                self.say(f"{str(ended).partition(' (full log')[0]} ({kept})")
                self._ingest.start()

    def _sample(self) -> None:
        """Record the memory of drivers after a warm-up, during which Java's heap grows.

        Not while there are Python workers: those of a batch of many commits stay for a minute or two.
        """
        driver, since = None, 0.0
        while not self._over.wait(_SAMPLE_EVERY_SECONDS):
            before, driver = driver, self._ingest.pid
            if driver != before:
                since = time.monotonic()
            elif driver and time.monotonic() - since > _WARM_UP_SECONDS and not processes.python_workers(driver):
                self.memory.append(resident(driver) >> 20)

    def _maintain(self) -> None:
        while not self._over.wait(_MAINTAIN_EVERY_SECONDS):
            done = self._command("maintain")
            self.files.append(live_files(self._ingest.config))
            error = f": {_last_line(done)}" if done.returncode else ""
            self.say(f"maintain ended with {done.returncode}{error}; {self.files[-1]} live files")

    def _command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(GROUPTRAIL), *arguments, "--config", str(self._ingest.config_file)]
        return subprocess.run(
            command,
            env=without_settings(os.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )

    def _judge(self) -> list[str]:
        self.say("the workload and the faults have ended")
        wrong = []
        try:
            if not self._caught_up():
                wrong.append("the pipeline did not catch up at the end")
        except IngestError as ended:
            wrong.append(str(ended))
        self._ingest.stop()
        readable = self._bounds()
        once = self._command("run", "--once")
        if once.returncode:
            wrong.append(f"run --once ended with {once.returncode}: {_last_line(once)}")
        landed = self._landed()
        wrong += [
            f"run --once landed {landed.get(at, 0)} of {log.last_stable_offset} offsets of partition {at}"
            for at, log in readable.items()
            if landed.get(at, 0) < log.last_stable_offset
        ]
        wrong += compare(self._broker, self._ingest.config, landed)
        checked = self._command("check")
        if checked.returncode:
            wrong.append(f"grouptrail check: {_last_line(checked)}")
        if self.survived != Counter(self.planned):
            wrong.append("not every fault was survived")
        return wrong + self._growth()

    def _growth(self) -> list[str]:
        """Print memory by thirds of the run, and live files; return which of them grew."""
        wrong = []
        thirds = [round(statistics.median(third)) for third in _thirds(self.memory)]
        print(f"memory of drivers at work for {_WARM_UP_SECONDS} s, MiB, median of each third: {_listed(thirds)}")
        print(f"live files after each maintain: {_listed(self.files)}")
        if thirds and thirds[-1] > _MOST_GROWTH * thirds[0]:
            wrong.append("memory grew")
        if self.files and self.files[-1] > _MOST_GROWTH * self.files[0] + _FEW_FILES:
            wrong.append("live files grew")
        return wrong

    def print_faults(self) -> None:
        """Print the faults by kind."""
        for name in sorted(self.tried):
            print(f"{name}: {self.survived[name]} of {self.tried[name]} survived")
        print(f"the pipeline was restarted {self._restarts} times")

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self._started:7.1f} s  {line}", flush=True)


def compare(broker: Broker, config: Config, ends: Mapping[int, int]) -> list[str]:
    """Return differences of the tables from the topic, byte for byte, and from the output of Kafka's formatters.

    Of the topic the records before `ends` are compared: its coordinators still write when they miss members of the
    workload that has ended.
    """
    wrong = []
    landed: Counter[tuple[int, int]] = Counter()
    encoded = {}
    for table in TABLES:
        for row in _open(config, table).to_pyarrow_table().to_pylist():
            where = row["record_partition"], row["record_offset"]
            landed[where] += 1
            encoded[where] = encode_row(table, row)
    topic = {
        (record.partition, record.offset): (record.key, record.value)
        for record in read_records(broker.bootstrap)
        if record.offset < ends.get(record.partition, 0)
    }
    print(f"{len(topic):,} records in the topic, {landed.total():,} in the tables")
    if len(topic) < _FEW_RECORDS:
        wrong.append("the workload has written almost no records")
    for what, found in (
        ("missing", topic.keys() - encoded.keys()),
        ("not in the topic", encoded.keys() - topic.keys()),
        ("twice", {where for where, count in landed.items() if count > 1}),
        ("of other bytes", {where for where in topic.keys() & encoded.keys() if topic[where] != encoded[where]}),
    ):
        if found:
            wrong.append(f"{len(found):,} records {what}, such as {sorted(found)[0]}")
    text = "SELECT record_partition, record_offset, {} FROM {}"
    commits = query(config, text.format("group_id, topic, partition, committed_offset", "offset_commits"))
    rows = {(row["record_partition"], row["record_offset"]): row for row in commits}
    lines = _formatted(broker, OFFSETS_FORMATTER, ends)
    for line in lines:
        row, key, value = rows[line["partition"], line["offset"]], line["key"]["data"], line["value"]
        ours = (row["group_id"], row["topic"], row["partition"], row["committed_offset"])
        if ours != (key["group"], key["topic"], key["partition"], value and value["data"]["offset"]):
            wrong.append(f"OffsetsMessageFormatter prints {line}, the table has {ours}")
            break
    groups = len(_formatted(broker, GROUP_METADATA_FORMATTER, ends))
    metadata = len(query(config, text.format("group_id", "group_metadata")))
    print(f"Kafka's formatters print {len(lines):,} commits and {groups:,} group records")
    if (len(lines), groups) != (len(rows), metadata):
        wrong.append(f"the tables have {len(rows):,} commits and {metadata:,} group records")
    return wrong


def _formatted(broker: Broker, formatter: str, ends: Mapping[int, int]) -> list[dict[str, Any]]:
    return [line for line in broker.formatted(formatter) if line["offset"] < ends.get(line["partition"], 0)]


def live_files(config: Config) -> int:
    """Return the number of files in the newest version of every table; deleted files stay on disk for seven days."""
    there = [name for name in contracts.tables() if DeltaTable.is_deltatable(config.table_path(name))]
    return sum(len(_open(config, name).file_uris()) for name in there)


def _open(config: Config, table: str) -> DeltaTable:
    return DeltaTable(config.table_path(table), storage_options=config.storage_options())


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stdout.splitlines() or ["it printed nothing"])[-1]


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


def _thirds(figures: list[int]) -> list[list[int]]:
    """Split the figures into thirds; empty if there are too few."""
    size = len(figures) // 3
    return [figures[part * size : (part + 1) * size] for part in range(3)] if size else []


def _listed(figures: list[int]) -> str:
    return ", ".join(f"{figure:,}" for figure in figures) or "too few"


class Parts:
    """The two parts of a run on one broker: with tables in a local folder, and in an object store."""

    def __init__(self, broker: Broker, folder: Path, seed: int) -> None:
        self._broker = broker
        self._folder = folder
        self._started = time.monotonic()
        self._random = random.Random(seed)
        self.soaks: list[Soak] = []

    def local(self, count: int, *, has_disk: bool) -> list[str]:
        """Try faults of all kinds; return the problems found."""
        folder = self._folder / "local"
        folder.mkdir()
        ingest = Ingest(folder, self._broker.proxied_bootstrap, lambda _line: None, settings=_CONFIG)
        soak = self._soak(ingest, folder)
        fatal, others = soak.local_faults()
        with contextlib.ExitStack() as mounted:
            if has_disk:
                disk = mounted.enter_context(SmallDisk(folder / "warehouse", _DISK_BYTES))
                others["full disk"] = lambda: soak.fill_disk(disk)
            else:
                print("not tried: a full disk, because this user may not mount a file system")
            return soak.run(fatal | others, plan(sorted(fatal), sorted(others), count, self._random))

    def on_object_store(self, count: int) -> list[str]:
        """Throttle the store of a second pipeline; return the problems found."""
        folder = self._folder / "store"
        folder.mkdir()
        with object_store(folder) as options:
            settings = _CONFIG + "\n[storage]\n" + "".join(f'{key} = "{text}"\n' for key, text in options.items())
            warehouse = f"s3a://{BUCKET}/grouptrail"
            bootstrap = self._broker.proxied_bootstrap
            ingest = Ingest(folder, bootstrap, lambda _line: None, warehouse=warehouse, settings=settings)
            soak = self._soak(ingest, folder)
            name = "throttling object store"
            return soak.run({name: lambda: soak.throttle_store(options)}, [name] * count)

    def _soak(self, ingest: Ingest, folder: Path) -> Soak:
        self.soaks.append(Soak(self._broker, ingest, folder, self._started, self._random))
        return self.soaks[-1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=8)
    arguments = parser.parse_args()
    has_disk = in_mount_namespace([sys.executable, "-m", "soak", *sys.argv[1:]])
    count = max(2, round(arguments.seconds / _EVERY_SECONDS))
    on_store = max(1, count // _STORE_SHARE)
    print(f"soaking for {arguments.seconds:.0f} s, {count} faults, seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        properties = {"offsets.topic.num.partitions": str(_PARTITIONS)}
        with Broker(folder / "kafka", properties=properties, proxied=True) as broker:
            ensure_offsets_topic(broker.bootstrap)
            parts = Parts(broker, folder, arguments.seed)
            try:
                wrong = parts.local(count - on_store, has_disk=has_disk) + parts.on_object_store(on_store)
            finally:
                for soak in parts.soaks:
                    soak.print_faults()
                tried = sum((soak.tried for soak in parts.soaks), Counter())
                survived = sum((soak.survived for soak in parts.soaks), Counter())
                print(f"faults: {survived.total()} survived / {tried.total()} tried")
    for line in wrong:
        print(f"WRONG: {line}")
    print("no losses, no duplicates, no growth" if not wrong else f"{len(wrong)} checks failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

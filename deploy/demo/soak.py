"""`make soak`: run active groups and all jobs with random faults for a given time.

At the end every record of the topic must be in the tables once, as Kafka's own formatters print it, `grouptrail
check` must find nothing, and neither memory nor live files may have grown. The seed decides which fault comes when;
what happens at that moment depends on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from deltalake import DeltaTable

from demo import processes
from demo.ingest import GROUPTRAIL, Ingest, IngestError, query
from demo.kafka import GROUP_METADATA_FORMATTER, OFFSETS_FORMATTER, Broker, ensure_offsets_topic, read_records
from demo.measure import resident
from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.decode.rows import encode_row
from grouptrail.decode.schema import TABLES
from grouptrail.kafka.errors import ClusterError
from grouptrail.kafka.offsets_topic import OffsetsTopic
from grouptrail.query.errors import QueryError

_EPISODE_SECONDS = 90
_CATCH_UP_SECONDS = 600.0
_BETWEEN_FAULTS_SECONDS = (5, 20)
_STALL_SECONDS = (5, 20)
_DOWN_SECONDS = (1, 10)
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


class Soak:
    """A broker behind a proxy, a workload and the pipeline, with injected faults and a supervisor."""

    def __init__(self, folder: Path, seconds: float, seed: int) -> None:
        self._seconds = seconds
        self._random = random.Random(seed)
        self._started = time.monotonic()
        self._broker = Broker(folder / "kafka", properties={"offsets.topic.num.partitions": "4"}, proxied=True)
        self._folder = folder
        self._over = threading.Event()
        self._restarts = 0
        self.memory: list[int] = []
        self.files: list[int] = []
        self.tried: Counter[str] = Counter()
        self.survived: Counter[str] = Counter()

    def run(self) -> list[str]:
        """Run for the given time and return the problems found at the end."""
        with self._broker:
            ensure_offsets_topic(self._broker.bootstrap)
            self._ingest = Ingest(self._folder, self._broker.proxied_bootstrap, lambda _line: None)
            with self._ingest.config_file.open("a") as settings:
                settings.write(_CONFIG)
            self._ingest.start()
            with contextlib.ExitStack() as threads:
                for work in (self._play, self._tend, self._sample, self._maintain):
                    threads.enter_context(self._beside(work))
                self._begun()
                self._harm()
            return self._judge()

    def _begun(self) -> None:
        """Wait until the groups exist and the pipeline has landed some of their records."""
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        while not any(self._landed().values()) and time.monotonic() < deadline:
            time.sleep(1)

    def _harm(self) -> None:
        faults: dict[str, Callable[[], None]] = {
            "kill -9 of the driver": self._kill_driver,
            "kill -9 of a Python worker": self._kill_worker,
            "kill -9 of the broker": self._kill_broker,
            "restart of the broker": self._restart_broker,
            "restart of the pipeline": self._restart_pipeline,
            "network stall": self._stall,
        }
        while time.monotonic() - self._started < self._seconds:
            name = self._random.choice(list(faults))
            self._say(name)
            faults[name]()
            self.tried[name] += 1
            if self._caught_up():
                self.survived[name] += 1
            self._over.wait(self._random.uniform(*_BETWEEN_FAULTS_SECONDS))

    def _kill_driver(self) -> None:
        self._ingest.kill()

    def _kill_worker(self) -> None:
        driver = self._ingest.pid
        if driver is not None and (workers := processes.python_workers(driver)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(workers), signal.SIGKILL)

    def _kill_broker(self) -> None:
        self._broker.kill()
        self._over.wait(self._random.uniform(*_DOWN_SECONDS))
        self._broker.start(120)

    def _restart_broker(self) -> None:
        self._broker.stop()
        self._broker.start(120)

    def _restart_pipeline(self) -> None:
        self._ingest.stop()

    def _stall(self) -> None:
        assert self._broker.proxy is not None
        self._broker.proxy.stall()
        self._over.wait(self._random.uniform(*_STALL_SECONDS))
        self._broker.proxy.resume()

    def _caught_up(self) -> bool:
        """Return whether everything readable lands in time; at the end the pipeline is not restarted."""
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        wanted = self._readable(deadline)
        while any(self._landed().get(at, 0) < end for at, end in wanted.items()):
            if self._over.is_set():
                self._ingest.check()
            if time.monotonic() > deadline:
                self._say(f"not caught up within {_CATCH_UP_SECONDS:.0f} s")
                return False
            time.sleep(1)
        return True

    def _readable(self, deadline: float) -> dict[int, int]:
        direct = self._ingest.config.model_copy(update={"kafka": {"bootstrap.servers": self._broker.bootstrap}})
        while True:
            try:
                with OffsetsTopic(direct) as topic:
                    return {at: log.last_stable_offset for at, log in topic.bounds().items()}
            except ClusterError:  # its partitions have no leader yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)

    def _landed(self) -> dict[int, int]:
        text = "SELECT record_partition, max(end_offset) AS landed FROM ingest_progress GROUP BY record_partition"
        try:
            return {row["record_partition"]: row["landed"] for row in query(self._ingest.config, text)}
        except QueryError:
            return {}  # the pipeline has not made its tables yet

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
                self._say(str(ended).partition(" (all it said")[0])
                self._restarts += 1
                self._ingest.start()

    def _sample(self) -> None:
        """Record the memory of drivers after a warm-up, during which Java's heap grows."""
        driver, since = None, 0.0
        while not self._over.wait(_SAMPLE_EVERY_SECONDS):
            before, driver = driver, self._ingest.pid
            if driver != before:
                since = time.monotonic()
            elif driver and time.monotonic() - since > _WARM_UP_SECONDS:
                self.memory.append(resident(driver) >> 20)

    def _maintain(self) -> None:
        while not self._over.wait(_MAINTAIN_EVERY_SECONDS):
            done = self._command("maintain")
            self.files.append(live_files(self._ingest.config))
            error = f": {done.stdout.splitlines()[-1]}" if done.returncode else ""
            self._say(f"maintain ended with {done.returncode}{error}; {self.files[-1]} live files")

    def _command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(GROUPTRAIL), *arguments, "--config", str(self._ingest.config_file)]
        return subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, check=False
        )

    def _judge(self) -> list[str]:
        self._say("the workload and the faults have ended")
        wrong = []
        try:
            if not self._caught_up():
                wrong.append("the pipeline did not catch up at the end")
        except IngestError as ended:
            wrong.append(str(ended))
        self._ingest.stop()
        once = self._command("run", "--once")
        if once.returncode:
            wrong.append(f"run --once ended with {once.returncode}: {once.stdout.splitlines()[-1]}")
        wrong += compare(self._broker, self._ingest.config)
        checked = self._command("check")
        if checked.returncode:
            wrong.append(f"grouptrail check: {checked.stdout.splitlines()[-1]}")
        if self.survived != self.tried:
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
        print(f"faults: {self.survived.total()} survived / {self.tried.total()} tried")
        print(f"the pipeline was restarted {self._restarts} times")

    def _say(self, line: str) -> None:
        print(f"{time.monotonic() - self._started:7.1f} s  {line}", flush=True)


def compare(broker: Broker, config: Config) -> list[str]:
    """Return differences of the tables from the topic, byte for byte, and from the output of Kafka's formatters."""
    wrong = []
    landed: Counter[tuple[int, int]] = Counter()
    encoded = {}
    for table in TABLES:
        for row in DeltaTable(config.table_path(table)).to_pyarrow_table().to_pylist():
            where = row["record_partition"], row["record_offset"]
            landed[where] += 1
            encoded[where] = encode_row(table, row)
    topic = {
        (record.partition, record.offset): (record.key, record.value) for record in read_records(broker.bootstrap)
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
    lines = broker.formatted(OFFSETS_FORMATTER)
    for line in lines:
        row, key, value = rows[line["partition"], line["offset"]], line["key"]["data"], line["value"]
        ours = (row["group_id"], row["topic"], row["partition"], row["committed_offset"])
        if ours != (key["group"], key["topic"], key["partition"], value and value["data"]["offset"]):
            wrong.append(f"OffsetsMessageFormatter prints {line}, the table has {ours}")
            break
    groups = len(broker.formatted(GROUP_METADATA_FORMATTER))
    metadata = len(query(config, text.format("group_id", "group_metadata")))
    print(f"Kafka's formatters print {len(lines):,} commits and {groups:,} group records")
    if (len(lines), groups) != (len(rows), metadata):
        wrong.append(f"the tables have {len(rows):,} commits and {metadata:,} group records")
    return wrong


def live_files(config: Config) -> int:
    """Return the number of files in the newest version of every table; deleted files stay on disk for seven days."""
    paths = [config.table_path(name) for name in contracts.tables()]
    return sum(len(DeltaTable(path).file_uris()) for path in paths if DeltaTable.is_deltatable(path))


def _thirds(figures: list[int]) -> list[list[int]]:
    """Split the figures into thirds; empty if there are too few."""
    size = len(figures) // 3
    return [figures[part * size : (part + 1) * size] for part in range(3)] if size else []


def _listed(figures: list[int]) -> str:
    return ", ".join(f"{figure:,}" for figure in figures) or "too few"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=8)
    arguments = parser.parse_args()
    print(f"soaking for {arguments.seconds:.0f} s, seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        soak = Soak(Path(folder), arguments.seconds, arguments.seed)
        try:
            wrong = soak.run()
        finally:
            soak.print_faults()
    for line in wrong:
        print(f"WRONG: {line}")
    print("no losses, no duplicates, no growth" if not wrong else f"{len(wrong)} checks failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

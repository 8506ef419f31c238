"""A workload and the pipeline with faults, and a verdict at the end."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bench.measure import resident
from grouptrail.config import without_settings
from servers import processes
from servers.kafka import Broker
from servers.pipeline import GROUPTRAIL, Pipeline, PipelineError
from soak.faults import CATCH_UP_SECONDS, Fault, FaultError, Faults
from soak.tables import compare, landed_ends, live_files, topic_bounds

# One fault in this many seconds: thirty in the 1,200 seconds of a run. Faults from which the pipeline recovers later
# delay the next ones, so that such a run takes longer and has the same faults.
EVERY_SECONDS = 40.0
_EPISODE_SECONDS = 90
_BETWEEN_FAULTS_SECONDS = (1, 5)
_MAINTAIN_EVERY_SECONDS = 240
_SAMPLE_EVERY_SECONDS = 5
_WARM_UP_SECONDS = 180
_MOST_GROWTH = 1.25
_FEW_FILES = 100


class Soak:
    """A workload and the pipeline on a broker behind a proxy, with injected faults and a supervisor."""

    def __init__(
        self, broker: Broker, pipeline: Pipeline, folder: Path, started: float, chance: random.Random
    ) -> None:
        self._broker = broker
        self._pipeline = pipeline
        self._folder = folder
        self._started = started
        self._random = chance
        self._over = threading.Event()
        self.faults = Faults(broker, pipeline, chance, self._over, self.say)
        self._restarts = 0
        self.planned: list[str] = []
        self.memory: list[int] = []
        self.files: list[int] = []
        self.tried: Counter[str] = Counter()
        self.survived: Counter[str] = Counter()

    def run(self, faults: Mapping[str, Fault], planned: Sequence[str]) -> list[str]:
        """Inject the planned faults, one after the other, and return the problems found at the end."""
        self.planned += planned
        self._pipeline.start()
        try:
            with contextlib.ExitStack() as threads:
                for work in (self._play, self._tend, self._sample, self._maintain):
                    threads.enter_context(self._beside(work))
                self._await_start()
                self._harm([(name, faults[name]) for name in planned])
            return self._judge()
        finally:
            self._pipeline.kill()

    def _await_start(self) -> None:
        """Wait until the groups exist and the pipeline has landed some of their records."""
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while not any(landed_ends(self._pipeline.config).values()) and time.monotonic() < deadline:
            time.sleep(1)
        self.say("the pipeline has landed the first records")

    def _harm(self, faults: Sequence[tuple[str, Fault]]) -> None:
        started = time.monotonic()
        for number, (name, inject) in enumerate(faults):
            self._over.wait(max(0.0, started + number * EVERY_SECONDS - time.monotonic()))
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

    def _caught_up(self) -> bool:
        """Return whether everything readable lands in time; at the end the pipeline is not restarted."""
        deadline = time.monotonic() + CATCH_UP_SECONDS
        wanted = {at: log.last_stable_offset for at, log in topic_bounds(self._broker, self._pipeline.config).items()}
        while any(landed_ends(self._pipeline.config).get(at, 0) < end for at, end in wanted.items()):
            if self._over.is_set():
                self._pipeline.check()
            if time.monotonic() > deadline:
                self.say(f"not caught up within {CATCH_UP_SECONDS:.0f} s")
                return False
            time.sleep(0.5)
        return True

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
                self._pipeline.check()
            except PipelineError as ended:
                self._restarts += 1
                kept = self._pipeline.log_file.rename(self._folder / f"pipeline-{self._restarts}.log")
                self.say(f"{str(ended).partition(' (full log')[0]} ({kept})")
                self._pipeline.start()

    def _sample(self) -> None:
        """Record the memory of drivers after a warm-up, during which Java's heap grows.

        Not while there are Python workers: those of a batch of many commits stay for a minute or two.
        """
        driver, since = None, 0.0
        while not self._over.wait(_SAMPLE_EVERY_SECONDS):
            before, driver = driver, self._pipeline.pid
            if driver != before:
                since = time.monotonic()
            elif driver and time.monotonic() - since > _WARM_UP_SECONDS and not processes.python_workers(driver):
                self.memory.append(resident(driver) >> 20)

    def _maintain(self) -> None:
        while not self._over.wait(_MAINTAIN_EVERY_SECONDS):
            done = self._command("maintain")
            self.files.append(live_files(self._pipeline.config))
            error = f": {_last_line(done)}" if done.returncode else ""
            self.say(f"maintain ended with {done.returncode}{error}; {self.files[-1]} live files")

    def _command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(GROUPTRAIL), *arguments, "--config", str(self._pipeline.config_file)]
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
        except PipelineError as ended:
            wrong.append(str(ended))
        self._pipeline.stop()
        readable = topic_bounds(self._broker, self._pipeline.config)
        once = self._command("run", "--once")
        if once.returncode:
            wrong.append(f"run --once ended with {once.returncode}: {_last_line(once)}")
        landed = landed_ends(self._pipeline.config)
        wrong += [
            f"run --once landed {landed.get(at, 0)} of {log.last_stable_offset} offsets of partition {at}"
            for at, log in readable.items()
            if landed.get(at, 0) < log.last_stable_offset
        ]
        wrong += compare(self._broker, self._pipeline.config, landed)
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


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stdout.splitlines() or ["it printed nothing"])[-1]


def _thirds(figures: list[int]) -> list[list[int]]:
    """Split the figures into thirds; empty if there are too few."""
    size = len(figures) // 3
    return [figures[part * size : (part + 1) * size] for part in range(3)] if size else []


def _listed(figures: list[int]) -> str:
    return ", ".join(f"{figure:,}" for figure in figures) or "too few"

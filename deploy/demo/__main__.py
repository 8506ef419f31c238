"""`make demo`: a real Kafka, lively consumer groups, and the pipeline at work on them; then what it found."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from demo import prometheus
from demo.findings import command, print_answers, print_findings, print_lag, print_metrics, totals
from demo.ingest import Ingest
from demo.kafka import VERSIONS, Broker, ensure_offsets_topic, fetch
from demo.screen import Screen
from demo.workload import Workload, WorkloadError
from grouptrail.errors import GrouptrailError
from grouptrail.report.page import write
from grouptrail.report.timeline import timeline_page
from grouptrail.runtime.doctor import FAIL_FREE_BYTES
from grouptrail.spark.java import JavaError
from grouptrail.spark.session import connector_jars

ALERTS = Path(__file__).resolve().parents[2] / "dashboards" / "alerts"

_HURRIED_SECONDS = 4.0


class DemoError(GrouptrailError):
    """The demo cannot run here."""


class Demo:
    """Everything the demo runs, and how it is ended."""

    def __init__(self, folder: Path, screen: Screen) -> None:
        self.folder = folder
        self.screen = screen
        self.broker: Broker | None = None
        self.ingest: Ingest | None = None
        self.workload: Workload | None = None
        self.metrics = ""
        self.started = time.monotonic()

    def fetch(self) -> None:
        """The jars of Kafka and of Spark's connectors; a download the first time, looked up later."""
        self.screen.step("jars: Kafka and Spark's connectors (the first time about 100 MB from Maven Central)")
        fetch(VERSIONS[0], self.screen.status)
        connector_jars(self.screen.status)

    def start(self) -> None:
        """The broker, the pipeline and the workload; returns when the workload runs."""
        self.screen.step(f"Kafka {VERSIONS[0]} starts")
        self.broker = Broker(self.folder / "kafka")
        self.broker.start()
        ensure_offsets_topic(self.broker.bootstrap)
        self.screen.step(f"Kafka answers at {self.broker.bootstrap}; the pipeline and the consumer groups start")
        self.ingest = Ingest(self.folder, self.broker.bootstrap, self._heard)
        self.ingest.start()
        self.screen.expect("nothing yet: Spark starts and makes the tables")
        self.workload = Workload(self.broker.bootstrap, report=self.screen.event)
        self.workload.start()
        self.started = time.monotonic()

    def watch(self, seconds: float) -> None:
        """Waits, as long as everything runs."""
        assert self.broker is not None
        assert self.ingest is not None
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.ingest.check()
            if not self.broker.running:
                raise DemoError(f"the broker ended by itself: see {self.broker.log_file}")
            time.sleep(0.2)

    def finish(self) -> float:
        """Sends the clients home, lets the pipeline catch up and ends all; how many seconds of records there are."""
        assert self.ingest is not None
        assert self.workload is not None
        self.screen.step("time is up: the clients go home")
        self.workload.stop()
        self.screen.step("the pipeline catches up")
        self.ingest.wait_until_caught_up()
        seconds = time.monotonic() - self.started
        self.metrics = self.ingest.metrics()
        self.screen.step("all has landed: the pipeline and Kafka stop")
        self.end()
        return seconds

    def end(self, *, workload_seconds: float = 20) -> None:
        """Ends what runs, in order: no batch is cut off, no client is left. Does nothing the second time."""
        orders = [self.ingest and self.ingest.stop]
        if self.workload:
            workload = self.workload
            orders.append(lambda: workload.stop(workload_seconds))
        _all_at_once([order for order in orders if order])
        if self.broker:
            self.broker.stop()

    def end_at_once(self) -> None:
        """Ends every process without a word; the members that run apart end with their pipes."""
        if self.ingest:
            self.ingest.kill()
        if self.broker:
            self.broker.kill()

    def _heard(self, line: str) -> None:
        """A line of the pipeline's: a landed batch, or what it is doing."""
        if not line.startswith(("batch ", "history batch ", "log-offsets batch ", "lag batch ")):
            self.screen.status(line)
            return
        self.screen.landed(line)
        with contextlib.suppress(GrouptrailError):
            assert self.ingest is not None
            self.screen.totals(totals(self.ingest.config))


def _all_at_once(orders: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=order, daemon=True) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def fresh_folder(folder: Path) -> Iterator[None]:
    """An empty folder that belongs to this run alone; what an earlier run left there goes."""
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(f"another demo runs in {folder}: end it, or name another folder with --folder") from None
        for old in folder.iterdir():
            if old.is_dir():
                shutil.rmtree(old)
            elif old.name != ".lock":
                old.unlink()
        free = shutil.disk_usage(folder).free
        if free < FAIL_FREE_BYTES:
            raise DemoError(f"only {free / 1e6:.0f} MB are free where {folder} lies: free some")
        yield


def run(demo: Demo, seconds: float, *, keep: bool) -> None:
    demo.fetch()
    demo.start()
    demo.screen.status("the groups are at work", seconds=None if keep else seconds)
    demo.watch(seconds)
    ingest, broker, workload = demo.ingest, demo.broker, demo.workload
    assert ingest
    assert broker
    assert workload
    if keep:
        demo.screen.step(f"all stays up: Kafka at {broker.bootstrap}, tables in {ingest.config.warehouse}")
        demo.screen.step(f"ask them, from another terminal: {command(ingest.config_file, 'show', 'lag', '--watch')}")
        with _prometheus(demo.folder, ingest) as told:
            demo.screen.step(told)
            demo.screen.step("dashboards to import into Grafana: dashboards/built; alerts: dashboards/alerts")
            demo.screen.step("Ctrl-C ends it")
            demo.screen.status("the groups are at work until Ctrl-C")
            demo.watch(float("inf"))
    took = demo.finish()
    demo.screen.close()
    print_findings(ingest.config, took)
    print_answers(ingest.config, ingest.config_file)
    print_lag(ingest.config, ingest.config_file)
    print_metrics(demo.metrics)
    page = demo.folder / "billing.html"
    write(timeline_page(ingest.config, "billing", since=None, until=None), page)
    print(f"\nA picture of billing, to open in a browser: {page}")
    _tell_how_to_go_on(ingest)
    try:
        workload.check()
    except WorkloadError as error:
        print(f"\nNot as planned: a client of the workload failed ({error}); what the others did is in the tables.")


@contextlib.contextmanager
def _prometheus(folder: Path, ingest: Ingest) -> Iterator[str]:
    """Prometheus scraping the pipeline, with the alerts' rules, where it can be had; gives what to tell of it."""
    target = {"job_name": "grouptrail", "static_configs": [{"targets": [ingest.config.exporter.listen]}]}
    config = {
        "global": {"scrape_interval": "5s", "evaluation_interval": "5s"},
        "rule_files": [str(ALERTS / "*.yaml")],
        "scrape_configs": [target],
    }
    (folder / "prometheus").mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            address = stack.enter_context(prometheus.running(folder / "prometheus", config))
            told = f"Prometheus: http://{address}, scraping {ingest.metrics_url}"
        except GrouptrailError as error:
            told = f"metrics: {ingest.metrics_url} ({error})"
        yield told


def _tell_how_to_go_on(ingest: Ingest) -> None:
    print("Dashboards to import into Grafana lie in dashboards/built, alerts in dashboards/alerts.")
    print(f"\nThe tables stay in {ingest.config.warehouse}. Go on with:")
    for arguments in (
        ("tables",),
        ("show", "group", "billing"),
        ("serve",),
        ("report",),
        ("sql", "\"SELECT * FROM rebalance_storms('10 minutes')\""),
    ):
        print(f"  {command(ingest.config_file, *arguments)}")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long the groups are at work")
    parser.add_argument("--keep", action="store_true", help="leave all running until Ctrl-C")
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="replaced by each run (%(default)s)")
    return parser.parse_args(argv)


def _in_one_line(error: Exception) -> str:
    line = str(error).splitlines()[0].removesuffix(", which ends with")
    if isinstance(error, JavaError):
        line += "; below .venv: rm .venv/.ready, then make demo"
    return line


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    screen = Screen()
    demo = Demo(arguments.folder, screen)
    try:
        with fresh_folder(arguments.folder), screen:
            try:
                run(demo, arguments.seconds, keep=arguments.keep)
            except BaseException as error:
                if demo.broker:
                    why = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                    screen.step(f"{why}: everything stops (Ctrl-C: at once)")
                demo.end(workload_seconds=_HURRIED_SECONDS)
                raise
    except KeyboardInterrupt:
        status = 130
    except (GrouptrailError, WorkloadError, OSError) as error:
        print(f"demo: {_in_one_line(error)}", file=sys.stderr)
        status = 1
    else:
        return 0
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        demo.end_at_once()
    if demo.ingest:
        print(f"What has landed stays in {demo.ingest.config.warehouse}", file=sys.stderr)
    return status


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Clients of a broker that is gone would hold up an orderly end.
    os._exit(code)

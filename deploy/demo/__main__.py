"""`make demo`: run a real Kafka, active consumer groups and the pipeline, then print a summary."""

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

from demo.findings import command, print_answers, print_findings, print_lag, print_metrics, totals
from demo.groups import WorkloadError
from demo.screen import Screen
from demo.workload import Workload
from grouptrail.errors import GrouptrailError
from grouptrail.report.page import write
from grouptrail.report.timeline import timeline_page, timeline_rows
from grouptrail.runtime.doctor import FAIL_FREE_BYTES
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.spark.java import JavaError
from grouptrail.spark.session import connector_jars
from servers import prometheus
from servers.kafka import VERSIONS, Broker, fetch
from servers.offsets_topic import ensure_offsets_topic
from servers.pipeline import Pipeline

ALERTS = Path(__file__).resolve().parents[2] / "dashboards" / "alerts"

_HURRIED_SECONDS = 4.0

_FOLLOWED_LOG = """\
[broker_log]
files = ["{file}"]
# The only clients are the demo's own, which put no lines of a log into their names.
trust_clients = true
"""


class DemoError(GrouptrailError):
    """The demo cannot run here."""


class Demo:
    """The processes of the demo, and how they are stopped."""

    def __init__(self, folder: Path, screen: Screen) -> None:
        self.folder = folder
        self.screen = screen
        self.broker: Broker | None = None
        self.pipeline: Pipeline | None = None
        self.workload: Workload | None = None
        self.metrics = ""
        self.started = time.monotonic()

    def fetch(self) -> None:
        """Download the jars of Kafka and of Spark's connectors, unless they are cached."""
        self.screen.step("jars: Kafka and Spark's connectors (the first time about 100 MB from Maven Central)")
        fetch(VERSIONS[0], self.screen.status)
        connector_jars(self.screen.status)

    def start(self) -> None:
        """Start the broker, the pipeline and the workload; return when the workload is running."""
        self.screen.step(f"starting Kafka {VERSIONS[0]}")
        self.broker = Broker(self.folder / "kafka")
        self.broker.start()
        ensure_offsets_topic(self.broker.bootstrap)
        self.screen.step(f"Kafka answers at {self.broker.bootstrap}; starting the pipeline and the consumer groups")
        self.pipeline = Pipeline(
            self.folder, self.broker.bootstrap, self._heard, settings=_FOLLOWED_LOG.format(file=self.broker.log_file)
        )
        self.pipeline.start()
        self.screen.step(f"web pages, as soon as the pipeline runs: {self.pipeline.pages_url}")
        self.screen.expect("nothing yet: Spark is starting and creating the tables")
        self.workload = Workload(self.broker.bootstrap, report=self.screen.event)
        self.workload.start()
        self.started = time.monotonic()

    def watch(self, seconds: float) -> None:
        """Wait, and raise if the broker or the pipeline exits."""
        assert self.broker is not None
        assert self.pipeline is not None
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.pipeline.check()
            if not self.broker.running:
                raise DemoError(f"the broker exited: see {self.broker.log_file}")
            time.sleep(0.2)

    def finish(self) -> float:
        """Stop the clients, let the pipeline catch up and stop everything; return the seconds since the start."""
        assert self.pipeline is not None
        assert self.workload is not None
        self.screen.step("time is up: stopping the clients")
        self.workload.stop()
        self.screen.step("the pipeline is catching up")
        self.pipeline.wait_until_caught_up()
        seconds = time.monotonic() - self.started
        self.metrics = self.pipeline.metrics()
        self.screen.step("all records are in the tables: stopping the pipeline and Kafka")
        self.end()
        return seconds

    def end(self, *, workload_seconds: float = 20) -> None:
        """Stop everything in order, without interrupting a batch or leaving a client; repeated calls do nothing."""
        orders = [self.pipeline and self.pipeline.stop]
        if self.workload:
            workload = self.workload
            orders.append(lambda: workload.stop(workload_seconds))
        _all_at_once([order for order in orders if order])
        if self.broker:
            self.broker.stop()

    def end_at_once(self) -> None:
        """Kill every process; members in processes of their own exit when their pipes close."""
        if self.pipeline:
            self.pipeline.kill()
        if self.broker:
            self.broker.kill()

    def _heard(self, line: str) -> None:
        """Handle a line of the pipeline's output: a finished batch or a status."""
        if not line.startswith(("batch ", "history batch ", "log-offsets batch ", "cluster batch ", "lag batch ")):
            self.screen.status(line)
            return
        self.screen.batch(line)
        with contextlib.suppress(GrouptrailError):
            assert self.pipeline is not None
            self.screen.totals(totals(self.pipeline.config))


def _all_at_once(orders: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=order, daemon=True) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def fresh_folder(folder: Path) -> Iterator[None]:
    """Lock and empty a folder for this run; files of an earlier run are deleted."""
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(
                f"another demo is running in {folder}: stop it, or choose another folder with --folder"
            ) from None
        for old in folder.iterdir():
            if old.is_dir():
                shutil.rmtree(old)
            elif old.name != ".lock":
                old.unlink()
        free = shutil.disk_usage(folder).free
        if free < FAIL_FREE_BYTES:
            raise DemoError(f"only {free / 1e6:.0f} MB are free on the disk of {folder}: free some space")
        yield


def run(demo: Demo, seconds: float, *, keep: bool) -> None:
    demo.fetch()
    demo.start()
    demo.screen.status("the groups are running", seconds=None if keep else seconds)
    demo.watch(seconds)
    pipeline, broker, workload = demo.pipeline, demo.broker, demo.workload
    assert pipeline
    assert broker
    assert workload
    if keep:
        demo.screen.step(
            f"everything keeps running: Kafka at {broker.bootstrap}, tables in {pipeline.config.warehouse}"
        )
        demo.screen.step(
            f"query the tables from another terminal: {command(pipeline.config_file, 'show', 'lag', '--watch')}"
        )
        with _prometheus(demo.folder, pipeline) as status:
            demo.screen.step(status)
            demo.screen.step("Grafana dashboards to import: dashboards/built; alerts: dashboards/alerts")
            demo.screen.step("press Ctrl-C to stop")
            demo.screen.status("the groups are running until Ctrl-C")
            demo.watch(float("inf"))
    took = demo.finish()
    demo.screen.close()
    print_findings(pipeline.config, took)
    print_answers(pipeline.config, pipeline.config_file)
    print_lag(pipeline.config, pipeline.config_file)
    print_metrics(demo.metrics)
    page = demo.folder / "billing.html"
    write(timeline_page(timeline_rows(warehouse_of(pipeline.config), "billing", since=None, until=None)), page)
    print(f"\nTimeline of billing, to open in a browser: {page}")
    _print_next_steps(pipeline)
    try:
        workload.check()
    except WorkloadError as error:
        print(f"\nA client of the workload failed ({error}); the records of the others are in the tables.")


@contextlib.contextmanager
def _prometheus(folder: Path, pipeline: Pipeline) -> Iterator[str]:
    """Run Prometheus with the alert rules if it is available; yield a status line."""
    target = {"job_name": "grouptrail", "static_configs": [{"targets": [pipeline.config.exporter.listen]}]}
    config = {
        "global": {"scrape_interval": "5s", "evaluation_interval": "5s"},
        "rule_files": [str(ALERTS / "*.yaml")],
        "scrape_configs": [target],
    }
    (folder / "prometheus").mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            address = stack.enter_context(prometheus.running(folder / "prometheus", config))
            status = f"Prometheus: http://{address}, scraping {pipeline.metrics_url}"
        except GrouptrailError as error:
            status = f"metrics: {pipeline.metrics_url} ({error})"
        yield status


def _print_next_steps(pipeline: Pipeline) -> None:
    print("Grafana dashboards to import are in dashboards/built, alerts in dashboards/alerts.")
    print(f"\nThe tables are kept in {pipeline.config.warehouse}. Try:")
    for arguments in (
        ("tables",),
        ("show", "group", "billing"),
        ("serve",),
        ("report",),
        ("sql", "\"SELECT * FROM rebalance_storms('10 minutes')\""),
    ):
        print(f"  {command(pipeline.config_file, *arguments)}")
    print(f"\nWhile `serve` runs, the web pages are at {pipeline.pages_url}")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long the groups run")
    parser.add_argument("--keep", action="store_true", help="keep everything running until Ctrl-C")
    parser.add_argument(
        "--folder", type=Path, default=Path(".demo"), help="folder, replaced by each run (%(default)s)"
    )
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
                    screen.step(f"{why}: stopping everything (Ctrl-C: immediately)")
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
    if demo.pipeline:
        print(f"The tables are kept in {demo.pipeline.config.warehouse}", file=sys.stderr)
    return status


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Clients whose broker is gone would delay a normal exit.
    os._exit(code)

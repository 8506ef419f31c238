"""How thoroughly hypothesis looks, the Spark session of a process, and warehouses that are only read.

`HYPOTHESIS_PROFILE=thorough` is for an hour's worth of new examples, quick otherwise: the same ones each time.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from grouptrail.config import Config, load_config
from grouptrail.runtime.warehouses import session_settings
from grouptrail.spark.session import start_session
from grouptrail.storage import damage
from support.cli_in_process import Cli, run_cli
from support.few_rows import FEW_ROWS
from support.sample_groups import billing, groups_of_other_kinds, shared
from support.sample_history import lay_sample_history
from support.schedule import SECONDS, ByTime, RunKind, longest_first, record_seconds, run_kind, unit_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No JVM of a test lives so long that what its second compiler makes would pay. Without that one it has a fifth of the
# room for compiled code, which a pipeline fills: then calls fail that Java compiles as they are first made.
_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
os.environ.setdefault("SPARK_SUBMIT_OPTS", _COMPILER)
# A broker with few records takes a fifth less processor time to start with this collector.
os.environ.setdefault("KAFKA_JVM_PERFORMANCE_OPTS", f"{_COMPILER} -XX:+UseSerialGC")

# Images often forbid compiled modules. Then each process that a test starts compiles all that it imports, which takes
# 3 seconds of work instead of 1.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Started in the background, a process ignores SIGINT, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_ALWAYS = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _ALWAYS, max_examples=20, derandomize=True)
settings.register_profile("thorough", _ALWAYS, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-seconds", action="store_true", help=f"write what each unit of work takes to {SECONDS}")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByTime:
    return ByTime(config, log)


@pytest.fixture(autouse=True)
def nothing_is_damaged() -> Iterator[None]:
    """Let each test know no damaged files, as a new process does."""
    yield
    for known in (damage._damaged, damage._looked_at, damage._unreadable):
        known.clear()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    units = longest_first((item.nodeid, run_kind(item.keywords)) for item in items)
    order = {unit: place for place, unit in enumerate(units)}
    items.sort(key=lambda item: order[unit_of(item.nodeid)])


_SECONDS: defaultdict[tuple[RunKind, str], float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _SECONDS[run_kind(report.keywords), unit_of(report.nodeid)] += report.duration


class FailuresAtOnce:
    """Names each failed test as it fails: a run that is cut off prints no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            reporter = self._config.pluginmanager.get_plugin("terminalreporter")
            crash = getattr(report.longrepr, "reprcrash", None)
            first_line = (crash.message if crash else report.longreprtext).strip().partition("\n")[0]
            reporter.write_line(f"\n{report.when} of {report.nodeid}: {first_line[:300]}")


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(FailuresAtOnce(config))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--record-seconds") and "PYTEST_XDIST_WORKER" not in os.environ:
        record_seconds(_SECONDS)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The only Spark session of this process: a test that stops it stops it for all later files."""
    settings = {"warehouse": str(tmp_path_factory.mktemp("session"))}
    settings |= {f"spark.{name}": value for name, value in FEW_ROWS.items()}
    session = start_session(session_settings(load_config(None, settings, {})), "tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cli(spark: SparkSession) -> Cli:
    """Runs a command on the session of this process: `cli(config, "run", "--once")`."""
    return run_cli


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A warehouse in which every view returns rows."""
    config = Config(warehouse=str(tmp_path_factory.mktemp("example")))
    lay_sample_history(config)
    return config


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A warehouse with the history of a few simulated groups."""
    config = Config(warehouse=str(tmp_path_factory.mktemp("simulated")))
    billing(config)
    groups_of_other_kinds(config)
    shared(config)
    return config

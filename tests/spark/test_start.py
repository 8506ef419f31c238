"""A start of Spark in a process of its own: what ps shows of it, what it leaves behind, and Ctrl-C meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from grouptrail.spark import jvm, session
from support.deadlines import scaled, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEADLINE_SECONDS = scaled(60)
POLL_SECONDS = 0.02

START = """
import json, os, time
from grouptrail.config import Config
from grouptrail.runtime.warehouses import session_settings
from grouptrail.spark.session import start_session
config = Config(warehouse="warehouse", spark=json.loads(os.environ["SETTINGS"]))
spark = start_session(session_settings(config), "start")
print(spark.conf.get("spark.test", ""), end=" ")
print(spark.sparkContext.getConf().get("spark.hadoop.fs.s3a.encryption.key"), flush=True)
print(*(spark._jvm.System.getProperty(name) for name in ("password", "two")), flush=True)
spark.sql("SHOW TABLES").collect()
time.sleep(1)
spark.stop()
"""
STREAM = """
import threading
from grouptrail.config import Config
from grouptrail.runtime.warehouses import session_settings
from grouptrail.spark.session import start_session
spark = start_session(session_settings(Config(warehouse="warehouse")), "stream")
def never_ends(*_):
    print("batch", flush=True)
    threading.Event().wait()
rows = spark.readStream.format("rate").load()
rows.writeStream.option("checkpointLocation", "checkpoint").foreachBatch(never_ends).start().awaitTermination()
"""
SECRET = "k3y-of-the-bucket"
# What java.util.Properties would change or not read as it is.
AWKWARD = " a=b:c \\ # \N{SNOWMAN} \U0001f600 é!"


class Started:
    """A process that starts Spark in an empty folder, with a folder of its own for temporary files."""

    def __init__(self, tmp_path: Path, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self.folder, self.temporary = tmp_path / "here", tmp_path / "temporary"
        self.folder.mkdir()
        self.temporary.mkdir()
        paths = os.pathsep.join(path for path in sys.path if path)
        java_tmp = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={self.temporary}"
        environ = {
            "SETTINGS": json.dumps(dict(settings)),
            "PYTHONPATH": paths,
            "TMPDIR": str(self.temporary),
            "SPARK_SUBMIT_OPTS": java_tmp,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", START],
            cwd=self.folder,
            env=os.environ | environ | {"TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def running(self) -> dict[int, str]:
        """The command lines of the processes of its session."""
        command_lines = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                state, _, _, session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(session) == self.process.pid and state != "Z":
                    command_lines[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        return command_lines

    def is_java(self) -> bool:
        return any("org.apache.spark.deploy.SparkSubmit --" in line for line in self.lines())

    def is_launching(self) -> bool:
        return any("spark-class" in line or "spark-submit" in line for line in self.lines())

    def is_context(self) -> bool:
        """Return whether Spark makes its context, which is done a second or more before the session is."""
        return any(self.temporary.glob("blockmgr-*"))

    def lines(self) -> list[str]:
        return list(self.running().values())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    every: list[Started] = []

    def started(**settings: str) -> Started:
        every.append(Started(tmp_path, settings))
        return every[-1]

    yield started
    for one in every:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()


def test_start_session_shows_no_setting_on_a_command_line_and_leaves_no_file(start: Callable[..., Started]) -> None:
    """The file with the settings is for this user only, and is gone when Spark runs."""
    started = start(
        **{
            "spark.test": AWKWARD,
            "spark.hadoop.fs.s3a.encryption.key": SECRET,
            "spark.driver.extraJavaOptions": f"""-Dpassword={SECRET} '-Dtwo=a "b" \\c'""",
        }
    )
    seen: set[str] = set()
    files: set[tuple[int, int]] = set()
    while started.process.poll() is None:
        seen.update(started.lines())
        with contextlib.suppress(OSError):
            for file in started.temporary.glob("grouptrail-*/*/spark.properties"):
                files.add((stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.parent.stat().st_mode)))
        time.sleep(POLL_SECONDS)
    assert started.process.stdout is not None
    printed = started.process.stdout.read()
    assert f"{AWKWARD} {SECRET}\n" in printed
    assert f'{SECRET} a "b" \\c\n' in printed
    java = [line for line in seen if "org.apache.spark.deploy.SparkSubmit" in line]
    assert java
    assert not [line for line in seen if SECRET in line]
    assert not [line for line in java if "--conf" in line or "spark.test" in line]
    assert files == {(0o600, 0o700)}
    assert list(started.folder.iterdir()) == []
    until(lambda: not started.running())
    assert list(started.temporary.glob("grouptrail-*")) == []


IN_EACH_RUN = {("is_java", signal.SIGTERM), ("is_context", signal.SIGINT)}


@pytest.mark.parametrize(
    ("condition", "number"),
    [
        pytest.param(condition, number, marks=[] if (condition, number) in IN_EACH_RUN else pytest.mark.full)
        for condition in ("is_launching", "is_java", "is_context")
        for number in (signal.SIGINT, signal.SIGTERM)
    ],
)
def test_start_session_signal_ends_the_process_and_the_jvm_without_a_trace(
    start: Callable[..., Started], number: signal.Signals, condition: str
) -> None:
    """As a terminal does at Ctrl-C: all processes get the signal. SIGTERM is sent to the command alone."""
    started = start()
    until(getattr(started, condition))
    if number == signal.SIGINT:
        os.killpg(started.process.pid, number)
    else:
        started.process.send_signal(number)
    printed, _ = started.process.communicate(timeout=DEADLINE_SECONDS)
    assert started.process.returncode == 128 + number, printed
    assert "Traceback" not in printed
    assert "\tat " not in printed
    assert "Error" not in printed
    until(lambda: not started.running())
    assert list(started.temporary.glob("grouptrail-*")) == []


def test_escaped_properties_hold_only_ascii() -> None:
    assert jvm._escaped("a.b-C_1/x*") == "a.b-C_1/x*"
    assert jvm._escaped(" \n=\U0001f600") == "\\u0020\\u000a\\u003d\\ud83d\\ude00"


def test_kill_9_of_a_process_within_a_batch_leaves_no_line_of_its_jvm(tmp_path: Path) -> None:
    """Java ends, too, and its stream would print stack traces of that after the last line of the process."""
    process = subprocess.Popen(
        [sys.executable, "-c", STREAM],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert "batch\n" in iter(process.stdout.readline, "")
        process.kill()
        printed, _ = process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert printed == ""


def test_start_that_fails_prints_what_java_says_of_it(tmp_path: Path) -> None:
    environ = {"JAVA_TOOL_OPTIONS": "-XX:NoSuchOption"}
    failed = subprocess.run(
        [sys.executable, "-c", STREAM],
        cwd=tmp_path,
        env=os.environ | environ,
        stderr=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert "NoSuchOption" in failed.stderr
    assert failed.returncode != 0


def test_classes_whose_log_is_silenced_are_those_of_this_spark(spark: SparkSession) -> None:
    """A class that has moved to another package would print its stack traces again."""
    names = re.findall(r"^logger\.\w+\.name = (\S+)$", session._LOG_SETTINGS.read_text(), re.MULTILINE)
    classes = [name for name in names if name.rpartition(".")[2][0].isupper()]
    assert len(classes) > 3
    java = spark._jvm
    assert java is not None
    loader = java.Thread.currentThread().getContextClassLoader()
    for name in classes:
        loader.loadClass(name)

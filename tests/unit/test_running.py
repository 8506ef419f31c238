"""The one line that a failed job ends with, and how queries are stopped."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import pytest

from grouptrail.runtime.running import Clock, JobFailedError, any_runs, reason, storage_errors_explained
from support.deadlines import scaled

HEAD = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
PYTHON = f"""{HEAD}An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
REMEDY = "run grouptrail doctor"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HEAD}Connection reset SQLSTATE: XXKST\n=== Streaming Query ===", "Connection reset"),
        (f"{PYTHON}OSError: [Errno 5] Input/output error\n", "[Errno 5] Input/output error"),
        (
            f"{PYTHON}py4j.protocol.Py4JJavaError: An error occurred while calling o7.save.\n"
            ": org.apache.spark.SparkException: Job aborted.\n\tat org.apache.spark.rdd.RDD\n",
            "Job aborted (SparkException in org.apache.spark.rdd.RDD)",
        ),
        (f"{PYTHON}pyspark.errors.exceptions.captured.Exception: no column\n\nJVM stacktrace:\n", "no column"),
        (f"{PYTHON}KeyError\n", "KeyError in _call_proxy (clientserver.py, line 644)"),
        (
            f"{PYTHON}pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python "
            'worker:\nTraceback (most recent call last):\n  File "worker.py", line 1, in main\n    f()\n'
            "ValueError: no such number\n\n\nJVM stacktrace:\norg.apache.spark.api.python.PythonException\n",
            "no such number",
        ),
        ("", "RuntimeError"),
    ],
)
def test_reason_spark_error_text_is_reduced_to_its_cause(text: str, message: str) -> None:
    assert reason(RuntimeError(text)) == f"{message}: {REMEDY}"


def test_reason_own_error_of_the_driver_or_a_worker_is_returned_as_it_is() -> None:
    """It says what to do already."""
    message = "kafka:9092 does not let this principal read __consumer_offsets: grant READ"
    worker = (
        "pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:\n"
        'Traceback (most recent call last):\n  File "cluster.py", line 1, in ask\n    f()\n'
        "kafka.errors.TopicAuthorizationFailedError: [Error 29]\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n    f()\n'
    )
    for before in ("", worker):
        error = f"{PYTHON}{before}grouptrail.kafka.errors.KafkaDeniedError: {message}\n\nJVM stacktrace:\n\tat x\n"
        assert reason(RuntimeError(error)) == message


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("Log file was malformed: failed to read correct log version from x.", "run grouptrail recover --job NAME"),
        ("Incomplete log file", "run grouptrail recover --job NAME"),
        ("Concurrent update to the log. Multiple streaming jobs detected for 7", "stop one of them"),
    ],
)
def test_reason_checkpoint_error_names_the_fix(text: str, remedy: str) -> None:
    """For damage that is not checked before the start, or caused by a driver without a lease."""
    message = reason(RuntimeError(f"{HEAD}{text} SQLSTATE: XXKST\n=== Streaming Query ==="))
    assert message.startswith(text.rstrip("."))
    assert message.endswith(remedy)


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}No space left on device SQLSTATE: XXKST\n=== Streaming Query ===",
        f"{PYTHON}OSError: [Errno 28] No space left on device\n",
        f"{PYTHON}OSError: [Errno 122] Disk quota exceeded\n",
        f"{PYTHON}py4j.protocol.Py4JJavaError: An error occurred while calling o7.save.\n"
        ": org.apache.spark.SparkException: Job aborted.\n\tat org.apache.spark.rdd.RDD\n"
        "Caused by: java.io.IOException: No space left on device\n",
    ],
)
def test_reason_full_disk_in_any_error_text_is_recognised(text: str) -> None:
    message = reason(RuntimeError(text))
    assert message.startswith("the disk is full: make room")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "o\n: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found\n",
            "no file system",
        ),
        (
            'o\n: org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "gs"\n',
            "no file system",
        ),
        ("o\n: java.nio.file.AccessDeniedException: s3a://lake/x: PUT 0-byte object\n", "denies write access"),
        ("o\n: java.io.IOException: No space left on device\n", "the disk is full"),
    ],
)
def test_table_creation_storage_error_becomes_job_failed_and_others_pass(text: str, message: str) -> None:
    with pytest.raises(JobFailedError, match=message), storage_errors_explained():
        raise RuntimeError(text)
    with pytest.raises(RuntimeError, match="anything else"), storage_errors_explained():
        raise RuntimeError("anything else")


class Query:
    """A query that has ended, or that ends after being polled this many times."""

    def __init__(self, looks: int = 0, fault: Exception | None = None) -> None:
        self._looks = looks
        self._fault = fault

    @property
    def isActive(self) -> bool:  # noqa: N802
        self._looks -= 1
        return self._looks >= 0

    def awaitTermination(self) -> None:  # noqa: N802
        if self._fault:
            raise self._fault


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_any_runs_failed_query_raises_job_failed(looks: int) -> None:
    """Also if it failed before the first poll: on a full disk a query fails when it writes its first offsets."""
    from pyspark.errors import StreamingQueryException

    failed = Query(looks, StreamingQueryException(f"{HEAD}No space left on device"))
    queries = [Query(looks=1), failed]
    with pytest.raises(JobFailedError, match="the disk is full"):
        [any_runs(queries) for _ in range(looks + 1)]  # type: ignore[arg-type]
    assert any_runs([Query(), Query(looks=1)])  # type: ignore[list-item]
    assert not any_runs([Query(), Query()])  # type: ignore[list-item]


def test_clock_step_back_raises_job_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's trigger would wait until the clock has caught up; a step forward or a small step has no effect."""
    now, shift = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: now() + shift[0])
    clock = Clock()
    for shift[0] in (5.0, 0.0, 3600.0):
        clock.refuse_step_back()
    shift[0] = 0.0
    with pytest.raises(JobFailedError, match=r"went back by 3600 s, .*: restart grouptrail"):
        clock.refuse_step_back()
    clock.refuse_step_back()


def test_end_process_while_a_thread_waits_for_the_jvm_prints_no_stack_trace() -> None:
    """As when a batch takes longer than a stop may: py4j's threads print what the killed JVM did to their calls."""
    script = textwrap.dedent("""
        import sys, threading
        from grouptrail.spark import jvm

        killed, printed = threading.Event(), threading.Event()

        def call() -> None:
            try:
                killed.wait()
                raise ConnectionError("the JVM is gone")
            except ConnectionError:
                threading.excepthook(threading.ExceptHookArgs([*sys.exc_info(), None]))
            printed.set()

        def kill() -> None:
            killed.set()
            assert printed.wait(30)

        threading.Thread(target=call, daemon=True).start()
        jvm.kill = kill
        print("the current batch takes too long", flush=True)
        jvm.end_process(143)
    """)
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=scaled(60)
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "the current batch takes too long\n", "")

"""One line about any error: of Spark's and Java's chains the innermost cause that says anything."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from grouptrail.errors import GrouptrailError, first_cause, first_cause_in, one_line

AWAIT = "Exception thrown in awaitResult: "
ABORTED = (
    "Job aborted due to stage failure: Task 1 in stage 22.0 failed 4 times, most recent failure: "
    "Lost task 1.3 in stage 22.0 (TID 59) (localhost executor driver): "
)
PARQUET = "file:/lake/log_offsets/part-0.parquet"


class Throwable:
    """A Java exception as py4j shows it."""

    def __init__(
        self,
        name: str,
        message: str | None = None,
        cause: Throwable | None = None,
        suppressed: Sequence[Throwable] = (),
        frames: Sequence[str] = ("org.apache.spark.Some.where(Some.scala:7)",),
    ) -> None:
        self.getClass = lambda: SimpleNamespace(getName=lambda: name)
        self.getMessage = lambda: message
        self.getCause = lambda: cause
        self.getSuppressed = lambda: suppressed
        self.getStackTrace = lambda: frames


class JavaError(Exception):
    """A Py4JJavaError; its text is what py4j begins with."""

    def __init__(self, throwable: Any) -> None:
        super().__init__("An error occurred while calling o79.collectToPython.\n")
        self.java_exception = throwable


def chain(*errors: tuple[str, str | None]) -> Throwable:
    """Return the outermost of some errors, which are the cause of each other."""
    cause: Throwable | None = None
    for name, message in reversed(errors):
        cause = Throwable(name, message, cause)
    assert cause is not None
    return cause


SPARK, IO = "org.apache.spark.SparkException", "java.io.IOException"


@pytest.mark.parametrize(
    ("throwable", "line"),
    [
        (chain((SPARK, AWAIT), (SPARK, "Job aborted."), (IO, "No space left on device")), "No space left on device"),
        (
            chain(
                (SPARK, AWAIT), (SPARK, "[TASK_WRITE_FAILED] Task failed while writing rows to x. SQLSTATE: 58030")
            ),
            "[TASK_WRITE_FAILED] Task failed while writing rows to x. SQLSTATE: 58030 "
            "(SparkException in org.apache.spark.Some.where(Some.scala:7))",
        ),
        (
            chain(("java.util.concurrent.ExecutionException", f"{IO}: disk"), (IO, "the disk is away")),
            "the disk is away",
        ),
        (chain(("java.util.concurrent.CompletionException", f"{IO}: the disk is away")), "the disk is away"),
        (
            chain(
                ("java.lang.reflect.UndeclaredThrowableException", None),
                ("java.lang.reflect.InvocationTargetException", None),
                (SPARK, "[DELTA_CANNOT_CREATE_LOG_PATH] Cannot create file:/lake/_delta_log SQLSTATE: 42KD5"),
            ),
            "[DELTA_CANNOT_CREATE_LOG_PATH] Cannot create file:/lake/_delta_log",
        ),
        # An error without a message says nothing: the one around it does.
        (
            chain((SPARK, f"{ABORTED}{SPARK}: Python worker exited"), (SPARK, "Python worker exited"), (IO, None)),
            "Python worker exited",
        ),
        # Only the text of the stage's failure has the cause.
        (chain((SPARK, f"{ABORTED}{IO}: No space left\n\tat x.y(Z.java:1)\nDriver stacktrace:")), "No space left"),
        (
            chain((SPARK, "Job aborted due to stage failure: Total size of results is bigger than the limit")),
            "Total size of results is bigger than the limit",
        ),
        # A path alone does not say what is wrong with it.
        (chain((SPARK, AWAIT), ("java.nio.file.NoSuchFileException", "/lake/x")), "NoSuchFileException: /lake/x"),
        # What is around the cause has more of it.
        (
            chain(
                (SPARK, AWAIT),
                ("java.net.ConnectException", "Call From a to b:9000 failed: java.net.ConnectException: refused"),
                ("java.net.ConnectException", "refused"),
            ),
            "Call From a to b:9000 failed: java.net.ConnectException: refused",
        ),
        # The file that was read is added.
        (
            chain(
                (
                    SPARK,
                    f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file {PARQUET}.  SQLSTATE: KD001",
                ),
                ("java.lang.RuntimeException", "Expected magic number at tail"),
            ),
            f"Expected magic number at tail (while reading file {PARQUET})",
        ),
        (
            chain(
                (
                    SPARK,
                    f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file {PARQUET}.  SQLSTATE: KD001",
                ),
                ("java.io.FileNotFoundException", f"File {PARQUET} does not exist"),
            ),
            f"File {PARQUET} does not exist",
        ),
        # Of a query the outermost error is about the query.
        (
            chain(
                ("org.apache.spark.sql.catalyst.ExtendedAnalysisException", "\n[PARSE_SYNTAX_ERROR] near 'selec'.\n"),
                (IO, "something inside"),
            ),
            "[PARSE_SYNTAX_ERROR] near 'selec'.",
        ),
        # What a KDC refuses, below which Java says how it read the refusal.
        (
            chain(
                ("javax.security.sasl.SaslException", "GSS initiate failed"),
                ("sun.security.krb5.KrbException", "Server not found in Kerberos database (7) - LOOKING_UP_SERVER"),
                ("sun.security.krb5.Asn1Exception", "Identifier doesn't match expected value (906)"),
            ),
            "Server not found in Kerberos database (7) - LOOKING_UP_SERVER",
        ),
        # Python below Java below Python.
        (
            chain(
                (
                    "org.apache.spark.sql.streaming.StreamingQueryException",
                    "[STREAM_FAILED] Query [id = 1] terminated",
                ),
                (
                    "py4j.Py4JException",
                    "An exception was raised by the Python Proxy. Return Message: "
                    "Traceback (most recent call last):\n"
                    '  File "job.py", line 3, in process\n    f()\n'
                    f"py4j.protocol.Py4JJavaError: An error occurred while calling o7.save.\n: {SPARK}: {AWAIT}\n"
                    f"\tat org.apache.spark.X.y(X.scala:1)\nCaused by: {SPARK}: Task failed\n\tat a.b(C.java:2)\n"
                    "\t... 3 more\nCaused by: java.nio.file.FileSystemException: /lake: Read-only file system\n",
                ),
            ),
            "/lake: Read-only file system",
        ),
        (
            chain(
                (
                    "org.apache.spark.api.python.PythonException",
                    "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
                    'Traceback (most recent call last):\n  File "worker.py", line 3, in main\n    f()\n'
                    "KeyError: 'orders'\n",
                )
            ),
            "KeyError: 'orders'",
        ),
    ],
)
def test_first_cause_of_a_java_chain_is_the_innermost_that_says_anything(throwable: Throwable, line: str) -> None:
    assert first_cause(JavaError(throwable)) == line
    assert one_line(JavaError(throwable)) == line


def test_first_cause_of_a_captured_error_follows_its_origin() -> None:
    """As pyspark's own exceptions have it."""
    error = RuntimeError(f"{AWAIT}\n\nJVM stacktrace:\n{SPARK}: {AWAIT}\n\tat x.y(Z.java:1)")
    error._origin = chain((SPARK, AWAIT), (IO, "the disk is away"))  # type: ignore[attr-defined]
    assert first_cause(error) == "the disk is away"


def test_first_cause_of_wrappers_alone_is_what_was_suppressed() -> None:
    closing = Throwable(SPARK, AWAIT, None, [chain((SPARK, "Task failed"), (IO, "Stream closed by the store"))])
    assert first_cause(JavaError(Throwable(SPARK, "Job aborted.", closing))) == "Stream closed by the store"


def test_first_cause_of_suppressed_errors_is_not_taken_where_the_chain_says_anything() -> None:
    throwable = Throwable(IO, "the disk is away", None, [Throwable(IO, "while closing")])
    assert first_cause(JavaError(throwable)) == "the disk is away"


def test_first_cause_of_errors_without_any_message_says_where_it_was_raised() -> None:
    """Never the name of a class alone."""
    throwable = Throwable(SPARK, AWAIT, Throwable("java.lang.NullPointerException"))
    assert first_cause(JavaError(throwable)) == (
        "Exception thrown in awaitResult (NullPointerException in org.apache.spark.Some.where(Some.scala:7))"
    )


def test_first_cause_of_a_chain_without_end_is_found() -> None:
    throwable = Throwable(SPARK, AWAIT)
    throwable.getCause = lambda: throwable
    assert first_cause(JavaError(throwable)).startswith("Exception thrown in awaitResult (SparkException in ")


def test_first_cause_while_java_has_ended_is_what_python_knows() -> None:
    class EndedError(JavaError):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    def gone() -> None:
        raise ConnectionRefusedError

    throwable = Throwable(SPARK)
    throwable.getClass = gone  # type: ignore[assignment]
    line = first_cause(EndedError(throwable))
    assert line.startswith("An error occurred while calling o79.collectToPython")
    assert "\n" not in line


def test_first_cause_of_python_is_the_first_line_or_where_it_was_raised() -> None:
    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError) as raised:
        fail()
    assert first_cause(raised.value).startswith("KeyError in fail (test_errors.py, line ")
    assert one_line(raised.value) == first_cause(raised.value)
    assert one_line(ValueError("no such number\nsecond line")) == "ValueError: no such number"
    assert one_line(KeyError("orders")) == "KeyError: 'orders'"
    assert one_line(GrouptrailError("x is wrong: do y")) == "x is wrong: do y"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("no column of that name\nmore", "no column of that name"),
        (
            f"An error occurred while calling o7.x.\n: {SPARK}: {AWAIT}\n\tat a.b(C.java:1)\nCaused by: {IO}: gone",
            "gone",
        ),
    ],
)
def test_first_cause_in_a_text_is_found_in_its_stack_trace(text: str, line: str) -> None:
    assert first_cause_in(text).removeprefix("IOException: ") == line

"""The base class of all errors with a message for users, and one line about any other error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from traceback import extract_tb
from typing import Any

from grouptrail.locations import with_locations_shown

_LONGEST = 300
_MOST_CAUSES = 20
_TRACEBACK = "Traceback (most recent call last):\n"

_IN_JAVA = "py4j.protocol.Py4JJavaError"
_IN_WORKER = "pyspark.errors.exceptions.captured.PythonException: "
_OWN = "grouptrail."

# What Spark, py4j and Java write before a cause, or instead of one.
_WRAPPING = re.compile(
    r"""
      An\ error\ occurred\ while\ calling\ \S+?\.?(:\ |$)
    | An\ exception\ was\ raised\ by\ the\ Python\ Proxy\.\ Return\ Message:
    | (\[PYTHON_EXCEPTION\]\ )?An\ exception\ was\ thrown\ from\ the\ Python\ worker:
    | Exception\ thrown\ in\ awaitResult:?
    | Job\ aborted(\.|\ due\ to\ stage\ failure:|$)
    | Task\ \d+\ in\ stage\ [\d.]+\ failed\ \d+\ times,\ most\ recent\ failure:
    | Lost\ task\ [\d.]+\ in\ stage\ [\d.]+\ \(TID\ \d+\)\ \([^)]*\):
    | (\[TASK_WRITE_FAILED\]\ )?Task\ failed(\ while\ writing\ rows.*)?$
    | (\[WRITING_JOB_ABORTED\]\ )?Writing\ job\ (aborted|failed).*$
    | \[STREAM_FAILED\]\ Query\ \[[^\]]*\]\ terminated\ with\ exception:
    | \[FOREACH_BATCH_USER_FUNCTION_ERROR\]\ An\ error\ occurred\ in\ the\ user\ provided\ function\ in\ foreach
      \ batch\ sink\.(\ Reason:)?
    | ([a-z][\w$]*\.)+[A-Z][\w$]*(Exception|Error)(:\ |$)
    | (null|[\w$]+(Exception|Error))$
    | Identifier\ doesn't\ match\ expected\ value\ \(906\)$  # Kerberos: the outer error says what the KDC has refused
    """,
    re.VERBOSE,
)
_JAVA_HEAD = re.compile(r"^(?:: |Caused by: )?((?:[a-z][\w$]*\.)+[A-Z][\w$]*)(?:: (.*))?$")
_JAVA_FRAME = re.compile(r"^\s+at (\S+)")
_PYTHON_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (\S+)$')
_FILE_READ = re.compile(r"while reading file (\S+?)\.?(?:\s|$)")
# Of a query that cannot be understood, the outermost error is the one about the query.
_OF_THE_QUERY = re.compile(r"org\.apache\.spark\..*(Analysis|Parse)Exception")

# Up to the end of the message: the answer may have several lines.
_TOKEN_ANSWER = re.compile(
    r"(response code \S+ and error (?:response|message)|did not contain an access_token value\.?(?: Response:)?"
    r"|Malformed JWT provided) ?[{(].*?(?=\n\s+at |\nCaused by: |\Z)",
    re.DOTALL,
)


class GrouptrailError(Exception):
    """Its message is one line for the person on call: what is wrong, then what to do about it.

    It shows no secret of a URI that it names.
    """

    def __str__(self) -> str:
        return with_locations_shown(super().__str__())


def missing_package(error: BaseException) -> str | None:
    """Return the package that an import failed for, by its name in Python, if it is not installed; otherwise None."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    return None if find_spec(package) else package


def comes_from_spark(error: BaseException) -> bool:
    """Return whether an error was raised by Spark or by Java below it."""
    return hasattr(error, "java_exception") or type(error).__module__.startswith(("pyspark.", "py4j."))


def one_line(error: Exception) -> str:
    """Return one line about any error, with the class of one that is not meant for users."""
    if isinstance(error, GrouptrailError):
        return str(error)
    cause = first_cause(error)
    name = type(error).__name__
    return cause if comes_from_spark(error) or cause.startswith(name) else f"{name}: {cause}"


def first_cause(error: BaseException) -> str:
    """Return one line about an error, without its class: of Spark's errors the innermost cause that says anything.

    Spark wraps what has happened in errors that say nothing of it, such as "Exception thrown in awaitResult". What
    an outer error says is taken if it includes what the inner one says, and the file that was read is added.
    """
    if isinstance(error, GrouptrailError):
        return str(error)
    return _shortened(_chosen(_of_java(_java_object(error)) or _of_text(error)))


def first_cause_in(text: str) -> str:
    """Return what `first_cause` does, by an error's text, with or without a stack trace."""
    return _shortened(_chosen(_of_trace(text) or [_Cause("", text)]))


def _shortened(message: str) -> str:
    """Return the beginning of a message of any origin, without secrets of the URIs in it."""
    return printable(message)[:_LONGEST]


def printable(text: str) -> str:
    """Return a text of any origin, such as a stack trace, without secrets of URIs and of token endpoints.

    Kafka's Java client quotes what a token endpoint answers, which may be a token, or repeat the client's secret.
    """
    return _TOKEN_ANSWER.sub(r"\1 ***", with_locations_shown(text))


def text_of(error: BaseException) -> str:
    """Return an error's text, of Java's errors with the stack trace while Java answers."""
    try:
        return str(error)
    except Exception:  # py4j asks the JVM for it, which may have ended
        return str(error.args[0]) if error.args else ""


@dataclass(frozen=True)
class _Cause:
    """One error of a chain: its class, its whole message, and where it was raised, if that is known."""

    name: str
    message: str
    at: str = ""

    @property
    def said(self) -> str:
        """What the message says in its first line, without what only wraps another error; empty if nothing."""
        text = next((line for line in self.message.strip().splitlines() if line.strip()), "").strip()
        while (found := _WRAPPING.match(text)) and found[0]:
            text = text[found.end() :].strip()
        return re.sub(r"\.?\s+SQLSTATE: \w+$", "", text)

    @property
    def short_name(self) -> str:
        return re.split(r"[.$]", self.name)[-1]


def _chosen(causes: list[_Cause]) -> str:
    """Return what the innermost cause that says anything says; `causes` begin with the outermost."""
    saying = [cause for cause in causes if cause.said]
    if not saying:
        last = causes[-1]
        where = f"{last.short_name} in {last.at}" if last.at else last.short_name or "no reason given"
        around = [cause.message.strip().splitlines()[0].rstrip(".: ") for cause in causes if cause.message.strip()]
        return f"{around[-1]} ({where})" if around and around[-1] != last.short_name else where
    chosen = saying.pop()
    while saying and chosen.said in saying[-1].said:
        chosen = saying.pop()
    text = chosen.said
    if " " not in text and chosen.short_name:  # a path or a key
        text = f"{chosen.short_name}: {text}"
    files = [found[1] for cause in causes if (found := _FILE_READ.search(cause.message))]
    if files and Path(files[-1]).name not in text:
        text = f"{text} (while reading file {files[-1]})"
    return text


def _java_object(error: BaseException) -> Any:
    """Return the throwable of an error as py4j and pyspark pass it on, None of any other."""
    return getattr(error, "java_exception", None) or getattr(error, "_origin", None)


def _of_java(throwable: Any) -> list[_Cause]:
    """Return a throwable and its causes; where none says anything, with those that were suppressed.

    Empty if there is none, or Java does not answer any more.
    """
    throwables: list[Any] = []
    try:
        while throwable is not None and len(throwables) < _MOST_CAUSES:
            throwables.append(throwable)
            throwable = None if _OF_THE_QUERY.fullmatch(throwable.getClass().getName()) else throwable.getCause()
        causes = [cause for one in throwables for cause in _of_throwable(one)]
        if not any(cause.said for cause in causes):
            causes += [cause for one in throwables for other in one.getSuppressed() for cause in _of_java(other)]
    except Exception:  # the JVM may have ended
        return []
    return causes


def _of_throwable(throwable: Any) -> list[_Cause]:
    name, message = str(throwable.getClass().getName()), str(throwable.getMessage() or "")
    if _TRACEBACK in message:
        return _of_trace(message)
    frames = throwable.getStackTrace()
    return [_Cause(name, message, str(frames[0]) if len(frames) else "")]


def _of_text(error: BaseException) -> list[_Cause]:
    """Return the causes in the text of an error, and in Java's stack trace if pyspark has kept one."""
    text = text_of(error)
    if not hasattr(error, "java_exception") and _TRACEBACK not in text and "\n: " not in text:
        frames = extract_tb(error.__traceback__)
        at = f"{frames[-1].name} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        of_python = [_Cause("", text, at)] if text.strip() else [_Cause(type(error).__name__, "", at)]
        return [*of_python, *_of_trace(getattr(error, "_stackTrace", None) or "")]
    return _of_trace(text) or [_Cause(type(error).__name__, text)]


def _of_trace(text: str) -> list[_Cause]:
    """Return the causes in a stack trace, of Python, or of Java as py4j passes it on."""
    before, _, trace = text.partition(_TRACEBACK)
    if not trace or "\n: " in before or "\nCaused by: " in before:
        return list(_of_java_trace(text))
    raised = next((line for line in trace.splitlines() if line and not line.startswith(" ")), "")
    if raised.startswith(_IN_JAVA):
        return list(_of_java_trace(trace[trace.find(raised) :]))
    raised = python_error(text) or ""
    name, _, message = raised.partition(": ")
    frames = [found for line in trace[: trace.find(raised)].splitlines() if (found := _PYTHON_FRAME.match(line))]
    at = f"{frames[-1][3]} ({Path(frames[-1][1]).name}, line {frames[-1][2]})" if frames else ""
    return [_Cause(name, message, at)] if raised else []


def _of_java_trace(text: str) -> Iterator[_Cause]:
    """Yield the causes in Java's stack trace, each with its message, which may have several lines."""
    parts = re.split(r"^(?=: |Caused by: )", text, flags=re.MULTILINE)
    for part in parts:
        lines = part.splitlines()
        head = _JAVA_HEAD.match(lines[0]) if lines else None
        if head is None:
            continue
        frames = [number for number, line in enumerate(lines) if _JAVA_FRAME.match(line)]
        message = "\n".join([head[2] or "", *lines[1 : min(frames, default=len(lines))]])
        found = _JAVA_FRAME.match(lines[frames[0]]) if frames else None
        if _TRACEBACK in message:
            yield from _of_trace(f"{message}\n")
        else:
            yield _Cause(head[1], message, found[1] if found else "")


def python_error(text: str) -> str | None:
    """Return the exception that Python raised while a batch was written, as `package.Error: message`.

    It is the first line after the traceback's frames: `Traceback (most recent call last):`, indented frames,
    `package.Error: message`. If Java raised it, that line is py4j's and the next one `: java.package.Error: message`.
    If a worker raised it, that line is PySpark's, and the worker's traceback follows.
    """
    _, _, trace = text.partition(_TRACEBACK)
    raised = [line for line in trace.splitlines() if line and not line.startswith(" ")]
    if raised and raised[0].startswith(_IN_JAVA):
        raised = [line.removeprefix(": ") for line in raised[1:]]
    if raised and raised[0].startswith(_IN_WORKER):
        own = [line for line in raised if line.startswith(_OWN)]
        raised = own or [line for line in raised[1:] if not line.startswith("Traceback ")]
    return raised[0] if raised else None

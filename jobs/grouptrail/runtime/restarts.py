"""Which faults end `grouptrail run`, for which it waits, and the pause before a job is restarted after any other."""

from __future__ import annotations

import re
import time

from grouptrail.config import ConfigError
from grouptrail.decode.progress import BatchError, SourceChangedError
from grouptrail.errors import GrouptrailError, python_error
from grouptrail.history.job import HistoryError
from grouptrail.history.state import StateError
from grouptrail.kafka.errors import (
    ClusterError,
    KafkaDeniedError,
    KafkaLoginError,
    KafkaSettingError,
    TopicMissingError,
)
from grouptrail.runtime.lease import AlreadyRunningError
from grouptrail.runtime.running import lacks_file_system, lacks_storage_rights
from grouptrail.storage.checkpoints import CheckpointError
from grouptrail.storage.errors import TableVersionError

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0

_UNRECOVERABLE: tuple[type[Exception], ...] = (
    # The configuration is wrong.
    ConfigError,
    KafkaSettingError,
    SourceChangedError,
    # A right is missing; see also `_is_unrecoverable_text`.
    KafkaDeniedError,
    # Someone has to decide what is lost, or to repair a table or a checkpoint.
    BatchError,
    CheckpointError,
    HistoryError,
    StateError,
    TableVersionError,
    # Another driver runs the jobs.
    AlreadyRunningError,
)

# The same, in the text of errors that are raised in Spark's threads or processes.
_UNRECOVERABLE_IN_PYTHON = tuple(f"{of.__module__}.{of.__qualname__}: " for of in _UNRECOVERABLE)
_UNRECOVERABLE_IN_JAVA = re.compile(
    "Multiple streaming jobs detected|log file was malformed|incomplete log file"
    r"|^(Caused by: )?org\.apache\.kafka\.common\.errors\."
    "(TopicAuthorization|GroupAuthorization|ClusterAuthorization|SaslAuthentication|SslAuthentication)Exception",
    re.IGNORECASE | re.MULTILINE,
)

_REFUSED_LOGIN = re.compile(
    r"^(Caused by: )?org\.apache\.kafka\.common\.errors\.SaslAuthenticationException"
    rf"|^{re.escape(f'{KafkaLoginError.__module__}.{KafkaLoginError.__qualname__}')}: ",
    re.MULTILINE,
)


def is_unrecoverable(fault: BaseException) -> bool:
    """Return whether a restart cannot mend a job's fault: somebody has to change something first.

    Everything else is temporary: a broker or store that does not answer or throttles, a Python worker that cannot
    connect, a full disk, and faults that nobody knows yet.
    """
    if isinstance(fault, _UNRECOVERABLE) or _is_unrecoverable_text(fault):
        return True
    return fault.__cause__ is not None and is_unrecoverable(fault.__cause__)


def is_refused_login(fault: BaseException) -> bool:
    """Return whether a broker or a token endpoint refused a login.

    After one that was accepted this may pass: a secret was renewed and is not mounted yet, or a token expired while
    its endpoint was down.
    """
    if isinstance(fault, KafkaLoginError):
        return True
    if not isinstance(fault, GrouptrailError) and _REFUSED_LOGIN.search(_text(fault)):
        return True
    return fault.__cause__ is not None and is_refused_login(fault.__cause__)


def is_outage(fault: BaseException) -> bool:
    """Return whether a check of the jobs failed because brokers do not answer, or not yet.

    A name that cannot be resolved and a peer that does not answer as a broker does may also be wrong settings; but
    names of pods are gone while these do not run, and so does a load balancer answer that has no broker behind it.
    """
    return isinstance(fault, ClusterError) and not isinstance(fault, (KafkaDeniedError, TopicMissingError))


def _is_unrecoverable_text(fault: BaseException) -> bool:
    if isinstance(fault, GrouptrailError):  # its class decides
        return False
    text = _text(fault)
    return bool(
        (python_error(text) or "").startswith(_UNRECOVERABLE_IN_PYTHON)
        or _UNRECOVERABLE_IN_JAVA.search(text)
        or lacks_storage_rights(text)
        or lacks_file_system(text)
    )


def _text(fault: BaseException) -> str:
    return f"{fault}\n{getattr(fault, '_stackTrace', None) or ''}"  # Spark's errors have Java's stack trace


class Backoff:
    """The pauses before restarts: each twice as long as the last one, until a run has lasted."""

    def __init__(self) -> None:
        self._pause = 0.0
        self._started_at = 0.0
        self._due_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the pause is over."""
        return time.monotonic() >= self._due_at

    def start(self) -> None:
        """Note that a run starts."""
        self._started_at = time.monotonic()

    def end(self) -> None:
        """End the pause."""
        self._pause = self._due_at = 0.0

    def fail(self) -> float:
        """Note that the run has failed; return the pause in seconds that begins now."""
        now = time.monotonic()
        has_lasted = now - self._started_at > LONGEST_PAUSE_SECONDS
        self._pause = (
            FIRST_PAUSE_SECONDS if has_lasted or not self._pause else min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        )
        self._due_at = now + self._pause
        return self._pause

"""Whether the jobs of a cluster can run: checked before they start, and repeatedly while no broker answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from grouptrail.console.progress import Log
from grouptrail.runtime.restarts import is_outage

# A broker that answers again is found soon; one connection in so much time costs nothing.
PAUSE_SECONDS = 5.0

_WAITING = "waiting: the jobs start when a broker answers"


class JobsCheck:
    """The check of a cluster's jobs, which `check` raises an error from, until it has passed.

    `outage` is why no broker answers, while the jobs wait for one; the log has one line when they begin to wait and
    one when they go on.
    """

    def __init__(self, check: Callable[[], None], log: Log) -> None:
        self.outage: str | None = None
        self._check = check
        self._log = log
        self._has_passed = False
        self._checking: Future[None] | None = None
        self._due_at = 0.0
        self._waits_since = 0.0
        self._may_be_starting = False

    def run(self) -> None:
        """Check once. Raises what `check` raises."""
        self._check()
        self._has_passed = True

    def await_brokers(self, fault: BaseException) -> None:
        """Check again and again from now on; `fault` is why the check has failed."""
        if self.outage is None:
            self._waits_since = time.monotonic()
            self._log(f"{fault}; {_WAITING}")
        self.outage = str(fault)
        self._may_be_starting = True

    def has_passed(self) -> bool:
        """Return whether the jobs can run. Does not block; to be called again and again.

        Raises a fault of the check that is not an outage. After an outage the fault has to be there twice: brokers
        that have just started may not know all topics and rights yet.
        """
        if self._has_passed:
            return True
        if self._checking is None:
            if time.monotonic() < self._due_at:
                return False
            self._checking = _in_background(self._check)
        if not self._checking.done():
            return False
        fault, self._checking = self._checking.exception(), None
        self._due_at = time.monotonic() + PAUSE_SECONDS
        if fault is None:
            self._go_on()
        elif is_outage(fault):
            self.await_brokers(fault)
        elif self._may_be_starting:
            self._may_be_starting = False
        else:
            raise fault
        return self._has_passed

    def _go_on(self) -> None:
        if self.outage is not None:
            self._log(f"a broker answers after {time.monotonic() - self._waits_since:,.0f} s: the jobs start")
        self.outage = None
        self._has_passed = True


def _in_background(check: Callable[[], None]) -> Future[None]:
    """Run a check in a thread: where a broker accepts connections and is silent, it takes up to half a minute.

    Signals and other clusters do not wait for it, nor does the end of the process.
    """
    result: Future[None] = Future()

    def run() -> None:
        try:
            check()
        except BaseException as fault:
            result.set_exception(fault)
        else:
            result.set_result(None)

    threading.Thread(target=run, name="check-jobs", daemon=True).start()
    return result

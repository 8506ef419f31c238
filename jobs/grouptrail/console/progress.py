"""Progress output of long-running commands: what they do, at once, and how long it takes on a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from grouptrail.console.text import harmless

Log = Callable[[str], None]
"""Receives one line: what is done, or what could not be done."""

_QUIET_SECONDS, _TICK_SECONDS = 1.0, 1.0
_CLEAR = "\r\x1b[K"


def print_now(line: str) -> None:
    """Print a line, without control characters, and flush it, so that pipes and logs receive it at once."""
    print(harmless(line, keep_lines=True), flush=True)


def print_log(line: str) -> None:
    """Print a line on stderr, without control characters, at once: of a command whose stdout is for its results."""
    print(harmless(line, keep_lines=True), file=sys.stderr, flush=True)


def print_note(line: str | None) -> None:
    """Print a line, if any, on stderr: what belongs to an output that only programs read."""
    if line:
        _say(f"{harmless(line)}\n")


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say on stderr what the code inside does, if that takes longer than a second.

    On a terminal that is one line with the seconds, which is gone in the end; elsewhere it is said once.
    """
    ended, started, is_terminal = threading.Event(), time.monotonic(), sys.stderr.isatty()

    def say() -> None:
        if ended.wait(_QUIET_SECONDS):
            return
        _say(f"{harmless(what)} …\n" if not is_terminal else "")
        while is_terminal:
            _say(f"{_CLEAR}{harmless(what)} … {time.monotonic() - started:.0f} s")
            if ended.wait(_TICK_SECONDS):
                _say(_CLEAR)
                return

    saying = threading.Thread(target=say, daemon=True)
    saying.start()
    try:
        yield
    finally:
        ended.set()
        saying.join()


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
        sys.stderr.write(text)
        sys.stderr.flush()

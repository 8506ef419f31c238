"""The command line on a pseudo-terminal of a given width: what a person sees."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable

from support.deadlines import scaled

_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]")


def on_terminal(
    *arguments: str,
    columns: int = 80,
    environ: dict[str, str] | None = None,
    until: Callable[[str], bool] | None = None,
) -> tuple[int, str]:
    """Run `grouptrail` on a terminal, as `run_on_terminal` does.

    With `until`, the command gets Ctrl-C as soon as its output so far satisfies the condition.
    """
    return run_on_terminal(["-m", "grouptrail", *arguments], columns=columns, environ=environ, until=until)


def python_on_terminal(program: str) -> tuple[int, str]:
    """Run a Python program on a terminal, as `run_on_terminal` does."""
    return run_on_terminal(["-c", program])


def run_on_terminal(
    arguments: list[str],
    *,
    columns: int = 80,
    environ: dict[str, str] | None = None,
    until: Callable[[str], bool] | None = None,
) -> tuple[int, str]:
    """Run Python on a terminal; return its exit status and its output without colours and cursor movements."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    settings = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=settings | {"TERM": "xterm-256color"} | (environ or {}),
        start_new_session=True,
    )
    os.close(theirs)
    output, deadline, interrupted = b"", time.monotonic() + scaled(60), False
    try:
        while time.monotonic() < deadline:
            try:
                output += (read := os.read(ours, 65536))
            except OSError:  # the terminal's other end is closed
                break
            if not read:
                break
            if until is not None and not interrupted and until(_plain(output)):
                process.send_signal(signal.SIGINT)
                interrupted = True
        return process.wait(timeout=scaled(60)), _plain(output)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _plain(output: bytes) -> str:
    return _CODES.sub("", output.decode("utf-8", "replace")).replace("\r\n", "\n")

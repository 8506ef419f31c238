"""Processes that end with this one, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

# The kernel closes this end of the child's stdin when this process ends; the subshell's `read` then returns, and it
# kills the child's group. PR_SET_PDEATHSIG would not do: it fires when the *thread* that started the child ends.
_LAUNCHER = 'exec 3<&0 </dev/null; { read -r line <&3; kill -9 -$$; } & exec "$@" 3<&-'


def launch(
    command: Sequence[str],
    *,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int,
    environ: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, out of reach of the terminal's Ctrl-C; it dies with this process."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _LAUNCHER, "launched", *command],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env=dict(environ),
        start_new_session=True,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a launched process and its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()


def descendants(root: int) -> list[int]:
    """Return the descendants of a process."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    below = list(children.get(root, ()))
    for pid in below:
        below += children.get(pid, [])
    return below


def command_line(pid: int) -> str:
    """Return a process's command line; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def python_workers(driver: int) -> list[int]:
    """Return the Python workers that Spark's daemon has forked; the daemon replaces one that ends."""
    daemons = {pid for pid in descendants(driver) if "pyspark.daemon" in command_line(pid)}
    return [pid for pid in daemons if daemons & set(descendants(pid)) == set()]

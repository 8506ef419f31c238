"""Processes that end with this one, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

# The kernel closes our end of the child's stdin when we end; the subshell's `read` returns then, and it kills the
# child's group. PR_SET_PDEATHSIG would not do: it fires when the *thread* that started the child ends.
_LAUNCHER = 'exec 3<&0 </dev/null; { read -r line <&3; kill -9 -$$; } & exec "$@" 3<&-'


def launch(
    command: Sequence[str],
    *,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int,
    environ: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """Starts a command in a session of its own, out of reach of the terminal's Ctrl-C; it dies with this process."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _LAUNCHER, "launched", *command],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env=dict(environ),
        start_new_session=True,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a launched process, and all that it started in its group, at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()

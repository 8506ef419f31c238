"""`make audit`: look up known vulnerabilities of every pinned package, with pip-audit in a temporary folder.

Exit status: 0 if none is known, 1 if there are some, 2 with a one-line message if the lookup failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOL = "pip-audit==2.10.1"
PINS = ("requirements-java.txt", "requirements-dev.txt")

_PATIENCE_SECONDS = 600


def main() -> int:
    """Run the audit and return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", folder]
        installed = _run([*pip, TOOL], folder)
        if installed.returncode:
            return _unanswered(f"{TOOL} cannot be installed ({_last_line(installed)})")
        # Each file is whole: nothing has to be resolved, and nothing of it is installed.
        files = [part for name in PINS for part in ("--requirement", str(ROOT / name))]
        audit = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--strict"]
        asked = _run([*audit, "--disable-pip", "--no-deps", *files], folder)
    print(asked.stdout, end="")
    if asked.returncode and "known vulnerabilit" not in asked.stderr:
        return _unanswered(_last_line(asked))
    print(_last_line(asked), file=sys.stderr)
    return asked.returncode


def _run(command: list[str], packages: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": packages}
    try:
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 2, "", f"no answer in {_PATIENCE_SECONDS} s")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return next((line.strip() for line in reversed((done.stderr or done.stdout).splitlines()) if line.strip()), "")


def _unanswered(reason: str) -> int:
    print(f"audit: not known, the advisory database was not asked: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

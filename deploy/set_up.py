"""`make setup`: create `.venv` with the pinned packages, this project, and a JRE if the machine has no Java.

Uses only Python 3.11's standard library, because nothing is installed yet. It prints its progress at least every five
seconds; pip's output goes to `.venv/install.log`. After an interruption it resumes without repeating installed steps.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TextIO

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "install.log"
READY = VENV / ".ready"

SAY_EVERY_SECONDS = 5.0
REDRAW_SECONDS = 0.5


class SetupError(Exception):
    """One line: what went wrong and what to do."""


def main() -> int:
    started = time.monotonic()
    try:
        build()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"setup: {error}: correct that and run it again", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: interrupted; the next run continues from here", file=sys.stderr)
        return 130
    print(f"setup: .venv is ready ({time.monotonic() - started:.0f} s)")
    return 0


def build() -> None:
    """Run every step; a step that was done before is quick."""
    READY.unlink(missing_ok=True)
    if run([PYTHON, "-m", "pip", "--version"]).returncode != 0:
        print(f"setup: making .venv with Python {sys.version.split()[0]}", flush=True)
        made = run([sys.executable, "-m", "venv", "--clear", VENV])
        if made.returncode != 0:
            raise SetupError(f"{last_line(made.stdout)}: install Python's venv module (Debian: python3-venv)")
    LOG.write_text("")
    pins = ROOT / "requirements-dev.txt"
    print("setup: installing the pinned packages; pyspark alone is 430 MB and takes about a minute", flush=True)
    install("--require-hashes", "-r", pins)
    print("setup: installing grouptrail itself", flush=True)
    install("--no-deps", "--editable", ROOT)
    java = run([PYTHON, "-m", "grouptrail.spark.java"])
    if java.returncode != 0:
        print("setup: no Java 17 or 21 here: installing a JRE from the Python registry", flush=True)
        install("--require-hashes", "-r", ROOT / "requirements-java.txt")
        java = run([PYTHON, "-m", "grouptrail.spark.java"])
    if java.returncode != 0:
        raise SetupError(last_line(java.stdout))
    print(f"setup: {last_line(java.stdout)}", flush=True)
    READY.touch()


def run(command: Sequence[object]) -> subprocess.CompletedProcess[str]:
    """Run a short command and return its status and output; a missing command has status 127."""
    try:
        return subprocess.run(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        return subprocess.CompletedProcess(list(map(str, command)), 127, str(error))


def last_line(text: str) -> str:
    return next(iter(reversed(text.strip().splitlines())), "no word of why")


def install(*what: object) -> None:
    """Run `pip install`; its output goes to the log and, in short, to the terminal."""
    command = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *what]
    with LOG.open("a") as log:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        lines: SimpleQueue[str | None] = SimpleQueue()
        Thread(target=pump, args=(process, lines), daemon=True).start()
        try:
            errors = follow(lines, log)
            status = process.wait()
        finally:
            process.kill()
            process.wait()
    if status != 0:
        reason = errors[0].removeprefix("ERROR: ") if errors else f"pip ended with {status}"
        raise SetupError(f"{reason}: check the network to the Python registry and the disk; pip's words are in {LOG}")


def pump(process: subprocess.Popen[str], lines: SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def follow(lines: SimpleQueue[str | None], log: TextIO) -> list[str]:
    """Show pip's progress until it ends; return its error lines."""
    started = said = time.monotonic()
    is_terminal = sys.stdout.isatty()
    now_at, errors = "pip is starting", []
    while True:
        try:
            line = lines.get(timeout=REDRAW_SECONDS)
            if line is None:
                break
            log.write(line)
            log.flush()
            if line.startswith("ERROR:"):
                errors.append(line.strip())
            if line.strip() and not line.startswith((" ", "Requirement already")):
                now_at = line.strip().split(" (from ")[0]
        except Empty:
            pass
        now = time.monotonic()
        if is_terminal:
            print(f"\r\x1b[K{now - started:5.0f} s  {now_at:.90}", end="", flush=True)
        elif now - said >= SAY_EVERY_SECONDS:
            said = now
            print(f"{now - started:5.0f} s  {now_at:.90}", flush=True)
    if is_terminal:
        print("\r\x1b[K", end="", flush=True)
    return errors


if __name__ == "__main__":
    sys.exit(main())

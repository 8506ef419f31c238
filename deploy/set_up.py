"""`make setup`: create `.venv` with the pinned packages, this project, and a JRE if the machine has no Java.

Uses only Python 3.11's standard library, because nothing is installed yet. pip installs the pinned uv, which installs
the rest in a third of the time; where uv has no wheel, pip does. It prints its progress at least every five seconds;
their output goes to `.venv/install.log`. After an interruption it resumes without repeating installed steps.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TextIO

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "install.log"
READY = VENV / ".ready"
PINS = ROOT / "requirements-dev.txt"

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
    print("setup: installing the pinned packages: 900 MB, of which pyspark is half", flush=True)
    installer = Installer()
    installer.install("--no-deps", "--require-hashes", "-r", PINS)
    print("setup: installing grouptrail itself", flush=True)
    installer.install("--no-deps", "--editable", ROOT)
    java = run([PYTHON, "-m", "grouptrail.spark.java"])
    if java.returncode != 0:
        print("setup: no Java 17 or 21 here: installing a JRE from the Python registry", flush=True)
        installer.install("--no-deps", "--require-hashes", "-r", ROOT / "requirements-java.txt")
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


class Installer:
    """Installs packages into `.venv` with uv, or with pip where there is no uv."""

    def __init__(self) -> None:
        """Install uv."""
        pin = VENV / "uv.txt"
        pin.write_text(pin_of("uv", PINS.read_text("utf-8")))
        pip = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        self._command: list[object] = pip
        self._environment: Mapping[str, str] = {}
        if run([*pip, "--only-binary", "uv", "--require-hashes", "-r", pin]).returncode == 0:
            self._command = [VENV / "bin" / "uv", "pip", "install", "--python", PYTHON]
            self._environment = uv_environment(run([PYTHON, "-m", "pip", "config", "list"]).stdout)

    def install(self, *what: object) -> None:
        """Install; the output goes to the log and, in short, to the terminal."""
        with LOG.open("a") as log:
            process = subprocess.Popen(
                [str(part) for part in (*self._command, *what)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=os.environ | self._environment,
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
            reason = ": ".join(errors[:2]) if errors else f"the installer ended with {status}"
            raise SetupError(f"{reason}: check the network to the Python registry and the disk; more is in {LOG}")


def pin_of(package: str, pins: str) -> str:
    """Return a package's lines of a requirements file, with its digests."""
    found = re.search(rf"^{package}==.*?(?=^\w|\Z)", pins, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SetupError(f"{PINS.name} has no {package}: run make pins")
    return found[0]


_UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
}


def uv_environment(pip_settings: str) -> dict[str, str]:
    """Return pip's settings, as `pip config list` prints them, as variables of uv, which does not read them."""
    environment = {}
    for line in pip_settings.splitlines():
        name, _, value = line.partition("=")
        variable = _UV_NAMES.get(name.rpartition(".")[2])
        if variable:
            between = "," if variable == "UV_FIND_LINKS" else " "
            environment[variable] = between.join(ast.literal_eval(value).split())
    return environment


def pump(process: subprocess.Popen[str], lines: SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def follow(lines: SimpleQueue[str | None], log: TextIO) -> list[str]:
    """Show the installer's progress until it ends; return its error lines."""
    started = said = time.monotonic()
    is_terminal = sys.stdout.isatty()
    now_at, errors = "starting", []
    while True:
        try:
            line = lines.get(timeout=REDRAW_SECONDS)
            if line is None:
                break
            log.write(line)
            log.flush()
            line = line.strip()
            if line.lower().startswith(("error:", "cause:")):
                errors.append(line.partition(" ")[2])
            elif line and not line.startswith("Requirement already"):
                now_at = line.split(" (from ")[0]
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

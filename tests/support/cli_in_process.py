"""Commands run in the process of the tests, on its one Spark session: what a command prints and its exit status are
those of a process of its own, without the start of a JVM. Signals, kills and the JVM's settings need `cli_process`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from grouptrail.cli import app
from grouptrail.config import Config
from support.cli_process import settings_of


@dataclass(frozen=True)
class Finished:
    """A command that has ended; `printed` has stdout and stderr in order."""

    returncode: int
    printed: str


Cli = Callable[..., Finished]


@contextmanager
def session_kept() -> Iterator[None]:
    """Let the code inside use the Spark session of this process, but not stop it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkSession, "stop", lambda _session: None)
        yield


def run_cli(config: Config | Path, *arguments: str, environ: dict[str, str] | None = None) -> Finished:
    """Run a command, which may use the Spark session of this process but not stop it."""
    with session_kept():
        result = CliRunner().invoke(app, arguments, env=settings_of(config) | (environ or {}), prog_name="grouptrail")
    return Finished(result.exit_code, result.output)


def succeeded(finished: Finished) -> str:
    """Assert that a command succeeded, and return what it printed."""
    assert finished.returncode == 0, finished.printed
    return finished.printed

"""What a command says while it does something that takes long."""

from __future__ import annotations

import sys
import threading

import pytest

from grouptrail.console import progress
from support.terminal import python_on_terminal


def test_waiting_says_what_takes_longer_than_a_second_and_only_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.05)
    with progress.waiting("at once"):
        pass
    said = threading.Event()
    monkeypatch.setattr(progress, "_say", lambda text: (sys.stderr.write(text), said.set()))
    with progress.waiting("starting\x1b[2J"):
        assert said.wait(30)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "starting\\x1b[2J …\n")


def test_waiting_on_a_terminal_counts_the_seconds_in_place() -> None:
    """The line is erased in the end."""
    program = (
        "import time; from grouptrail.console import progress as p\n"
        "p._QUIET_SECONDS = p._TICK_SECONDS = 0.05\n"
        "ticks = []; say = p._say\n"
        "p._say = lambda text: (say(text), ticks.append(text))\n"
        "with p.waiting('starting Spark'):\n"
        "    while len(ticks) < 4: time.sleep(0.01)\n"
    )
    status, printed = python_on_terminal(program)
    assert status == 0
    assert printed.count("starting Spark … 0 s") >= 2
    assert "\n" not in printed


def test_waiting_ends_with_the_error_of_the_code_inside() -> None:
    with pytest.raises(ZeroDivisionError), progress.waiting("dividing"):
        _ = 1 / 0

"""A process that serves ends when it is asked to."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from grouptrail.console import signals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("seconds", [0, 0.05, 0.3])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ending_returns_the_first_signal_before_or_during_the_wait(number: signal.Signals, seconds: float) -> None:
    """A second signal changes nothing."""
    wait = signals.ending()
    if seconds:
        threading.Timer(seconds, os.kill, (os.getpid(), number)).start()
    else:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
    assert wait() == number

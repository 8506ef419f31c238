"""A process that serves ends when it is asked to."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

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


def test_interrupted_silently_leaves_signals_to_the_main_thread() -> None:
    """`make prepare` runs a pipeline in a thread of its own."""

    def imports() -> object:
        with signals.interrupted_silently():
            return signal.getsignal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(imports).result() is signal.default_int_handler
    assert imports() is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

"""How a process that serves is ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

_LOOK_EVERY_SECONDS = 0.2


def ending() -> Callable[[], int]:
    """Takes SIGINT and SIGTERM from now on; what it gives waits for the first of them, and gives its number.

    It looks again and again: a handler that sets an Event runs in the main thread, and where that has just taken the
    Event's lock to wait for it, both stand still for ever.
    """
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda which, _frame: received.append(which))

    def wait() -> int:
        while not received:
            time.sleep(_LOOK_EVERY_SECONDS)
        return received[0]

    return wait

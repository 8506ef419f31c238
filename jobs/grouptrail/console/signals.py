"""Termination of server processes by signals."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

_LOOK_EVERY_SECONDS = 0.2


def ending() -> Callable[[], int]:
    """Handle SIGINT and SIGTERM from now on; return a function that waits for the first one and returns its number.

    The function polls. A handler that sets an Event runs in the main thread and would deadlock if that thread has
    just acquired the Event's lock to wait for it.
    """
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda which, _frame: received.append(which))

    def wait() -> int:
        while not received:
            time.sleep(_LOOK_EVERY_SECONDS)
        return received[0]

    return wait

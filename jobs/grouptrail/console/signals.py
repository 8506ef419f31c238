"""Termination of processes by signals."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

_LOOK_EVERY_SECONDS = 0.2


@contextlib.contextmanager
def interrupted_silently() -> Iterator[None]:
    """Within this, Ctrl-C ends the process without a traceback. It is for imports.

    A KeyboardInterrupt raised in an import can be lost: callbacks of the import system and of C extensions print it
    and go on. Only the main thread receives it and can change what it does.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


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

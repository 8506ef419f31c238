"""A limit of how often something may happen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class RateLimit:
    """A token bucket: `burst` at once, and one more every `interval` seconds."""

    def __init__(self, interval: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._left = float(burst)
        self._at = clock()

    def allows(self) -> bool:
        """Return whether it may happen now, and count it if so."""
        with self._lock:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._at) / self._interval)
            self._at = now
            if self._left < 1:
                return False
            self._left -= 1
            return True

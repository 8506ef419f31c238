"""Run a hypothesis test for a time instead of a number of examples."""

from __future__ import annotations

import time
from collections.abc import Callable

from hypothesis import HealthCheck, settings

# Without a database of examples: one that fails is printed, and belongs into a test of its own.
FUZZ = settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def for_seconds(seconds: float, test: Callable[[], None]) -> None:
    """Repeat a test, each time with other examples, until the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        test()

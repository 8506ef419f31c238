"""How long tests wait: longer on a machine on which a JVM takes longer to start."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from functools import cache

from grouptrail.spark.java import find_java

# The time of `java -version` on two idle cores.
_EXPECTED_SECONDS = 0.1
_MOST = 10.0


@cache
def slowness() -> float:
    """Return how much slower this machine currently is than two idle cores: from 1 to 10."""
    java = find_java().command
    started = time.monotonic()
    for _ in range(3):
        subprocess.run([java, "-version"], check=True, capture_output=True)
    return min(max((time.monotonic() - started) / 3 / _EXPECTED_SECONDS, 1.0), _MOST)


def scaled(seconds: float) -> float:
    """Return the deadline for something that takes at most `seconds` on two idle cores."""
    return seconds * slowness()


def until(happens: Callable[[], object]) -> None:
    """Wait until a condition holds; fail if that takes more than a minute on two idle cores."""
    deadline = time.monotonic() + scaled(60)
    while not happens():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)

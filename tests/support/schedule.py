"""Which tests a worker takes together, and in which order: what takes longest begins first.

Tests of one file share what it starts (a broker, groups that were played), so a file is taken as a whole, unless
`_APART` says that some of its tests share nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadScopeScheduling

SECONDS = Path(__file__).parents[1] / "data" / "seconds.json"
"""Seconds by unit of work, as `pytest --record-seconds` measured them."""

# Estimates for new units without a measurement: those that start brokers and sessions take long.
_UNMEASURED = {"tests/broker": 60.0, "tests/spark": 20.0}

_APART = {
    "tests/broker/test_history.py": re.compile(r"\[(\d+\.\d+\.\d+)"),
    "tests/broker/test_broker_faults.py": re.compile(r"::(test_decode_job_broker_failover\w+)"),
    "tests/broker/test_exactly_once.py": re.compile(r"::(test_decode_job_broker_killed\w+)"),
    "tests/broker/test_security.py": re.compile(r"::(test_run_client_certificate\w+)"),
    "tests/broker/test_faults.py": re.compile(r"::(test_run_tls\w+)"),
}


def unit_of(nodeid: str) -> str:
    """Return the unit of work of a test: its file, or a separate part of it."""
    file = nodeid.partition("::")[0]
    part = _APART[file].search(nodeid) if file in _APART else None
    return f"{file}::{part[1]}" if part else file


def longest_first(nodeids: Iterable[str]) -> dict[str, float]:
    """Return the units of some tests and their seconds, in the order in which they start."""
    measured = json.loads(SECONDS.read_text("utf-8")) if SECONDS.is_file() else {}
    units = {unit: measured.get(unit, _unmeasured(unit)) for unit in map(unit_of, nodeids)}
    return dict(sorted(units.items(), key=lambda unit: -unit[1]))


def _unmeasured(unit: str) -> float:
    return next((seconds for folder, seconds in _UNMEASURED.items() if unit.startswith(folder)), 1.0)


class ByTime(LoadScopeScheduling):
    """Give the longest remaining unit to the next free worker."""

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

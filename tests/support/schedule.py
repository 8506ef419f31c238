"""Which tests a worker takes together, and in which order: what takes longest begins first.

Tests of one file share what it starts (a broker, groups that were played), so a file is taken as a whole, unless
`_APART` says that some of its tests share nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from xdist.scheduler import LoadScopeScheduling

RunKind = Literal["normal", "full"]
_KINDS: tuple[RunKind, ...] = get_args(RunKind)

SECONDS = Path(__file__).parents[1] / "data" / "seconds.json"
"""Seconds by kind of run and unit of work, as `pytest --record-seconds` measured them. A unit may have tests of both
kinds: a normal run updates the seconds of those that are not marked `full`, a full run those of the others."""

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


def longest_first(tests: Iterable[tuple[str, RunKind]]) -> dict[str, float]:
    """Return the units of some tests, given as node id and kind of run, and their seconds, in the order in which they
    start."""
    measured = recorded_seconds()
    units: dict[str, float] = {}
    for unit, kind in dict.fromkeys((unit_of(nodeid), kind) for nodeid, kind in tests):
        units[unit] = units.get(unit, 0.0) + measured[kind].get(unit, _unmeasured(unit))
    return dict(sorted(units.items(), key=lambda unit: -unit[1]))


def run_kind(keywords: Container[str]) -> RunKind:
    """Return which run has the test with these keywords: `make test`, or only `make test-full`."""
    return "full" if "full" in keywords else "normal"


def recorded_seconds() -> dict[RunKind, dict[str, float]]:
    """Return the measured seconds by kind of run and unit."""
    recorded = json.loads(SECONDS.read_text("utf-8")) if SECONDS.is_file() else {}
    return {kind: recorded.get(kind, {}) for kind in _KINDS}


def record_seconds(seconds: Mapping[tuple[RunKind, str], float]) -> None:
    """Write the seconds of the units that ran; keep those of the others, and of the other kind of run."""
    recorded = recorded_seconds()
    for (kind, unit), measured in seconds.items():
        recorded[kind][unit] = round(measured, 1)
    SECONDS.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", "utf-8")


def _unmeasured(unit: str) -> float:
    return next((seconds for folder, seconds in _UNMEASURED.items() if unit.startswith(folder)), 1.0)


class ByTime(LoadScopeScheduling):
    """Give the longest remaining unit to the next free worker."""

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

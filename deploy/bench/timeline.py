"""The picture's part of `make bench`: a group of 300 members and 500 generations, from tables to what is on screen.

Once with an assignor that moves little and once with one that reassigns all partitions each time.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.measure import seconds
from bench.simulated_groups import Client, SimulatedGroup, lag_rows, lay_rows
from grouptrail.config import Config
from grouptrail.report.page import write
from grouptrail.report.timeline import timeline_page, timeline_rows
from grouptrail.runtime.warehouses import warehouse_of

MEMBERS, GENERATIONS, ROUNDS = 300, 500, 3

_STARTED = datetime(2026, 3, 4, tzinfo=UTC)
_APART = timedelta(minutes=2)
_DRAWN = re.compile(r'data-drawn-ms="([\d.]+)"')


def measure(folder: Path, *, members: int = MEMBERS, generations: int = GENERATIONS) -> dict[str, Any]:
    """Return for both groups the seconds to write the page, its bytes, and the seconds until Chromium has drawn
    it."""
    return {
        name: _measure(folder / name, members, generations, is_sticky=is_sticky)
        for name, is_sticky in (("moves_little", True), ("moves_all", False))
    }


def _measure(folder: Path, members: int, generations: int, *, is_sticky: bool) -> dict[str, Any]:
    config = Config(warehouse=str(folder))
    group = _group(members, generations, is_sticky=is_sticky)
    group.lay(config)
    ends = _STARTED + _APART * generations
    lay_rows(config, "consumer_lag", lag_rows(group, begins=_STARTED, ends=ends, every=timedelta(minutes=2)))
    path = folder / "timeline.html"

    def work() -> None:
        write(timeline_page(timeline_rows(warehouse_of(config), group.group_id, since=None, until=None)), path)

    write_seconds = _median(lambda: seconds(work))
    drawn_seconds = _median(lambda: _drawn_seconds(path)) if _chromium() else None
    size, intervals = path.stat().st_size, len(group.rows["partition_ownership"])
    print(
        f"timeline of {members} members, {generations} generations and {intervals:,} intervals of ownership: "
        f"written in {write_seconds} s, {size / 1e6:.1f} MB, "
        f"{f'drawn after {drawn_seconds} s' if drawn_seconds else 'not drawn: no Chromium'}",
        flush=True,
    )
    return {
        "members": members,
        "generations": generations,
        "intervals_of_ownership": intervals,
        "write_seconds": write_seconds,
        "bytes": size,
        "drawn_seconds": drawn_seconds,
    }


def _group(members: int, generations: int, *, is_sticky: bool) -> SimulatedGroup:
    """In each generation the oldest member leaves and another one joins."""
    group = SimulatedGroup("crowd", {"clicks": members}, sticky=is_sticky)
    clients = [Client(f"member-{number:04d}", f"client-{number:04d}") for number in range(members + generations)]
    group.rebalance(_STARTED, "group_started", joined=clients[:members])
    for number in range(1, generations):
        oldest = clients[number - 1].member_id
        group.rebalance(
            _STARTED + _APART * number,
            "members_joined_and_left",
            joined=[clients[members + number - 1]],
            left={oldest: ("left", "gone before its session could end")},
        )
    return group


def _median(measured: Callable[[], float]) -> float:
    return round(statistics.median(measured() for _ in range(ROUNDS)), 2)


def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("google-chrome")


def _drawn_seconds(path: Path) -> float:
    """Return the seconds from loading the file until its script has drawn the page, as measured by the page
    itself."""
    with tempfile.TemporaryDirectory(prefix="grouptrail-chromium-") as profile:
        printed = subprocess.run(
            [
                *(str(_chromium()), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"),
                *("--window-size=1400,1000", "--dump-dom", path.as_uri()),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
    match = _DRAWN.search(printed)
    if match is None:
        raise RuntimeError(f"{path} was not drawn: open it in a browser and look at its console")
    return float(match[1]) / 1000

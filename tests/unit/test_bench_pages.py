"""`make bench ONLY=pages` measures every page, and fails where the page of all groups is too slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import pages as bench_pages
from bench.pages import measure


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """One round of each request."""
    monkeypatch.setattr(bench_pages, "ROUNDS", 1)


def test_measure_reports_seconds_of_every_page(tmp_path: Path) -> None:
    figures = measure(tmp_path, {60: 60.0})["60"]
    assert figures["bytes"] > 10_000
    assert {"first_request", "groups", "groups_of_a_new_snapshot", "group", "topic"} <= set(figures)


def test_measure_above_the_limit_fails(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"the page of 2 groups took .* s, more than 0.0 s"):
        measure(tmp_path, {2: 0.0})

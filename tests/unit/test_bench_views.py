"""The warehouse of `make bench ONLY=views` holds something for the views to find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import views as bench_views
from bench.views import GeneratedWarehouse, measure
from grouptrail.config import Config
from grouptrail.contracts import tables, views
from servers.pipeline import query


@pytest.mark.full
def test_measure_reports_files_and_seconds_of_every_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Including the number of files that the view opens, and that of its tables."""
    monkeypatch.setattr(bench_views, "ROUNDS", 1)
    figures = measure(Config(), tmp_path, groups=20, generations=6, commits=4)
    assert set(figures) == set(views())
    assert all(figure["files"] > 0 and figure["seconds"] >= 0 for figure in figures.values())
    assert figures["worst_groups"]["files_opened"] > 0


def test_generated_warehouse_views_return_the_expected_row_counts(tmp_path: Path) -> None:
    """Every generated group lags, rebalances and hands partitions over."""
    config = Config(warehouse=str(tmp_path))
    GeneratedWarehouse(config, groups=40, generations=6, commits=4).write()

    def count(text: str) -> Any:
        [row] = query(config, f"SELECT count(*) AS n FROM {text}")
        return row["n"]

    assert count("generations") == 240
    assert count("offset_commits") == 960
    assert count("current_lag") == 40 * 12
    assert count("worst_groups WHERE status = 'WARN'") == 2
    assert count("owners_at('service-00007', now())") == 12
    assert count("flapping_members('7 days', 1)") == 40 * 3
    assert count("dormant_groups('7 days')") == 1
    assert count("static_members") == 4 * 3
    assert count("task_lag WHERE role = 'active' AND lag IS NOT NULL") == 40 * 12
    assert count("poison_records(5) WHERE delivery_limit = 5") == 40
    assert set(tables()) >= {path.name for path in tmp_path.iterdir()}

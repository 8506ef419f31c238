"""`grouptrail check`: a healthy warehouse passes, and each expectation fails where it should."""

from __future__ import annotations

import io
from datetime import timedelta
from pathlib import Path

import pytest

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.jobs import CLUSTER as CLUSTER_FACTS
from grouptrail.jobs import SHARE_STATE
from grouptrail.quality import check
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.warehouse import Warehouse
from support.broken_tables import BROKEN, expected_names, lay_broken
from support.frozen_warehouse import thaw
from support.small_tables import at


@pytest.mark.parametrize(
    "tables",
    [
        pytest.param(("offset_commits", "rebalances", "share_group_state"), id="some"),
        pytest.param((), id="all", marks=pytest.mark.full),
    ],
)
def test_check_invalid_rows_fail_every_expectation(
    warehouse: Warehouse, config: Config, tables: tuple[str, ...]
) -> None:
    """Each expectation fails because of its rows, not because of an error in its query; results store only key
    columns."""
    lay_broken(config)
    checked = check.run(warehouse, tables, patience_seconds=0)
    assert {one.table for one in checked} == set(tables or BROKEN)
    held = [
        f"{one.table}.{name}"
        for one in checked
        for name in expected_names(one.table) - {result.expectation for result in one.failures}
    ]
    assert held == []
    assert [result.problem for one in checked for result in one.failures if result.problem] == []
    assert all(result.unexpected_count and result.sample_keys for one in checked for result in one.failures)
    kept = SqlSnapshot(warehouse, ["check_results"]).rows("SELECT * FROM check_results WHERE NOT success")
    assert len(kept) == sum(len(one.failures) for one in checked)
    with pytest.raises(check.ExpectationError, match=r"expectations failed, in .*rebalances"):
        check.raise_on_failures(checked)


@pytest.mark.full
def test_check_healthy_warehouse_has_no_failures_and_writes_data_docs(
    warehouse: Warehouse, config: Config, tmp_path: Path
) -> None:
    """Data Docs load no external resources and run no scripts; `since` excludes older rows."""
    thaw(config)
    docs = tmp_path / "docs"
    checked = check.run(warehouse, docs=docs, patience_seconds=0)
    assert [(one.table, result) for one in checked for result in one.failures] == []
    assert {one.table for one in checked} == contracts.tables().keys() - {
        "check_results",
        "broker_log_events",
        *SHARE_STATE.writes,
        "streams_topology",
        "task_assignments",
        "tombstone_checks",
        *CLUSTER_FACTS.writes,
    }
    assert {one.table: one.rows for one in checked}["generations"] == 9
    check.raise_on_failures(checked)
    pages = list(docs.rglob("*.html"))
    assert {page.name for page in pages} == {"index.html", *(f"{one.table}.html" for one in checked)}
    for page in pages:
        text = page.read_text("utf-8")
        assert "http://" not in text.replace("http://www.w3.org/", "")
        assert "https://" not in text
        assert "<script" not in text
        assert "Data asset" not in text
    out = io.StringIO()
    check.print_checked(checked, warehouse, check.console_on(out))
    assert "not checked, because there are no rows: topic_names" in out.getvalue()

    (late,) = check.run(warehouse, ("consumer_lag",), since=at(0) + timedelta(days=999), patience_seconds=0)
    assert (late.rows, late.failures) == (0, [])
    answer = "SELECT count(DISTINCT run_id) AS runs, count(*) AS failed FROM check_results"
    assert SqlSnapshot(warehouse, ["check_results"]).rows(answer)[0]["runs"] == 2

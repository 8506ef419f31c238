"""`grouptrail check`: a healthy warehouse passes, and each expectation fails where it should."""

from __future__ import annotations

import io
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.quality import check
from grouptrail.query.warehouse import Warehouse
from support.frozen_warehouse import thaw
from support.small_tables import at, lay

pytestmark = pytest.mark.spark

RECORD = {"record_partition": 1, "record_offset": 5}
OWNED = {"topic": "orders", "partition": 0, "member_id": "a", "is_open": False}
PLACE = {"topic": "orders", "partition": 0}

# Rows that violate every expectation of their table.
BROKEN: dict[str, list[dict[str, Any]]] = {
    "ingest_progress": [
        {"record_partition": 1, "start_offset": 0, "end_offset": 10, "offset_commits": 9, "query_id": None},
        {"record_partition": 1, "start_offset": 90, "end_offset": 80, "log_start_offset": 9, "last_stable_offset": 5},
        {"record_partition": 1, "start_offset": 90, "end_offset": 99, "earliest_record_at": at(0)},
    ],
    "offset_commits": [
        {**RECORD, "key_type": 7, "topic": "orders", "partition": -1},
        {**RECORD, "record_partition": 99, "group_id": None},
        RECORD,
    ],
    "group_metadata": [
        {**RECORD, "group_id": "live", "key_type": 7, "leader": "a", "members": []},
        {**RECORD, "record_partition": 99, "group_id": None},
        RECORD,
    ],
    "group_records": [
        {**RECORD, "key_type": 2, "key_json": "no json"},
        {**RECORD, "record_partition": 99, "group_id": None},
        RECORD,
    ],
    "undecodable_records": [
        {**RECORD, "fault_in": "tail", "reason": "bad luck", "fault_position": -1},
        {**RECORD, "record_partition": 99, "decoder_version": None},
        RECORD,
    ],
    "generations": [
        {"record_offset": 1, "generation": 5, "group_kind": "odd", "member_count": 3, "members": [], "skew": -1},
        {"record_offset": 2, "generation": 4, "skipped": 7, "started_at": at(2), "ended_at": at(1)},
        {"record_offset": 2, "generation": 6, "protocol_type": None},
    ],
    "group_states": [
        {"record_offset": 1, "state": "Stable", "group_kind": "classic", "ended_at": at(0)},
        {"record_offset": 2, "state": "Empty", "group_kind": "classic", "started_at": at(1), "ended_at": at(0)},
        {"record_offset": 3, "state": "Asleep", "evidence": "recorded", "not_before": at(0)},
        {"record_offset": 3, "state": "Asleep", "evidence": None},
    ],
    "memberships": [
        {"record_offset": 1, "member_id": "a", "began": "bored", "left_at": at(1)},
        {"record_offset": 2, "member_id": "a", "joined_at": at(0), "left_at": at(-1), "client_id": None},
        {"record_offset": 2, "member_id": "a"},
    ],
    "partition_ownership": [
        {**OWNED, "record_offset": 1, "member_id": "stranger", "owned_from": at(0), "ended": "lost"},
        {**OWNED, "record_offset": 2, "owned_from": at(1), "owned_until": at(0), "client_id": None},
        {**OWNED, "record_offset": 2, "owned_from": at(1), "owned_until": at(2)},
    ],
    "rebalances": [
        {"record_offset": 8, "cause": "unlucky", "from_generation": 3, "to_generation": 2, "partitions_moved": -1},
        {"record_offset": 9, "at": at(0), "previous_at": at(1), "duration_ms": 5, "certainty": None},
        {"record_offset": 9},
    ],
    "topic_names": [{"topic_id": "a", "told_by": "hearsay", "topic": ""}, {"topic_id": "a", "topic": None}],
    "history_positions": [
        {"record_partition": 1, "group_id": "live", "told_to": 6, "waits": False, "state": None},
        {"record_partition": 1, "group_id": "ahead", "told_to": 1000},
        {"record_partition": -1, "group_id": ""},
        {"record_partition": -1, "group_id": ""},
    ],
    "log_offsets": [
        {**PLACE, "log_start_offset": 9, "log_end_offset": 5, "topic": None},
        {**PLACE, "error": None},
        {**PLACE, "error": None},
    ],
    "consumer_lag": [
        {**PLACE, "status": "FINE", "lag": 7, "log_end_offset": 9, "committed_offset": 1, "lost_records": -1},
        {**PLACE, "lag": 0, "lag_seconds": 5.0, "lost_records": 3, "log_start_offset": 0, "committed_offset": 0},
        {**PLACE, "status": None},
    ],
    "committed_offsets": [{**PLACE, "committed_offset": 1}, {**PLACE, "record_partition": None}],
}


def lay_broken(config: Config) -> None:
    """Write the rows of `BROKEN`."""
    for table, rows in BROKEN.items():
        lay(config, table, *({"cluster": config.cluster, **row} for row in rows))


def expected_names(table: str) -> set[str]:
    """Return the names of a table's expectations, except those of column types, which Delta enforces."""
    return {"key_unique", "never_null", *(one["meta"]["name"] for one in contracts.expectations()[table])}


def test_check_invalid_rows_fail_every_expectation(spark: SparkSession, config: Config) -> None:
    """Each expectation fails because of its rows, not because of an error in its query; results store only key
    columns."""
    lay_broken(config)
    checked = check.run(spark, config, patience_seconds=0)
    assert {one.table for one in checked} == set(BROKEN)
    held = [
        f"{one.table}.{name}"
        for one in checked
        for name in expected_names(one.table) - {result.expectation for result in one.failures}
    ]
    assert held == []
    assert [result.problem for one in checked for result in one.failures if result.problem] == []
    assert all(result.unexpected_count and result.sample_keys for one in checked for result in one.failures)
    kept = Warehouse(config, ["check_results"]).rows("SELECT * FROM check_results WHERE NOT success")
    assert len(kept) == sum(len(one.failures) for one in checked)
    with pytest.raises(check.ExpectationError, match=r"expectations failed, in .*rebalances"):
        check.raise_on_failures(checked)


@pytest.mark.full
def test_check_healthy_warehouse_has_no_failures_and_writes_data_docs(
    spark: SparkSession, config: Config, tmp_path: Path
) -> None:
    """Data Docs load no external resources and run no scripts; `since` excludes older rows."""
    thaw(config)
    docs = tmp_path / "docs"
    checked = check.run(spark, config, docs=docs, patience_seconds=0)
    assert [(one.table, result) for one in checked for result in one.failures] == []
    assert {one.table for one in checked} == contracts.tables().keys() - {"check_results"}
    assert {one.table: one.rows for one in checked}["generations"] == 9
    check.raise_on_failures(checked)
    pages = list(docs.rglob("*.html"))
    assert {page.name for page in pages} == {"index.html", *(f"{one.table}.html" for one in checked)}
    for page in pages:
        text = page.read_text("utf-8")
        assert "http://" not in text.replace("http://www.w3.org/", "")
        assert "https://" not in text
        assert "<script" not in text
    out = io.StringIO()
    check.print_checked(checked, config, check.console_on(out))
    assert "not checked, because there are no rows: topic_names" in out.getvalue()

    (late,) = check.run(spark, config, ("consumer_lag",), since=at(0) + timedelta(days=999), patience_seconds=0)
    assert (late.rows, late.failures) == (0, [])
    answer = "SELECT count(DISTINCT run_id) AS runs, count(*) AS failed FROM check_results"
    assert Warehouse(config, ["check_results"]).rows(answer)[0]["runs"] == 2

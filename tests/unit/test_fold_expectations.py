"""The history of model runs, whole, compacted and read after a stop, meets what `grouptrail check` expects of it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from grouptrail import contracts
from grouptrail.config import load_config
from grouptrail.history.rows import TABLES
from grouptrail.quality import check
from grouptrail.quality.snapshot import take
from grouptrail.runtime.warehouses import warehouse_of
from proof.coordinator_model import Run, run
from proof.coordinator_model.strategies import varied_schedule
from proof.model_judge import compacted, fold_over_a_stop
from support.frozen_warehouse import CLUSTER
from support.group_records import KeyedRows, Row, fold_in_pieces
from support.small_tables import lay

_RUNS = 120
_OF_OTHER_TABLES = {"record_has_landed"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def histories(done: Run, random: Random) -> Iterable[KeyedRows]:
    stop, start = sorted(random.choice(done.moments).offset for _ in range(2))
    yield fold_in_pieces(done.records, names=done.names)
    yield fold_in_pieces(compacted(done.records, start, keeps_tombstones=True), names=done.names)
    yield fold_over_a_stop(done, stop, start, keeps_tombstones=True)


def test_history_of_random_runs_meets_its_expectations(tmp_path: Path) -> None:
    rows: dict[str, list[Row]] = {table: [] for table in TABLES}
    for seed in range(_RUNS):
        random = Random(seed)
        done = run(varied_schedule(random))
        for number, history in enumerate(histories(done, random) if done.moments else ()):
            for (table, *_), row in history.items():
                rows[table].append({**row, "group_id": f"{seed}-{number}", "cluster": CLUSTER})
    config = load_config(None, {"warehouse": str(tmp_path), "cluster": CLUSTER}, {})
    for table, listed in rows.items():
        times = [column.name for column in contracts.tables()[table].columns if column.type == "timestamp"]
        dated = ({**row, **{name: _time(row[name]) for name in times}, **_handed_over(row)} for row in listed)
        lay(config, table, *dated)
    warehouse = warehouse_of(config)
    snapshot = take(warehouse, patience_seconds=0)
    results = check.run_with_delta_rs(
        warehouse, TABLES, snapshot, start_spark=lambda: pytest.fail("Spark was started")
    )
    assert {result.table: result.rows for result in results} == {table: len(listed) for table, listed in rows.items()}
    failures = [
        (of.table, one.expectation, one.sample_keys)
        for of in results
        for one in of.failures
        if one.expectation not in _OF_OTHER_TABLES
    ]
    assert not failures, "\n".join(map(str, failures))


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else _EPOCH + timedelta(milliseconds=ms)


def _handed_over(row: Row) -> dict[str, Any]:
    if "handed_over" not in row:
        return {}
    return {
        "handed_over": [
            {**one, "given_up_at": _time(one["given_up_at"]), "taken_at": _time(one["taken_at"])}
            for one in row["handed_over"]
        ]
    }

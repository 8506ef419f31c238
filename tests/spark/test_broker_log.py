"""What the brokers' log proves: Spark says the same as the driver, of recorded runs of real clients."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

import pytest

from grouptrail.broker_log.reading import LineCounts, read_events
from grouptrail.history.broker_log_rows import EVENTS, LoggedEvents, conclude_memberships, conclude_rebalances
from grouptrail.history.broker_log_with_spark import (
    conclude_memberships_with_spark,
    conclude_rebalances_with_spark,
)
from proof import recordings
from proof.recorded_departures import folded_tables
from support.broker_log_lines import FOLDER

if TYPE_CHECKING:
    import pyarrow as pa

    from grouptrail.storage.warehouse import Warehouse


def in_order(rows: pa.Table) -> list[dict[str, object]]:
    key = [(name, "ascending") for name in ("group_id", "record_offset", "member_id") if name in rows.column_names]
    return list(rows.sort_by(key).to_pylist())


def test_rows_with_the_log_by_spark_are_those_of_the_driver(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "FOLDER", FOLDER)
    recording = recordings.load_recordings()[-1]
    memberships, rebalances = folded_tables(recording)  # type: ignore[arg-type]
    table = warehouse.table(EVENTS)
    table.ensure()
    path = FOLDER / f"recorded-runs-{recording.version}.log.gz"
    table.append_rows(read_events(path, UTC, LineCounts(), trusts_clients=True))
    log = LoggedEvents(table)
    expected = conclude_rebalances(rebalances, log)
    assert "LOGGED_EXPIRY" in expected["rule"].to_pylist()
    session = warehouse.session
    found = conclude_rebalances_with_spark(session.createDataFrame(rebalances), log.dataframe()).persist()
    assert in_order(found.toArrow()) == in_order(expected)
    ended = conclude_memberships_with_spark(session.createDataFrame(memberships), found, log.dataframe())
    assert in_order(ended.toArrow()) == in_order(conclude_memberships(memberships, expected, log))
    found.unpersist()

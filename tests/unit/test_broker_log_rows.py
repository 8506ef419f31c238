"""Rows of the history tables with the brokers' log: the same whether its lines came before them or after them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from grouptrail.broker_log.reading import LineCounts, read_events
from grouptrail.history import broker_log_rows, broker_log_update
from grouptrail.history.broker_log_conclusions import KEPT_CAUSE
from grouptrail.history.broker_log_rows import EVENTS, LoggedEvents, conclude_memberships, conclude_rebalances
from grouptrail.history.broker_log_update import MEMBERSHIPS, REBALANCES, apply_events, update_rows
from grouptrail.storage.creation import create_table
from grouptrail.storage.table import Table
from grouptrail.storage.warehouse import Warehouse
from proof import recording_judge, recordings
from proof.recorded_departures import folded_tables
from proof.recordings import Recording
from support.broker_log_lines import FOLDER
from support.history_tables import History

EPOCH = datetime.fromtimestamp(0, UTC)
VERSION = "4.3.0"
Rows = list[dict[str, Any]]


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    warehouse = Warehouse(str(tmp_path / "warehouse"), "default")
    for table in warehouse.tables((EVENTS, REBALANCES, MEMBERSHIPS)):
        create_table(table.location)
    return warehouse


@pytest.fixture(scope="module")
def recording() -> Recording:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recordings, "FOLDER", FOLDER)
        return next(one for one in recordings.load_recordings() if one.version == VERSION)


@pytest.fixture(scope="module")
def folded(recording: Recording) -> tuple[pa.Table, pa.Table]:
    memberships, rebalances = folded_tables(recording)  # type: ignore[arg-type]
    return memberships, rebalances


@pytest.fixture(scope="module")
def logged() -> Rows:
    path = FOLDER / f"recorded-runs-{VERSION}.log.gz"
    return list(read_events(path, UTC, LineCounts(), trusts_clients=True))


def stored(warehouse: Warehouse) -> tuple[Rows, Rows]:
    rebalances, memberships = (table.select("*") for table in warehouse.tables((REBALANCES, MEMBERSHIPS)))
    return in_order(rebalances), in_order(memberships)


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row["group_id"], row["record_offset"], row.get("member_id", "")))


def concluded(warehouse: Warehouse, folded: tuple[pa.Table, pa.Table]) -> tuple[pa.Table, pa.Table]:
    """The rows of rebalances and memberships as the history job writes them."""
    memberships, rebalances = folded
    log = LoggedEvents(warehouse.table(EVENTS))
    return conclude_rebalances(rebalances, log), conclude_memberships(memberships, rebalances, log)


def write(warehouse: Warehouse, rebalances: pa.Table, memberships: pa.Table) -> None:
    warehouse.table(REBALANCES).replace(rebalances)
    warehouse.table(MEMBERSHIPS).replace(memberships)


def span(events: Sequence[dict[str, Any]]) -> tuple[datetime, datetime]:
    times = [one["logged_at"] for one in events]
    return min(times), max(times)


def history_of(rows: tuple[Rows, Rows], rest: History) -> History:
    def ms(value: Any) -> Any:
        if isinstance(value, datetime):
            return round((value - EPOCH) / timedelta(milliseconds=1))
        if isinstance(value, list):
            return [ms(one) for one in value]
        return {name: ms(one) for name, one in value.items()} if isinstance(value, dict) else value

    rebalances, memberships = ([ms(row) for row in listed] for listed in rows)
    return History({**rest.tables, REBALANCES: rebalances, MEMBERSHIPS: memberships})


def test_rows_with_the_log_are_the_same_whether_its_lines_came_before_or_after(
    warehouse: Warehouse, folded: tuple[pa.Table, pa.Table], logged: Rows
) -> None:
    """Also if they came in parts, in any order, and again."""
    memberships, rebalances = folded
    write(warehouse, rebalances, memberships)
    without = stored(warehouse)
    parts = [logged[1::2], logged[::2]]
    for part in parts:
        warehouse.table(EVENTS).append_rows(part)
        apply_events(warehouse, *span(part))
    after = stored(warehouse)
    assert after != without
    write(warehouse, *concluded(warehouse, folded))
    assert stored(warehouse) == after
    again = apply_events(warehouse, *span(logged))
    assert (stored(warehouse), str(again)) == (after, "history: 0 rebalances and 0 endings of memberships updated")


def test_rows_with_the_log_name_its_lines_and_keep_what_they_were(
    warehouse: Warehouse, folded: tuple[pa.Table, pa.Table], logged: Rows
) -> None:
    warehouse.table(EVENTS).append_rows(logged)
    before, after = folded[1].to_pylist(), concluded(warehouse, folded)[0].to_pylist()
    lines = {one["line"]: one["logged_at"] for one in logged}
    changed = [(was, row) for was, row in zip(before, after, strict=True) if was != row]
    assert len(changed) > 20
    for was, row in changed:
        facts = [one for one in row["evidence"] if one["source"] == "broker log"]
        assert facts
        assert all(lines[one["shows"]] == one["at"] and one["record_offset"] is None for one in facts)
        assert [one for one in row["evidence"] if one not in facts] == was["evidence"]
        is_changed = row["cause_without_log"] is not None
        kept = {name: row[column if is_changed else name] for name, column in KEPT_CAUSE.items()}
        assert kept == {name: was[name] for name in KEPT_CAUSE}
    rules = {row["rule"] for _, row in changed}
    assert rules >= {"LOGGED_EXPIRY", "LOGGED_LEAVE"}
    assert {row["certainty"] for _, row in changed if row["rule"] == "LOGGED_EXPIRY"} == {"recorded"}


@pytest.mark.parametrize("trusts_clients", [True, False])
def test_rows_with_the_log_of_recorded_runs_have_nothing_wrong_and_nine_tenths_of_departures(
    warehouse: Warehouse, recording: Recording, folded: tuple[pa.Table, pa.Table], *, trusts_clients: bool
) -> None:
    path = FOLDER / f"recorded-runs-{VERSION}.log.gz"
    warehouse.table(EVENTS).append_rows(read_events(path, UTC, LineCounts(), trusts_clients=trusts_clients))
    rebalances, memberships = (table.to_pylist() for table in concluded(warehouse, folded))
    plain = recording_judge.folded
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording_judge, "folded", lambda *given: history_of((rebalances, memberships), plain(*given)))
        facts = recording_judge.facts_of_recording(recording)
    assert [fact for fact in facts if fact.verdict == "wrong"] == []
    departures = [fact for fact in facts if fact.about in {"left", "cause of Leave", "cause of Crash"}]
    known = [fact for fact in departures if fact.verdict == "right"]
    assert len(known) >= 0.9 * len(departures)


def test_update_reads_events_in_pieces_with_the_same_result(
    warehouse: Warehouse, folded: tuple[pa.Table, pa.Table], logged: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(warehouse, *reversed(folded))
    warehouse.table(EVENTS).append_rows(logged)
    expected = concluded(warehouse, folded)
    monkeypatch.setattr(broker_log_rows, "MOST_EVENTS", 60)
    assert [table.to_pylist() for table in concluded(warehouse, folded)] == [table.to_pylist() for table in expected]
    apply_events(warehouse, *span(logged))
    late = stored(warehouse)
    write(warehouse, *expected)
    assert stored(warehouse) == late


def test_events_of_a_group_that_has_too_many_in_an_hour_prove_nothing(
    warehouse: Warehouse, folded: tuple[pa.Table, pa.Table], logged: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(warehouse, *reversed(folded))
    without = stored(warehouse)
    warehouse.table(EVENTS).append_rows(logged)
    apply_events(warehouse, *span(logged))
    assert stored(warehouse) != without
    monkeypatch.setattr(broker_log_rows, "MOST_NEAR", 1)
    apply_events(warehouse, *span(logged))
    assert stored(warehouse) == without


def test_update_computes_rows_again_after_another_writer(
    warehouse: Warehouse, folded: tuple[pa.Table, pa.Table], logged: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history job writes a row again, changed, between the reading and the writing of the update."""
    memberships, rebalances = folded
    write(warehouse, rebalances, memberships)
    warehouse.table(EVENTS).append_rows(logged)
    names = rebalances.column_names
    newer = rebalances.set_column(
        names.index("followed_within_minute"),
        rebalances.schema.field("followed_within_minute"),
        pa.array([77] * len(rebalances), pa.int32()),
    )
    update, races = Table.update, chain([True], iter(lambda: False, None))

    def racing(table: Table, rows: pa.Table, version: int) -> None:
        if table.name == REBALANCES and next(races):
            table.replace(newer)
        update(table, rows, version)

    monkeypatch.setattr(Table, "update", racing)
    apply_events(warehouse, *span(logged))
    found, _ = stored(warehouse)
    assert {row["followed_within_minute"] for row in found} == {77}
    assert "LOGGED_EXPIRY" in {row["rule"] for row in found}


def test_update_without_events_or_history_does_nothing(warehouse: Warehouse, tmp_path: Path, logged: Rows) -> None:
    assert update_rows(warehouse, *span(logged)) == broker_log_update.Updated()
    updated = apply_events(Warehouse(str(tmp_path / "none"), "default"), *span(logged))
    assert not updated
    assert str(updated) == "there is no history yet: the history job applies the events to the rows that it writes"

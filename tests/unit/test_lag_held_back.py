"""Commits that an open transaction holds back: which those are, what is served meanwhile, and until when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from grouptrail.config import Config
from grouptrail.kafka.errors import KafkaUnreachableError
from grouptrail.lag import job
from grouptrail.lag.backtest import Alert, replay
from grouptrail.lag.board import Board, Rules
from grouptrail.lag.groups import Group
from grouptrail.lag.held_back import OFFSETS_TOPIC, HeldBack, Offsets
from grouptrail.lag.index import ints
from grouptrail.lag.job import MOST_GROUPS_FETCHED, Watch
from grouptrail.lag.positions import COMMITS
from grouptrail.lag.verdict import Thresholds
from grouptrail.storage.schema import table_schema
from support import small_tables

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
LOGS = table_schema("log_offsets")
SECOND = 1_000_000
PLACE = ("orders", 0)

Row = dict[str, Any]


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def micros(seconds: float) -> int:
    return round(at(seconds).timestamp() * SECOND)


def commit(seconds: float, offset: int, **more: Any) -> Row:
    where = {"cluster": "c", "group_id": "billing", "topic": "orders", "partition": 0, "record_partition": 7}
    record = {"record_offset": 500, "record_at": at(seconds), "commit_at": at(seconds)}
    return where | record | {"committed_offset": offset, "is_tombstone": False} | more


def log(seconds: float, end: int) -> Row:
    where = {"cluster": "c", "topic": "orders", "partition": 0, "sampled_at": at(seconds), "asked_at": at(seconds)}
    return where | {"log_start_offset": 0, "last_stable_offset": end, "log_end_offset": end}


def held(seconds: float, stable: int | None = 501, end: int | None = 600, partition: int = 7) -> Row:
    """A sample of the offsets topic in which a transaction is open, or of which nobody told."""
    bounds = {"last_stable_offset": stable, "log_end_offset": end}
    error = None if stable is not None else "broker 1 did not answer"
    return log(seconds, 0) | {"topic": OFFSETS_TOPIC, "partition": partition} | bounds | {"error": error}


def sampled(samples: HeldBack, seconds: float, *rows: Row) -> frozenset[int]:
    samples.sample(pa.Table.from_pylist([log(seconds, 9), *rows], LOGS), micros(seconds))
    return samples.now()


def board(*commits: Row) -> Board:
    made = Board("c", Rules())
    made.positions.add(pa.Table.from_pylist(list(commits), COMMITS))
    return made


def judged(
    made: Board,
    *logs: Row,
    told: Mapping[str, Offsets | str] | None = None,
    groups: Mapping[str, Group] | None = None,
) -> list[Row]:
    """The rows at a sample, for which coordinators tell this, if they can be asked."""
    made.sample(pa.Table.from_pylist(list(logs), LOGS))
    until = max(micros((row["sampled_at"] - NOON).total_seconds()) for row in logs)
    fetch = None if told is None else lambda _groups: told
    rows: list[Row] = made.rows(groups or {}, until=until, fetch=fetch).to_pylist()
    return rows


# --- which partitions are -----------------------------------------------------------------------------------


def test_held_back_transaction_of_a_moment_is_tolerated() -> None:
    samples = HeldBack()
    assert sampled(samples, 0) == set()
    assert sampled(samples, 10, held(10)) == set()
    assert sampled(samples, 20, held(20, stable=590, end=600)) == set()
    assert sampled(samples, 30) == set()
    assert not samples.waits


def test_held_back_same_last_stable_offset_for_longer_is_held_back() -> None:
    samples = HeldBack()
    sampled(samples, 0)
    assert sampled(samples, 10, held(10)) == set()
    assert sampled(samples, 20, held(20, end=700)) == {7}


def test_held_back_first_sample_or_one_after_a_long_pause_is_held_back() -> None:
    """Nothing shows that the transaction is a young one."""
    assert sampled(HeldBack(), 0, held(0)) == {7}
    samples = HeldBack()
    sampled(samples, 0)
    assert sampled(samples, 3600, held(3600)) == {7}


def test_held_back_lasts_until_what_lay_behind_has_landed() -> None:
    samples = HeldBack()
    sampled(samples, 0, held(0))
    sampled(samples, 10, held(10, end=620))
    assert sampled(samples, 20) == {7}
    samples.landed({7: 619})
    assert samples.now() == {7}
    samples.landed({7: 620})
    assert samples.now() == set()
    assert not samples.waits


def test_held_back_sample_that_waited_until_all_had_landed_is_not_held_back() -> None:
    samples = HeldBack()
    sampled(samples, 0, held(0))
    samples.landed({7: 800})
    assert samples.now() == set()


def test_held_back_silent_broker_changes_nothing() -> None:
    samples = HeldBack()
    sampled(samples, 0, held(0))
    assert sampled(samples, 10, held(10, stable=None, end=None)) == {7}
    assert sampled(HeldBack(), 0, held(0, stable=None, end=None)) == set()


def test_in_effect_at_commit_behind_a_held_offset_counts_from_the_end_of_the_transaction() -> None:
    samples = HeldBack()
    for second in (0, 100, 700):
        sampled(samples, second, held(second))
    sampled(samples, 710)
    partitions, offsets = (pa.array(column) for column in ([7, 7, 8], [550, 500, 550]))
    written = ints(pa.array([micros(10)] * 3))
    found = samples.in_effect_at(ints(partitions), ints(offsets), written)
    assert found.tolist() == [micros(700), micros(10), micros(10)]


# --- what is served meanwhile -------------------------------------------------------------------------------


def test_lag_held_back_group_is_unknown_with_the_lag_that_its_coordinator_knows() -> None:
    """What has landed would make it a STOP."""
    made = board(commit(-900, 100))
    for second in range(0, 400, 10):
        [row] = judged(made, log(second, 534), held(second), told={"billing": {PLACE: 533}})
    assert (row["committed_offset"], row["lag"], row["status"]) == (533, 1, "UNKNOWN")
    assert row["commit_at"] == at(0)
    why = "an open transaction holds back __consumer_offsets-7: its coordinator told this offset"
    assert (row["problem"], row["status_reason"]) == (why, why)


def test_lag_held_back_group_that_has_caught_up_is_ok() -> None:
    [row] = judged(board(commit(-900, 100)), log(0, 534), held(0), told={"billing": {PLACE: 534}})
    assert (row["lag"], row["status"]) == (0, "OK")


def test_lag_held_back_group_whose_coordinator_does_not_tell_has_no_lag() -> None:
    """Not allowed, not asked, or without that position: its own reason each."""
    made = board(commit(-900, 100))
    for told, why in (
        ({"billing": "the principal may not DESCRIBE it"}, "the principal may not DESCRIBE it"),
        (None, "its coordinator was not asked"),
        ({"billing": {("orders", 1): 3}}, "its coordinator tells no offset"),
    ):
        row = judged(made, log(0, 534), held(0), told=told)[0]
        figures = {name: row[name] for name in ("lag", "committed_offset", "commit_at", "lag_seconds")}
        assert set(figures.values()) == {None}
        assert row["status"] == "UNKNOWN"
        assert row["problem"] == f"an open transaction holds back __consumer_offsets-7: {why}"


def test_lag_groups_of_other_partitions_are_judged_as_ever() -> None:
    other = commit(-900, 100, group_id="other", record_partition=3)
    asked: list[Mapping[str, int]] = []
    made = board(commit(-900, 100), other)
    made.sample(pa.Table.from_pylist([log(0, 534), held(0)], LOGS))

    def fetch(groups: Mapping[str, int]) -> Mapping[str, Offsets | str]:
        asked.append(groups)
        return {}

    rows = made.rows({}, until=micros(0), fetch=fetch).to_pylist()
    assert [(row["group_id"], row["lag"]) for row in rows] == [("billing", None), ("other", 434)]
    assert asked == [{"billing": 7}]


def test_lag_position_first_committed_behind_the_transaction_is_told_by_the_coordinator() -> None:
    """Of a group that the history knows: nothing of its commits has landed."""
    group = {"billing": Group("Stable", record_partition=7)}
    [row] = judged(board(), log(0, 534), held(0), told={"billing": {PLACE: 500}}, groups=group)
    assert (row["group_id"], row["lag"], row["status"]) == ("billing", 34, "UNKNOWN")


def test_lag_held_back_group_is_neither_empty_nor_unsubscribed() -> None:
    """Its new members' records lie behind the transaction, too."""
    for group in (
        Group("Empty", emptied_at=at(-800), endings=frozenset({"left"})),
        Group("Stable", topics=frozenset({"else"})),
    ):
        [row] = judged(
            board(commit(-900, 9)), log(0, 534), held(0), told={"billing": {PLACE: 9}}, groups={"billing": group}
        )
        assert row["status"] == "UNKNOWN"


def test_lag_after_the_transaction_is_judged_by_the_commits_that_have_landed() -> None:
    """A rewind is none where the coordinator had told the way there."""
    made = board(commit(-900, 100))
    for second in range(0, 400, 10):
        judged(made, log(second, 534), held(second), told={"billing": {PLACE: 500 + second // 20}})
    made.positions.add(pa.Table.from_pylist([commit(395, 520, record_offset=590)], COMMITS))
    made.held_back.landed({7: 600})
    [row] = judged(made, log(400, 540))
    assert (row["committed_offset"], row["lag"], row["status"], row["problem"]) == (520, 20, "OK", None)


def test_status_transactional_commit_counts_from_the_end_of_its_transaction() -> None:
    """It was written 900 s ago and took effect 10 s ago: no STOP."""
    made = board()
    for second in range(0, 900, 10):
        judged(made, log(second, 534), held(second))
    made.positions.add(pa.Table.from_pylist([commit(1, 520, record_offset=501)], COMMITS))
    made.held_back.landed({7: 600})
    [row] = judged(made, log(900, 540))
    assert (row["lag"], row["status"]) == (20, "OK")


def test_backtest_does_not_judge_what_was_held_back() -> None:
    made = board(commit(-900, 100))
    told = {"billing": {PLACE: 100}}
    samples = [judged(made, log(second, 534), held(second), told=told) for second in range(0, 700, 10)]
    tables = [pa.Table.from_pylist(rows, table_schema("consumer_lag")) for rows in samples]
    assert list(replay(tables, Thresholds(), Alert())) == []


# --- how coordinators are asked -----------------------------------------------------------------------------


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    config = Config(warehouse=str(tmp_path), kafka={"bootstrap.servers": "127.0.0.1:9"})
    tables = ("log_offsets", "offset_commits", "consumer_lag", "committed_offsets", "ingest_progress")
    for table in (*tables, *job.GROUP_TABLES):
        small_tables.lay(config, table)
    return Watch(config, app=lambda: "app", report=print)


class Coordinators:
    """They tell of some groups."""

    def __init__(self, told: Mapping[str, Offsets | str]) -> None:
        self.told = told
        self.asked: list[str] = []

    def offsets(self, groups: Mapping[str, int], *, seconds: float) -> Mapping[str, Offsets | str]:
        assert seconds > 0
        self.asked = list(groups)
        return {group: self.told[group] for group in groups if group in self.told}


def test_fetch_more_groups_than_the_most_says_so_of_those_left_out(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinators = Coordinators({"group-0": {PLACE: 5}})
    monkeypatch.setattr(watch, "_coordinators", coordinators)
    found = watch._fetch({f"group-{number}": 7 for number in range(MOST_GROUPS_FETCHED + 2)})
    assert len(coordinators.asked) == MOST_GROUPS_FETCHED
    assert found["group-0"] == {PLACE: 5}
    assert found["group-1"] == "its coordinator was not asked: there was no time within 2 s"
    beyond = f"its coordinator was not asked: a sample asks about {MOST_GROUPS_FETCHED:,} groups at most"
    assert found[f"group-{MOST_GROUPS_FETCHED + 1}"] == beyond


def test_fetch_without_any_broker_is_reported_once(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Silent(Coordinators):
        def offsets(self, _groups: Mapping[str, int], **_how: float) -> Mapping[str, Offsets | str]:
            raise KafkaUnreachableError("no Kafka broker answers at b:9092")

    monkeypatch.setattr(watch, "_coordinators", Silent({}))
    assert watch._fetch({"billing": 7}) == watch._fetch({"billing": 7}) == {"billing": "no broker can be asked"}
    assert capsys.readouterr().out == "lag: no coordinator can be asked: no Kafka broker answers at b:9092\n"


def test_lag_batch_asks_coordinators_only_for_a_new_sample_and_until_all_has_landed(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = watch._config
    small_tables.lay(config, "offset_commits", commit(-900, 100, cluster="default"))
    small_tables.lay(config, "ingest_progress", {"record_partition": 7, "start_offset": 0, "end_offset": 501})
    monkeypatch.setattr(watch, "_coordinators", Coordinators({"billing": {PLACE: 530}}))

    def lags(now: float, *logs: Row) -> list[tuple[int | None, str]]:
        monkeypatch.setattr(job.time, "time", lambda: at(now).timestamp())
        rows = watch._lag(pa.Table.from_pylist([row | {"cluster": "default"} for row in logs], LOGS)).to_pylist()
        return [(row["lag"], row["status"]) for row in rows]

    assert lags(11, log(0, 534), held(0), log(10, 534), held(10)) == [(None, "UNKNOWN"), (4, "UNKNOWN")]
    assert lags(3600, log(20, 534), held(20)) == [(None, "UNKNOWN")]
    assert lags(31, log(30, 534)) == [(4, "UNKNOWN")]
    late = {"record_partition": 7, "start_offset": 501, "end_offset": 610, "batch_id": 2}
    small_tables.lay(config, "offset_commits", commit(35, 531, cluster="default", record_offset=599))
    small_tables.lay(config, "ingest_progress", late)
    assert lags(41, log(40, 534)) == [(3, "OK")]

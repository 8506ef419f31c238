"""Partitions of the offsets topic that an open transaction holds back, and the lag of their groups meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from grouptrail.config import Config, job_settings
from grouptrail.kafka.errors import KafkaUnreachableError
from grouptrail.lag import state
from grouptrail.lag.backtest import Alert, replay
from grouptrail.lag.calculator import LagCalculator
from grouptrail.lag.group_status import GroupStatus
from grouptrail.lag.held_back import OFFSETS_TOPIC, HeldBackPartitions, Offsets
from grouptrail.lag.index import ints
from grouptrail.lag.state import MOST_GROUPS_FETCHED, LagState
from grouptrail.lag.verdict import Thresholds
from grouptrail.storage.schema import table_schema
from support import lag_samples, small_tables
from support.contexts import lag_inputs
from support.lag_cluster import empty_tables
from support.lag_samples import LOGS, NOON, Row, add_commits, add_sample, at, log, micros, new_calculator

ORDERS_0 = ("orders", 0)


def commit(seconds: float, offset: int, **more: Any) -> Row:
    return lag_samples.commit(seconds, offset, **{"record_offset": 500, **more})


def held(seconds: float, stable: int | None = 501, end: int | None = 600, partition: int = 7) -> Row:
    """Return a sample of the offsets topic with an open transaction; without offsets, its leader did not answer."""
    bounds = {"last_stable_offset": stable, "log_end_offset": end}
    error = None if stable is not None else "broker 1 did not answer"
    return log(seconds, 0) | {"topic": OFFSETS_TOPIC, "partition": partition} | bounds | {"error": error}


def sampled(samples: HeldBackPartitions, seconds: float, *rows: Row) -> frozenset[int]:
    samples.add_sample(pa.Table.from_pylist([log(seconds, 9), *rows], LOGS), micros(seconds))
    return samples.partitions()


def judged(
    calculator: LagCalculator,
    *logs: Row,
    answers: Mapping[str, Offsets | str] | None = None,
    groups: Mapping[str, GroupStatus] | None = None,
) -> list[Row]:
    """Add a sample and return the rows at it; `answers` are the coordinators', None: they cannot be queried."""
    add_sample(calculator, *logs)
    until = max(micros((row["sampled_at"] - NOON).total_seconds()) for row in logs)
    fetch = None if answers is None else lambda _groups: answers
    rows: list[Row] = calculator.compute(groups or {}, until=until, fetch_offsets=fetch).to_pylist()
    return rows


# --- which partitions are held back -------------------------------------------------------------------------


def test_held_back_short_transaction_is_tolerated() -> None:
    samples = HeldBackPartitions()
    assert sampled(samples, 0) == set()
    assert sampled(samples, 10, held(10)) == set()
    assert sampled(samples, 20, held(20, stable=590, end=600)) == set()
    assert sampled(samples, 30) == set()
    assert samples.progress_since is None


@pytest.mark.parametrize(
    ("stop", "interval", "tolerated"), [(300, 1, 15), (20, 1, 10), (20, 10, 25)], ids=["default", "early", "rarely"]
)
def test_rules_of_tolerated_transactions_depend_on_when_a_group_has_stopped_and_on_the_samples(
    stop: float, interval: float, tolerated: float
) -> None:
    config = Config(lag={"stop_seconds": stop}, log_offsets={"interval_seconds": interval})
    assert state.rules_of(job_settings.lag(config)).held_back_seconds == tolerated


def test_held_back_unchanged_last_stable_offset_is_held_back() -> None:
    samples = HeldBackPartitions()
    sampled(samples, 0)
    assert sampled(samples, 10, held(10)) == set()
    assert sampled(samples, 20, held(20, end=700)) == {7}


def test_held_back_lasts_through_two_samples_that_count_as_one() -> None:
    """As after a late sample; the newer one counts, whatever the order of the rows."""
    samples = HeldBackPartitions()
    sampled(samples, 0)
    assert sampled(samples, 20, held(20), held(20.3)) == {7}
    assert sampled(samples, 30, held(30.3, end=700), held(30, end=600)) == {7}
    samples.release({7: 650})
    assert samples.partitions() == {7}


def test_held_back_first_sample_or_one_after_a_long_pause_is_held_back() -> None:
    """The transaction may have been open for long."""
    assert sampled(HeldBackPartitions(), 0, held(0)) == {7}
    samples = HeldBackPartitions()
    sampled(samples, 0)
    assert sampled(samples, 3600, held(3600)) == {7}


def test_held_back_lasts_until_the_records_after_it_are_decoded() -> None:
    samples = HeldBackPartitions()
    sampled(samples, 0, held(0))
    sampled(samples, 10, held(10, end=620))
    assert sampled(samples, 20) == {7}
    assert samples.progress_since == micros(10)
    samples.release({7: 619})
    assert samples.partitions() == {7}
    samples.release({7: 620})
    assert samples.partitions() == set()
    assert samples.progress_since is None


def test_held_back_sample_processed_after_its_records_were_decoded_is_not_held_back() -> None:
    samples = HeldBackPartitions()
    sampled(samples, 0, held(0))
    samples.release({7: 800})
    assert samples.partitions() == set()


def test_held_back_without_an_answer_keeps_the_last_state() -> None:
    samples = HeldBackPartitions()
    sampled(samples, 0, held(0))
    assert sampled(samples, 10, held(10, stable=None, end=None)) == {7}
    assert sampled(HeldBackPartitions(), 0, held(0, stable=None, end=None)) == set()


def test_in_effect_at_commit_behind_a_held_offset_counts_from_the_end_of_the_transaction() -> None:
    samples = HeldBackPartitions()
    for second in (0, 100, 700):
        sampled(samples, second, held(second))
    sampled(samples, 710)
    partitions, offsets = (pa.array(column) for column in ([7, 7, 8], [550, 500, 550]))
    written = ints(pa.array([micros(10)] * 3))
    in_effect = samples.in_effect_at(ints(partitions), ints(offsets), written)
    assert in_effect.tolist() == [micros(700), micros(10), micros(10)]


# --- lag while a partition is held back ---------------------------------------------------------------------


def test_lag_held_back_group_is_unknown_with_the_lag_that_its_coordinator_knows() -> None:
    """The decoded commits alone would give STOP."""
    calculator = new_calculator(commit(-900, 100))
    for second in range(0, 400, 10):
        [row] = judged(calculator, log(second, 534), held(second), answers={"billing": {ORDERS_0: 533}})
    assert (row["committed_offset"], row["lag"], row["status"]) == (533, 1, "UNKNOWN")
    assert row["commit_at"] == at(0)
    why = "an open transaction holds back __consumer_offsets-7: this offset is from the group's coordinator"
    assert (row["problem"], row["status_reason"]) == (why, why)


def test_lag_held_back_group_that_has_caught_up_is_ok() -> None:
    [row] = judged(new_calculator(commit(-900, 100)), log(0, 534), held(0), answers={"billing": {ORDERS_0: 534}})
    assert (row["lag"], row["status"]) == (0, "OK")


def test_lag_held_back_group_without_an_offset_from_its_coordinator_is_unknown() -> None:
    """`problem` gives the reason: no permission, not queried, or no offset for this partition."""
    calculator = new_calculator(commit(-900, 100))
    for answers, why in (
        ({"billing": "the principal may not DESCRIBE it"}, "the principal may not DESCRIBE it"),
        (None, "the group's coordinator was not queried"),
        ({"billing": {("orders", 1): 3}}, "the group's coordinator has no offset"),
    ):
        row = judged(calculator, log(0, 534), held(0), answers=answers)[0]
        figures = {name: row[name] for name in ("lag", "committed_offset", "commit_at", "lag_seconds")}
        assert set(figures.values()) == {None}
        assert row["status"] == "UNKNOWN"
        assert row["problem"] == f"an open transaction holds back __consumer_offsets-7: {why}"


def test_lag_groups_of_other_partitions_are_not_affected() -> None:
    other = commit(-900, 100, group_id="other", record_partition=3)
    queries: list[Mapping[str, int]] = []
    calculator = new_calculator(commit(-900, 100), other)
    add_sample(calculator, log(0, 534), held(0))

    def fetch(groups: Mapping[str, int]) -> Mapping[str, Offsets | str]:
        queries.append(groups)
        return {}

    rows = calculator.compute({}, until=micros(0), fetch_offsets=fetch).to_pylist()
    assert [(row["group_id"], row["lag"]) for row in rows] == [("billing", None), ("other", 434)]
    assert queries == [{"billing": 7}]


def test_lag_position_first_committed_after_the_transaction_began_is_from_the_coordinator() -> None:
    """The group is in the history, and none of its commits is decoded."""
    group = {"billing": GroupStatus("Stable", record_partition=7)}
    [row] = judged(new_calculator(), log(0, 534), held(0), answers={"billing": {ORDERS_0: 500}}, groups=group)
    assert (row["group_id"], row["lag"], row["status"]) == ("billing", 34, "UNKNOWN")


def test_lag_held_back_group_is_neither_empty_nor_unsubscribed() -> None:
    """Records of new members may be held back, too."""
    for group in (
        GroupStatus("Empty", emptied_at=at(-800), endings=frozenset({"left"})),
        GroupStatus("Stable", topics=frozenset({"else"})),
    ):
        [row] = judged(
            new_calculator(commit(-900, 9)),
            log(0, 534),
            held(0),
            answers={"billing": {ORDERS_0: 9}},
            groups={"billing": group},
        )
        assert row["status"] == "UNKNOWN"


def test_lag_after_the_transaction_uses_decoded_commits_and_is_no_rewind() -> None:
    """The window holds the coordinator's offsets, which are not above the commit."""
    calculator = new_calculator(commit(-900, 100))
    for second in range(0, 400, 10):
        judged(calculator, log(second, 534), held(second), answers={"billing": {ORDERS_0: 500 + second // 20}})
    add_commits(calculator, commit(395, 520, record_offset=590))
    calculator.held_back.release({7: 600})
    [row] = judged(calculator, log(400, 540))
    assert (row["committed_offset"], row["lag"], row["status"], row["problem"]) == (520, 20, "OK", None)


@pytest.mark.parametrize(
    ("known", "status"),
    [
        ({}, "OK"),
        ({"is_transactional": True}, "OK"),
        # Kafka 4.4 writes topic ids in transactions, too (KIP-1319).
        ({"topic_id": "dGhpcwAAAAAAAAAAAAAAAA"}, "OK"),
        ({"topic_id": "dGhpcwAAAAAAAAAAAAAAAA", "is_transactional": True}, "OK"),
        ({"is_transactional": False}, "STOP"),
    ],
)
def test_status_transactional_commit_counts_from_the_end_of_its_transaction(known: Row, status: str) -> None:
    """It was written 900 s ago and took effect 10 s ago: no STOP. A plain one took effect at once."""
    calculator = new_calculator()
    for second in range(0, 900, 10):
        judged(calculator, log(second, 534), held(second))
    add_commits(calculator, commit(1, 520, record_offset=501, **known))
    calculator.held_back.release({7: 600})
    [row] = judged(calculator, log(900, 540))
    assert (row["lag"], row["status"]) == (20, status)


@pytest.mark.parametrize("open_seconds", [330, 360, 590, 900, 3600])
@pytest.mark.parametrize("topic_id", [None, "dGhpcwAAAAAAAAAAAAAAAA"])
@pytest.mark.parametrize("is_transactional", [True, None])
def test_status_stop_counts_from_the_end_of_a_transaction_of_any_length(
    open_seconds: int, topic_id: str | None, is_transactional: bool | None
) -> None:
    """The topic id, which Kafka 4.4 writes in transactions, changes nothing. A consumer that dies then is noticed."""
    calculator = new_calculator(commit(-10, 10, record_offset=400))
    for second in [*range(0, open_seconds - 60, 60), *range(open_seconds - 60, open_seconds, 10)]:
        judged(calculator, log(second, 534, topic_id=topic_id), held(second))
    known = {"topic_id": topic_id, "is_transactional": is_transactional}
    add_commits(calculator, commit(1, 520, record_offset=501, **known))
    calculator.held_back.release({7: 600})
    statuses = {}
    for second in range(open_seconds, open_seconds + 400, 10):
        [row] = judged(calculator, log(second, 540 + second, topic_id=topic_id))
        statuses[second - open_seconds] = row["status"]
    assert min(after for after, status in statuses.items() if status == "STOP") == 290
    assert {status for after, status in statuses.items() if after >= 290} == {"STOP"}


def test_backtest_group_that_was_held_back_does_not_fire() -> None:
    calculator = new_calculator(commit(-900, 100))
    answers = {"billing": {ORDERS_0: 100}}
    samples = [judged(calculator, log(second, 534), held(second), answers=answers) for second in range(0, 700, 10)]
    tables = [pa.Table.from_pylist(rows, table_schema("consumer_lag")) for rows in samples]
    assert list(replay(tables, Thresholds(), Alert())) == []


# --- queries to coordinators --------------------------------------------------------------------------------


@pytest.fixture
def lag_state(tmp_path: Path) -> LagState:
    config = empty_tables(tmp_path)
    small_tables.lay(config, "ingest_progress")
    return LagState(lag_inputs(config), print)


class Coordinators:
    """Coordinators that answer for some groups."""

    def __init__(self, answers: Mapping[str, Offsets | str]) -> None:
        self.answers = answers
        self.queried: list[str] = []

    def offsets(self, groups: Mapping[str, int], *, seconds: float) -> Mapping[str, Offsets | str]:
        assert seconds > 0
        self.queried = list(groups)
        return {group: self.answers[group] for group in groups if group in self.answers}


def test_fetch_offsets_of_more_groups_than_the_limit_gives_the_rest_a_reason(
    lag_state: LagState, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinators = Coordinators({"group-0": {ORDERS_0: 5}})
    monkeypatch.setattr(lag_state, "_coordinators", coordinators)
    fetched = lag_state._fetch_offsets({f"group-{number}": 7 for number in range(MOST_GROUPS_FETCHED + 2)})
    assert len(coordinators.queried) == MOST_GROUPS_FETCHED
    assert fetched["group-0"] == {ORDERS_0: 5}
    assert fetched["group-1"] == "the group's coordinator was not queried within 2 s"
    beyond = f"the group's coordinator was not queried: more than {MOST_GROUPS_FETCHED:,} groups are held back"
    assert fetched[f"group-{MOST_GROUPS_FETCHED + 1}"] == beyond


def test_fetch_offsets_without_any_broker_is_reported_once(
    lag_state: LagState, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Silent(Coordinators):
        def offsets(self, _groups: Mapping[str, int], **_how: float) -> Mapping[str, Offsets | str]:
            raise KafkaUnreachableError("no Kafka broker answers at b:9092")

    monkeypatch.setattr(lag_state, "_coordinators", Silent({}))
    assert (
        lag_state._fetch_offsets({"billing": 7})
        == lag_state._fetch_offsets({"billing": 7})
        == {"billing": "no broker answered"}
    )
    assert capsys.readouterr().out == "lag: no coordinator can be queried: no Kafka broker answers at b:9092\n"


def test_lag_batch_queries_coordinators_only_for_a_new_sample_and_until_all_is_decoded(
    lag_state: LagState, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = lay_held_group(lag_state, monkeypatch)

    def lags(now: float, *logs: Row) -> list[tuple[int | None, str]]:
        return batch_at(lag_state, monkeypatch, now, *logs)

    assert lags(11, log(0, 534), held(0), log(10, 534), held(10)) == [(None, "UNKNOWN"), (4, "UNKNOWN")]
    assert lags(3600, log(20, 534), held(20)) == [(None, "UNKNOWN")]
    before_a_truncation = {"record_partition": 7, "end_offset": 9000, "landed_at": at(-3600)}
    small_tables.lay(config, "ingest_progress", before_a_truncation)
    assert lags(31, log(30, 534)) == [(4, "UNKNOWN")]
    late = {"record_partition": 7, "start_offset": 501, "end_offset": 610, "batch_id": 2, "landed_at": at(35)}
    small_tables.lay(config, "offset_commits", commit(35, 531, cluster="default", record_offset=599))
    small_tables.lay(config, "ingest_progress", late)
    assert lags(41, log(40, 534)) == [(3, "OK")]


def test_lag_batch_during_which_the_commits_after_the_transaction_land_uses_them(
    lag_state: LagState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decode job writes them after the batch has read commits, and before it reads how far all is decoded."""
    config = lay_held_group(lag_state, monkeypatch)
    assert batch_at(lag_state, monkeypatch, 1, log(0, 534), held(0)) == [(4, "UNKNOWN")]

    def land_before_reading(*_: object, **_since: object) -> Mapping[str | None, Mapping[int, int]]:
        small_tables.lay(config, "offset_commits", commit(5, 531, cluster="default", record_offset=599))
        return {None: {7: 610}}

    monkeypatch.setattr(state, "read_ends", land_before_reading)
    assert batch_at(lag_state, monkeypatch, 11, log(10, 534)) == [(3, "OK")]


def lay_held_group(lag_state: LagState, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Lay the last commit of a group that landed before the transaction, and let its coordinator know a later one."""
    config = Config(warehouse=lag_state._warehouse.location)
    small_tables.lay(config, "offset_commits", commit(-900, 100, cluster="default"))
    small_tables.lay(config, "ingest_progress", {"record_partition": 7, "start_offset": 0, "end_offset": 501})
    monkeypatch.setattr(lag_state, "_coordinators", Coordinators({"billing": {ORDERS_0: 530}}))
    return config


def batch_at(
    lag_state: LagState, monkeypatch: pytest.MonkeyPatch, now: float, *logs: Row
) -> list[tuple[int | None, str]]:
    """Return lag and status of each row of a batch of these samples."""
    monkeypatch.setattr(state.time, "time", lambda: at(now).timestamp())
    rows = lag_state.lag(pa.Table.from_pylist([row | {"cluster": "default"} for row in logs], LOGS)).to_pylist()
    return [(row["lag"], row["status"]) for row in rows]

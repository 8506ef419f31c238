"""What is asked of coordinators after a stop in which tombstones may have been compacted, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from grouptrail.config import Config
from grouptrail.decode.batch import decode_batches
from grouptrail.history.job import HistoryBatchWriter
from grouptrail.history.operations import Record
from grouptrail.history.rebuild import READ_OR_WRITTEN, rebuild
from grouptrail.history.state import FoldState, encode_state
from grouptrail.history.tombstone_checks import Stop, Stops, Unheard, answers, unheard_groups
from grouptrail.jobs import HISTORY
from grouptrail.kafka.errors import ClusterError, KafkaUnreachableError
from grouptrail.kafka.group import Committed, PolledGroup
from grouptrail.kafka.groups import Coordinators
from grouptrail.kafka.record_schema import RECORD_SCHEMA
from grouptrail.runtime.warehouses import context_of, warehouse_of
from grouptrail.storage.progress import PROGRESS
from grouptrail.storage.schema import table_schema
from support import small_tables
from support.fold_records import DAY, at_once, first_epoch, last, states
from support.group_records import classic, fold
from support.history_batches import metadata
from support.landed import rows as rows_of

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
ORDERS = ("orders", 0)
AUDIT = ("audit", 1)


def landed(hours: float, start: int, end: int, **more: Any) -> dict[str, Any]:
    """Return a row of `ingest_progress`: a batch of partition 0 without a hole."""
    counts = dict.fromkeys(("offset_commits", "group_metadata", "group_records", "undecodable_records"), 0)
    row = {"record_partition": 0, "batch_id": end, "query_id": "decode", "start_offset": start, "end_offset": end}
    row |= {**counts, "offset_commits": end - start, "holes": 0, "lost": 0, "last_stable_offset": end}
    return {**row, "landed_at": NOON + timedelta(hours=hours), **more}


def progress(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), table_schema(PROGRESS))


def due(*rows: dict[str, Any]) -> dict[int, Stop]:
    stops = Stops(timedelta(hours=24))
    for row in rows:
        stops.add(progress(row))
    return stops.due()


def test_stops_longer_than_tombstones_are_kept_with_a_hole_is_due() -> None:
    [stop] = due(landed(0, 0, 10), landed(25, 10, 20, holes=1)).values()
    assert stop == Stop(10, 20, NOON + timedelta(hours=25), 25 * 3600)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([landed(0, 0, 10), landed(23, 10, 20, holes=1)], id="short"),
        pytest.param([landed(0, 0, 10), landed(25, 10, 20)], id="nothing is missing"),
        pytest.param([landed(25, 10, 20, holes=1)], id="history begins"),
        pytest.param([landed(0, 0, 10), landed(25, 10, 20, holes=1, last_stable_offset=30)], id="more to read"),
        pytest.param([landed(0, 0, 10), landed(25, 10, 20, holes=1, source="segments")], id="not from the topic"),
    ],
)
def test_stops_without_a_missed_tombstone_or_not_read_to_its_end_is_not_due(rows: list[dict[str, Any]]) -> None:
    assert due(*rows) == {}


def test_stops_hole_in_a_later_batch_of_what_was_missed_is_due() -> None:
    rows = [landed(0, 0, 10), landed(25, 10, 20, last_stable_offset=30), landed(25.1, 20, 30, lost=1)]
    assert list(due(*rows)) == [0]


STOP = {0: Stop(10, 20, NOON, 90_000)}
ENDS = {0: 20}


def state(group_id: str, kind: Any, processed_to: int, **more: Any) -> dict[str, Any]:
    known = FoldState(group_id, 0)
    known.group = replace(known.group, kind=kind)
    row = {"record_partition": 0, "group_id": group_id, "processed_to": processed_to, "waits": False}
    return {**row, "state": encode_state(known), **more}


def committed(group_id: str, place: tuple[str, int], offset: int) -> dict[str, Any]:
    row = {"record_partition": 0, "record_offset": offset, "group_id": group_id}
    return {**row, "topic": place[0], "partition": place[1]}


def test_unheard_groups_are_those_without_a_record_since_the_stop() -> None:
    states_ = [
        state("old", "classic", 5),
        state("new", "classic", 15),
        state("removed", None, 6),
        state("open", "consumer", 10, waits=True),
        state("shared", "share", 4),
    ]
    commits = [committed("old", ORDERS, 3), committed("simple", ORDERS, 4), committed("new", ORDERS, 12)]
    commits.append(committed("new", AUDIT, 9))
    assert unheard_groups(STOP, ENDS, states_, commits, []) == {
        "new": Unheard(0, None, frozenset({AUDIT})),
        "old": Unheard(0, "classic", frozenset({ORDERS})),
        "simple": Unheard(0, None, frozenset({ORDERS})),
    }


@pytest.mark.parametrize(("hours", "is_asked"), [(-1, True), (1, False)])
def test_unheard_groups_asked_since_the_stop_are_not_asked_again(hours: float, is_asked: bool) -> None:
    asked = {"record_partition": 0, "group_id": "old", "topic": "", "checked_at": NOON + timedelta(hours=hours)}
    found = unheard_groups(STOP, ENDS, [state("old", "classic", 5)], [], [asked])
    assert bool(found) is is_asked


ABOUT = {"billing": Unheard(0, "classic", frozenset({ORDERS, AUDIT}))}
KEPT = {ORDERS: Committed(7, -1, ""), AUDIT: Committed(8, -1, "")}


def polled(**more: Any) -> PolledGroup:
    return replace(PolledGroup("billing", "classic", "", ""), **more)


@pytest.mark.parametrize(
    ("answer", "marked"),
    [
        pytest.param(polled(is_gone=True), {None: True, ORDERS: True, AUDIT: True}, id="gone"),
        pytest.param(polled(described={}, commits=KEPT), {None: False}, id="exists"),
        pytest.param(
            polled(described={}, commits={ORDERS: KEPT[ORDERS]}, without_commit=frozenset({AUDIT})),
            {None: False, AUDIT: True},
            id="an offset expired",
        ),
        pytest.param(
            polled(described={}, problem="denied", without_commit=frozenset({AUDIT})),
            {AUDIT: True},
            id="a topic is hidden",
        ),
        pytest.param(polled(is_gone=True, commits=KEPT), {}, id="gone, but with commits"),
        pytest.param(polled(problem="denied"), {}, id="denied"),
        pytest.param(polled(problem=""), {}, id="coordinator moves"),
        pytest.param(polled(described={}), {}, id="no answer about commits"),
    ],
)
def test_answers_only_what_a_coordinator_says_is_gone_is_marked(
    answer: PolledGroup, marked: Mapping[tuple[str, int] | None, bool]
) -> None:
    rows = answers(ABOUT, [answer], ENDS, NOON)
    assert {(row["topic"], row["partition"]) if row["topic"] else None: row["is_gone"] for row in rows} == marked
    assert {row["record_offset"] for row in rows} <= {19}


def missed(offset: int, at: int, kind: str = "Consumer") -> Record:
    type_ = "GroupMetadata" if kind == "classic" else f"{kind}GroupMetadata"
    return Record(offset, at, type_, None, None, is_polled=True, read_late_at=at)


def test_fold_group_that_a_coordinator_no_longer_has_is_dead_and_its_state_ends_with_its_last_record() -> None:
    rows = fold([*at_once(first_epoch(0)), missed(99, 5 * DAY)])
    assert states(rows) == [("Stable", "recorded", 1_000, 1_000), ("Dead", "polled", 5 * DAY, None)]
    dead = last(rows, "group_states")
    assert dead["not_before"] == 1_000
    assert "its coordinator no longer had it after a stop" in dead["note"]
    assert not last(rows, "memberships")["is_open"]


def test_fold_group_that_comes_back_after_the_answer_is_another_incarnation() -> None:
    before = classic(1, 1_000, 5, {})
    rows = fold([before, missed(99, 5 * DAY, "classic"), classic(100, 6 * DAY, 1, {})])
    found = [(row["state"], row["incarnation"], row["is_open"]) for row in rows["group_states"]]
    assert sorted(found, key=lambda row: row[1])[:2] == [("Empty", 1, False), ("Dead", 1, False)]
    assert ("Empty", 2, True) in found


# --- the job


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = Config(warehouse=str(tmp_path), kafka={"bootstrap.servers": "127.0.0.1:9"})
    warehouse_of(config).ensure((*READ_OR_WRITTEN, "committed_offsets"))
    return config


class Job:
    """The history job's batches of a topic with one partition; `lines` is what it logs."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.lines: list[str] = []
        self.restart()

    def restart(self) -> None:
        context = context_of(HISTORY, self._config, warehouse_of(self._config), self.lines.append)
        self._writer = HistoryBatchWriter(context, app=lambda: "history")

    def land(self, hours: float, start: int, end: int, *groups: str) -> pa.Table:
        """Add a batch that has a first generation of empty groups, and holes after that."""
        warehouse, at = warehouse_of(self._config), NOON + timedelta(hours=hours)
        keys, values = zip(*(metadata(group, 1, {}) for group in groups), strict=True) if groups else ((), ())
        columns = {"record_partition": [0] * len(groups), "record_offset": range(start, start + len(groups))}
        columns |= {"record_at": [at] * len(groups), "key": keys, "value": values}
        unknown = dict.fromkeys(("is_transactional", "partition_leader_epoch"), [None] * len(groups))
        for table, decoded in decode_batches([pa.RecordBatch.from_pydict(columns | unknown, schema=RECORD_SCHEMA)]):
            rows = pa.Table.from_batches([decoded])
            warehouse.table(table).append(rows, shared={"source": None, "read_at": at})
        row = landed(hours, start, end, group_metadata=len(groups), offset_commits=0, holes=end - start - len(groups))
        row |= {"earliest_record_at": at, "latest_record_at": at} if groups else {}
        warehouse.table(PROGRESS).append_rows([row])
        return progress({**row, "cluster": self._config.cluster})

    def process(self, rows: pa.Table) -> None:
        self._writer.process(rows, rows["end_offset"][0].as_py())


def states_in(config: Config) -> set[tuple[str, str, str]]:
    return {(row["group_id"], row["state"], row["evidence"]) for row in rows_of(config, "group_states")}


def answering(monkeypatch: pytest.MonkeyPatch, *gone: str) -> list[set[str]]:
    """Let coordinators answer that some groups are gone and others exist; return the groups of each question."""
    asked: list[set[str]] = []

    def describe(
        _coordinators: Coordinators, kinds: Mapping[str, str], *_groups: Any, seconds: float
    ) -> list[PolledGroup]:
        asked.append(set(kinds))
        groups = [PolledGroup(name, kind, "", "", described={}) for name, kind in kinds.items()]
        return [replace(group, described=None, is_gone=True) if group.group_id in gone else group for group in groups]

    monkeypatch.setattr(Coordinators, "describe", describe)
    return asked


def test_history_job_after_a_long_stop_marks_the_groups_that_are_gone_once(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answering(monkeypatch, "billing")
    small_tables.lay(config, "committed_offsets", {**committed("billing", ORDERS, 0), "cluster": config.cluster})
    job = Job(config)
    job.process(job.land(0, 0, 2, "billing", "audit"))
    after = job.land(25, 2, 9, "fresh")
    job.process(after)
    expected = {("billing", "Empty", "recorded"), ("billing", "Dead", "polled")}
    expected |= {("audit", "Empty", "recorded"), ("fresh", "Empty", "recorded")}
    assert states_in(config) == expected
    assert [(row["group_id"], row["topic"], row["is_gone"]) for row in rows_of(config, "tombstone_checks")] == [
        ("audit", "", False),
        ("billing", "", True),
        ("billing", "orders", True),
    ]
    assert any("asked for 2 groups; 1 groups and 1 committed offsets are gone" in line for line in job.lines)
    job.restart()
    job.process(after)
    job.process(job.land(25.1, 9, 10, "later"))
    assert asked == [{"billing", "audit"}]
    streamed = {table: rows_of(config, table) for table in ("group_states", "generations", "history_positions")}
    rebuild(context_of(HISTORY, config, warehouse_of(config), job.lines.append), pytest.fail)
    for table, rows in streamed.items():
        assert sorted(map(repr, rows_of(config, table))) == sorted(map(repr, rows)), table


def test_history_job_that_failed_before_the_answers_were_folded_folds_them_when_it_goes_on(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, "billing")
    job = Job(config)
    job.process(job.land(0, 0, 2, "billing"))
    after = job.land(25, 2, 9)
    with monkeypatch.context() as failing:
        failing.setattr(HistoryBatchWriter, "_fold", lambda *_, **__: pytest.fail("out of memory"))
        with pytest.raises(pytest.fail.Exception):
            job.process(after)
    assert ("billing", "Dead", "polled") not in states_in(config)
    job.restart()
    job.process(after)
    assert ("billing", "Dead", "polled") in states_in(config)


@pytest.mark.parametrize("error", [KafkaUnreachableError("no Kafka broker answers at a:9092")])
def test_history_job_without_an_answer_marks_nothing_says_why_and_asks_again(
    config: Config, monkeypatch: pytest.MonkeyPatch, error: ClusterError
) -> None:
    def describe(*_: Any, **__: Any) -> list[PolledGroup]:
        raise error

    monkeypatch.setattr(Coordinators, "describe", describe)
    job = Job(config)
    job.process(job.land(0, 0, 2, "billing"))
    job.process(job.land(25, 2, 9))
    assert states_in(config) == {("billing", "Empty", "recorded")}
    [line] = [line for line in job.lines if "not known" in line]
    assert "not known of 'billing': no Kafka broker answers" in line
    asked = answering(monkeypatch, "billing")
    job.process(job.land(25.1, 9, 10, "soon"))
    assert asked == []
    job.restart()
    job.process(job.land(25.2, 10, 11, "later"))
    assert asked == [{"billing"}]
    assert ("billing", "Dead", "polled") in states_in(config)

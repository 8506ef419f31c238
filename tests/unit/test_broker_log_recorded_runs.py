"""Recorded runs of real clients, with the broker's log: what it makes known, and that none of it is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from grouptrail.broker_log.reading import LineCounts, read_events
from grouptrail.history.broker_log_evidence import prove_ending, prove_rebalance
from proof import recording_judge, recordings
from proof.recorded_runs import folded
from proof.recording_judge import Fact
from proof.recordings import Recording
from support.broker_log_lines import FOLDER
from support.history_tables import History

EPOCH = datetime.fromtimestamp(0, UTC)
POLL_TIMEOUT = timedelta(minutes=5)  # all clients have the default, and no run takes so long


def events(version: str, *, trusts_clients: bool) -> list[dict[str, Any]]:
    path = FOLDER / f"recorded-runs-{version}.log.gz"
    return list(read_events(path, UTC, LineCounts(), trusts_clients=trusts_clients))


def timed(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    times = {name: EPOCH + timedelta(milliseconds=row[name]) for name in names if row[name] is not None}
    return {**row, **times}


def with_log(lines: list[dict[str, Any]]) -> Callable[[Any, Mapping[str, str]], History]:
    """Return what folds records and applies what lines prove."""

    def fold(records: Any, names: Mapping[str, str]) -> History:
        history = folded(records, names)
        for row in history.tables["rebalances"]:
            proof = prove_rebalance(timed(row, "at"), lines, polling=row["members_left"] or ())
            if proof is not None:
                row.update(cause=proof.cause, certainty=proof.certainty, cause_note=proof.cause_note)
        for row in history.tables["memberships"]:
            ending = prove_ending(timed(row, "joined_at", "left_at"), lines, poll_timeout=POLL_TIMEOUT)
            if ending is not None:
                row.update(ended=ending.ended, ended_because=ending.ended_because)
        return history

    return fold


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Recording:
    monkeypatch.setattr(recordings, "FOLDER", FOLDER)
    return next(one for one in recordings.load_recordings() if one.version == request.param)


def judged(
    monkeypatch: pytest.MonkeyPatch, recording: Recording, *, trusts_clients: bool
) -> tuple[list[Fact], list[Fact]]:
    """Return the facts that records alone give, and those with the log."""
    before = recording_judge.facts_of_recording(recording)
    lines = events(recording.version, trusts_clients=trusts_clients)
    monkeypatch.setattr(recording_judge, "folded", with_log(lines))
    return before, recording_judge.facts_of_recording(recording)


def unknown(facts: Iterable[Fact], *kinds: str) -> int:
    return sum(fact.verdict != "right" for fact in facts if fact.about in kinds)


DEPARTURES = ("left", "cause of Leave", "cause of Crash", "cause of Wait")
VERSIONS = sorted(
    path.name.removeprefix("recorded-runs-").removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz")
)


def test_runs_are_recorded_with_both_coordinators() -> None:
    assert VERSIONS == ["3.9.1", "4.3.0"]


@pytest.mark.parametrize("trusts_clients", [True, False])
@pytest.mark.parametrize("recording", VERSIONS, indirect=True)
def test_broker_log_of_recorded_runs_makes_departures_known_and_nothing_wrong(
    monkeypatch: pytest.MonkeyPatch, recording: Recording, *, trusts_clients: bool
) -> None:
    before, after = judged(monkeypatch, recording, trusts_clients=trusts_clients)
    assert [fact for fact in after if fact.verdict == "wrong"] == []
    assert unknown(before, *DEPARTURES) >= 13
    assert unknown(after, *DEPARTURES) <= unknown(before, *DEPARTURES) // 10


@pytest.mark.parametrize("recording", VERSIONS, indirect=True)
def test_broker_log_of_recorded_runs_gives_recorded_causes_only_where_clients_are_trusted(
    recording: Recording,
) -> None:
    before = folded(recording.records, recording.names).tables["rebalances"]
    after = with_log(events(recording.version, trusts_clients=False))(recording.records, recording.names)
    recorded = [row["certainty"] == "recorded" for row in after.tables["rebalances"]]
    assert recorded == [row["certainty"] == "recorded" for row in before]


@pytest.mark.parametrize("recording", VERSIONS, indirect=True)
def test_broker_log_of_another_day_proves_nothing(recording: Recording) -> None:
    """Groups that are created again have the same generations."""
    lines = events(recording.version, trusts_clients=True)
    later = [{**line, "logged_at": line["logged_at"] + timedelta(days=1)} for line in lines]
    before = folded(recording.records, recording.names).tables
    assert with_log(later)(recording.records, recording.names).tables == before

"""Recorded departures of real clients: the history says how most of them left, and of none a wrong way."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.played_departures import LIBRARIES
from proof.recorded_departures import (
    TRUTHS,
    Evidence,
    RecordedDepartures,
    Said,
    judge,
    load_departures,
    logged_events,
    markdown,
)

RECORDINGS = load_departures()


@pytest.fixture(scope="module")
def judged() -> list[tuple[RecordedDepartures, Said]]:
    return [(recording, one) for recording in RECORDINGS for one in judge(recording)]


@pytest.fixture(scope="module")
def said(judged: list[tuple[RecordedDepartures, Said]]) -> list[Said]:
    return [one for _, one in judged]


def known(said: list[Said], evidence: Evidence) -> int:
    return sum(one.verdicts[evidence] == "right" for one in said)


def test_every_way_of_leaving_is_recorded_with_every_client(said: list[Said]) -> None:
    assert [one.name for one in RECORDINGS] == [
        f"{version}{brokers}" for version in ("3.9.1", "4.1.1", "4.3.0") for brokers in ("-cluster", "")
    ]
    assert {one.departure.way for one in said} == TRUTHS.keys()
    assert {one.departure.library for one in said} == {*LIBRARIES}


def test_endings_of_real_clients_are_never_wrong(said: list[Said]) -> None:
    assert [one for one in said if one.is_wrong] == []


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda one: one.name)
def test_endings_of_real_clients_are_never_wrong_by_a_log_that_clients_may_have_written(
    recording: RecordedDepartures,
) -> None:
    """In Kafka's default layout, a client's words may be lines of their own; here none are."""
    untrusted = list(judge(recording, trusts_clients=False))
    assert [one for one in untrusted if one.is_wrong] == []
    assert [one.verdicts for one in untrusted] == [one.verdicts for one in judge(recording)]
    assert all(event["doubt"] is None for event in logged_events(recording, trusts_clients=False))


def test_commits_decide_more_than_half_of_what_the_records_leave_open_and_the_log_nine_tenths(
    said: list[Said],
) -> None:
    left_open = [one for one in said if one.verdicts["records"] == "unknown"]
    assert len(left_open) >= 400
    assert known(left_open, "commits") >= len(left_open) / 2
    assert known(left_open, "log") >= len(left_open) * 0.9


def test_endings_without_commits_stay_unknown_without_the_log(said: list[Said]) -> None:
    silent = [one for one in said if one.departure.commits == "nobody"]
    assert silent
    assert {one.verdicts["commits"] for one in silent} == {"unknown"}


def test_endings_that_the_log_leaves_open_are_no_crashes(said: list[Said]) -> None:
    assert {one.ended for one in said if one.verdicts["log"] == "unknown"} == {"left_or_poll_timeout"}


def test_counts_in_the_docs_are_those_of_the_tables(said: list[Said]) -> None:
    left_open = [one for one in said if one.verdicts["records"] == "unknown"]
    commits, log = known(left_open, "commits"), known(left_open, "log")
    counts = f"Of the {len(left_open)} that the records leave open, commits make {commits} known"
    page = (Path(__file__).parents[2] / "docs" / "history.md").read_text("utf-8")
    assert f"{counts} ({commits / len(left_open):.0%}".replace("%", " %") in page
    assert f"the log {log} ({log / len(left_open):.0%}".replace("%", " %") in page


def test_tables_in_the_docs_are_of_these_recordings(judged: list[tuple[RecordedDepartures, Said]]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "history.md").read_text("utf-8")
    assert markdown(judged) in page

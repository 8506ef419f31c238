"""Recorded departures of real clients: the history says how most of them left, and of none a wrong way."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from proof.recorded_departures import RecordedDepartures, Said, judge, load_departures, markdown

RECORDINGS = load_departures()


@pytest.fixture(scope="module", params=RECORDINGS, ids=lambda one: one.version)
def said(request: pytest.FixtureRequest) -> list[Said]:
    recording: RecordedDepartures = request.param
    return list(judge(recording))


def test_endings_of_real_clients_are_never_wrong(said: list[Said]) -> None:
    assert [one for one in said if "wrong" in (one.before, one.now)] == []


def test_commits_decide_more_than_half_of_the_endings_that_the_records_leave_open(said: list[Said]) -> None:
    left_open = [one for one in said if one.before == "unknown"]
    assert len(left_open) >= 50
    assert sum(one.now == "right" for one in left_open) >= len(left_open) / 2


def test_endings_without_commits_stay_unknown(said: list[Said]) -> None:
    silent = [one for one in said if one.departure.commits == "nobody"]
    assert silent
    assert {one.now for one in silent} == {"unknown"}


def test_table_in_the_docs_is_of_these_recordings() -> None:
    page = (Path(__file__).parents[2] / "docs" / "history.md").read_text("utf-8")
    assert markdown(chain.from_iterable(map(judge, RECORDINGS))) in page

"""Polls are landed in Delta tables, also by a job that dies during a poll and by one that is restarted."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from grouptrail.config import Config
from grouptrail.decode.progress import SourceChangedError, refuse_other_source
from grouptrail.decode.schema import TABLES
from grouptrail.kafka.group import Committed, PolledGroup
from grouptrail.polling.job import Polling
from grouptrail.polling.poller import Poll
from grouptrail.storage.progress import PROGRESS
from grouptrail.storage.warehouse import Warehouse
from support import landed
from support.polled_groups import AT_5, classic_group, consumer_group, member

BILLING = classic_group("Stable", member("a", 0), commits=AT_5)
SEARCH = replace(consumer_group(3, {"a": [0], "b": [1]}), group_id="search")


class FakePoller:
    """Return polls of the groups that a test sets, one a second."""

    def __init__(self) -> None:
        self.groups: list[PolledGroup] = []
        self.seconds = 1_790_000_000.0

    def poll(self) -> Poll:
        self.seconds += 1
        return Poll(self.seconds, {group.group_id: group for group in self.groups}, {1})

    def is_gone(self, _group_id: str, _poll: Poll) -> bool:
        return True


@pytest.fixture
def poller() -> FakePoller:
    return FakePoller()


@pytest.fixture
def polling(warehouse: Warehouse, poller: FakePoller) -> Polling:
    warehouse.ensure((*TABLES, PROGRESS))
    return restarted(warehouse, poller)


def restarted(warehouse: Warehouse, poller: FakePoller) -> Polling:
    """Return the job as after a start: it knows only what has landed."""
    return Polling(warehouse, poller, app=lambda: "query", log=lambda _line: None)  # type: ignore[arg-type]


def land(polling: Polling, *groups: PolledGroup) -> None:
    poller: FakePoller = polling._poller  # type: ignore[assignment]
    poller.groups = list(groups)
    polling.process(None, batch=round(poller.seconds - 1_790_000_000))  # type: ignore[arg-type]


def commits(config: Config) -> list[tuple[Any, ...]]:
    """Return (committed offset, not_before, record_at) of each commit, the times in seconds of the test."""

    def second(at: datetime | None) -> int | None:
        return None if at is None else round(at.timestamp() - 1_790_000_000)

    rows = sorted(landed.rows(config, "offset_commits"), key=lambda row: row["record_offset"])
    return [(row["committed_offset"], second(row["not_before"]), second(row["record_at"])) for row in rows]


def test_polling_restarted_lands_each_change_once(
    polling: Polling, config: Config, warehouse: Warehouse, poller: FakePoller
) -> None:
    """A change happened after the previous poll, or after a restart after the last poll that landed something."""
    moved = replace(BILLING, commits={("orders", 0): Committed(6, -1, "")})
    land(polling, BILLING, SEARCH)
    land(polling, BILLING, SEARCH)
    land(polling, moved, SEARCH)
    polling = restarted(warehouse, poller)
    land(polling, moved, SEARCH)
    polling = restarted(warehouse, poller)
    land(polling, BILLING, SEARCH)
    land(polling)
    assert commits(config) == [(5, None, 1), (6, 2, 3), (5, 3, 5), (None, 5, 6)]
    assert [row["is_tombstone"] for row in landed.rows(config, "group_metadata")].count(True) == 1
    rows = landed.rows(config, "offset_commits")
    assert {(row["source"], row["is_transactional"]) for row in rows} == {("admin", None)}
    of_search = [row["is_tombstone"] for row in landed.rows(config, "group_records")]
    assert (of_search.count(False), of_search.count(True)) == (8, 8)
    landed.assert_progress_adds_up(config)
    refuse_other_source(warehouse, is_polled=True)
    with pytest.raises(SourceChangedError, match="cluster test was polled before, and cannot be read"):
        refuse_other_source(warehouse, is_polled=False)


@pytest.mark.parametrize("fails_at", ["group_metadata", PROGRESS])
def test_polling_poll_fails_before_an_append_lands_once_with_the_next_poll(
    polling: Polling, config: Config, fails_at: str
) -> None:
    """No row lands twice, and `ingest_progress` counts all rows, whichever append failed."""
    with landed.dying_before(fails_at):
        land(polling, BILLING)
    land(polling, BILLING)
    land(polling, BILLING)
    assert [row[0] for row in commits(config)] == [5]
    assert len(landed.rows(config, "group_metadata")) == 1
    landed.assert_progress_adds_up(config)
    [progress] = landed.rows(config, PROGRESS)
    assert progress["offset_commits"] == progress["group_metadata"] == 1
    assert progress["landed_at"] <= datetime.now(UTC)

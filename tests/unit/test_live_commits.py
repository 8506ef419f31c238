"""Commits read as they are written, without a broker."""

from __future__ import annotations

import pytest

from grouptrail.decode import live
from grouptrail.decode.live import LiveCommits
from grouptrail.kafka.errors import KafkaUnreachableError
from grouptrail.kafka.new_records import NewRecords

NOWHERE = {"bootstrap.servers": "nowhere:9092"}


def test_live_commits_without_a_broker_are_none_and_say_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    tries: list[int] = []

    def poll(_records: NewRecords) -> None:
        tries.append(1)
        raise KafkaUnreachableError("no Kafka broker answers at nowhere:9092: start it")

    monkeypatch.setattr(NewRecords, "poll", poll)
    commits = LiveCommits(NOWHERE, 1_000_000, lines.append)
    assert not len(commits.fresh())
    assert not len(commits.fresh())
    assert len(tries) == 1  # the next one is after a pause
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0.0)
    commits = LiveCommits(NOWHERE, 1_000_000, lines.append)
    assert [len(commits.fresh()) for _ in range(3)] == [0, 0, 0]
    assert len(tries) == 4
    why = "no Kafka broker answers at nowhere:9092: start it"
    assert lines == [f"metrics: commits are shown only once they are in the tables: {why}"] * 2


def test_new_records_where_nothing_listens_say_so_and_do_not_blame_the_client() -> None:
    records = NewRecords({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(KafkaUnreachableError, match=r"^no Kafka broker answers at 127\.0\.0\.1:1 "):
        records.poll()

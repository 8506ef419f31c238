"""Names of topic ids: what is asked for, and how often."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from grouptrail.history import names as topic_names

RECORDS = pa.table(
    {"type": ["ConsumerGroupTargetAssignmentMember"], "body": ['{"topicPartitions":[{"topicId":"T"}]}']}
)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Topic names in a warehouse without any in records or commits."""
    found: Any = object.__new__(topic_names.TopicNames)
    found._spark, found._names, found._nameless = None, {}, set()
    found._config = type("Config", (), {"cluster": "c"})()
    monkeypatch.setattr(topic_names.tables, "append_new", lambda *_, **__: None)
    monkeypatch.setattr(topic_names.TopicNames, "_names_in_commits", lambda *_: {})
    return found


def test_names_after_the_broker_was_unreachable_are_asked_for_again(
    names: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[dict[str, str]] = [{}, {"T": "orders"}]
    monkeypatch.setattr(topic_names.TopicNames, "_names_from_broker", lambda *_: answers.pop(0))
    assert names.of_few(RECORDS) == {}
    assert names.of_few(RECORDS) == {"T": "orders"}


def test_names_of_a_deleted_topic_are_asked_for_once(names: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [{"O": "__consumer_offsets"}]
    monkeypatch.setattr(topic_names.TopicNames, "_names_from_broker", lambda *_: answers.pop(0))
    assert names.of_few(RECORDS) == {}
    assert names.of_few(RECORDS) == {}


def test_names_in_records_need_no_broker(names: Any) -> None:
    body = '{"topics":[{"topicId":"T","topicName":"orders"}]}'
    records = pa.table({"type": ["ConsumerGroupPartitionMetadata"], "body": [body]})
    names._names_from_broker = dict
    assert names.of_few(records) == {"T": "orders"}

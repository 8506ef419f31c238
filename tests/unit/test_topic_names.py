"""Names of topic ids: what is asked for, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from grouptrail.history.names import TopicNames, known_names, references_in
from grouptrail.storage.warehouse import Warehouse

REFERENCES = references_in(
    pa.table({"type": ["ConsumerGroupTargetAssignmentMember"], "body": ['{"topicPartitions":[{"topicId":"T"}]}']})
)


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    """A warehouse without names in commits."""
    warehouse = Warehouse(str(tmp_path), "test")
    warehouse.ensure(("topic_names", "offset_commits"))
    return warehouse


@pytest.fixture
def names(warehouse: Warehouse) -> Any:
    return TopicNames(warehouse, {})


def test_names_after_the_broker_was_unreachable_are_asked_for_again(
    names: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[dict[str, str]] = [{}, {"T": "orders"}]
    monkeypatch.setattr(TopicNames, "_names_from_broker", lambda *_: answers.pop(0))
    assert names.look_up(REFERENCES) == {}
    assert names.look_up(REFERENCES) == {"T": "orders"}


def test_names_of_a_deleted_topic_are_asked_for_once(names: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [{"O": "__consumer_offsets"}]
    monkeypatch.setattr(TopicNames, "_names_from_broker", lambda *_: answers.pop(0))
    assert names.look_up(REFERENCES) == {}
    assert names.look_up(REFERENCES) == {}


def test_names_in_records_need_no_broker(names: Any, warehouse: Warehouse) -> None:
    named = '{"topics":[{"topicId":"T","topicName":"orders"},{"topicId":"O","topicName":"other"}]}'
    types = ["ConsumerGroupTargetAssignmentMember", "ConsumerGroupPartitionMetadata", "GroupMetadata"]
    records = pa.table({"type": types, "body": ['{"topicId":"T"}', named, None]})
    names._names_from_broker = dict
    assert names.look_up(references_in(records)) == {"T": "orders", "O": "other"}
    assert known_names(warehouse) == {"T": "orders", "O": "other"}

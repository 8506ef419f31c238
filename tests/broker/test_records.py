"""Single records by offset, from brokers that have new topics, none of that name, or no answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from grouptrail.kafka.errors import KafkaUnreachableError
from grouptrail.kafka.log import RecordRequest
from grouptrail.kafka.records import RecordReader
from servers.kafka import Broker
from support.deadlines import scaled
from support.kafka_clients import PATIENCE_SECONDS

DEADLINE_SECONDS = scaled(2)
# A lost connection is opened again once.
LIMIT_SECONDS = 2.5 * DEADLINE_SECONDS


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("kafka"), proxied=True) as started:
        yield started


@pytest.fixture
def reader(proxied: Broker) -> Iterator[RecordReader]:
    settings = {"bootstrap.servers": proxied.proxied_bootstrap}
    with RecordReader(settings, PATIENCE_SECONDS) as made:
        yield made


def topic_with_record(broker: Broker, name: str) -> RecordRequest:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(PATIENCE_SECONDS)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(name, b"x")
    assert producer.flush(PATIENCE_SECONDS) == 0
    return RecordRequest(name, 0, 0)


def test_first_records_topic_created_after_the_last_lookup_is_read(proxied: Broker, reader: RecordReader) -> None:
    old = topic_with_record(proxied, "old")
    assert reader.first_records([old])[old] is not None
    for number in range(5):
        new = topic_with_record(proxied, f"new-{number}")
        records = reader.first_records([old, new])
        assert records[old] is not None
        assert records[new] is not None


def test_first_records_of_many_partitions_are_found_again_and_again(proxied: Broker, reader: RecordReader) -> None:
    """Also where a fetch has more records than the client returns at a time."""
    partitions, records = 60, 20
    admin = AdminClient({"bootstrap.servers": proxied.bootstrap})
    admin.create_topics([NewTopic("many", partitions, 1)])["many"].result(PATIENCE_SECONDS)
    producer = Producer({"bootstrap.servers": proxied.bootstrap})
    for number in range(partitions * records):
        producer.produce("many", b"x", partition=number % partitions)
    assert producer.flush(PATIENCE_SECONDS) == 0
    for offset in (0, 5, records - 1, 3):
        wanted = [RecordRequest("many", partition, offset, is_isolated=True) for partition in range(partitions)]
        answers = reader.first_records(wanted)
        assert [record and record.offset for record in map(answers.get, wanted)] == [offset] * partitions


def test_first_records_topic_that_does_not_exist_is_left_out_at_once(proxied: Broker, reader: RecordReader) -> None:
    known, unknown = topic_with_record(proxied, "known"), RecordRequest("unknown", 0, 0)
    end = known._replace(topic="known", offset=1, is_isolated=True)
    started = time.monotonic()
    records = reader.first_records([known, unknown, end])
    assert time.monotonic() - started < PATIENCE_SECONDS
    assert records.keys() == {known, end}
    assert records[end] is None
    assert reader.first_records([unknown]) == {}


def test_first_records_broker_that_hangs_or_is_down_raises_within_the_deadline(
    tmp_path: Path, proxied: Broker
) -> None:
    """The message is not about security settings: with these the broker has answered before."""
    record = topic_with_record(proxied, "orders")
    assert proxied.proxy is not None
    with RecordReader({"bootstrap.servers": proxied.proxied_bootstrap}, DEADLINE_SECONDS) as reader:
        assert reader.first_records([record])
        proxied.proxy.stall()
        try:
            started = time.monotonic()
            with pytest.raises(
                KafkaUnreachableError, match=r"no longer answers .* check that its brokers run"
            ) as hanging:
                reader.first_records([record])
            assert time.monotonic() - started < LIMIT_SECONDS
            assert "security" not in str(hanging.value)
        finally:
            proxied.proxy.resume()
        assert reader.first_records([record])
    with Broker(tmp_path / "other") as other:
        known = topic_with_record(other, "orders")
        lost = RecordReader({"bootstrap.servers": other.bootstrap}, DEADLINE_SECONDS)
        assert lost.first_records([known])
        other.kill()
        started = time.monotonic()
        with lost, pytest.raises(KafkaUnreachableError, match=r"no Kafka broker answers at .*: start it"):
            lost.first_records([known])
        assert time.monotonic() - started < LIMIT_SECONDS

"""What the broker tests do to a Kafka through real clients, and how long they wait for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError, NoError

from servers.kafka import PASSWORDS, Broker
from servers.offsets_topic import OFFSETS_TOPIC, ensure_offsets_topic
from support.deadlines import scaled

PATIENCE_SECONDS = scaled(60)
# To ask costs processor time, which what is awaited needs itself: a page of metrics, a table, a broker.
_PAUSE_SECONDS = 0.2


def await_that(is_so: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(_PAUSE_SECONDS)


def poll(consumer: KafkaConsumer, timeout_ms: int = 1_000) -> None:
    """Poll a member; kafka-python may forget a join in progress when a poll ends, if new metadata caused it, and
    hang for ever."""
    consumer.poll(timeout_ms=timeout_ms)
    if consumer._coordinator.rejoining:
        consumer._coordinator.request_rejoin()


@contextmanager
def in_background(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run each in a thread of its own; end them with the block."""
    ended = threading.Event()
    with ThreadPoolExecutor(len(works)) as threads:
        running = [threads.submit(work, ended) for work in works]
        try:
            yield
        finally:
            ended.set()
    for one in running:
        one.result()


@contextmanager
def producer(broker: Broker, **settings: str) -> Iterator[Producer]:
    """Yield a producer and flush it at the end."""
    producing = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0} | settings)
    yield producing
    assert producing.flush(PATIENCE_SECONDS) == 0


def make_orders(bootstrap: str) -> None:
    """Create the topic `orders` and the offsets topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("orders", 2)])["orders"].result(PATIENCE_SECONDS)
    ensure_offsets_topic(bootstrap)


def commit(bootstrap: str, group: str, offset: int, partition: int = 0) -> None:
    """Commit an offset of `orders`, as an operator's reset does; retry until the group has a coordinator."""
    commit_all(bootstrap, group, {("orders", partition): offset})


def commit_all(bootstrap: str, group: str, offsets: Mapping[tuple[str, int], int], metadata: str = "") -> None:
    """Commit the offset of each (topic, partition), as `commit` does."""
    wanted = {TopicPartition(*place): OffsetAndMetadata(offset, metadata, -1) for place, offset in offsets.items()}

    def is_committed() -> bool:
        with (
            contextlib.suppress(KafkaError),
            contextlib.closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin,
        ):
            # A coordinator that still loads its partition reports it here without an exception.
            return set(admin.alter_group_offsets(group, wanted).values()) == {NoError}
        return False

    await_that(is_committed)


def configure_offsets_topic(bootstrap: str, **settings: str) -> None:
    """Set properties of the offsets topic."""
    configure_topic(bootstrap, OFFSETS_TOPIC, **settings)


def configure_topic(bootstrap: str, topic: str, **settings: str) -> None:
    """Set properties of a topic."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: what it has been asked fails when it is gone
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)


def as_reader(broker: Broker) -> dict[str, str]:
    """Return the settings of a SASL user that has only the ACLs granted by the test."""
    login = f'username="reader" password="{PASSWORDS["reader"]}"'
    return {
        "GROUPTRAIL_KAFKA__BOOTSTRAP_SERVERS": broker.sasl_bootstrap,
        "GROUPTRAIL_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "GROUPTRAIL_KAFKA__SASL_MECHANISM": "PLAIN",
        "GROUPTRAIL_KAFKA__SASL_JAAS_CONFIG": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {login};"
        ),
    }

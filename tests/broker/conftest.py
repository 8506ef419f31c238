"""A real Kafka for the floor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grouptrail.config import Config
from servers.kafka import VERSIONS, Broker
from support.landed import config_of

PARTITIONS = 4


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("broker")


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for one file of tests, with few offsets partitions and an authorizer; its parameter is the version."""
    version: str = getattr(request, "param", VERSIONS[0])
    # Tests wait for the log cleaner, which by default looks for work every 15 s.
    properties = {"offsets.topic.num.partitions": str(PARTITIONS), "log.cleaner.backoff.ms": "500"}
    folder = tmp_path_factory.mktemp("kafka")
    with Broker(folder, version=version, properties=properties, security="sasl") as started:
        yield started


@pytest.fixture
def config(broker: Broker, tmp_path: Path) -> Config:
    return config_of(broker.bootstrap, tmp_path / "warehouse")

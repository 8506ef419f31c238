"""Requests about a cluster, answered by brokers in memory."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors as client_errors

from grouptrail.kafka import client_internals
from grouptrail.kafka.cluster import DESCRIBE_DENIED
from grouptrail.kafka.cluster_metadata import (
    CONFIGS_DENIED,
    MIGRATING,
    NO_CONTROLLER,
    ClusterDescription,
)
from grouptrail.kafka.log_dirs import CLUSTER_DENIED

UNKNOWN, DENIED, NOT_CONTROLLER = 3, 29, 41


class Admin:
    """kafka-python's admin client, as far as it is used; `quorum` and `levels` may be errors.

    `named` are the controllers that metadata name, one after the other.
    """

    def __init__(self) -> None:
        self.codes: dict[tuple[int | None, str], int] = {}
        self.sent: list[tuple[int | None, int]] = []
        self.quorum: Any = [1]
        self.named: Iterator[int] = iter(())
        self.levels: Any = {}

    def send(self, _admin: Any, node: int | None, request: Any) -> Any:
        if hasattr(request, "topics") and not request.topics:
            return SimpleNamespace(controller_id=next(self.named))
        if hasattr(request, "topics"):
            self.sent.append((node, len(request.topics)))
            topics = [SimpleNamespace(name=one.name, error_code=self.codes[node, one.name]) for one in request.topics]
            return SimpleNamespace(topics=topics)
        self.sent.append((node, len(request.resources)))
        return SimpleNamespace(results=[self.described(name, keys) for _kind, name, keys in request.resources])

    def described(self, name: str, keys: list[str]) -> Any:
        settings = [SimpleNamespace(name=key, value="1") for key in keys]
        return SimpleNamespace(resource_name=name, error_code=self.codes.get((None, name), 0), configs=settings)

    def describe_metadata_quorum(self) -> Any:
        if isinstance(self.quorum, Exception):
            raise self.quorum
        return {"topics": [{"partitions": [{"leader_id": leader} for leader in self.quorum]}]}

    def describe_features(self) -> Any:
        if isinstance(self.levels, Exception):
            raise self.levels
        return self.levels

    def close(self) -> None:
        pass


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    admin = Admin()
    monkeypatch.setattr(client_internals, "send_to_node", admin.send)
    return admin


@pytest.fixture
def cluster(admin: Admin) -> Iterator[ClusterDescription]:
    cluster = ClusterDescription({"bootstrap.servers": "127.0.0.1:1"}, requests_per_second=1e6)
    cluster._admin = admin
    yield cluster
    cluster.close()


def test_unlisted_topic_is_gone_only_if_every_broker_says_so(cluster: ClusterDescription, admin: Admin) -> None:
    """A broker that knows a topic, or may not say, ends the search for it."""
    admin.codes = {
        (1, "gone"): UNKNOWN, (2, "gone"): UNKNOWN, (1, "late"): UNKNOWN, (2, "late"): 0,
        (1, "hidden"): DENIED, (1, "moving"): NOT_CONTROLLER,
    }  # fmt: skip
    assert cluster.unlisted(["gone", "late", "hidden", "moving"], [1, 2]) == {
        "gone": None,
        "late": "not known to every broker",
        "hidden": DESCRIBE_DENIED,
        "moving": "NotControllerError",
    }
    assert admin.sent == [(1, 4), (2, 2)]
    assert cluster.unlisted(["gone"], []) == {"gone": "no broker is listed"}


@pytest.mark.parametrize(
    ("quorum", "expected"),
    [
        ([3], 3),
        ([-1], NO_CONTROLLER),
        (client_errors.ClusterAuthorizationFailedError(), CLUSTER_DENIED),
    ],
)
def test_controller_is_the_quorums_leader_or_a_reason(
    cluster: ClusterDescription, admin: Admin, quorum: Any, expected: int | str
) -> None:
    admin.quorum = quorum
    assert cluster.controller() == expected


def test_controller_with_zookeeper_is_what_brokers_name(cluster: ClusterDescription, admin: Admin) -> None:
    admin.quorum = client_errors.IncompatibleBrokerVersion()
    admin.named = iter([2] * 8)
    assert cluster.controller() == 2
    admin.named = iter([2, -1] * 4)  # a new one is elected
    assert cluster.controller() == 2
    admin.named = iter([-1] * 8)
    assert cluster.controller() == NO_CONTROLLER


def test_controller_named_at_random_is_unknown_until_a_quorum_answers(
    cluster: ClusterDescription, admin: Admin
) -> None:
    admin.quorum = client_errors.IncompatibleBrokerVersion()
    admin.named = iter([2, 2, 2, 2, 2, 2, 2, 1, *[1] * 8])
    assert [cluster.controller(), cluster.controller()] == [MIGRATING, MIGRATING]
    admin.quorum = [3000]
    assert cluster.controller() == 3000


def test_features_are_the_finalized_ones_by_name(cluster: ClusterDescription, admin: Admin) -> None:
    admin.levels = {"metadata.version": {"finalized": (1, 29)}, "group.version": {"finalized": (1, 1)}, "x": {}}
    assert cluster.features() == [{"name": "group.version", "level": 1}, {"name": "metadata.version", "level": 29}]
    admin.levels = client_errors.IncompatibleBrokerVersion()
    assert cluster.features() is None


def test_topic_configs_are_requested_in_parts_and_errors_are_values(
    cluster: ClusterDescription, admin: Admin
) -> None:
    names = [f"topic-{number:04}" for number in range(1_001)]
    admin.codes = {(None, names[0]): DENIED, (None, names[1]): UNKNOWN, (None, names[2]): NOT_CONTROLLER}
    answers = dict(cluster.topic_configs(names, ["retention.ms"]))
    assert [answers[name] for name in names[:4]] == [
        CONFIGS_DENIED,
        None,
        "NotControllerError",
        {"retention.ms": "1"},
    ]
    assert admin.sent == [(None, 500), (None, 500), (None, 1)]

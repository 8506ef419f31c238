"""The installed kafka-python has the parts outside its public API that `client_internals` uses. No broker is needed.

The tests import that module themselves: where a part is gone, the tests that name it still run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kafka
import pytest
from kafka.errors import KafkaConnectionError
from kafka.future import Future

SOURCE = Path(__file__).resolve().parents[2] / "jobs/grouptrail/kafka/client_internals.py"

# The attributes of classes and of their instances that are used.
ATTRIBUTES = {
    "KafkaAdminClient": (
        "_find_coordinator_ids",
        "_get_cluster_metadata",
        "_list_group_offsets_requests",
        "_list_groups_request",
        "_list_partition_offsets_request",
        "_manager",
    ),
    "KafkaNetClient": ("_manager", "_net"),
    "KafkaConnectionManager": ("get_connection", "run", "send"),
    "NetworkSelector": ("stop",),
    "KafkaConnection": ("init_future",),
    "KafkaTCPTransport": ("_sock_recv",),
    "KafkaSSLTransport": ("_sock_recv",),
    "DefaultRecordBatch": (
        *("_buffer", "_maybe_uncompress", "_pos", "HEADER_STRUCT", "TIMESTAMP_TYPE_MASK", "TRANSACTIONAL_MASK"),
        *("attributes", "base_offset", "is_control_batch", "next_offset", "producer_id", "records_count"),
        *("size_in_bytes", "validate_crc"),
    ),
    "MemoryRecords": ("next_batch",),
    "StickyAssignmentExecutor": ("balance", "get_final_assignment", "perform_initial_assignment"),
}
IN_MODULE = {
    "KafkaConnectionManager": "kafka.net.manager",
    "NetworkSelector": "kafka.net.selector",
    "KafkaConnection": "kafka.net.connection",
    "KafkaAdminClient": "kafka",
}


def used_imports() -> list[tuple[str, str]]:
    """Return module and name of everything that is imported from kafka-python."""
    nodes = [node for node in ast.walk(ast.parse(SOURCE.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    return [
        (str(node.module), name.name) for node in nodes if str(node.module).startswith("kafka") for name in node.names
    ]


def used_private_attributes() -> set[str]:
    """Return the private attributes of other objects that the module uses."""
    nodes = ast.walk(ast.parse(SOURCE.read_text("utf-8")))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and node.attr.startswith("_")}


def lacks(part: str) -> str:
    """Return what a test says about a part that is not there."""
    return (
        f"kafka-python {version('kafka-python')} has no {part}: adapt {SOURCE.relative_to(SOURCE.parents[3])}, "
        "or cap the version below it in pyproject.toml"
    )


@pytest.fixture
def admin() -> Iterator[Any]:
    """An admin client that has no broker."""
    from kafka.net.compat import KafkaNetClient

    def network(**arguments: Any) -> Any:
        client = KafkaNetClient(**arguments)
        client._manager.bootstrap = lambda _timeout_ms: None
        return client

    client = kafka.KafkaAdminClient(kafka_client=network)
    yield client
    client.close()


@pytest.mark.parametrize(("module", "name"), used_imports())
def test_internals_imported_names_exist(module: str, name: str) -> None:
    assert hasattr(import_module(module), name), lacks(f"{module}.{name}")


@pytest.mark.parametrize(
    ("owner", "attribute"), [(owner, attribute) for owner, names in ATTRIBUTES.items() for attribute in names]
)
def test_internals_attributes_exist(owner: str, attribute: str, admin: Any) -> None:
    of_import = {name: module for module, name in used_imports()}
    held: Any = getattr(import_module(IN_MODULE.get(owner) or of_import[owner]), owner)
    if owner in ("KafkaAdminClient", "KafkaNetClient"):  # their instances alone have some
        held = admin if owner == "KafkaAdminClient" else admin._client
    assert hasattr(held, attribute), lacks(f"{owner}.{attribute}")


def test_internals_every_private_attribute_is_tested() -> None:
    tested = {name for names in ATTRIBUTES.values() for name in names if name.startswith("_")}
    assert used_private_attributes() == tested


def test_requests_can_be_encoded() -> None:
    from grouptrail.kafka import client_internals as internals

    at = kafka.TopicPartition("orders", 0)
    level = kafka.IsolationLevel.READ_COMMITTED
    client = kafka.KafkaAdminClient
    requests = [
        internals.list_groups_request(client),
        internals.list_groups_request(client, "share"),
        internals.list_offsets_request(client, {at: kafka.OffsetSpec.LATEST}, level),
        internals.describe_classic_groups_request(["billing"]),
        internals.describe_consumer_groups_request(["billing"]),
        internals.share_group_offsets_request(["queue"]),
        internals.leader_epochs_request({("orders", 0): 7, ("other", 0): 1, ("orders", 1): 0}),
        internals.metadata_request(None),
        internals.metadata_request(["orders"]),
        internals.api_versions_request(),
        internals.topic_configs_request(["orders"], ["retention.ms"]),
        internals.group_configs_request(["queue"]),
        internals.fetch_request("orders", {0: 7}, partition_bytes=100, max_bytes=200, wait_ms=5),
    ]
    for request in requests:
        assert request.encode(version=request.max_version), request


def test_committed_offsets_requests_old_broker_gets_one_for_each_group(admin: Any) -> None:
    from grouptrail.kafka.client_internals import committed_offsets_requests

    for newest_version, expected in ((8, [None]), (7, ["billing", "audit"])):
        admin._manager.broker_version_data = SimpleNamespace(api_version=lambda _api, version=newest_version: version)
        requests = committed_offsets_requests(admin, dict.fromkeys(("billing", "audit")))
        assert [group_id for group_id, _request in requests] == expected


def test_send_to_nodes_failed_requests_are_returned_as_errors(admin: Any) -> None:
    from grouptrail.kafka.client_internals import send_to_node, send_to_nodes, wait_for_responses

    error = KafkaConnectionError("lost")
    admin._manager.send = lambda request, node_id: (
        Future().failure(error) if node_id == 2 else Future().success((request, node_id))
    )
    futures = send_to_nodes(admin, {1: "a", 2: "b"})
    assert list(futures) == [1, 2]
    assert wait_for_responses(admin, futures.values()) == [("a", 1), error]
    assert send_to_node(admin, 3, "c") == ("c", 3)
    with pytest.raises(KafkaConnectionError):
        send_to_node(admin, 2, "d")


def test_network_client_calls_back_before_and_after_a_failed_connection() -> None:
    from grouptrail.kafka.client_internals import network_client, stop_network_client

    class RefusedError(Exception):
        pass

    def refuse(node: object) -> None:
        if node == "refused":
            raise RefusedError

    failed: list[object] = []
    client = network_client(
        {"bootstrap_servers": "127.0.0.1:1"},
        before_connecting=refuse,
        on_connection_error=lambda node, _error: failed.append(node),
    )
    try:
        with pytest.raises(RefusedError):
            client._manager.get_connection("refused")
        connection = client._manager.get_connection("bootstrap-0")
        connection.init_future.failure(KafkaConnectionError("lost"))
        assert failed == ["bootstrap-0"]
    finally:
        stop_network_client(client)


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        ({1: 10}, ("2.1", "2.2")),
        ({1: 17, 2: 9}, ("3.9", "4.0")),
        ({1: 18, 0: 13, 2: 10}, ("4.1", "4.2")),
        ({35: 99, 2: 99}, ("4.3", None)),
    ],
)
def test_kafka_release_is_framed_by_the_newest_versions(newest: dict[int, int], expected: tuple[str, str]) -> None:
    """Also of brokers that no longer support the oldest ones."""
    keys = [SimpleNamespace(api_key=key, min_version=newest[key], max_version=newest[key]) for key in newest]
    internals = import_module("grouptrail.kafka.client_internals")
    assert internals.kafka_release(SimpleNamespace(api_keys=keys)) == expected

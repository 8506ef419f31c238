"""The parts of kafka-python that are not its public API: what each does, and which public API is missing.

No other module uses such parts (ruff's SLF001 and TID251 see to it). Any release may change them: pyproject.toml caps
the version, and `tests/unit/test_client_internals.py` names each part that the installed version lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol

from kafka import IsolationLevel, TopicPartition
from kafka import errors as client_errors
from kafka.admin import ConfigResourceType
from kafka.coordinator.assignors.sticky.sticky_assignor import (
    StickyAssignmentExecutor,
    StickyAssignorMemberMetadataV1,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.abc import SaslMechanism
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.admin import DescribeConfigsRequest, DescribeGroupsRequest, DescribeLogDirsRequest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS, BrokerVersionData
from kafka.protocol.consumer import FetchRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

import grouptrail.kafka

RecordBatch = DefaultRecordBatch
"""A record batch of message format 2 in bytes. Missing: a public reader of record batches."""

# Fetches without a session, by a topic's name (later versions have its id).
_NO_SESSION = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": "", "max_version": 12}

# The first version of OffsetForLeaderEpoch that takes DESCRIBE on the topic, instead of CLUSTER_ACTION (KIP-320).
_EPOCHS_BY_DESCRIBE = 3
# ConfigResource.Type.GROUP, which kafka-python does not know.
_GROUP_RESOURCE = 32


class ConsumerGroupDescribeRequest(ApiMessage, load_json=grouptrail.kafka):  # type: ignore[misc, call-arg]
    """The request of KIP-848, whose layouts are beside this file. Missing: kafka-python does not have it."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=grouptrail.kafka):  # type: ignore[misc, call-arg]
    """The response to ConsumerGroupDescribeRequest."""


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=grouptrail.kafka):  # type: ignore[misc, call-arg]
    """The request for the offsets of share groups (KIP-932; version 1 with lag, KIP-1226). Missing: as above."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=grouptrail.kafka):  # type: ignore[misc, call-arg]
    """The response to DescribeShareGroupOffsetsRequest."""


def token_provider(get_token: Callable[[], str], sasl_extensions: Mapping[str, str]) -> Any:
    """Return the `sasl_oauth_token_provider` argument of an admin client or consumer.

    Missing: the class of such arguments in the public API.
    """

    class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return get_token()

        def extensions(self) -> dict[str, str]:
            return dict(sasl_extensions)

    return TokenProvider()


class SaslExchange(Protocol):
    """The client's side of a login that takes several steps."""

    @property
    def is_done(self) -> bool:
        """Whether all has been sent."""

    def answer(self) -> bytes:
        """Return what to send next."""

    def receive(self, message: bytes) -> None:
        """Take what the broker has sent."""


class _KerberosMechanism(SaslMechanism):  # type: ignore[misc]
    def __init__(self, **config: Any) -> None:
        self.exchange: SaslExchange = config["sasl_kerberos_name"](config["host"])

    def auth_bytes(self) -> bytes:
        return self.exchange.answer()

    def receive(self, auth_bytes: bytes) -> None:
        self.exchange.receive(auth_bytes)

    def is_done(self) -> bool:
        return self.exchange.is_done

    def is_authenticated(self) -> bool:
        return self.exchange.is_done


def kerberos_name(begin: Callable[[str], SaslExchange]) -> Any:
    """Return the `sasl_kerberos_name` argument of an admin client or consumer; `begin` gets the broker's host.

    Missing: a way to give kafka-python credentials; its own mechanism takes those of the process, by a package that
    has to be compiled.
    """
    register_sasl_mechanism("GSSAPI", _KerberosMechanism, overwrite=True)
    return begin


@cache
def keep_bytes_received_with_error() -> None:
    """Make connections deliver bytes that arrive together with the connection's end, once for the process.

    kafka-python drops them, and with them why a login was refused. Missing: a hook for what a socket receives.
    """
    for transport in (KafkaTCPTransport, KafkaSSLTransport):
        transport._sock_recv = _error_after_bytes(transport._sock_recv)


def _error_after_bytes(receive: Callable[[Any], tuple[bytes, Exception | None]]) -> Callable[[Any], Any]:
    def received(connection: Any) -> tuple[bytes, Exception | None]:
        data, error = receive(connection)
        return data, None if data else error  # the next call returns the error

    return received


def network_client(
    arguments: Mapping[str, Any],
    *,
    before_connecting: Callable[[Any], None],
    on_connection_error: Callable[[Any, Exception], None],
) -> Any:
    """Return a network client, as the `kafka_client` argument of an admin client or consumer has to return it.

    `before_connecting` gets a node's id and may raise, `on_connection_error` gets it with the error that ended the
    attempt. Missing: callbacks for connections.
    """
    client = KafkaNetClient(**arguments)
    connect = client._manager.get_connection

    def connect_with_callbacks(node: Any, **how: Any) -> Any:
        before_connecting(node)
        connection = connect(node, **how)
        connection.init_future.add_errback(lambda error: on_connection_error(node, error))
        return connection

    client._manager.get_connection = connect_with_callbacks
    return client


def stop_network_client(client: Any) -> None:
    """Close a network client and end its thread. Missing: `close` does not end the thread."""
    client.close()
    client._net.stop()


def send_to_node(admin: Any, node: int | None, request: Any) -> Any:
    """Send a request to one broker (None: to any) and return its response.

    Missing: an argument `node_id` of the admin client's methods, which choose the brokers themselves.
    """

    async def response() -> Any:
        return await admin._manager.send(request, node_id=node)

    return admin._manager.run(response)


def send_to_nodes(admin: Any, requests: Mapping[int, Any]) -> dict[int, Any]:
    """Send one request to each broker without waiting; return the futures of the responses by node.

    Missing: requests that do not block.
    """

    async def futures() -> dict[int, Any]:
        return {node: admin._manager.send(request, node_id=node) for node, request in requests.items()}

    responses: dict[int, Any] = admin._manager.run(futures)
    return responses


def wait_for_responses(admin: Any, futures: Iterable[Any]) -> list[Any]:
    """Return the responses to requests of `send_to_nodes`, or the errors of those that failed.

    Missing: as for `send_to_nodes`.
    """

    async def responses() -> list[Any]:
        answers = []
        for future in futures:
            try:
                answers.append(await future)
            except client_errors.KafkaError as error:
                answers.append(error)
        return answers

    answers: list[Any] = admin._manager.run(responses)
    return answers


def cluster_metadata(admin: Any, topics: list[str] | None) -> Mapping[str, Any]:
    """Return brokers and topics (None: all topics) as one metadata response has them.

    Missing: `describe_topics` and `describe_cluster` are two requests, which may see different leaders.
    """
    metadata: Mapping[str, Any] = admin._manager.run(admin._get_cluster_metadata, topics)
    return metadata


def metadata_request(topics: Collection[str] | None) -> Any:
    """Return the request for brokers and topics (None: all that the principal may DESCRIBE); it creates no topic.

    Missing: `describe_topics` also asks what the principal may do with each topic, and makes dictionaries of all.
    """
    named = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    return MetadataRequest(
        topics=named,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def topic_configs_request(topics: Iterable[str], keys: Collection[str]) -> Any:
    """Return the request for some settings of topics. Missing: `describe_configs` hides errors of single topics."""
    resources = [(ConfigResourceType.TOPIC, topic, list(keys)) for topic in topics]
    return DescribeConfigsRequest(resources=resources, include_synonyms=False)


def group_configs_request(groups: Iterable[str]) -> Any:
    """Return the request for all settings of groups. Missing: `describe_configs` knows no groups."""
    resources = [(_GROUP_RESOURCE, group, None) for group in groups]
    return DescribeConfigsRequest(resources=resources, include_synonyms=False)


def log_dirs_request() -> Any:
    """Return the request for all log directories of a broker. Missing: `describe_log_dirs` hides errors."""
    return DescribeLogDirsRequest(topics=None)


def api_versions_request() -> Any:
    """Return the request for the versions of the protocol that a broker supports.

    Missing: `get_broker_version_data` asks one broker after the other.
    """
    return ApiVersionsRequest(client_software_name="grouptrail", client_software_version="0")


def kafka_release(response: Any) -> tuple[str, str | None]:
    """Return from which Kafka release on, and before which, a broker is by its API versions; None: not known yet.

    Missing: the second.
    """
    newest = {one.api_key: (0, one.max_version) for one in response.api_keys}
    release = BrokerVersionData(api_versions=newest).broker_version
    later = min((one for one in BROKER_API_VERSIONS if one > release), default=None)
    return _dotted(release), None if later is None else _dotted(later)


def _dotted(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


def group_coordinator(admin: Any, group_id: str) -> int:
    """Return the node that coordinates a group. Missing: a method for a group that may not exist."""
    return int(admin._manager.run(admin._find_coordinator_ids, [group_id])[group_id])


def list_groups_request(admin: Any, kind: str | None = None) -> Any:
    """Return the request for all groups of a broker, or those of a kind, such as share (Kafka 3.8 and later).

    Missing: `list_groups` raises if one broker returns an error.
    """
    return admin._list_groups_request(types_filter=None if kind is None else [kind])


def describe_classic_groups_request(group_ids: list[str]) -> Any:
    """Return the request for the members of classic groups.

    Missing: `describe_groups` turns the members' metadata into text.
    """
    return DescribeGroupsRequest(groups=group_ids, include_authorized_operations=False)


def describe_consumer_groups_request(group_ids: list[str]) -> Any:
    """Return the request for the members of groups of KIP-848."""
    return ConsumerGroupDescribeRequest(group_ids=group_ids, include_authorized_operations=False)


def share_group_offsets_request(group_ids: Iterable[str]) -> Any:
    """Return the request for the offsets of share groups in all their partitions."""
    group = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    return DescribeShareGroupOffsetsRequest(groups=[group(group_id=one, topics=None) for one in group_ids])


def committed_offsets_requests(
    admin: Any, groups: Mapping[str, Collection[tuple[str, int]] | None]
) -> list[tuple[str | None, Any]]:
    """Return the requests for committed offsets of groups, each with its group: in some partitions, or all (None).

    With None instead of a group it is one request for all: brokers know it since Kafka 3.0. Missing:
    `list_group_offsets` raises if one group has an error.
    """
    return list(admin._list_group_offsets_requests(groups))


def list_offsets_request(admin: Any, specs: Mapping[Any, Any], isolation: Any) -> Any:
    """Return the request for offsets of one broker's partitions, given as TopicPartition with an OffsetSpec.

    Missing: `list_partition_offsets` raises if one partition has an error.
    """
    return admin._list_partition_offsets_request(specs, isolation.value)


def leader_epochs_request(epochs: Mapping[tuple[str, int], int]) -> Any:
    """Return the request for the end offsets of epochs of one broker's partitions, as a consumer sends it.

    Missing: a method of the admin client.
    """
    topics: dict[str, list[tuple[int, int, int]]] = {}
    for (topic, partition), epoch in epochs.items():
        topics.setdefault(topic, []).append((partition, -1, epoch))  # -1: whatever the leader's epoch is now
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=list(topics.items()), min_version=_EPOCHS_BY_DESCRIBE)


def fetch_request(
    topic: str, offsets: Mapping[int, int], *, partition_bytes: int, max_bytes: int, wait_ms: int
) -> Any:
    """Return the request for committed records of a topic's partitions from offsets on.

    Missing: the consumer returns no bytes of batches but an object for each record.
    """
    level = IsolationLevel.READ_COMMITTED
    partitions = [
        FetchRequest.FetchTopic.FetchPartition(
            partition=partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            partition_max_bytes=partition_bytes,
        )
        for partition, offset in offsets.items()
    ]
    return FetchRequest(
        **_NO_SESSION,
        max_bytes=max_bytes,
        min_bytes=1,
        max_wait_ms=wait_ms,
        isolation_level=level,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=partitions)],
        min_version=FetchRequest.min_version_for_isolation_level(level),
    )


def record_batches(content: bytes) -> Iterator[Any]:
    """Yield the record batches of any message format in the records of a fetch response.

    Missing: as for `RecordBatch`.
    """
    batches = MemoryRecords(content)
    while (batch := batches.next_batch()) is not None:
        yield batch


def uncompressed_records(batch: Any) -> memoryview:
    """Return the bytes of a batch's records without its header. Missing: a batch only yields an object for each."""
    batch._maybe_uncompress()
    return memoryview(batch._buffer)[batch._pos :]


def sticky_assignment(
    members: Mapping[str, tuple[list[int], list[tuple[int, int]], int]], partitions: Mapping[int, Collection[int]]
) -> dict[str, dict[int, list[int]]]:
    """Return the partitions by topic that the sticky assignor gives to each member.

    `members` gives by member id the subscribed topics, the partitions owned before, and the generation of that claim;
    `partitions` those of each topic. Missing: the assignor's class keeps state and takes encoded subscriptions.
    """
    metadata = {
        member_id: StickyAssignorMemberMetadataV1(
            subscription=subscription,
            partitions=[TopicPartition(*owned) for owned in owned_before],
            generation=generation,
        )
        for member_id, (subscription, owned_before, generation) in members.items()
    }
    cluster = SimpleNamespace(topics=partitions.keys, partitions_for_topic=partitions.get)
    executor = StickyAssignmentExecutor(cluster, metadata)
    executor.perform_initial_assignment()
    executor.balance()
    return {member_id: dict(executor.get_final_assignment(member_id)) for member_id in members}

"""What brokers say of their cluster: brokers, topics, partitions, topics' settings, controller and features."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
from kafka import errors as client_errors

from grouptrail.kafka import client_internals
from grouptrail.kafka.cluster import DESCRIBE_DENIED, UNKNOWN_TOPIC, Cluster
from grouptrail.kafka.errors import error_name
from grouptrail.kafka.groups import Throttle
from grouptrail.kafka.leader_epochs import EndOffset, Place
from grouptrail.kafka.log import topic_id_text
from grouptrail.kafka.log_dirs import CLUSTER_DENIED, log_sizes_of

CONFIGS_DENIED = "DESCRIBE_CONFIGS is denied"
NO_CONTROLLER = "no controller is active"
MIGRATING = "brokers name different controllers, as during a migration to KRaft"

BROKERS = pa.schema([("broker_id", pa.int32()), ("host", pa.string()), ("port", pa.int32()), ("rack", pa.string())])
TOPICS = pa.schema(
    [
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition_count", pa.int32()),
        ("replication_factor", pa.int32()),
        ("is_internal", pa.bool_()),
    ]
)
PARTITIONS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("leader", pa.int32()),
        ("leader_epoch", pa.int32()),
        ("replicas", pa.list_(pa.int32())),
        ("isr", pa.list_(pa.int32())),
        ("offline", pa.list_(pa.int32())),
    ]
)

TOPICS_A_REQUEST = 500
# Of three brokers the same one is named at random so often once in 2,000 samples.
_CONTROLLER_REQUESTS = 8
_TOPIC_DENIED = 29
_GROUP_DENIED = 30
# A partition without a leader (5) or with replicas that are offline (9) is described all the same.
_DESCRIBED_ALL_THE_SAME = (0, 5, 9)
_NO_ID = UUID(int=0)


class Setting(NamedTuple):
    """A setting in force; `source` is the number of Kafka's ConfigSource: 5 a default, 8 set for the group."""

    name: str
    value: str | None
    source: int


@dataclass(frozen=True)
class ClusterMetadata:
    """One metadata response.

    `brokers`, `topics` and `partitions` have the columns `BROKERS`, `TOPICS` and `PARTITIONS`. `undescribed` are the
    topics that it lists but does not describe in full, with the reason; they are in none of the tables.
    """

    cluster_id: str | None
    brokers: pa.Table
    topics: pa.Table
    partitions: pa.Table
    undescribed: Mapping[str, str]


class ClusterDescription(Cluster):
    """Requests about a whole cluster, which go to any broker; at most `requests_per_second` of those that repeat."""

    def __init__(self, settings: Mapping[str, str], requests_per_second: float) -> None:
        super().__init__(settings)
        self._throttle = Throttle(requests_per_second)
        self._is_migrating = False

    def metadata(self) -> ClusterMetadata:
        """Return brokers, and the topics that this principal may DESCRIBE, in one request."""
        return metadata_of(self._send(client_internals.metadata_request(None)))

    def unlisted(self, topics: Iterable[str], brokers: Collection[int]) -> dict[str, str | None]:
        """Ask for topics that a metadata response lacks: None if one does not exist, otherwise why it is missing.

        None takes the word of all `brokers` (node ids): one that has lost its controller may not know a topic. They
        say that DESCRIBE is denied also of topics that do not exist.
        """
        answers: dict[str, str | None] = dict.fromkeys(topics, None if brokers else "no broker is listed")
        for node in brokers:
            for some in _parts(sorted(topic for topic, reason in answers.items() if reason is None)):
                self._throttle.wait()
                for topic in self._send(client_internals.metadata_request(some), node).topics:
                    code = topic.error_code
                    reason = (
                        DESCRIBE_DENIED
                        if code == _TOPIC_DENIED
                        else error_name(code)
                        if code
                        else "not known to every broker"
                    )
                    answers[topic.name] = None if code == UNKNOWN_TOPIC else reason
        return answers

    def controller(self) -> int | str:
        """Return the node id of the active controller, or why it is unknown.

        With KRaft it is the leader of the metadata quorum, which needs DESCRIBE on the cluster (KIP-595,
        DescribeQuorum). Brokers with ZooKeeper name it in their metadata.
        """

        def ask(admin: Any) -> int | str | None:
            try:
                quorum = admin.describe_metadata_quorum()
            except client_errors.IncompatibleBrokerVersion:
                return None
            except client_errors.AuthorizationError:
                return CLUSTER_DENIED
            leaders = [partition["leader_id"] for topic in quorum["topics"] for partition in topic["partitions"]]
            return next((leader for leader in leaders if leader >= 0), NO_CONTROLLER)

        controller = self._ask(ask)
        if controller is None:
            return self._controller_with_zookeeper()
        self._is_migrating = False
        return controller

    def _controller_with_zookeeper(self) -> int | str:
        """Return the controller that brokers name. During a migration to KRaft they name any of them at random."""
        if self._is_migrating:
            return MIGRATING
        named = set()
        for _ in range(_CONTROLLER_REQUESTS):
            self._throttle.wait()
            named.add(_or(self._send(client_internals.metadata_request([])), "controller_id", -1))
        self._is_migrating = len(named - {-1}) > 1
        if self._is_migrating:
            return MIGRATING
        [controller] = named - {-1} or {-1}
        return NO_CONTROLLER if controller < 0 else int(controller)

    def releases(self, brokers: Collection[int]) -> dict[int, tuple[str, str | None]]:
        """Return from which Kafka release on, and before which, each broker is, by the API versions it announces.

        None: it may be newer than what is known. Brokers (node ids) that do not answer are missing. Needs no right.
        """

        def ask(admin: Any) -> dict[int, Any]:
            requests = dict.fromkeys(brokers, client_internals.api_versions_request())
            futures = client_internals.send_to_nodes(admin, requests)
            answers = client_internals.wait_for_responses(admin, futures.values())
            return dict(zip(futures, answers, strict=True))

        return {
            node: client_internals.kafka_release(answer)
            for node, answer in self._ask(ask).items()
            if not isinstance(answer, Exception) and not answer.error_code
        }

    def features(self) -> list[dict[str, Any]] | None:
        """Return the finalized level of each feature by name; None of brokers that have none (KIP-584)."""

        def ask(admin: Any) -> list[dict[str, Any]] | None:
            try:
                features = admin.describe_features()
            except client_errors.IncompatibleBrokerVersion:
                return None
            levels = {name: feature["finalized"][1] for name, feature in features.items() if "finalized" in feature}
            return [{"name": name, "level": level} for name, level in sorted(levels.items())]

        return self._ask(ask)

    def topic_configs(
        self, topics: Iterable[str], keys: Sequence[str]
    ) -> Iterator[tuple[str, dict[str, str | None] | str | None]]:
        """Yield each topic with its settings in force of these keys, or why they are unknown.

        None: the topic does not exist any more. Needs DESCRIBE_CONFIGS on the topics.
        """
        for some in _parts(sorted(topics)):
            self._throttle.wait()
            yield from settings_of(self._send(client_internals.topic_configs_request(some, keys)))

    def group_configs(self, groups: Iterable[str]) -> Iterator[tuple[str, list[Setting] | str]]:
        """Yield each group with its settings in force, or why they are unknown (KIP-848; Kafka 4.0 and later).

        Groups that do not exist have the defaults. Needs DESCRIBE_CONFIGS on the groups.
        """
        for some in _parts(sorted(groups)):
            self._throttle.wait()
            for one in self._send(client_internals.group_configs_request(some)).results:
                settings = [Setting(it.name, it.value, it.config_source) for it in one.configs]
                yield one.resource_name, _refusal(one.error_code) if one.error_code else settings

    def log_sizes(self, broker: int) -> tuple[pa.Table, dict[str, str]] | str:
        """Return the sizes of all replicas of a broker (node id), or why they are unknown: see `log_sizes_of`.

        It is one request, whose response has some 25 bytes a replica. Needs DESCRIBE on the cluster.
        """
        self._throttle.wait()
        return log_sizes_of(self._send(client_internals.log_dirs_request(), broker))

    def _end_offsets(self, leader: int, epochs: Mapping[Place, int]) -> dict[Place, EndOffset]:
        self._throttle.wait()
        return super()._end_offsets(leader, epochs)

    def _send(self, request: Any, node: int | None = None) -> Any:
        return self._ask(lambda admin: client_internals.send_to_node(admin, node, request))


def metadata_of(response: Any) -> ClusterMetadata:
    """Return what a metadata response of kafka-python says; it costs a few microseconds a partition."""
    undescribed = {}
    names: list[str] = []
    topic_rows: list[dict[str, Any]] = []
    numbers = {name: array("i") for name in ("topic", "partition", "leader", "leader_epoch")}
    nodes = {name: (array("i", [0]), array("i")) for name in ("replicas", "isr", "offline")}
    for topic in response.topics:
        faults = [topic.error_code, *(one.error_code for one in topic.partitions)]
        fault = next((code for code in faults if code not in _DESCRIBED_ALL_THE_SAME), topic.error_code)
        if fault or not topic.partitions:
            undescribed[topic.name] = error_name(fault) if fault else "no partitions"
            continue
        for one in topic.partitions:
            for column, number in (
                ("topic", len(names)),
                ("partition", one.partition_index),
                ("leader", one.leader_id),
                ("leader_epoch", _or(one, "leader_epoch", -1)),
            ):
                numbers[column].append(number)
            for column, ids in (
                ("replicas", one.replica_nodes),
                ("isr", sorted(one.isr_nodes)),
                ("offline", sorted(_or(one, "offline_replicas", ()))),
            ):
                ends, values = nodes[column]
                values.extend(ids)
                ends.append(len(values))
        names.append(topic.name)
        topic_rows.append(
            {
                "topic": topic.name,
                "topic_id": _topic_id(topic),
                "partition_count": len(topic.partitions),
                "replication_factor": min(len(one.replica_nodes) for one in topic.partitions),
                "is_internal": topic.is_internal,
            }
        )
    brokers = [
        {"broker_id": one.node_id, "host": one.host, "port": one.port, "rack": _or(one, "rack", None)}
        for one in response.brokers
    ]
    return ClusterMetadata(
        cluster_id=_or(response, "cluster_id", None),
        brokers=pa.Table.from_pylist(brokers, BROKERS),
        topics=pa.Table.from_pylist(topic_rows, TOPICS),
        partitions=_partitions(names, numbers, nodes),
        undescribed=undescribed,
    )


def _partitions(
    names: list[str], numbers: Mapping[str, array[int]], nodes: Mapping[str, tuple[array[int], array[int]]]
) -> pa.Table:
    topics = pa.array(names, pa.string()).take(pa.array(np.array(numbers["topic"], np.int32)))
    columns: dict[str, Any] = {"topic": topics, "partition": pa.array(np.array(numbers["partition"], np.int32))}
    for name in ("leader", "leader_epoch"):
        values = np.array(numbers[name], np.int32)
        columns[name] = pa.array(values, mask=values < 0)
    for name, (ends, ids) in nodes.items():
        columns[name] = pa.ListArray.from_arrays(np.array(ends, np.int32), np.array(ids, np.int32))
    return pa.table(columns, schema=PARTITIONS)


def _or(part: Any, name: str, default: Any) -> Any:
    """Return a field of a response; `default` if the response's version lacks it."""
    value = getattr(part, name, default)
    return default if value is None else value


def _topic_id(topic: Any) -> str | None:
    topic_id = _or(topic, "topic_id", _NO_ID)
    return None if UUID(str(topic_id)) == _NO_ID else topic_id_text(topic_id)


def settings_of(response: Any) -> Iterator[tuple[str, dict[str, str | None] | str | None]]:
    """Yield what a response about settings of topics says, as `topic_configs` does."""
    for one in response.results:
        code = one.error_code
        if code == UNKNOWN_TOPIC:
            yield one.resource_name, None
        elif code:
            yield one.resource_name, _refusal(code)
        else:
            yield one.resource_name, {setting.name: setting.value for setting in one.configs}


def _refusal(code: int) -> str:
    """Return why settings are unknown."""
    return CONFIGS_DENIED if code in (_TOPIC_DENIED, _GROUP_DENIED) else error_name(code)


def _parts(topics: Sequence[str]) -> Iterator[list[str]]:
    yield from (list(topics[first : first + TOPICS_A_REQUEST]) for first in range(0, len(topics), TOPICS_A_REQUEST))

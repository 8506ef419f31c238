"""A Kafka cluster: its brokers and topics, the leaders of partitions and the bounds of their logs.

These clients join no group and create no topic.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn, Self, TypeVar
from uuid import UUID

import kafka
from kafka import errors as client_errors
from kafka.admin import ConfigResource, ConfigResourceType

from grouptrail.errors import GrouptrailError
from grouptrail.kafka import client_internals
from grouptrail.kafka.errors import (
    ClusterError,
    KafkaDeniedError,
    KafkaLoginError,
    KafkaSettingError,
    KafkaUnreachableError,
    error_name,
)
from grouptrail.kafka.leader_epochs import NO_EPOCH, EndOffset, LeaderEpoch, Place, find_leader_epochs
from grouptrail.kafka.log import (
    NO_PARTITION,
    NO_TOPIC,
    TOPIC_DELETED,
    LogBounds,
    PartitionMetadata,
    RecordTimestamp,
    topic_id_text,
)
from grouptrail.kafka.network import LOGIN_REFUSED, LoginUnavailableError, Network, adapt_kafka_python
from grouptrail.kafka.settings import DEADLINE_SECONDS, client_arguments, login_of

# Spark's consumers request the committed offsets of a group with this prefix. They neither join it nor commit to it,
# but where ACLs are in force they need READ on it.
GROUP_PREFIX = "grouptrail"

UNKNOWN_TOPIC = 3
DESCRIBE_DENIED = "DESCRIBE is denied"
NOT_LED = "not led by this broker"
_CLEANUP = "cleanup.policy"

# Requested in this order, a log that grows meanwhile still has log start <= last stable <= log end.
BOUND_REQUESTS = (
    (kafka.OffsetSpec.EARLIEST, kafka.IsolationLevel.READ_UNCOMMITTED),
    (kafka.OffsetSpec.LATEST, kafka.IsolationLevel.READ_COMMITTED),
    (kafka.OffsetSpec.LATEST, kafka.IsolationLevel.READ_UNCOMMITTED),
)

# Why a broker returns no offset of a partition, by error code; other codes are reported by name.
_NO_OFFSET = {3: TOPIC_DELETED, 5: "leader not available", 6: NOT_LED, 29: DESCRIBE_DENIED}

_EPOCH_UNKNOWN = "the leader does not know its epoch yet"

_NO_ANSWER = (client_errors.IncompatibleBrokerVersion, client_errors.RequestTimedOutError)
# Error code, offset and timestamp of a partition that a response lacks.
_MISSING = (-1, -1, -1)
_DENIED = (client_errors.AuthorizationError, *LOGIN_REFUSED)
_NO_ID = UUID(int=0)
_SERVER = re.compile(r"(?:\w+://)?\[?(?P<host>[^\]/]+?)\]?:(?P<port>\d+)")

T = TypeVar("T")


class Cluster:
    """A cluster over one connection, which is kept between calls and opened again after a failure.

    `settings` are those of Kafka's Java client. Each method raises KafkaUnreachableError (after at most about
    `deadline_seconds`, twice that if a kept connection is lost), KafkaDeniedError or KafkaSettingError.
    """

    _denied = "describe its topics: grant the principal DESCRIBE on them"

    def __init__(self, settings: Mapping[str, str], deadline_seconds: float = DEADLINE_SECONDS) -> None:
        adapt_kafka_python()
        self._settings = settings
        self._arguments = client_arguments(settings, deadline_seconds)
        self._login = login_of(settings)
        self._deadline_seconds = deadline_seconds
        self._servers = settings["bootstrap.servers"]
        self._protocol = self._arguments["security_protocol"]
        self._admin: Any = None
        self._has_answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def brokers(self) -> list[str]:
        """Return the cluster's brokers as `host:port`, as they advertise themselves."""
        description = self._ask(lambda admin: admin.describe_cluster())
        return sorted(f"{broker['host']}:{broker['port']}" for broker in description["brokers"])

    def topic_names(self) -> dict[str, str]:
        """Return the topics' names by id (as Kafka prints it), of topics that this principal may DESCRIBE."""
        topics = self._ask(lambda admin: admin.describe_topics())
        return {topic_id_text(topic["topic_id"]): topic["name"] for topic in topics if not topic["error_code"]}

    def partition_metadata(
        self, wanted: Mapping[str, Collection[int] | None] | None = None
    ) -> list[PartitionMetadata]:
        """Return the leaders of the wanted partitions, given by topic.

        None stands for all partitions of a topic, or for all topics that this principal may DESCRIBE.
        """
        topics = None if wanted is None else list(wanted)
        metadata = self._ask(lambda admin: client_internals.cluster_metadata(admin, topics))
        return list(partitions_of(metadata, wanted))

    def log_bounds(
        self, leader: int, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], LogBounds | str]:
        """Return the bounds of logs that one broker leads, or why there are none; sends three requests to it."""
        asked = [kafka.TopicPartition(*at) for at in partitions]
        answers = [self._ask(offsets_at(leader, dict.fromkeys(asked, spec), level)) for spec, level in BOUND_REQUESTS]
        return {at: bounds_or_reason([answer.get(at, _MISSING)[:2] for answer in answers]) for at in partitions}

    def log_ends(self, leader: int, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the end offsets of logs that one broker leads, where it returns one; sends one request to it."""
        asked = {kafka.TopicPartition(*at): kafka.OffsetSpec.LATEST for at in partitions}
        answers = self._ask(offsets_at(leader, asked, kafka.IsolationLevel.READ_UNCOMMITTED))
        return {at: offset for at, (code, offset, _) in answers.items() if not code and offset >= 0}

    def records_since(
        self, leader: int, asked: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], RecordTimestamp | str | None]:
        """Return the first record of each partition with a timestamp that is not lower than the one asked for.

        `asked` gives a timestamp (milliseconds, or `LARGEST_TIMESTAMP`) for each of some partitions that one broker
        leads; it gets one request (ListOffsets). None where the broker finds no such record among those that are
        replicated, and a text that says why there is no answer. Markers of transactions are records, too.
        """
        specs = {kafka.TopicPartition(*at): timestamp for at, timestamp in asked.items()}
        answers = self._ask(offsets_at(leader, specs, kafka.IsolationLevel.READ_UNCOMMITTED))
        return {at: _record_or_reason(*answers.get(at, _MISSING)) for at in asked}

    def cleanup_policies(self, topics: Collection[str]) -> dict[str, str]:
        """Return `cleanup.policy` of topics by one request; without those for which DESCRIBE_CONFIGS is denied."""
        asked = [ConfigResource(ConfigResourceType.TOPIC, topic, {_CLEANUP: ""}) for topic in topics]
        answer = self._ask(lambda admin: admin.describe_configs(asked, config_filter="all")).get("topic", {})
        return {topic: answer[topic][_CLEANUP]["value"] for topic in topics if answer.get(topic, {}).get(_CLEANUP)}

    def leader_epochs(
        self, leader: int, newest: Mapping[Place, int], known: Mapping[Place, int] | None = None
    ) -> dict[Place, list[LeaderEpoch] | str]:
        """Return where the epochs of one broker's partitions began, in order, or why that is not known.

        `newest` gives the epochs of `partition_metadata`; those of `known`, and earlier ones, are left out. It sends
        a request for each epoch of the partition that has most, and one more (OffsetForLeaderEpoch, KIP-320), and
        needs DESCRIBE on the topics. A leader knows the epochs in which it led, or of which it copied records: of a
        compacted log, a new replica may lack some.
        """
        found = find_leader_epochs(partial(self._end_offsets, leader), newest, known or {})
        return {place: _epochs_or_reason(one) for place, one in found.items()}

    def _end_offsets(self, leader: int, epochs: Mapping[Place, int]) -> dict[Place, EndOffset]:
        return self._ask(end_offsets_of(leader, epochs))

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _limit_requests(self, seconds: float) -> None:
        """Let no request take longer, even if the settings allow it."""
        timeout_ms = self._arguments["request_timeout_ms"]
        self._arguments["request_timeout_ms"] = min(timeout_ms, round(seconds * 1000))

    def _ask(self, question: Callable[[Any], T]) -> T:
        """Ask over the kept connection, and once more over a new one if the kept one was lost."""
        is_kept = self._admin is not None
        if self._login is not None and is_kept:
            # Here, and not in kafka-python's loop, which sends nothing while it waits for a token or ticket.
            with suppress(GrouptrailError):
                self._login.prepare()
        if self._admin is None:
            self._admin = self._connected(lambda arguments: kafka.KafkaAdminClient(**arguments))
        with self._explained():
            try:
                answer = question(self._admin)
                self._has_answered = True
                return answer
            except client_errors.KafkaError as error:
                if not is_kept or isinstance(error, _DENIED):
                    raise
                self.close()
        return self._ask(question)

    def _consumer(self, **fetching: Any) -> Any:
        """Connect a consumer that joins no group, commits nothing and creates no topic."""
        alone = {"group_id": None, "enable_auto_commit": False, "allow_auto_create_topics": False}
        return self._connected(lambda arguments: kafka.KafkaConsumer(**arguments, **alone, **fetching))

    def _connected(self, connect: Callable[[dict[str, Any]], T]) -> T:
        network = Network()
        servers = self._answering_servers()
        if self._login is not None:
            self._login.prepare()
        try:
            return connect({**self._arguments, "bootstrap_servers": servers, "kafka_client": network.client})
        except client_errors.KafkaError as error:
            network.stop()
            self._explain(error)

    def _answering_servers(self) -> list[str]:
        """Return the bootstrap servers that accept a connection: kafka-python would spend its time on the others."""
        servers = [server.strip() for server in self._servers.split(",")]
        deadline = time.monotonic() + 0.9 * self._deadline_seconds
        answering, reasons = [], []
        for index, server in enumerate(servers):
            host, port = _host_and_port(server)
            share = (deadline - time.monotonic()) / (len(servers) - index)
            try:
                self._probe(host, port, seconds=max(share, 0.5))
                answering.append(server_of(host, port))
            except OSError as error:
                reasons.append(_reason(error))
        if not answering:
            raise KafkaUnreachableError(
                f"no Kafka broker answers at {self._servers} ({'; '.join(dict.fromkeys(reasons))}): "
                'start it, or check kafka."bootstrap.servers"'
            )
        return answering

    def _probe(self, host: str, port: int, *, seconds: float) -> None:
        with socket.create_connection((host, port), timeout=seconds) as connection:
            context = self._arguments.get("ssl_context")
            if context is None:
                return
            try:
                context.wrap_socket(connection, server_hostname=host).close()
            except ssl.SSLCertVerificationError as error:
                raise KafkaDeniedError(
                    f"the certificate of {host}:{port} is not trusted ({error.verify_message}): "
                    'check kafka."ssl.truststore.location", or the host in kafka."bootstrap.servers"'
                ) from error
            except ssl.SSLError as error:
                raise KafkaUnreachableError(
                    f"{host}:{port} does not accept a TLS connection ({error.reason or error}): "
                    'check the port, kafka."security.protocol" or kafka."ssl.keystore.location"'
                ) from error

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Close the connections after an error, and raise it with a remedy."""
        try:
            yield
        except client_errors.KafkaError as error:
            self.close()
            self._explain(error)
        except GrouptrailError:
            self.close()
            raise
        except Exception as error:
            self.close()
            raise ClusterError(
                f"the Kafka client failed ({type(error).__name__}: {_first_line(error)}): see the brokers' log; "
                "if they run without errors, report it"
            ) from error

    def _explain(self, error: client_errors.KafkaError) -> NoReturn:
        """Raise an error of kafka-python as one of `grouptrail.kafka.errors`, with a remedy."""
        if isinstance(error, LoginUnavailableError):
            raise error.reason from None
        if isinstance(error, client_errors.SaslAuthenticationFailedError):
            self._explain_refused_login(error)
        if isinstance(error, client_errors.UnsupportedSaslMechanismError):
            raise KafkaLoginError(
                f'{self._servers} does not support {self._arguments["sasl_mechanism"]}: check kafka."sasl.mechanism"'
            ) from error
        if isinstance(error, client_errors.GroupAuthorizationFailedError):
            raise KafkaDeniedError(
                f"{self._servers} does not let this principal look up a group's coordinator: allow DESCRIBE on the "
                f"group prefix {GROUP_PREFIX}, which Spark's consumers look up and do not join"
            ) from error
        if isinstance(error, client_errors.AuthorizationError):
            raise KafkaDeniedError(f"{self._servers} does not let this principal {self._denied}") from error
        if isinstance(error, client_errors.KafkaConfigurationError):
            raise KafkaSettingError(f"kafka: {_first_line(error)}: check these settings") from error
        if isinstance(error, client_errors.BrokerResponseError) and not isinstance(error, _NO_ANSWER):
            raise ClusterError(f"{self._servers} answers {_first_line(error)}: see the broker's log") from error
        if self._has_answered:
            raise KafkaUnreachableError(
                f"{self._servers} no longer answers ({type(error).__name__}): check that its brokers run "
                "and that the network reaches them"
            ) from error
        keystore = 'kafka."ssl.keystore.location", ' if self._protocol.endswith("SSL") else ""
        raise KafkaUnreachableError(
            f"what listens at {self._servers} does not answer as a Kafka broker does under {self._protocol} "
            f'({type(error).__name__}): check kafka."bootstrap.servers", kafka."security.protocol", {keystore}or '
            "the broker's advertised.listeners"
        ) from error

    def _explain_refused_login(self, error: Exception) -> NoReturn:
        if self._login is not None:
            raise KafkaLoginError(self._login.refused_by(self._servers)) from error
        raise KafkaLoginError(
            f'{self._servers} refuses this user or password: check kafka."sasl.jaas.config", and '
            f'kafka."sasl.mechanism" ({self._arguments["sasl_mechanism"]}) with it'
        ) from error


def offsets_at(
    leader: int, asked: dict[Any, Any], isolation: Any
) -> Callable[[Any], dict[tuple[str, int], tuple[int, int, int]]]:
    """Request offsets from one broker: returns error code, offset and timestamp by topic and partition.

    `list_partition_offsets` asks all leaders, and raises if one of them, or one partition, returns an error.
    """

    def ask(admin: Any) -> dict[tuple[str, int], tuple[int, int, int]]:
        request = client_internals.list_offsets_request(admin, asked, isolation)
        return {
            (topic.name, partition.partition_index): (partition.error_code, partition.offset, partition.timestamp)
            for topic in client_internals.send_to_node(admin, leader, request).topics
            for partition in topic.partitions
        }

    return ask


def end_offsets_of(leader: int, epochs: Mapping[Place, int]) -> Callable[[Any], dict[Place, EndOffset]]:
    """Request where epochs of one broker's partitions end."""

    def ask(admin: Any) -> dict[Place, EndOffset]:
        request = client_internals.leader_epochs_request(epochs)
        return {
            (topic.topic, one.partition): EndOffset(one.error_code, one.leader_epoch, one.end_offset)
            for topic in client_internals.send_to_node(admin, leader, request).topics
            for one in topic.partitions
        }

    return ask


def _epochs_or_reason(found: list[LeaderEpoch] | int | None) -> list[LeaderEpoch] | str:
    if isinstance(found, int):
        return _NO_OFFSET.get(found) or error_name(found)
    return _EPOCH_UNKNOWN if found is None else found


def bounds_or_reason(answers: Sequence[tuple[int, int]]) -> LogBounds | str:
    """Return the bounds from (error code, offset) in the order of `BOUND_REQUESTS`, or why there are none."""
    failed = next((code for code, _ in answers if code), None)
    if failed is not None:
        return _NO_OFFSET.get(failed) or error_name(failed)
    return LogBounds(*(offset for _, offset in answers))


def _record_or_reason(code: int, offset: int, timestamp_ms: int) -> RecordTimestamp | str | None:
    if code:
        return _NO_OFFSET.get(code) or error_name(code)
    return None if offset < 0 else RecordTimestamp(offset, timestamp_ms)


def partitions_of(
    metadata: Mapping[str, Any], wanted: Mapping[str, Collection[int] | None] | None
) -> Iterator[PartitionMetadata]:
    """Yield the wanted partitions (None: all) from a metadata response of the cluster."""
    servers = {broker["node_id"]: server_of(broker["host"], broker["port"]) for broker in metadata["brokers"]}
    topics = {topic["name"]: topic for topic in metadata["topics"]}
    for name in topics if wanted is None else wanted:
        topic = topics.get(name, {"error_code": UNKNOWN_TOPIC, "partitions": ()})
        code, topic_id = topic["error_code"], topic.get("topic_id")
        if topic_id is not None:  # brokers before 2.8 have none
            topic_id = None if UUID(str(topic_id)) == _NO_ID else topic_id_text(topic_id)
        leaders = {partition["partition_index"]: partition["leader_id"] for partition in topic["partitions"]}
        epochs = {partition["partition_index"]: partition.get("leader_epoch") for partition in topic["partitions"]}
        chosen = None if wanted is None else wanted[name]
        for partition in sorted(leaders if chosen is None else chosen):
            leader = leaders.get(partition)
            if leader in servers:
                epoch = None if epochs[partition] == NO_EPOCH else epochs[partition]
                yield PartitionMetadata(name, partition, topic_id, leader, servers[leader], leader_epoch=epoch)
            elif code == UNKNOWN_TOPIC:
                yield PartitionMetadata(name, partition, error=NO_TOPIC)
            elif code:
                yield PartitionMetadata(name, partition, topic_id, error=_NO_OFFSET.get(code) or error_name(code))
            else:
                error = NO_PARTITION if leader is None else "leader not available"
                yield PartitionMetadata(name, partition, topic_id, error=error)


def server_of(host: str, port: int) -> str:
    """Return `host:port` as in `bootstrap.servers`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _host_and_port(server: str) -> tuple[str, int]:
    match = _SERVER.fullmatch(server)
    if match is None:
        raise KafkaSettingError(f'kafka."bootstrap.servers": {server} is not host:port: check it')
    return match["host"], int(match["port"])


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror or str(error)).lower()

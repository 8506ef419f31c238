"""What the brokers say of their topics: who leads which partition, and the bounds of its log.

It takes the settings of Kafka's Java client, which Spark gets as they are; it joins no group and creates no topic.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import ssl
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self, TypeVar
from uuid import UUID, uuid4

import kafka
from kafka import errors as faults
from kafka.net import transport as network
from kafka.net.compat import KafkaNetClient

from grouptrail.errors import GrouptrailError

if TYPE_CHECKING:
    from grouptrail.config import Config

TOPIC = "__consumer_offsets"

# Spark's consumers ask for committed offsets under a group of this prefix, which they neither join nor commit to:
# where ACLs are in force they need READ on it.
GROUP_PREFIX = "grouptrail"

DEADLINE_SECONDS = 10

# kafka-python tells of every lost connection, and at DEBUG of whole configurations, secrets included.
logging.getLogger("kafka").setLevel(logging.CRITICAL)

_UNKNOWN_TOPIC, _TOPIC_DENIED = 3, 29
_LOGIN_REFUSED = (faults.SaslAuthenticationFailedError, faults.UnsupportedSaslMechanismError)
_NO_ANSWER = (faults.IncompatibleBrokerVersion, faults.RequestTimedOutError)
_DENIED = (faults.AuthorizationError, *_LOGIN_REFUSED)
_RIGHTS = f"grant the principal READ and DESCRIBE on topic {TOPIC}"
_NO_ID = UUID(int=0)

# In this order a log that grows meanwhile still has log start <= last stable <= log end.
_BOUNDS = (
    (kafka.OffsetSpec.EARLIEST, kafka.IsolationLevel.READ_UNCOMMITTED),
    (kafka.OffsetSpec.LATEST, kafka.IsolationLevel.READ_COMMITTED),
    (kafka.OffsetSpec.LATEST, kafka.IsolationLevel.READ_UNCOMMITTED),
)

# Why a broker tells no offset of a partition, by the code it answers; any other code is told by its name.
_NO_OFFSET = {
    3: "topic deleted",
    5: "leader not available",
    6: "not led by this broker",
    29: "DESCRIBE is denied",
}

_NUMBERS = {
    "request.timeout.ms": "request_timeout_ms",
    "connections.max.idle.ms": "connections_max_idle_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "reconnect.backoff.ms": "reconnect_backoff_ms",
    "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
    "retry.backoff.ms": "retry_backoff_ms",
    "receive.buffer.bytes": "receive_buffer_bytes",
    "send.buffer.bytes": "send_buffer_bytes",
}

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_TLS_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

# What decides who is trusted or how one logs in, and is none of these, may not be passed over.
_UNDERSTOOD = re.compile(
    r"ssl\.(truststore|keystore)\.|ssl\.key\.password|ssl\.endpoint\.identification\.algorithm|"
    r"ssl\.(protocol|enabled\.protocols)$|sasl\.(mechanism|jaas\.config)$|sasl\.login\.(refresh|retry)\.|"
    r"sasl\.login\.(connect|read)\.|sasl\.kerberos\.|security\.protocol$"
)
_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_SERVER = re.compile(r"(?:\w+://)?\[?(?P<host>[^\]/]+?)\]?:(?P<port>\d+)")

# Records come in batches; of each partition's the first is wanted.
_FIRST_BATCH_BYTES = 64 << 10
_POLL_MS = 100
_COORDINATOR_PAUSE_SECONDS = 0.2

T = TypeVar("T")


def _without_loss(receive: Callable[[Any], tuple[bytes, Exception | None]]) -> Callable[[Any], Any]:
    """kafka-python drops what comes together with a connection's end: as a rule, why a login was refused."""

    def received(transport: Any) -> tuple[bytes, Exception | None]:
        data, error = receive(transport)
        return data, None if data else error  # the end is there at the next look, too

    return received


for _transport in (network.KafkaTCPTransport, network.KafkaSSLTransport):
    _transport._sock_recv = _without_loss(_transport._sock_recv)


class ClusterError(GrouptrailError):
    """The cluster did not do what was asked."""


class KafkaUnreachable(ClusterError):
    """No Kafka broker answered."""


class KafkaDenied(ClusterError):
    """The broker knows no such principal, or the principal lacks a right."""


class TopicAbsent(ClusterError):
    """There is no offsets topic: brokers create it at the first commit."""


class KafkaSettingError(GrouptrailError):
    """A setting that decides on security and that kafka-python has no counterpart for, or a wrong one."""


@dataclass(frozen=True)
class LogBounds:
    """A partition's log: offsets `[log_start_offset, last_stable_offset)` can be read under read_committed."""

    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int


@dataclass(frozen=True)
class Place:
    """Where a partition is led: broker `leader` at `server` (`host:port`), or why by none (`error`)."""

    topic: str
    partition: int
    topic_id: str | None = None
    leader: int | None = None
    server: str | None = None
    error: str | None = None


class Wanted(NamedTuple):
    """An offset in a log; whether only committed records count there, as under read_committed."""

    topic: str
    partition: int
    offset: int
    is_isolated: bool = False


@dataclass(frozen=True)
class FirstRecord:
    """A record's offset and its timestamp (microseconds)."""

    offset: int
    written_at: int


class Cluster:
    """A cluster over one connection that is kept between calls, and made anew after a failure.

    `settings` are those of Kafka's Java client. Each method raises KafkaUnreachable (after at most about 10 s),
    KafkaDenied or KafkaSettingError.
    """

    _denied = "describe its topics: grant the principal DESCRIBE on them"

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._arguments = client_arguments(settings)
        self._servers = settings["bootstrap.servers"]
        self._protocol = self._arguments["security_protocol"]
        self._admin: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def brokers(self) -> list[str]:
        """The cluster's brokers as `host:port`, as they advertise themselves."""
        found = self._ask(lambda admin: admin.describe_cluster())
        return sorted(f"{broker['host']}:{broker['port']}" for broker in found["brokers"])

    def topic_names(self) -> dict[str, str]:
        """Names by topic id (URL-safe base64, as Kafka prints it), of all topics that this principal may DESCRIBE."""
        topics = self._ask(lambda admin: admin.describe_topics())
        return {_base64(topic["topic_id"]): topic["name"] for topic in topics if not topic["error_code"]}

    def places(self, wanted: Mapping[str, Collection[int] | None] | None = None) -> list[Place]:
        """Where the wanted partitions, by topic, are led. None stands for all of a topic, or for all topics that this
        principal may see."""
        topics = None if wanted is None else list(wanted)
        told = self._ask(lambda admin: admin._manager.run(admin._get_cluster_metadata, topics))
        return list(_places(told, wanted))

    def log_bounds(
        self, leader: int, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], LogBounds | str]:
        """The bounds of logs that one broker leads, or why it does not tell them; three requests to it alone."""
        asked = [kafka.TopicPartition(*at) for at in partitions]
        answers = [self._ask(_offsets_at(leader, dict.fromkeys(asked, spec), level)) for spec, level in _BOUNDS]
        return {at: _bounds_or_reason([answer.get(at, (-1, -1)) for answer in answers]) for at in partitions}

    def close(self) -> None:
        """Closes the connection; the next call makes a new one."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _ask(self, question: Callable[[Any], T]) -> T:
        """Asks over the kept connection, and once more over a new one if that was lost meanwhile."""
        is_kept = self._admin is not None
        if self._admin is None:
            self._admin = self._connected(lambda arguments: kafka.KafkaAdminClient(**arguments))
        try:
            return question(self._admin)
        except faults.KafkaError as error:
            self.close()
            if is_kept and not isinstance(error, _DENIED):
                return self._ask(question)
            self._explain(error)

    def _connected(self, connect: Callable[[dict[str, Any]], T]) -> T:
        network = _Network()
        servers = self._answering_servers()
        try:
            return connect({**self._arguments, "bootstrap_servers": servers, "kafka_client": network.client})
        except faults.KafkaError as error:
            network.stop()
            self._explain(error)

    def _answering_servers(self) -> list[str]:
        """The bootstrap servers that take a connection: kafka-python would spend its time on the others."""
        servers = [server.strip() for server in self._servers.split(",")]
        deadline = time.monotonic() + DEADLINE_SECONDS - 1
        answering, reasons = [], []
        for index, server in enumerate(servers):
            host, port = _host_and_port(server)
            share = (deadline - time.monotonic()) / (len(servers) - index)
            try:
                self._try(host, port, seconds=max(share, 0.5))
                answering.append(server_of(host, port))
            except OSError as error:
                reasons.append(_reason(error))
        if not answering:
            raise KafkaUnreachable(
                f"no Kafka broker answers at {self._servers} ({'; '.join(dict.fromkeys(reasons))}): "
                'start it, or correct kafka."bootstrap.servers"'
            )
        return answering

    def _try(self, host: str, port: int, *, seconds: float) -> None:
        with socket.create_connection((host, port), timeout=seconds) as connection:
            context = self._arguments.get("ssl_context")
            if context is None:
                return
            try:
                context.wrap_socket(connection, server_hostname=host).close()
            except ssl.SSLCertVerificationError as error:
                raise KafkaDenied(
                    f"the certificate of {host}:{port} is not trusted ({error.verify_message}): "
                    'correct kafka."ssl.truststore.location", or the host in kafka."bootstrap.servers"'
                ) from error
            except ssl.SSLError as error:
                raise KafkaUnreachable(
                    f"{host}:{port} does not take a TLS connection ({error.reason or error}): "
                    'correct the port, kafka."security.protocol" or kafka."ssl.keystore.location"'
                ) from error

    def _explain(self, error: faults.KafkaError) -> NoReturn:
        """Raises what kafka-python found as one of this module's errors."""
        if isinstance(error, faults.SaslAuthenticationFailedError):
            raise KafkaDenied(
                f'{self._servers} refuses this user or password: correct kafka."sasl.jaas.config", and '
                f'kafka."sasl.mechanism" ({self._arguments["sasl_mechanism"]}) with it'
            ) from error
        if isinstance(error, faults.UnsupportedSaslMechanismError):
            raise KafkaDenied(
                f'{self._servers} does not take {self._arguments["sasl_mechanism"]}: correct kafka."sasl.mechanism"'
            ) from error
        if isinstance(error, faults.GroupAuthorizationFailedError):
            raise KafkaDenied(
                f"{self._servers} does not let this principal ask for a group's coordinator: allow DESCRIBE on the "
                f"group prefix {GROUP_PREFIX}, which Spark's consumers ask for and do not join"
            ) from error
        if isinstance(error, faults.AuthorizationError):
            raise KafkaDenied(f"{self._servers} does not let this principal {self._denied}") from error
        if isinstance(error, faults.KafkaConfigurationError):
            raise KafkaSettingError(f"kafka: {_first_line(error)}: correct these settings") from error
        if isinstance(error, faults.BrokerResponseError) and not isinstance(error, _NO_ANSWER):
            raise ClusterError(f"{self._servers} answers {_first_line(error)}: look into the broker's log") from error
        keystore = 'kafka."ssl.keystore.location", ' if self._protocol.endswith("SSL") else ""
        raise KafkaUnreachable(
            f"what listens at {self._servers} does not answer as a Kafka broker does under {self._protocol} "
            f'({type(error).__name__}): correct kafka."bootstrap.servers", kafka."security.protocol", {keystore}or '
            "the broker's advertised.listeners"
        ) from error


class OffsetsTopic(Cluster):
    """`__consumer_offsets`. Each method raises TopicAbsent, too."""

    _denied = f"read {TOPIC}: {_RIGHTS}"

    def __init__(self, config: Config) -> None:
        super().__init__(config.kafka_settings())

    def partitions(self) -> list[int]:
        """The topic's partitions, ascending."""
        [topic] = self._ask(lambda admin: admin.describe_topics([TOPIC]))
        if topic["error_code"] == _UNKNOWN_TOPIC:
            raise TopicAbsent(
                f"there is no topic {TOPIC} at {self._servers}: no consumer group has ever committed on this "
                'cluster; start one, or correct kafka."bootstrap.servers"'
            )
        if topic["error_code"] == _TOPIC_DENIED:
            raise KafkaDenied(f"{self._servers} does not let this principal see {TOPIC}: {_RIGHTS}")
        if topic["error_code"]:
            raise ClusterError(
                f"{self._servers} does not describe {TOPIC} ({_name(topic['error_code'])}): "
                "look into the broker's log"
            )
        return sorted(partition["partition_index"] for partition in topic["partitions"])

    def answering_group(self) -> str:
        """The name of no group, by `GROUP_PREFIX`, for which a coordinator answers what it has committed: nothing.

        A broker coordinates no group of a partition whose records it has not loaded yet, or cannot load. Raises
        ClusterError where it is so for every name tried in about ten seconds.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            group = f"{GROUP_PREFIX}-{uuid4()}"
            try:
                self._ask(_committed_by(group))
            except (KafkaDenied, KafkaUnreachable):
                raise
            except ClusterError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_COORDINATOR_PAUSE_SECONDS)
            else:
                return group

    def bounds(self) -> dict[int, LogBounds]:
        """The bounds of every partition's log; three requests to each broker that leads some."""
        partitions = [kafka.TopicPartition(TOPIC, partition) for partition in self.partitions()]
        start, stable, end = (self._ask(_offsets(dict.fromkeys(partitions, spec), level)) for spec, level in _BOUNDS)
        return {at.partition: LogBounds(start[at].offset, stable[at].offset, end[at].offset) for at in partitions}

    def read_some(self, partition: int, offset: int, *, seconds: float = DEADLINE_SECONDS) -> int:
        """How many records (at most 100) there are at that offset, waiting for the first at most so long.

        Raises KafkaDenied if the principal may not READ.
        """
        consumer = self._connected(
            lambda arguments: kafka.KafkaConsumer(
                **arguments,
                group_id=None,
                enable_auto_commit=False,
                allow_auto_create_topics=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            )
        )
        try:
            at = kafka.TopicPartition(TOPIC, partition)
            consumer.assign([at])
            consumer.seek(at, offset)
            return len(consumer.poll(timeout_ms=int(seconds * 1000), max_records=100).get(at, ()))
        except faults.KafkaError as error:
            self._explain(error)
        finally:
            consumer.close(autocommit=False)


class RecordReader(Cluster):
    """Reads single records: for that, the principal needs READ on their topics."""

    _denied = "read a topic: grant the principal READ on the topics of lag.exact_groups, or on all of them"

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._consumers: dict[bool, Any] = {}

    def first_records(self, wanted: Collection[Wanted], *, seconds: float) -> dict[Wanted, FirstRecord | None]:
        """The first record at or behind each offset, None where the log ends before one comes.

        Those that are not found in so many seconds are left out.
        """
        deadline = time.monotonic() + seconds
        found: dict[Wanted, FirstRecord | None] = {}
        for is_isolated in (False, True):
            # A consumer has one offset in a partition at a time.
            waiting = [one for one in wanted if one.is_isolated == is_isolated]
            while waiting and time.monotonic() < deadline:
                at = {kafka.TopicPartition(one.topic, one.partition): one for one in waiting}
                found |= self._read(at, deadline, is_isolated=is_isolated)
                waiting = [one for one in waiting if one not in at.values()]
        return found

    def close(self) -> None:
        """Closes the connections."""
        for consumer in self._consumers.values():
            consumer.close(autocommit=False)
        self._consumers = {}
        super().close()

    def _read(
        self, at: Mapping[Any, Wanted], deadline: float, *, is_isolated: bool
    ) -> dict[Wanted, FirstRecord | None]:
        found: dict[Wanted, FirstRecord | None] = {}
        try:
            consumer = self._consumer(is_isolated=is_isolated)
            consumer.assign(list(at))
            consumer.resume(*at)
            for partition, wanted in at.items():
                consumer.seek(partition, wanted.offset)
            ends = consumer.end_offsets(list(at))
            while len(found) < len(at) and time.monotonic() < deadline:
                for partition, records in consumer.poll(timeout_ms=_POLL_MS).items():
                    found[at[partition]] = FirstRecord(records[0].offset, records[0].timestamp * 1000)
                    consumer.pause(partition)
                for partition, wanted in at.items():
                    if wanted not in found and consumer.position(partition) >= ends[partition]:
                        found[wanted] = None
        except faults.KafkaError as error:
            self.close()
            self._explain(error)
        return found

    def _consumer(self, *, is_isolated: bool) -> Any:
        level = "read_committed" if is_isolated else "read_uncommitted"
        if is_isolated not in self._consumers:
            self._consumers[is_isolated] = self._connected(
                lambda arguments: kafka.KafkaConsumer(
                    **arguments,
                    group_id=None,
                    enable_auto_commit=False,
                    allow_auto_create_topics=False,
                    auto_offset_reset="none",
                    isolation_level=level,
                    max_partition_fetch_bytes=_FIRST_BATCH_BYTES,
                    fetch_max_wait_ms=_POLL_MS,
                )
            )
        return self._consumers[is_isolated]


class _Network:
    """kafka-python's network under a client, so far as it must be told to give up.

    A refused login ends the attempt, as in Java's client; kafka-python would log in again and again until its
    deadline, tell only of a timeout, and leave its thread running.
    """

    def __init__(self) -> None:
        self._clients: list[Any] = []
        self._refused: dict[Any, Exception] = {}

    def client(self, **arguments: Any) -> Any:
        """Made by KafkaAdminClient and KafkaConsumer in place of their own."""
        client = KafkaNetClient(**arguments)
        connect = client._manager.get_connection

        def connect_unless_refused(node: Any, **how: Any) -> Any:
            if node in self._refused:
                raise self._refused[node]
            connection = connect(node, **how)
            connection.init_future.add_errback(lambda error: self._remember(node, error))
            return connection

        client._manager.get_connection = connect_unless_refused
        self._clients.append(client)
        return client

    def _remember(self, node: Any, error: Exception) -> None:
        if isinstance(error, _LOGIN_REFUSED):
            self._refused[node] = error

    def stop(self) -> None:
        for client in self._clients:
            client.close()
            client._net.stop()


def _committed_by(group: str) -> Callable[[Any], Any]:
    return lambda admin: admin.list_group_offsets(group)


def _offsets(asked: dict[Any, Any], isolation: Any) -> Callable[[Any], dict[Any, Any]]:
    def ask(admin: Any) -> dict[Any, Any]:
        found: dict[Any, Any] = admin.list_partition_offsets(asked, isolation_level=isolation)
        return found

    return ask


def _offsets_at(
    leader: int, asked: dict[Any, Any], isolation: Any
) -> Callable[[Any], dict[tuple[str, int], tuple[int, int]]]:
    """Asks one broker: error code and offset by topic and partition.

    `list_partition_offsets` asks all leaders, and raises where one of them, or one partition, has none to tell.
    """

    def ask(admin: Any) -> dict[tuple[str, int], tuple[int, int]]:
        request = admin._list_partition_offsets_request(asked, isolation.value)

        async def answer() -> Any:
            return await admin._manager.send(request, node_id=leader)

        return {
            (topic.name, partition.partition_index): (partition.error_code, partition.offset)
            for topic in admin._manager.run(answer).topics
            for partition in topic.partitions
        }

    return ask


def _bounds_or_reason(answers: Sequence[tuple[int, int]]) -> LogBounds | str:
    """From (error code, offset) as `_BOUNDS` asks for them."""
    failed = next((code for code, _ in answers if code), None)
    if failed is not None:
        return _NO_OFFSET.get(failed) or _name(failed)
    return LogBounds(*(offset for _, offset in answers))


def _places(told: Mapping[str, Any], wanted: Mapping[str, Collection[int] | None] | None) -> Iterator[Place]:
    """From the cluster's metadata."""
    servers = {broker["node_id"]: server_of(broker["host"], broker["port"]) for broker in told["brokers"]}
    topics = {topic["name"]: topic for topic in told["topics"]}
    for name in topics if wanted is None else wanted:
        topic = topics.get(name, {"error_code": _UNKNOWN_TOPIC, "partitions": ()})
        code, topic_id = topic["error_code"], _base64_or_none(topic.get("topic_id"))
        leaders = {partition["partition_index"]: partition["leader_id"] for partition in topic["partitions"]}
        chosen = None if wanted is None else wanted[name]
        for partition in sorted(leaders if chosen is None else chosen):
            leader = leaders.get(partition)
            if leader in servers:
                yield Place(name, partition, topic_id, leader, servers[leader])
            elif code == _UNKNOWN_TOPIC:
                yield Place(name, partition, error="no such topic")
            elif code:
                yield Place(name, partition, topic_id, error=_NO_OFFSET.get(code) or _name(code))
            else:
                error = "no such partition" if leader is None else "leader not available"
                yield Place(name, partition, topic_id, error=error)


def server_of(host: str, port: int) -> str:
    """As in `bootstrap.servers`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _base64_or_none(topic_id: Any) -> str | None:
    """Brokers before 2.8 have no topic ids."""
    return None if topic_id is None or UUID(str(topic_id)) == _NO_ID else _base64(topic_id)


def _base64(topic_id: Any) -> str:
    """A topic id as Kafka prints it."""
    return urlsafe_b64encode(UUID(str(topic_id)).bytes).decode().rstrip("=")


def _name(error_code: int) -> str:
    return str(faults.for_code(error_code).__name__)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _host_and_port(server: str) -> tuple[str, int]:
    found = _SERVER.fullmatch(server)
    if found is None:
        raise KafkaSettingError(f'kafka."bootstrap.servers": {server} is not host:port: correct it')
    return found["host"], int(found["port"])


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror or str(error)).lower()


def client_arguments(settings: Mapping[str, str]) -> dict[str, Any]:
    """kafka-python's arguments for the Java client's settings; mere tuning that it lacks is left out.

    Raises KafkaSettingError for settings that decide on security and cannot be followed.
    """
    protocol = settings.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise KafkaSettingError(f'kafka."security.protocol" is {protocol}: give one of {", ".join(_PROTOCOLS)}')
    arguments: dict[str, Any] = {
        "bootstrap_servers": settings.get("bootstrap.servers", "").split(","),
        "bootstrap_timeout_ms": DEADLINE_SECONDS * 1000,
        "request_timeout_ms": DEADLINE_SECONDS * 1000,
        "client_id": settings.get("client.id", "grouptrail"),
        "security_protocol": protocol,
    }
    arguments |= {_NUMBERS[name]: _whole_number(name, value) for name, value in settings.items() if name in _NUMBERS}
    _refuse_unfollowed(settings, protocol)
    if protocol.startswith("SASL"):
        arguments |= _login(settings)
    if protocol.endswith("SSL"):
        arguments["ssl_context"] = _tls(settings)
    return arguments


def _whole_number(name: str, value: str) -> int | None:
    try:
        number = int(value)
    except ValueError:
        raise KafkaSettingError(f'kafka."{name}" is {value}: give a whole number') from None
    return None if number == -1 and name.endswith(".buffer.bytes") else number


def _refuse_unfollowed(settings: Mapping[str, str], protocol: str) -> None:
    prefixes = ["security."]
    prefixes += ["sasl."] if protocol.startswith("SASL") else []
    prefixes += ["ssl."] if protocol.endswith("SSL") else []
    for name in settings:
        if name.startswith(tuple(prefixes)) and not _UNDERSTOOD.match(name):
            raise KafkaSettingError(
                f'kafka."{name}" decides on security and cannot be followed outside Java: leave it out, and use '
                f"PEM certificates and one of {', '.join(_MECHANISMS)}"
            )


def _login(settings: Mapping[str, str]) -> dict[str, str]:
    mechanism = settings.get("sasl.mechanism", "GSSAPI")
    if mechanism not in _MECHANISMS:
        raise KafkaSettingError(
            f'kafka."sasl.mechanism" is {mechanism}, Java\'s default being GSSAPI: grouptrail logs in with '
            f"{', '.join(_MECHANISMS)}, or by TLS certificate (security.protocol SSL)"
        )
    options = jaas_options(settings.get("sasl.jaas.config", ""))
    if not options.keys() >= {"username", "password"}:
        raise KafkaSettingError(
            'kafka."sasl.jaas.config" names no username and password: write '
            '...LoginModule required username="..." password="...";'
        )
    if options.get("tokenauth", "false").lower() == "true":
        raise KafkaSettingError('kafka."sasl.jaas.config": tokenauth cannot be followed: give a user and password')
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": options["username"],
        "sasl_plain_password": options["password"],
    }


def jaas_options(text: str) -> dict[str, str]:
    r"""The options of a JAAS login line: `...LoginModule required username="a" password="b\"c";`."""
    return {name: _unescaped(double or single) or bare for name, double, single, bare in _JAAS_OPTION.findall(text)}


def _unescaped(text: str) -> str:
    controls = {"n": "\n", "t": "\t", "r": "\r"}
    return re.sub(r"\\(.)", lambda found: controls.get(found[1], found[1]), text, flags=re.DOTALL)


def _tls(settings: Mapping[str, str]) -> ssl.SSLContext:
    """A context that trusts, presents and checks what the Java client would."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _limit_versions(context, settings.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3"))
    check = settings.get("ssl.endpoint.identification.algorithm", "https")
    if check.lower() not in ("", "https"):
        raise KafkaSettingError(
            f'kafka."ssl.endpoint.identification.algorithm" is {check}: give https, or nothing for no check'
        )
    context.check_hostname = bool(check)
    _trust(context, settings)
    _present(context, settings)
    return context


def _limit_versions(context: ssl.SSLContext, enabled: str) -> None:
    versions = sorted(_TLS_VERSIONS[name.strip()] for name in enabled.split(",") if name.strip() in _TLS_VERSIONS)
    if not versions:
        raise KafkaSettingError(f'kafka."ssl.enabled.protocols" is {enabled}: give TLSv1.2, TLSv1.3 or both')
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


def _trust(context: ssl.SSLContext, settings: Mapping[str, str]) -> None:
    inline, location = settings.get("ssl.truststore.certificates"), settings.get("ssl.truststore.location")
    if inline is None and location is None:
        return context.load_default_certs()
    _require_pem(settings, "ssl.truststore")
    with _told_of("ssl.truststore.certificates" if inline else "ssl.truststore.location"):
        context.load_verify_locations(cafile=None if inline else location, cadata=inline)
    return None


def _present(context: ssl.SSLContext, settings: Mapping[str, str]) -> None:
    inline, location = settings.get("ssl.keystore.key"), settings.get("ssl.keystore.location")
    if inline is None and location is None:
        return
    _require_pem(settings, "ssl.keystore")
    password = settings.get("ssl.key.password", "")
    if inline is None:
        with _told_of("ssl.keystore.location"):
            context.load_cert_chain(str(location), password=lambda: password)
        return
    # OpenSSL takes a key from a file only; this one is its owner's alone and gone at once.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file, _told_of("ssl.keystore.key"):
        file.write(f"{inline}\n{settings.get('ssl.keystore.certificate.chain', '')}\n")
        file.flush()
        context.load_cert_chain(file.name, password=lambda: password)


def _require_pem(settings: Mapping[str, str], store: str) -> None:
    kind = settings.get(f"{store}.type", "JKS").upper()
    if kind != "PEM":
        raise KafkaSettingError(
            f'kafka."{store}.type" is {kind}, which only Java reads: convert the store to PEM (keytool, openssl) '
            f'and set "{store}.type" = "PEM"'
        )


@contextlib.contextmanager
def _told_of(name: str) -> Iterator[None]:
    """What OpenSSL finds wrong with a certificate or key, told of the setting that names it."""
    try:
        yield
    except ssl.SSLError as error:
        reason = error.reason or "not PEM, or the wrong password"
        raise KafkaSettingError(
            f'kafka."{name}" cannot be used ({reason}): give PEM certificates, with the key and its '
            'kafka."ssl.key.password" where it has one'
        ) from None
    except OSError as error:
        raise KafkaSettingError(f'kafka."{name}" cannot be read ({error.strerror}): correct the path') from None

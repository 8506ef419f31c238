"""A real Kafka without Docker: its jars from Maven Central, one KRaft node on loopback ports.

For demos, tests and benches only: the PLAINTEXT listener lets anyone do anything.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
)
from kafka.errors import KafkaError

from grouptrail.console.progress import Log
from grouptrail.spark import class_data
from grouptrail.spark.jars import fetch_jars, silent
from grouptrail.spark.java import Java, find_java, java_environment
from servers import processes
from servers.errors import BrokerError
from servers.kafka_output import dumped_rows, error_line, json_values, record_type
from servers.offsets_topic import OFFSETS_TOPIC, Isolation, Record, read_records
from servers.ports import free_ports
from servers.proxy import Proxy

VERSIONS = ("4.4.0", "4.3.0", "4.2.0", "4.1.1", "3.9.1")
"""The first is that of the demo, and of the tests of each change."""
CONNECT = "4.3.0"
"""The release of Connect's workers; some mirrors of Maven Central lack 4.4.0's file connectors."""
STREAMS_EXAMPLES = "4.3.0"
"""The release of Kafka Streams' example applications, which run on any release of it; some mirrors lack 4.4.0's."""
PASSWORDS = {"admin": "admin-secret", "reader": "reader-secret", "stranger": "stranger-secret"}

OFFSETS_FORMATTER = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"
GROUP_METADATA_FORMATTER = "org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter"
SHARE_STATE_FORMATTER = "org.apache.kafka.tools.consumer.group.share.ShareGroupStateMessageFormatter"


# --- the jars ----------------------------------------------------------------------------------------------


def fetch(version: str = VERSIONS[0], log: Log = silent) -> Path:
    """Return the folder with the jars of a Kafka version; download about 45 MB the first time. Raises JarsError."""
    # Kafka logs through slf4j and its 4.x jars have no backend: without slf4j-simple a broker exits silently.
    # connect-runtime is most of what kafka-tools would pull in, and no tool that is run here needs it.
    return fetch_jars(
        f"kafka/{version}",
        (
            f"org.apache.kafka:kafka_2.13:{version}",
            f"org.apache.kafka:kafka-tools:{version}",
            "org.slf4j:slf4j-simple:1.7.36",
        ),
        exclude=("org.apache.kafka:connect-runtime", "org.slf4j:slf4j-reload4j"),
        log=log,
    )


def fetch_connect(version: str = CONNECT, log: Log = silent) -> Path:
    """Return the folder with the jars of a Connect worker and of the file connectors."""
    return fetch_jars(
        f"connect/{version}",
        (
            f"org.apache.kafka:connect-runtime:{version}",
            f"org.apache.kafka:connect-file:{version}",
            "org.slf4j:slf4j-simple:1.7.36",
        ),
        exclude=("org.slf4j:slf4j-reload4j",),
        log=log,
    )


def fetch_streams(version: str = VERSIONS[0], log: Log = silent) -> Path:
    """Return the folder with the jars of Kafka Streams and of its examples, 2 MB; `fetch` has all else they need.

    RocksDB, 65 MB, is left out: applications have to keep their stores in memory.
    """
    return fetch_jars(
        f"streams/{version}",
        alone=(
            f"org.apache.kafka:kafka-streams:{version}",
            f"org.apache.kafka:kafka-streams-examples:{STREAMS_EXAMPLES}",
        ),
        log=log,
    )


def config_command(version: str) -> str:
    """Return the class of `kafka-configs.sh`, which has moved in 4.4."""
    return "org.apache.kafka.tools.ConfigCommand" if version >= "4.4" else "kafka.admin.ConfigCommand"


def class_data_archive(java: Java, jars: Path) -> Path:
    """Return the path of the class-data archive of Kafka's JVMs, which `make prepare` makes."""
    return class_data.archive(f"kafka-{jars.name}", java, jars.iterdir())


# --- the broker --------------------------------------------------------------------------------------------

_STOP_DEADLINE_SECONDS = 20.0
_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 60.0

# What group coordinators do is evidence, which the job `broker-log` reads.
_LOG = [
    f"-Dorg.slf4j.simpleLogger.{setting}"
    for setting in (
        "defaultLogLevel=warn",
        "log.org.apache.kafka.coordinator.group=info",
        "log.kafka.coordinator.group=info",
        "showDateTime=true",
        "dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
        "showThreadName=false",
    )
]


class Broker:
    """One Kafka node, broker and controller in one, on free loopback ports, with its data under `directory`.

    `properties` override the server's settings. `security="sasl"` adds a SASL_PLAINTEXT listener (PLAIN for the
    users of `PASSWORDS`, SCRAM for those that are made later) and an authorizer that allows `admin` everything and
    the others what `allow` grants them; clients of the PLAINTEXT listener may do everything.
    `security="tls"` adds an SSL listener, whose keystore `properties` name. `proxied` adds a PLAINTEXT
    listener that is reached through `proxy` alone, which can hang. `classes` is a folder of further classes. The
    process dies with this one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        version: str = VERSIONS[0],
        properties: Mapping[str, str] | None = None,
        security: Literal["sasl", "tls"] | None = None,
        proxied: bool = False,
        heap: str = "400m",
        cluster_id: str | None = None,
        java_options: str = "",
        classes: Path | None = None,
        log: Log = silent,
    ) -> None:
        self.directory = directory.absolute()
        self.version = version
        self.log_file = self.directory / "server.log"
        self._java = find_java()
        self._jars = fetch(version, log)
        self._class_path = os.pathsep.join([f"{self._jars}/*", *([str(classes)] if classes else [])])
        self._heap = heap
        self._java_options = f"{java_options} {class_data.options(class_data_archive(self._java, self._jars))}"
        self._security = security
        self._properties = dict(properties or {})
        self._cluster_id = cluster_id or new_cluster_id()
        self._port, self.controller_port, self._secure_port, self._front_port, front = free_ports(5)
        self.proxy = Proxy(self._front_port, front) if proxied else None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def sasl_bootstrap(self) -> str:
        if self._security != "sasl":
            raise BrokerError('this broker has no SASL listener: make it with security="sasl"')
        return f"127.0.0.1:{self._secure_port}"

    @property
    def tls_bootstrap(self) -> str:
        if self._security != "tls":
            raise BrokerError('this broker has no TLS listener: make it with security="tls"')
        return f"127.0.0.1:{self._secure_port}"

    @property
    def proxied_bootstrap(self) -> str:
        if self.proxy is None:
            raise BrokerError("this broker has no proxy: make it with proxied=True")
        return f"127.0.0.1:{self.proxy.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, deadline_seconds: float = 300) -> Self:
        """Returns once the broker answers clients; after `kill` or `stop` it has its ports and data again.

        Raises BrokerError with the end of the broker's log if it dies or does not answer in time.
        """
        if self.running:
            return self
        self.kill()
        self._format_once()
        self._launch()
        try:
            self._wait_until_it_answers(time.monotonic() + deadline_seconds)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Ask the broker to shut down in order, and kill it if it does not."""
        if self._process is not None and self.running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_STOP_DEADLINE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the broker, as a crash would."""
        if self._process is not None:
            processes.kill(self._process)
            self._process = None

    def set(self, name: str, value: str) -> None:
        """Set a property for the next start."""
        self._properties[name] = value

    def allow(self, user: str, operation: str, resource: str, name: str, pattern: str = "LITERAL") -> None:
        """Grants `user` a right: `allow("reader", "READ", "TOPIC", "__consumer_offsets")`.

        With `pattern="PREFIXED"` on all whose names begin so.
        """
        on = ResourcePattern(ResourceType[resource], name, ACLResourcePatternType[pattern])
        right = ACL(f"User:{user}", "*", ACLOperation[operation], ACLPermissionType.ALLOW, on)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=self.bootstrap)) as admin:
            failed = admin.create_acls([right])["failed"]
            while not failed and right not in admin.describe_acls(right)[0]:
                if time.monotonic() > deadline:
                    raise BrokerError(f"the broker did not take over {right!r} in time: see {self.log_file}")
                time.sleep(_POLL_SECONDS)
        if failed:
            raise BrokerError(f"the broker refused {right!r} ({failed[0].__name__}): check the names")

    def tool(
        self, main_class: str, *arguments: str, stdin: str | None = None, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Runs one of Kafka's own classes; its exit status is the caller's to judge.

        Raises BrokerError if it does not end within `timeout` seconds.
        """
        command = [*self._java_command("256m"), main_class, *arguments]
        try:
            return subprocess.run(
                command, input=stdin or "", capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BrokerError(
                f"{main_class} did not end within {timeout:g} s: give it longer, or see {self.log_file}"
            ) from error

    def formatted(
        self,
        formatter: str = OFFSETS_FORMATTER,
        *,
        topic: str = OFFSETS_TOPIC,
        isolation: Isolation = "read_committed",
    ) -> list[dict[str, Any]]:
        """`partition`, `offset`, `key` and `value` of the records that one of Kafka's formatters prints.

        The formatters print no coordinates and skip records of other types: a partition's n-th line is given
        those of its n-th record of the printed types. Joins no group. Raises BrokerError if the formatter
        stops at a record that it cannot read.
        """
        by_partition: dict[int, list[Record]] = defaultdict(list)
        for record in read_records(self.bootstrap, topic=topic, isolation=isolation):
            by_partition[record.partition].append(record)
        with ThreadPoolExecutor(max_workers=2) as pool:
            parts = pool.map(
                lambda records: self._format(formatter, topic, isolation, records), by_partition.values()
            )
            return [row for part in parts for row in part]

    def _format(
        self, formatter: str, topic: str, isolation: Isolation, records: list[Record]
    ) -> list[dict[str, Any]]:
        """Return the rows of one partition, whose visible records are all in `records`."""
        partition = str(records[0].partition)
        printed = self.tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", self.bootstrap, "--topic", topic, "--formatter", formatter),
            *("--partition", partition, "--offset", "earliest", "--isolation-level", isolation),
            *("--max-messages", str(len(records)), "--timeout-ms", "60000"),
        )
        lines = list(json_values(printed.stdout))
        types = {record_type(line["key"]) for line in lines}
        shown = [record for record in records if record.type in types]
        whole = printed.returncode == 0 and f"Processed a total of {len(records)} messages" in printed.stderr
        if not whole or [record_type(line["key"]) for line in lines] != [record.type for record in shown]:
            raise BrokerError(
                f"{formatter} stopped in partition {partition} of {topic} ({error_line(printed.stderr)}): "
                "use dumped(), which prints what it can"
            )
        return [
            {
                "partition": record.partition,
                "offset": record.offset,
                "key": line["key"],
                "value": line["value"],
            }
            for record, line in zip(shown, lines, strict=True)
        ]

    def dumped(self) -> list[dict[str, Any]]:
        """Every record of `__consumer_offsets`, of every type, as Kafka's DumpLogSegments prints it.

        A row has `partition`, `offset`, `is_transactional`, `key`, `value` (None for a tombstone) and `error`:
        None, or what Kafka says of a record that it cannot read. Types and versions are strings here, and ints
        in `formatted`. The tool reads the files, so aborted transactional commits are there too; control
        records are left out.
        """
        segments = sorted((self.directory / "data").glob(f"{OFFSETS_TOPIC}-*/*.log"))
        printed = self.tool(
            _dump_class(self.version),
            *("--offsets-decoder", "--files", ",".join(map(str, segments))),
        )
        if printed.returncode != 0:
            raise BrokerError(f"DumpLogSegments failed ({error_line(printed.stderr)}): see {self.directory / 'data'}")
        return list(dumped_rows(printed.stdout))

    def _java_command(self, heap: str) -> list[str]:
        options = os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", "").split()  # as Kafka's own scripts do
        return [
            str(self._java.command),
            f"-Xmx{heap}",
            *self._java_options.split(),
            *options,
            *_LOG,
            "-cp",
            self._class_path,
        ]

    def _format_once(self) -> None:
        """Write the server's settings; the first time also create its empty log folder."""
        data, settings = self.directory / "data", self._write_settings()
        identity = data / "meta.properties"
        if identity.exists():
            return
        if self.version in _FORMATTED:
            for name, content in _FORMATTED[self.version].items():
                (data / name).parent.mkdir(parents=True, exist_ok=True)
                (data / name).write_bytes(content)
            ids = {"cluster.id": self._cluster_id, "node.id": self._settings(data)["node.id"]}
            lines = {"version": "1", **ids, "directory.id": new_cluster_id()}
            identity.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
            return
        features = [part for feature in _FEATURES.get(_minor(self.version), ()) for part in ("--feature", feature)]
        arguments = ["format", "-t", self._cluster_id, "-c", str(settings), *features]
        formatted = self.tool("kafka.tools.StorageTool", *arguments)
        if formatted.returncode != 0:
            raise BrokerError(
                f"Kafka {self.version} refuses its settings in {settings} "
                f"({error_line(formatted.stdout + formatted.stderr)}): correct `properties`"
            )
        files = [file for file in data.rglob("*") if file.is_file() and file != identity]
        _FORMATTED[self.version] = {file.relative_to(data): file.read_bytes() for file in files}

    def _write_settings(self) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        file, settings = self.directory / "server.properties", self._settings(self.directory / "data")
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return file

    def _settings(self, data: Path) -> dict[str, str]:
        listeners = {"PLAINTEXT": self._port, "CONTROLLER": self.controller_port}
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        if self._security is not None:
            name = self._security.upper()
            listeners[name] = self._secure_port
            protocols[name] = {"SASL": "SASL_PLAINTEXT", "TLS": "SSL"}[name]
        if self.proxy is not None:
            listeners["FRONT"] = self._front_port
            protocols["FRONT"] = "PLAINTEXT"
        addresses = {name: f"{name}://127.0.0.1:{port}" for name, port in listeners.items()}
        advertised = {name: address for name, address in addresses.items() if name != "CONTROLLER"}
        if self.proxy is not None:
            advertised["FRONT"] = f"FRONT://127.0.0.1:{self.proxy.port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": ",".join(addresses.values()),
            "advertised.listeners": ",".join(advertised.values()),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
            "log.dirs": str(data),
            **_SINGLE_NODE,
            **_GROUP_PROTOCOLS.get(_minor(self.version), {}),
            **(_sasl_settings() if self._security == "sasl" else {}),
            **self._properties,
        }

    def _command(self) -> list[str]:
        return [*self._java_command(self._heap), "kafka.Kafka", str(self.directory / "server.properties")]

    def _launch(self) -> None:
        with self.log_file.open("ab") as log:
            environ = os.environ | java_environment(self._java)
            self._process = processes.launch(self._command(), stdout=log, stderr=subprocess.STDOUT, environ=environ)

    def _answers(self) -> bool:
        return _answers(self.bootstrap)

    def _wait_until_it_answers(self, deadline: float) -> None:
        while not self._answers():
            if not self.running:
                raise BrokerError(f"Kafka {self.version} ended while it started: {self._log_tail()}")
            if time.monotonic() > deadline:
                raise BrokerError(f"Kafka {self.version} does not answer in time: {self._log_tail()}")
            time.sleep(_POLL_SECONDS)

    def _log_tail(self) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines()[-15:]
        return f"see {self.log_file}, which ends with\n" + "\n".join(lines)


_SINGLE_NODE = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # By default both have 50 partitions, each of which a broker opens, loads and closes.
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    # By default the log cleaner takes 128 MiB.
    "log.cleaner.dedupe.buffer.size": "8388608",
    "group.initial.rebalance.delay.ms": "0",
    # A broker that was killed may register again only once its old session is over: 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}

# Settings that enable all group protocols of each version; from 4.2 on this is the default.
_GROUP_PROTOCOLS = {
    "3.9": {"group.coordinator.rebalance.protocols": "classic,consumer"},
    "4.1": {"group.coordinator.rebalance.protocols": "classic,consumer,share"},
}
_FEATURES = {"4.1": ("share.version=1",)}

# By version, what StorageTool has written into a new log folder, without the node's identity: it takes a JVM a node.
_FORMATTED: dict[str, dict[Path, bytes]] = {}


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _sasl_settings() -> dict[str, str]:
    users = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    return {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        ),
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": scram,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
        "allow.everyone.if.no.acl.found": "false",
    }


def new_cluster_id() -> str:
    """Return a random Kafka UUID that does not begin with "-", which would be read as an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()).startswith("-"):
        pass
    return text


def _answers(bootstrap: str) -> bool:
    """Return whether the broker is in the cluster metadata that it serves."""
    host, port = bootstrap.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
            return bool(admin.describe_cluster()["brokers"])
    except (OSError, KafkaError):
        return False


def uncleaned_broker(folder: Path) -> Broker:
    """Return a broker that does not compact, so that all commits stay in its topic; it says what it does."""
    return Broker(folder, properties={"log.cleaner.enable": "false"}, heap="600m", log=print)


def _dump_class(version: str) -> str:
    moved = tuple(map(int, version.split(".")[:2])) >= (4, 2)
    return "org.apache.kafka.tools.DumpLogSegments" if moved else "kafka.tools.DumpLogSegments"

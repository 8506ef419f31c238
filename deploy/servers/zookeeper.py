"""Kafka 3.9, the last release with ZooKeeper, on loopback: two brokers, and their migration to KRaft (KIP-866)."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from servers.kafka import Broker

VERSION = "3.9.1"
CONTROLLER = 3000
"""The node id of the KRaft controller."""

_HEAP = "256m"
_DEADLINE_SECONDS = 60
_WITH_KRAFT = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
}
_MIGRATING = {"zookeeper.metadata.migration.enable": "true", "inter.broker.protocol.version": "3.9"}


class _Node(Broker):
    """A node that has only the settings in `role`, beside those that all nodes share."""

    role: dict[str, str]

    def _settings(self, data: Path) -> dict[str, str]:
        return {
            "log.dirs": str(data),
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            **self.role,
        }

    def _format_once(self) -> None:
        if self.role.get("process.roles") == "controller":
            super()._format_once()
        else:
            self._write_settings()


class _Controller(_Node):
    def _settings(self, data: Path) -> dict[str, str]:
        settings = super()._settings(data)
        return {**settings, "listeners": f"CONTROLLER://127.0.0.1:{self.controller_port}"}

    def _answers(self) -> bool:
        return _listens(self.controller_port)


class _ZooKeeper(_Node):
    def _format_once(self) -> None:
        (self.directory / "data").mkdir(parents=True, exist_ok=True)

    def _command(self) -> list[str]:
        java, *options = self._java_command(_HEAP)
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        place = [str(self.controller_port), str(self.directory / "data")]
        return [java, "-Dzookeeper.admin.enableServer=false", *options, main, *place]

    def _answers(self) -> bool:
        return _listens(self.controller_port)


class KafkaWithZooKeeper:
    """Brokers 1 and 2 with ZooKeeper, and from `begin_migration` on a KRaft controller; data in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._zookeeper = _ZooKeeper(directory / "zookeeper", version=VERSION, heap=_HEAP)
        self._zookeeper.role = {}
        self._address = {"zookeeper.connect": f"127.0.0.1:{self._zookeeper.controller_port}"}
        self.brokers = [_Node(directory / f"node-{node}", version=VERSION, heap=_HEAP) for node in (1, 2)]
        self._controller: _Controller | None = None

    @property
    def bootstrap(self) -> str:
        """The addresses of both brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def __enter__(self) -> Self:
        try:
            self._zookeeper.start()
            self._start({**self._address, "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"}, "broker.id")
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    def begin_migration(self) -> None:
        """Start a KRaft controller, and the brokers anew, which then write to it and to ZooKeeper."""
        properties = (self.brokers[0].directory / "data" / "meta.properties").read_text()
        [identity] = re.findall(r"^cluster\.id=(\S+)", properties, re.M)
        controller = _Controller(
            self._directory / "controller", version=VERSION, heap=_HEAP, cluster_id=identity.replace("\\", "")
        )
        self._voters = {"controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:{controller.controller_port}"}
        with_kraft = {**_WITH_KRAFT, **self._voters}
        migrating = {"zookeeper.metadata.migration.enable": "true", **self._address}
        controller.role = {"process.roles": "controller", "node.id": f"{CONTROLLER}", **with_kraft, **migrating}
        self._controller = controller.start()
        self._start({**with_kraft, **_MIGRATING, **self._address}, "broker.id")

    def end_migration(self) -> None:
        """Start the brokers anew without ZooKeeper."""
        self._start({"process.roles": "broker", **_WITH_KRAFT, **self._voters}, "node.id")

    def _start(self, role: dict[str, str], number: str) -> None:
        for node, broker in enumerate(self.brokers, 1):
            broker.stop()
            broker.role = {**role, number: f"{node}"}
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda broker: broker.start(_DEADLINE_SECONDS), self.brokers))

    def _kill(self) -> None:
        for node in (*self.brokers, *filter(None, [self._controller]), self._zookeeper):
            node.kill()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True

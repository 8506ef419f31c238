"""Groups of other people's clients on a real broker, and what is recorded of them.

    $ PYTHONPATH=deploy:tests .venv/bin/python tests/support/client_groups.py tests/data/client-groups-4.3.0.json

records those whose language is installed; the others keep what the file has.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from grouptrail.wire.blobs import decode_blob
from grouptrail.wire.records import Key, decode_record
from servers.kafka import Broker
from servers.offsets_topic import ensure_offsets_topic, read_records
from support.client_records import DATA
from support.kafka_clients import PATIENCE_SECONDS, await_that

PROGRAMS = Path(__file__).parents[1] / "clients"
TOPICS = {"orders": 4, "refunds": 11}
MEMBERS = 3

Owned = dict[str, dict[str, list[int]]]
"""Partitions by topic, by member id."""


class Client(NamedTuple):
    """A library of a language, in the version that is recorded, with assignors of its own."""

    library: str
    version: str
    language: str
    assignors: tuple[str, ...]


CLIENTS = (
    Client("kafka-go", "0.4.51", "go", ("range", "roundrobin", "rack-affinity")),
    Client("Sarama", "1.61.1", "go", ("range", "roundrobin", "sticky", "cooperative-sticky")),
    Client("franz-go", "1.22.3", "go", ("range", "roundrobin", "sticky", "cooperative-sticky")),
    Client("kafkajs", "2.2.4", "node", ("RoundRobinAssigner",)),
    Client("aiokafka", "0.14.0", "python", ("range", "roundrobin", "sticky")),
    Client("kafka-python", "3.0.12", "python", ("range", "roundrobin", "sticky", "cooperative-sticky")),
    Client("librdkafka", "2.16.0", "python", ("range", "roundrobin", "cooperative-sticky")),
)


class Programs:
    """Builds the programs of `tests/clients` once for each language; raises OSError or CalledProcessError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._commands: dict[str, list[str]] = {}

    def command(self, client: Client) -> list[str]:
        """Return the command that consumes with a client, without its arguments."""
        key = client.library if client.library == "aiokafka" else client.language
        if key not in self._commands:
            self._commands[key] = getattr(self, f"_{key}")()
        return self._commands[key]

    def _go(self) -> list[str]:
        program = self._folder / "clients-in-go"
        _run(["go", "build", "-o", str(program), "."], PROGRAMS / "go")
        return [str(program), "members"]

    def _node(self) -> list[str]:
        folder = shutil.copytree(PROGRAMS / "node", self._folder / "clients-in-node")
        _run(["npm", "install", "--no-audit", "--no-fund"], folder)
        return ["node", str(folder / "members.js")]

    def _python(self) -> list[str]:
        return [sys.executable, str(PROGRAMS / "python" / "members.py")]

    def _aiokafka(self) -> list[str]:
        folder = self._folder / "clients-in-python"
        _run([sys.executable, "-m", "venv", str(folder)], self._folder)
        version = next(client.version for client in CLIENTS if client.library == "aiokafka")
        _run([str(folder / "bin" / "pip"), "install", "-q", f"aiokafka=={version}"], self._folder)
        return [str(folder / "bin" / "python"), str(PROGRAMS / "python" / "members.py")]


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def record(broker: Broker, programs: Programs, client: Client, assignor: str) -> dict[str, Any]:
    """Let three members of a client join a group; return its records until each has what the newest one says."""
    group = f"{client.library}-{assignor}"
    _make_topics(broker)
    with _members(programs.command(client), broker, client, assignor, group) as owned:
        found: dict[str, Any] = {}

        def is_assigned() -> bool:
            records = _records_of(broker, group)
            assigned = _assigned(records[-1]) if records else {}
            shown = {member: topics for member, topics in owned.items() if member in assigned}
            found.update(records=records, owned=shown)
            return len(assigned) == MEMBERS and shown == assigned and _is_whole(assigned)

        await_that(is_assigned)
    return {
        "library": client.library,
        "version": client.version,
        "assignor": assignor,
        "group": group,
        "owned": found["owned"],
        "records": [[at, key.hex(), value.hex()] for at, key, value in found["records"]],
    }


def _make_topics(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    known = admin.list_topics(timeout=PATIENCE_SECONDS).topics
    missing = [NewTopic(name, count, 1) for name, count in TOPICS.items() if name not in known]
    for made in admin.create_topics(missing).values() if missing else ():
        made.result(PATIENCE_SECONDS)


@contextlib.contextmanager
def _members(command: list[str], broker: Broker, client: Client, assignor: str, group: str) -> Iterator[Owned]:
    """Run three members; what each of them has, as far as they have said, is in the result."""
    many = [str(MEMBERS)] if client.language != "python" else []
    arguments = [broker.bootstrap, client.library, assignor, group, *many, *TOPICS]
    owned: Owned = {}
    with contextlib.ExitStack() as stack:
        for _ in range(1 if many else MEMBERS):
            process = stack.enter_context(
                subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            assert process.stdin is not None
            stack.callback(process.stdin.close)
            reader = threading.Thread(target=_read, args=(process, owned), daemon=True)
            reader.start()
        yield owned


def _read(process: subprocess.Popen[str], owned: Owned) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        said = json.loads(line)
        owned[said["member"]] = _sorted(said["owns"])


def _sorted(topics: dict[str, list[int]]) -> dict[str, list[int]]:
    return {topic: sorted(numbers) for topic, numbers in sorted(topics.items()) if numbers}


def _records_of(broker: Broker, group: str) -> list[tuple[int, bytes, bytes]]:
    """Return the time (ms), key and value of the group's records with members."""
    found = []
    of_group = Key(2, {"group": group})
    for one in read_records(broker.bootstrap):
        decoded = decode_record(one.key, one.value)
        if decoded.key != of_group or decoded.value is None:
            continue
        if decoded.value.data["members"]:
            assert one.key is not None
            assert one.value is not None
            found.append((one.timestamp_ms, one.key, one.value))
    return found


def _assigned(record: tuple[int, bytes, bytes]) -> Owned:
    value = decode_record(*record[1:]).value
    assert value is not None
    owned: Owned = {}
    for member in value.data["members"]:
        assignment = decode_blob("ConsumerProtocolAssignment", member["assignment"]).data or {
            "assignedPartitions": []
        }
        topics = {one["topic"]: one["partitions"] for one in assignment["assignedPartitions"]}
        owned[member["memberId"]] = _sorted(topics)
    return owned


def _is_whole(assigned: Owned) -> bool:
    return sum(len(numbers) for topics in assigned.values() for numbers in topics.values()) == sum(TOPICS.values())


def main(path: str) -> None:
    """Write the file."""
    with TemporaryDirectory() as kafka, TemporaryDirectory() as folder, Broker(Path(kafka)) as broker:
        ensure_offsets_topic(broker.bootstrap)
        programs = Programs(Path(folder))
        recorded = []
        for client in CLIENTS:
            for assignor in client.assignors:
                recorded.append(record(broker, programs, client, assignor))
                sys.stdout.write(f"{client.library} {assignor}: {len(recorded[-1]['records'])} records\n")
    Path(path).write_text("[\n" + ",\n".join(json.dumps(one) for one in recorded) + "\n]\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else str(DATA / "client-groups-4.3.0.json"))

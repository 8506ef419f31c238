"""Recorded departures: real consumers that commit and leave in known ways, and whether the history says how.

A recording has the records that the brokers wrote of their groups, their commits, how each of them left, and what the
brokers logged. Beside those that leave are members that make their groups rebalance, or come back.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from grouptrail.broker_log.reading import LineCounts, read_events
from grouptrail.decode.rows import decode_row
from grouptrail.history.broker_log_rows import (
    GroupEvents,
    Piece,
    leavers_of,
    memberships_with_log,
    rebalances_with_log,
)
from grouptrail.history.departure_commits import ended_by_commits, fill_departures
from grouptrail.history.operations import CLASSIC, Record
from grouptrail.history.records import ORDER
from grouptrail.history.tasks import INPUT_SCHEMA, fold_groups
from grouptrail.storage.schema import table_schema
from proof.recorded_runs import group_records
from proof.recordings import FOLDER
from servers.kafka import Broker
from servers.kafka_cluster import KafkaCluster
from servers.offsets_topic import read_records
from support.departing_clients import Library

Way = Literal[
    "close",
    "close when idle",
    "crash",
    "poll timeout",
    "poll timeout in a rebalance",
    "rebalance timeout",
    "removed",
    "rolling deploy",
    "static expired",
    "static removed",
    "static restart",
    "forced rebalance",
    "close after a move",
    "crash in a move",
    "rebalance in a move",
]
Verdict = Literal["right", "unknown", "wrong"]
Evidence = Literal["records", "commits", "log"]
"""What the history rests on: the groups' records, also the commits, also the brokers' log."""

LOOKBACK = timedelta(hours=1)
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Truth:
    """What may be said of an end and of the cause of a rebalance; without `ended` the member stays.

    `last` is the cause if nobody is left, and `began` whether the rebalance is the first after the member did it.
    """

    causes: frozenset[str]
    ended: frozenset[str] = frozenset()


def _truth(*causes: str, ended: Sequence[str] = ()) -> Truth:
    return Truth(frozenset(causes), frozenset(ended))


_CLOSED = _truth("member_left", ended=["left"])
_CRASHED = _truth("member_expired", ended=["expired"])
# A client whose application does not poll leaves by itself.
_STALLED = {"member_left": "left", "member_poll_timeout": "poll_timeout"}

TRUTHS: Mapping[Way, Truth] = {
    "close": _CLOSED,
    "close when idle": _CLOSED,
    "close after a move": _CLOSED,
    "rolling deploy": _CLOSED,
    "removed": _CLOSED,  # "or an administrator removed it"
    "crash": _CRASHED,
    "crash in a move": _CRASHED,
    "static expired": _CRASHED,
    "poll timeout": _truth(*_STALLED, ended=[*_STALLED.values()]),
    "poll timeout in a rebalance": _truth(*_STALLED, "members_joined_and_left", ended=[*_STALLED.values()]),
    "rebalance timeout": _truth("members_joined_and_left", ended=["rebalance_timeout"]),
    "static removed": _truth("member_removed", "member_left", ended=["removed", "left"]),
    "static restart": _truth(ended=["replaced"]),
    "forced rebalance": _truth("leader_rejoined"),
    "rebalance in a move": _truth("coordinator_moved"),
}
# librdkafka's KIP-848 members send no heartbeats any more once their application does not poll; one that has to give
# partitions up is removed sooner.
_TRUTHS_OF_LIBRARIES: Mapping[tuple[Way, Library], Truth] = {
    ("poll timeout", "kip-848"): _truth("member_expired", "member_poll_timeout", ended=["expired", "poll_timeout"]),
    ("poll timeout in a rebalance", "kip-848"): _truth("member_expired", ended=["rebalance_timeout", "expired"]),
}
_OPEN = frozenset({"left_or_expired", "expired_or_removed", "left_or_poll_timeout"})
_OPEN_CAUSES = frozenset({"static_member_expired_or_removed"})


@dataclass(frozen=True)
class Departure:
    """How a client left its group, or made it rebalance: the group, the client's library, who committed, how often.

    `began_ms` is when.
    """

    group: str
    library: Library
    way: Way
    commits: str = "client"
    commit_seconds: float = 1.0
    is_last: bool = False
    client: str = "departing"
    began_ms: int = 0


@dataclass(frozen=True)
class RecordedDepartures:
    """All departures on some brokers, and what they wrote: the groups' records, their commits, and the log.

    `commits` are rows of `offset_commits`. `name` is the release, with `-cluster` if there were three brokers.
    """

    name: str
    departures: list[Departure]
    records: dict[str, tuple[int, list[Record]]]
    names: dict[str, str]
    commits: list[dict[str, Any]]
    log: str


@dataclass(frozen=True)
class Said:
    """What the history says of a departure, by less and more evidence; `ended` and `cause` are those by all of it."""

    departure: Departure
    verdicts: Mapping[Evidence, Verdict]
    ended: str | None
    because: str | None
    cause: str | None
    note: str | None

    @property
    def is_wrong(self) -> bool:
        return "wrong" in self.verdicts.values()


# --- files ----------------------------------------------------------------------------------------------------------


def record(
    name: str, kafka: Broker | KafkaCluster, departures: list[Departure], names: dict[str, str]
) -> RecordedDepartures:
    """Read what brokers wrote; `names` are those of topics by id."""
    groups = {one.group for one in departures}
    commits = []
    for one in read_records(kafka.bootstrap):
        table, row = decode_row(one.key, one.value)
        if table == "offset_commits" and not row["is_tombstone"] and row["group_id"] in groups:
            kept = ("group_id", "topic", "partition", "committed_offset")
            position = {"record_partition": one.partition, "record_offset": one.offset, "at": one.timestamp_ms}
            commits.append({**position, **{name: row[name] for name in kept}})
    records = {group: listed for group, listed in group_records(kafka).items() if group in groups}
    log = "".join(map(_log_of, kafka.brokers if isinstance(kafka, KafkaCluster) else [kafka]))
    return RecordedDepartures(name, departures, records, names, commits, log)


_SIMPLE_LINE = re.compile(r"(\S+)T(\S+)\.(\d{3})(?:Z|\+00:00) (INFO|WARN|ERROR) (\S+) - (.*)")


def _log_of(broker: Broker) -> str:
    """Return a broker's lines about groups in Kafka's default layout."""
    lines = broker.log_file.read_text("utf-8").splitlines()
    found = (match for line in lines if "oordinator" in line and (match := _SIMPLE_LINE.fullmatch(line)))
    return "".join(
        f"[{day} {time},{ms}] {level} {message} ({logger})\n"
        for day, time, ms, level, logger, message in (match.groups() for match in found)
        if "coordinator.group" in logger
    )


def save(recording: RecordedDepartures, folder: Path) -> None:
    """Write a recording as two files, `departures-NAME.json.gz` and `departures-NAME.log.gz`."""
    values = {
        "departures": [list(vars(one).values()) for one in recording.departures],
        "records": {
            group: [
                partition,
                [[one.offset, one.at, one.type, one.name, one.body, one.leader_epoch] for one in listed],
            ]
            for group, (partition, listed) in recording.records.items()
        },
        "names": recording.names,
        "commits": {group: _columns(rows) for group, rows in _by_group(recording.commits)},
    }
    text = json.dumps(values, separators=(",", ":"), default=sorted)
    for kind, content in (("json", text), ("log", recording.log)):
        path = folder / f"departures-{recording.name}.{kind}.gz"
        path.write_bytes(gzip.compress(content.encode(), mtime=0))


def _by_group(commits: Iterable[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for group, rows in groupby(sorted(commits, key=lambda row: row["group_id"]), key=lambda row: row["group_id"]):
        yield group, sorted(rows, key=lambda row: row["record_offset"])


def _columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the commits of a group in columns, of differences: they are most of a recording."""
    topics = sorted({row["topic"] for row in rows})
    places = [(row["topic"], row["partition"]) for row in rows]
    last: dict[Any, int] = defaultdict(int)

    def difference(key: Any, value: int) -> int:
        before, last[key] = last[key], value
        return value - before

    return {
        "record_partition": rows[0]["record_partition"],
        "topics": topics,
        "topic": [topics.index(topic) for topic, _ in places],
        "partition": [number for _, number in places],
        "record_offset": [difference("record_offset", row["record_offset"]) for row in rows],
        "at": [difference("at", row["at"]) for row in rows],
        "committed_offset": [
            difference(place, row["committed_offset"]) for place, row in zip(places, rows, strict=True)
        ],
    }


def _rows(group: str, columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    last: dict[Any, int] = defaultdict(int)

    def total(key: Any, value: int) -> int:
        last[key] += value
        return last[key]

    names = ("topic", "partition", "record_offset", "at", "committed_offset")
    for topic_number, number, offset, at, committed in zip(*(columns[name] for name in names), strict=True):
        topic = columns["topics"][topic_number]
        yield {
            "group_id": group,
            "record_partition": columns["record_partition"],
            "topic": topic,
            "partition": number,
            "record_offset": total("record_offset", offset),
            "at": total("at", at),
            "committed_offset": total((topic, number), committed),
        }


def load_departures() -> list[RecordedDepartures]:
    """Return the recordings that are kept, by name."""
    return [load(path) for path in sorted(FOLDER.glob("departures-*.json.gz"))]


def load(path: Path) -> RecordedDepartures:
    """Return a recording of a file `departures-NAME.json.gz`."""
    values = json.loads(gzip.decompress(path.read_bytes()))
    log = path.with_name(path.name.replace(".json.", ".log."))
    records = {
        group: (partition, [Record(*one[:5], leader_epoch=one[5]) for one in listed])
        for group, (partition, listed) in values["records"].items()
    }
    return RecordedDepartures(
        path.name.removeprefix("departures-").removesuffix(".json.gz"),
        [Departure(*one) for one in values["departures"]],
        records,
        values["names"],
        [row for group, columns in values["commits"].items() for row in _rows(group, columns)],
        gzip.decompress(log.read_bytes()).decode(),
    )


# --- what the history says ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tables:
    """The rows of `memberships` and `rebalances`, of the whole log at once."""

    memberships: pa.Table
    rebalances: pa.Table

    def with_commits(self, commits: pa.Table) -> Tables:
        """Return the rows with what commits show."""
        filled = fill_departures(self.rebalances, lambda *_: ds.dataset(commits), "default", LOOKBACK)
        return Tables(ended_by_commits(self.memberships, filled), filled)

    def with_log(self, events: Iterable[dict[str, Any]]) -> Tables:
        """Return the rows with what events of brokers' logs prove."""
        by_group: dict[str, list[Any]] = defaultdict(list)
        for event in events:
            by_group[event["group_id"]].append(event)
        always = (_EPOCH, datetime.max.replace(tzinfo=UTC))
        piece = Piece(*always, {group: GroupEvents(listed) for group, listed in by_group.items()})
        rebalances = rebalances_with_log(self.rebalances, piece)
        return Tables(memberships_with_log(self.memberships, leavers_of(rebalances), piece), rebalances)


def logged_events(recording: RecordedDepartures, *, trusts_clients: bool) -> list[dict[str, Any]]:
    """Return the rows of `broker_log_events` that the log of a recording gives."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "server.log"
        path.write_text(recording.log, "utf-8")
        return list(read_events(path, UTC, LineCounts(), trusts_clients=trusts_clients))


def judge(recording: RecordedDepartures, *, trusts_clients: bool = True) -> Iterator[Said]:
    """Return what the history says of each departure, and whether it is right."""
    by_records = Tables(*folded_tables(recording))
    by_commits = by_records.with_commits(commits_table(recording))
    by_log = by_commits.with_log(logged_events(recording, trusts_clients=trusts_clients))
    histories = {
        kind: _History(tables) for kind, tables in (("records", by_records), ("commits", by_commits), ("log", by_log))
    }
    for departure in recording.departures:
        truth = _truth_of(departure, recording)
        found = {kind: history.found(departure, truth) for kind, history in histories.items()}
        member, rebalance = found["log"]
        yield Said(
            departure,
            {kind: _verdict(truth, *rows) for kind, rows in found.items()},
            member.get("ended"),
            member.get("ended_because"),
            rebalance.get("cause"),
            rebalance.get("cause_note"),
        )


def _truth_of(departure: Departure, recording: RecordedDepartures) -> Truth:
    truth = _TRUTHS_OF_LIBRARIES.get((departure.way, departure.library), TRUTHS[departure.way])
    if departure.is_last:
        return replace(truth, causes=frozenset({"group_emptied"}))
    if departure.way in ("forced rebalance", "rebalance in a move") and not _leads(departure, recording):
        return _truth("member_rejoined")
    return truth


def _leads(departure: Departure, recording: RecordedDepartures) -> bool:
    """Return whether the client was the leader of its group."""
    bodies = [
        record.body
        for record in recording.records[departure.group][1]
        if record.type == CLASSIC and record.body and record.at < departure.began_ms
    ]
    clients = {member["member_id"]: member["client_id"] for member in bodies[-1]["members"]}
    return clients.get(bodies[-1]["leader"]) == departure.client


class _History:
    """The rows by group."""

    def __init__(self, tables: Tables) -> None:
        self._rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for table in ("memberships", "rebalances"):
            by_group = self._rows[table] = defaultdict(list)
            for row in getattr(tables, table).to_pylist():
                by_group[row["group_id"]].append(row)

    def found(self, departure: Departure, truth: Truth) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the client's membership that ended, and the rebalance that shows it or that it began.

        Either is empty where there is none.
        """
        rebalances = self._rows["rebalances"][departure.group]
        began_at = _EPOCH + departure.began_ms * _MILLISECOND
        if not truth.ended:
            return {}, min((row for row in rebalances if row["at"] >= began_at), key=lambda row: row["at"])
        ended = (
            row
            for row in self._rows["memberships"][departure.group]
            if row["client_id"] == departure.client and row["ended"] is not None and row["left_at"] >= began_at
        )
        member = min(ended, key=lambda row: row["left_at"])
        showing = [row for row in rebalances if member["member_id"] in row["members_left"]]
        return member, showing[0] if showing else {}


def _verdict(truth: Truth, member: Mapping[str, Any], rebalance: Mapping[str, Any]) -> Verdict:
    facts: list[Verdict] = []
    if truth.ended:
        facts.append(_fact(member["ended"], truth.ended, is_open=member["ended"] in _OPEN))
    if rebalance:
        is_open = rebalance["certainty"] == "ambiguous" or rebalance["cause"] in _OPEN_CAUSES
        facts.append(_fact(rebalance["cause"], truth.causes, is_open=is_open))
    return next((verdict for verdict in ("wrong", "unknown") if verdict in facts), "right")


def _fact(said: str, truth: frozenset[str], *, is_open: bool) -> Verdict:
    if is_open:
        return "unknown"
    return "right" if said in truth else "wrong"


def folded_tables(recording: RecordedDepartures) -> tuple[pa.Table, pa.Table]:
    """Return the rows of `memberships` and `rebalances` without what commits say of them."""
    lines = [
        (partition, group, one.offset, one.at, one.type, one.name, _text(one.body), one.leader_epoch)
        for group, (partition, listed) in recording.records.items()
        for one in listed
    ]
    names = ("record_partition", "group_id", "record_offset", "at", "type", "name", "body", "leader_epoch")
    rows = [dict(zip(names, line, strict=True)) for line in lines]
    records = pa.Table.from_pylist(rows, INPUT_SCHEMA).sort_by([(name, "ascending") for name in ORDER])
    complete_to = {partition: listed[-1].offset + 1_000_000 for partition, listed in recording.records.values()}
    folded = pa.Table.from_batches(list(fold_groups(complete_to, recording.names, 0)(records.to_batches())))
    memberships, rebalances = (
        pa.Table.from_struct_array(folded.filter(pc.equal(folded["of"], table))[table])
        for table in ("memberships", "rebalances")
    )
    return memberships, rebalances


def commits_table(recording: RecordedDepartures) -> pa.Table:
    """Return the commits as rows of `offset_commits`."""
    schema = table_schema("offset_commits")
    rows = [
        {**one, "cluster": "default", "record_at": one["at"] * 1000, "is_transactional": False}
        for one in recording.commits
    ]
    return pa.Table.from_pylist(rows, schema)


def _text(body: Any) -> str | None:
    return None if body is None else json.dumps(body, default=sorted)


# --- the table of docs/history.md -----------------------------------------------------------------------------------


_LIBRARIES = {
    "kafka-python": "kafka-python",
    "librdkafka": "librdkafka, eager",
    "cooperative": "librdkafka, cooperative",
    "kip-848": "librdkafka, KIP-848",
    "java": "Java, eager",
    "java-kip-848": "Java, KIP-848",
}
_WAYS: Mapping[Way, str] = {
    "close": "closed",
    "close when idle": "closed, with nothing to read for 12 s",
    "rolling deploy": "closed in a rolling deploy",
    "close after a move": "closed after its coordinator had moved",
    "crash": "crashed",
    "crash in a move": "crashed as its coordinator moved",
    "poll timeout": "stopped polling",
    "poll timeout in a rebalance": "stopped polling before a rebalance",
    "rebalance timeout": "crashed, and missed a rebalance before its session expired",
    "removed": "removed by an administrator",
    "static expired": "static: closed, and did not come back",
    "static removed": "static: closed, and removed by an administrator",
    "static restart": "static: restarted",
    "forced rebalance": "forced a rebalance",
    "rebalance in a move": "joined again because its coordinator had moved",
}


def markdown(said: Iterable[tuple[RecordedDepartures, Said]]) -> str:
    """Return the tables of docs/history.md: by way, by client and by release."""
    listed = [(recording.name.removesuffix("-cluster"), one) for recording, one in said]
    tables = (
        ("the client", _table(((_WAYS[one.departure.way], one) for _, one in listed), [*_WAYS.values()])),
        ("library", _table(((_LIBRARIES[one.departure.library], one) for _, one in listed), [*_LIBRARIES.values()])),
        ("release", _table(listed, sorted({name for name, _ in listed}))),
    )
    return "\n\n".join("\n".join([f"| {what} {_HEAD}", *lines]) for what, lines in tables)


_HEAD = """| times | known from records | with commits | with the log | wrong |
| --- | --- | --- | --- | --- | --- |"""


def _table(said: Iterable[tuple[str, Said]], order: Sequence[str]) -> Iterator[str]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row, one in said:
        for name in (row, "all"):
            counts[name].update({"all": 1, "wrong": int(one.is_wrong)})
            counts[name].update({kind: verdict == "right" for kind, verdict in one.verdicts.items()})
    for name in (*(one for one in order if one in counts), "all"):
        figures = " | ".join(str(counts[name][kind]) for kind in ("all", "records", "commits", "log", "wrong"))
        yield f"| {name} | {figures} |"


def judged() -> Iterator[tuple[RecordedDepartures, Said]]:
    """Yield what the history says of all departures that are kept."""
    for recording in load_departures():
        yield from ((recording, one) for one in judge(recording))


if __name__ == "__main__":
    sys.stdout.write(f"{markdown(judged())}\n")

"""Recorded departures: real consumers that commit and leave in known ways, and whether the history says how.

A recording has the records that the broker wrote of their groups, their commits, and how each of them left. A group
has one departing client and, unless it is the last one, one that stays.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from grouptrail.decode.rows import decode_row
from grouptrail.history.departure_commits import ended_by_commits, fill_departures
from grouptrail.history.operations import Record
from grouptrail.history.records import ORDER
from grouptrail.history.tasks import INPUT_SCHEMA, fold_groups
from grouptrail.storage.schema import table_schema
from proof.recorded_runs import group_records
from proof.recordings import FOLDER
from servers.kafka import Broker
from servers.offsets_topic import read_records
from support.departing_clients import Library

Way = Literal["close", "crash", "poll timeout", "removed", "close when idle"]
Verdict = Literal["right", "unknown", "wrong"]
LOOKBACK = timedelta(hours=1)

# What may be said of each way; a client whose application does not poll leaves by itself.
TRUTHS: dict[Way, set[str]] = {
    "close": {"left"},
    "close when idle": {"left"},
    "removed": {"left"},  # "or an administrator removed it"
    "crash": {"expired"},
    "poll timeout": {"left", "poll_timeout"},
}
CAUSES = {"left": "member_left", "expired": "member_expired", "poll_timeout": "member_poll_timeout"}
_UNKNOWN = ("left_or_expired", "member_left_or_expired", "group_emptied")


@dataclass(frozen=True)
class Departure:
    """How a client left its group: the name of the group, the client's library, who committed, and how often."""

    group: str
    library: Library
    way: Way
    commits: str
    commit_seconds: float
    is_last: bool


@dataclass(frozen=True)
class RecordedDepartures:
    """All departures on one broker, and what it wrote: the groups' records and the commits, as `offset_commits`."""

    version: str
    departures: list[Departure]
    records: dict[str, tuple[int, list[Record]]]
    names: dict[str, str]
    commits: list[dict[str, Any]]


@dataclass(frozen=True)
class Said:
    """What the history says of a departure, by the group's records alone and with the commits."""

    departure: Departure
    before: Verdict
    now: Verdict
    ended: str
    because: str
    cause: str


def record(broker: Broker, version: str, departures: list[Departure], names: dict[str, str]) -> RecordedDepartures:
    """Read what a broker wrote; `names` are those of topics by id."""
    groups = {one.group for one in departures}
    commits = []
    for one in read_records(broker.bootstrap):
        table, row = decode_row(one.key, one.value)
        if table == "offset_commits" and not row["is_tombstone"] and row["group_id"] in groups:
            kept = ("group_id", "topic", "partition", "committed_offset")
            position = {"record_partition": one.partition, "record_offset": one.offset, "at": one.timestamp_ms}
            commits.append({**position, **{name: row[name] for name in kept}})
    records = {group: listed for group, listed in group_records(broker).items() if group in groups}
    return RecordedDepartures(version, departures, records, names, commits)


def save(recording: RecordedDepartures, folder: Path) -> Path:
    """Write a recording; return the file."""
    path = folder / f"departures-{recording.version}.json.gz"
    text = json.dumps(asdict(recording), separators=(",", ":"), default=sorted)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path


def load_departures() -> list[RecordedDepartures]:
    """Return the recordings that are kept, by version."""
    return [_load(path) for path in sorted(FOLDER.glob("departures-*.json.gz"))]


def _load(path: Path) -> RecordedDepartures:
    values = json.loads(gzip.decompress(path.read_bytes()))
    departures = [Departure(**one) for one in values["departures"]]
    records = {
        group: (partition, [Record(*one) for one in listed])
        for group, (partition, listed) in values["records"].items()
    }
    return RecordedDepartures(values["version"], departures, records, values["names"], values["commits"])


def judge(recording: RecordedDepartures) -> Iterator[Said]:
    """Return what the history says of each departure, and whether it is right."""
    before, now = (histories(recording, with_commits=with_commits) for with_commits in (False, True))
    for departure in recording.departures:
        (old, _), (new, cause) = (_rows_of(departure, *tables) for tables in (before, now))
        verdict = _verdict(departure, new)
        if verdict == "right" and not departure.is_last and cause["cause"] != CAUSES[new["ended"]]:
            verdict = "wrong"
        yield Said(departure, _verdict(departure, old), verdict, new["ended"], new["ended_because"], cause["cause"])


def histories(recording: RecordedDepartures, *, with_commits: bool) -> tuple[list[dict[str, Any]], ...]:
    """Return the rows of `memberships` and `rebalances`, of the whole log at once."""
    memberships, rebalances = folded_tables(recording)
    if with_commits:
        commits = commits_table(recording)
        rebalances = fill_departures(rebalances, lambda *_: ds.dataset(commits), "default", LOOKBACK)
        memberships = ended_by_commits(memberships, rebalances)
    return memberships.to_pylist(), rebalances.to_pylist()


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


def _rows_of(
    departure: Departure, memberships: Iterable[dict[str, Any]], rebalances: Iterable[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the departing client's membership, and the rebalance that shows its end."""
    (member,) = (
        row
        for row in memberships
        if row["group_id"] == departure.group and row["client_id"] == "departing" and row["ended"] is not None
    )
    (rebalance,) = (
        row for row in rebalances if row["group_id"] == departure.group and member["member_id"] in row["members_left"]
    )
    return member, rebalance


def _verdict(departure: Departure, row: dict[str, Any]) -> Verdict:
    if row["ended"] in _UNKNOWN:
        return "unknown"
    return "right" if row["ended"] in TRUTHS[departure.way] else "wrong"


def counted(said: Iterable[Said]) -> dict[tuple[str, str], Counter[str]]:
    """Return the numbers of departures known before, known now, and wrong, by way and library."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for one in said:
        of = counts.setdefault((one.departure.way, one.departure.library), Counter())
        is_wrong = "wrong" in (one.before, one.now)
        of.update({"all": 1, "before": one.before == "right", "now": one.now == "right", "wrong": is_wrong})
    return counts


_NAMES = {
    "librdkafka": "librdkafka, eager",
    "cooperative": "librdkafka, cooperative",
    "kip-848": "librdkafka, KIP-848",
}
_WAYS = {
    "close": "closed",
    "close when idle": "closed, with nothing to read for 12 s",
    "crash": "crashed",
    "poll timeout": "stopped polling",
    "removed": "removed by an administrator",
}


def markdown(said: Iterable[Said]) -> str:
    """Return the table of docs/history.md."""
    lines = [
        "| the client | library | times | known from records | with commits | wrong |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    total: Counter[str] = Counter()
    for (way, library), counts in counted(said).items():
        total.update(counts)
        lines.append(_line(_WAYS[way], _NAMES.get(library, library), counts))
    return "\n".join([*lines, _line("all", "", total)])


def _line(way: str, library: str, counts: Counter[str]) -> str:
    figures = " | ".join(str(int(counts[name])) for name in ("all", "before", "now", "wrong"))
    return f"| {way} | {library} | {figures} |"

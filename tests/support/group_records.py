"""Records of groups for tests of the history, and the rows that folding them gives."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from grouptrail.decode.rows import decode_row
from grouptrail.decode.times import from_time
from grouptrail.history.fold import fold_group
from grouptrail.history.operations import Record
from grouptrail.history.rows import TABLES
from grouptrail.history.state import FoldState, decode_state, encode_state

Row = dict[str, Any]
KeyedRows = dict[tuple[Any, ...], Row]
"""Rows by their table and key."""
Rows = dict[str, list[Row]]
"""Rows by table, in the order of the log."""

DATA = Path(__file__).parents[1] / "data"


def classic(
    offset: int,
    at: int,
    generation: int,
    members: Mapping[str, Any],
    *,
    state_at: int | None = None,
    protocol: str = "range",
    **more: Any,
) -> Record:
    """Return a GroupMetadata value; a member is its assignment ({topic: partitions}) or a whole member."""
    listed = [
        {
            "member_id": name,
            "client_id": "client",
            "client_host": f"/10.0.0.{index}",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "subscription": {"topics": ["orders"]},
            **({"assignment": _assignment(member)} if not _is_whole(member) else member),
        }
        for index, (name, member) in enumerate(members.items())
    ]
    body = {
        "protocol_type": "consumer" if generation else "",
        "generation": generation,
        "state_at": at if state_at is None else state_at,
        "members": listed,
        **({"protocol": protocol, "leader": next(iter(members))} if members else {}),
        **more,
    }
    return Record(offset, at, "GroupMetadata", None, body)


def as_record(offset: int, at: int, key: bytes, value: bytes) -> Record:
    """Return a classic group's record as the history reads it: decoded, without nulls."""
    table, row = decode_row(key, value)
    assert table == "group_metadata"
    listed = [
        {**one, "subscription": _said(one["subscription"]), "assignment": _said(one["assignment"])}
        for one in row["members"]
    ]
    body = {**_said(row), "state_at": from_time(row["state_at"]), "members": listed}
    if row["streams"] is not None:
        body["streams"] = json.loads(row["streams"])
    return Record(offset, at, "GroupMetadata", None, body)


def _said(columns: Row) -> Row:
    return {name: value for name, value in columns.items() if value is not None}


def _is_whole(member: Mapping[str, Any]) -> bool:
    return bool(member.keys() & {"assignment", "subscription", "group_instance_id", "client_id"})


def _assignment(topics: Mapping[str, Sequence[int]]) -> Row:
    listed = [{"topic": topic, "partitions": list(numbers)} for topic, numbers in topics.items()]
    return {"layout": "ConsumerProtocolAssignment", "version": 3, "partitions": listed}


def member(topics: Mapping[str, Sequence[int]], **more: Any) -> Row:
    """Return a whole member that is assigned `topics`."""
    return {"assignment": _assignment(topics), **more}


def worker(
    starts: Mapping[str, Sequence[int]], *, had: Mapping[str, Sequence[int]] | None = None, delay_ms: int = 0
) -> Row:
    """Return a Connect worker that reports what it `had` (None: nothing) and gets what to start, while the leader
    waits this long for another that was lost."""
    allocation = None if had is None else {"version": 2, "data": {"assignment": _connectors(had)}}
    changes = {"assignment": _connectors(starts), "delay": delay_ms}
    return {
        "subscription": _spoken("ConnectProtocolMetadata", {"allocation": allocation}),
        "assignment": _spoken("ConnectProtocolAssignment", changes),
    }


def _spoken(layout: str, data: Row) -> Row:
    return {"layout": layout, "version": 2, "connect": json.dumps(data)}


def _connectors(tasks: Mapping[str, Sequence[int]]) -> list[Row]:
    return [{"connector": name, "tasks": list(numbers)} for name, numbers in tasks.items()]


def gone(offset: int, at: int) -> Record:
    """Return a GroupMetadata tombstone."""
    return Record(offset, at, "GroupMetadata", None, None)


def fold_calls(calls: Iterable[tuple[Sequence[Record], int]], names: Mapping[str, str] | None = None) -> KeyedRows:
    """Return the rows after folding call after call, each with its records and `complete_to`."""
    rows: KeyedRows = {}
    state = FoldState("billing", 0)
    for records, complete_to in calls:
        result = fold_group(state, records, complete_to=complete_to, names=names or {})
        state = decode_state("billing", 0, encode_state(result.state), names or {})
        for row in result.rows:
            values = dict(row.values())
            key = (row.table, *(values[column] for column in row.key))
            assert key not in rows or rows[key]["is_open"], f"a closed row of {row.table} was written again"
            rows[key] = values
    return rows


def fold_in_pieces(
    records: Sequence[Record], cuts: Iterable[int] = (), names: Mapping[str, str] | None = None
) -> KeyedRows:
    """Return the rows after folding the records in pieces that begin at `cuts`."""
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(records)}), len(records)] if records else []
    pieces = (records[start:stop] for start, stop in pairwise(bounds))
    return fold_calls([(piece, piece[-1].offset + (2 if piece[-1] is records[-1] else 1)) for piece in pieces], names)


def fold(
    records: Iterable[Record],
    calls: Iterable[tuple[int, int]] | None = None,
    *,
    cuts: Iterable[int] = (),
    names: Mapping[str, str] | None = None,
) -> Rows:
    """Fold records at once, in pieces that begin at `cuts`, or call after call: (up to how many, complete_to)."""
    log = list(records)
    each = [(log[:count], complete_to) for count, complete_to in calls or ()]
    rows = fold_calls(each, names) if each else fold_in_pieces(log, cuts, names)
    in_order = sorted(rows.items(), key=lambda one: one[0])
    return {table: [json.loads(json.dumps(row)) for key, row in in_order if key[0] == table] for table in TABLES}


def real_logs() -> list[tuple[str, list[Record]]]:
    """Return (group, its records) of logs written by real brokers and recorded in `tests/data/groups-*.jsonl`."""
    logs = []
    for file in sorted(DATA.glob("groups-*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            log = json.loads(line)
            logs.append((f"{file.stem}/{log['group_id']}", [Record(*record) for record in log["records"]]))
    return logs

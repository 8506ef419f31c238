"""`grouptrail show group --why TOPIC-PARTITION`: what a partition's verdict rests on, and what that rules out."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TextIO

from grouptrail.query.document import Block, Line
from grouptrail.query.errors import QueryError
from grouptrail.query.formats import RowsFormat, to_the_second
from grouptrail.query.show_why import Row, proof, write_proof
from grouptrail.query.views import filled, utc_now
from grouptrail.storage.sql import Value
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.warehouse import Warehouse

TABLES = ("consumer_lag", "offset_commits", "group_states", "memberships", "ingest_progress")

_SAMPLE = """
SELECT
  group_id, topic, partition, sampled_at, status, status_reason, rule, ruled_out, problem, committed_offset,
  commit_at, log_start_offset, log_end_offset, last_stable_offset, lag, lag_seconds, lag_seconds_method,
  lag_seconds_error, silent_seconds, read_before_end, usual_wait_seconds, last_wait_seconds,
  delivery_complete_count, awaiting_redelivery, most_deliveries, most_delivered_offset, lag_error
FROM consumer_lag
WHERE cluster = :cluster AND group_id = :group AND topic = :topic AND partition = :partition AND sampled_at <= :at
ORDER BY sampled_at DESC
LIMIT 1
"""
# A commit has its coordinator's time, and its record is written right after it.
_NEAR = timedelta(minutes=1)
# As for the lag job: the last members may be gone a moment before the group is Empty.
_AT_ONCE = timedelta(seconds=1)
_COMMIT = """
SELECT record_partition, record_offset
FROM offset_commits
WHERE cluster = :cluster AND group_id = :group AND topic = :topic AND partition = :partition
  AND committed_offset = :committed AND coalesce(commit_at, record_at) = :commit_at
  AND record_at >= :since AND record_at <= :until
ORDER BY record_offset DESC
LIMIT 1
"""
_EMPTIED = """
SELECT started_at, record_partition, record_offset
FROM group_states
WHERE cluster = :cluster AND group_id = :group AND state = 'Empty' AND started_at <= :at
ORDER BY record_offset DESC
LIMIT 1
"""
_LEAVERS = """
SELECT member_id, left_at, ended, ended_because, evidence
FROM memberships
WHERE cluster = :cluster AND group_id = :group AND left_at >= :since AND left_at <= :at
ORDER BY left_at, member_id
LIMIT 20
"""
# Rules of `lag.verdict` that rest on how the last members left.
_WITHOUT_MEMBERS = ("LEFT_ON_PURPOSE", "PAUSES_AS_USUAL", "STAYED_AWAY")
_NO_PLACE = {"record_partition": None, "record_offset": None}


def show_verdict(
    warehouse: Warehouse,
    group_id: str,
    topic: str,
    partition: int,
    *,
    at: datetime | None,
    format: RowsFormat,
    out: TextIO,
) -> None:
    """Print the verdict of a partition at a time, by default now: rule, evidence and what that rules out.

    JSON is one object; CSV has the evidence. Raises QueryError where there is no sample of it by then."""
    tables = SqlSnapshot(warehouse, TABLES)
    tables.require_group(group_id, "consumer_lag")
    whose: dict[str, Value] = {"cluster": warehouse.cluster, "group": group_id, "at": at or utc_now()}
    values = {**whose, "topic": topic, "partition": partition}
    rows = tables.rows(filled(_SAMPLE, values))
    if not rows:
        raise QueryError(
            f"no sample of {topic}-{partition} for {group_id} is known by then: "
            f"grouptrail show lag --group {group_id} lists its partitions"
        )
    [row] = rows
    evidence = [*facts_of(row, _place(tables, row, values)), *_without_members(tables, row, whose)]
    row = {"cluster": warehouse.cluster, **row, "evidence": evidence}
    write_proof(row, _described(row), out, format=format)


def _described(row: Row) -> Iterator[Block]:
    yield Line(f"{row['group_id']}: {row['topic']}-{row['partition']}, {to_the_second(row['sampled_at'])} UTC")
    yield Line(f"{row['status']}: {row['problem'] or row['status_reason']}")
    if row["rule"] is None:
        yield Line("its rule was not kept by the grouptrail that wrote this")
        return
    yield from proof(row)


def facts_of(row: Row, place: Row | None = None) -> Iterator[Row]:
    """Return what a row of `consumer_lag` rests on, as elements of a column `evidence`, as far as it has the columns.

    `place`: `record_partition` and `record_offset` of the commit, if they are known."""
    if row["commit_at"] is not None:
        is_shared = _is_shared(row)
        shows = f"{'start' if is_shared else 'committed'} offset {row['committed_offset']}{_deliveries(row)}"
        source = "poll" if row.get("lag_error") is not None else "record" if is_shared else "commit"
        yield {"source": source, "at": row["commit_at"], **(place or _NO_PLACE), "shows": shows}
    for shows in _shown_by_samples(row):
        yield {"source": "sample", "at": row["sampled_at"], **_NO_PLACE, "shows": shows}


def _is_shared(row: Row) -> bool:
    """Return whether a row is of a share group."""
    return row.get("delivery_complete_count") is not None


def _deliveries(row: Row) -> str:
    """Return what is known of the records of a share group from its start offset on."""
    parts = []
    if _is_shared(row):
        least = "at least " if row.get("lag_error") else ""
        parts.append(f"{least}{row['delivery_complete_count']} after it complete")
    if row.get("awaiting_redelivery"):
        times = f"offset {row['most_delivered_offset']} was delivered {row['most_deliveries']} times"
        parts.append(f"{row['awaiting_redelivery']} came back, of which {times}")
    return "".join(f", {part}" for part in parts)


def _shown_by_samples(row: Row) -> Iterator[str]:
    if row["log_end_offset"] is not None:
        stable = row.get("last_stable_offset")
        held_back = "" if stable in (None, row["log_end_offset"]) else f", last stable offset {stable}"
        most = "at most " if row.get("lag_error") else ""
        lag = "" if row["lag"] is None else f", lag {most}{row['lag']}"
        yield f"log start {row['log_start_offset']}, log end {row['log_end_offset']}{held_back}{lag}"
    if row.get("lag_seconds_method") and row["lag_seconds"]:
        error = row["lag_seconds_error"]
        limits = "at least" if error is None else f"± {error:g} s"
        yield f"the oldest unread record is {row['lag_seconds']:g} s old ({row['lag_seconds_method']}, {limits})"
    if row.get("silent_seconds"):
        nothing = "nothing acknowledged or returned" if _is_shared(row) else "no commit"
        yield f"{nothing} for {row['silent_seconds']:g} s while a record waited"
    if row.get("usual_wait_seconds") is not None:
        last = row["last_wait_seconds"] or 0
        yield f"records here usually wait {row['usual_wait_seconds']:g} s for a commit, the last time {last:g} s"
    if row.get("read_before_end") is not None:
        yield f"read when the last member was gone: {row['read_before_end']}"


def _place(tables: SqlSnapshot, row: Row, values: dict[str, Value]) -> Row | None:
    """Return where the commit is in __consumer_offsets."""
    if row["commit_at"] is None or "offset_commits" not in tables.versions:
        return None
    at = datetime.fromisoformat(row["commit_at"])
    times: dict[str, Value] = {"commit_at": at, "since": at - _NEAR, "until": at + _NEAR}
    rows = tables.rows(filled(_COMMIT, {**values, **times, "committed": row["committed_offset"]}))
    return rows[0] if rows else None


def _without_members(tables: SqlSnapshot, row: Row, values: dict[str, Value]) -> Iterator[Row]:
    """Return how a group became Empty, where the verdict rests on that."""
    if row["rule"] not in _WITHOUT_MEMBERS or not {"group_states", "memberships"} <= tables.versions.keys():
        return
    sampled_at = datetime.fromisoformat(row["sampled_at"])
    for state in tables.rows(filled(_EMPTIED, {**values, "at": sampled_at})):
        since = state.pop("started_at")
        yield {"source": "record", "at": since, **state, "shows": "the group has no members any more"}
        left: dict[str, Value] = {"since": datetime.fromisoformat(since) - _AT_ONCE, "at": sampled_at}
        for one in tables.rows(filled(_LEAVERS, {**values, **left})):
            shows = f"{one['member_id']}: {one['ended']}: {one['ended_because']}"
            for fact in one["evidence"] or ():
                yield {**fact, "shows": shows if fact["source"] == "record" else fact["shows"]}

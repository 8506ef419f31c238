"""`grouptrail show group`: the state of a group at a time, its members, their partitions and its last generations."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, TextIO

from grouptrail import contracts
from grouptrail.console.progress import print_note
from grouptrail.console.text import harmless_json
from grouptrail.kafka.coordinator import OFFSETS_TOPIC, coordinator_partition
from grouptrail.query import group_tasks
from grouptrail.query.document import Block, Grid, Line, footer, write_document
from grouptrail.query.errors import BeforeHistoryError
from grouptrail.query.formats import RowsFormat, counted, duration, to_the_second, write_rows
from grouptrail.query.freshness import stale_note
from grouptrail.query.group_tasks import HEADINGS, USES, add_tasks, roles_of, task_lag, task_name, topology_at
from grouptrail.query.member_names import distinct_names
from grouptrail.query.rollouts import name_of_way, rollouts_of
from grouptrail.query.views import LATEST, filled
from grouptrail.storage.damage import damage_of
from grouptrail.storage.sql import Value, datafusion_literal
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.warehouse import Warehouse

Row = dict[str, Any]

COMMITS = "offset_commits"
_OFFSETS = "offsets_as_of"

TABLES = (
    *("generations", "group_states", "ingest_progress", "memberships", "partition_ownership", "rebalances"),
    COMMITS,
    *("log_offsets", "coordinators", "brokers"),
    *group_tasks.TABLES,
    group_tasks.SAMPLED,
)
_TASKS_SHOWN = 20
_NAMES_SHOWN = 3
_MEMBERLESS = (
    "it has no members in its history: its offsets are committed by a client that assigns itself partitions, "
    "or by an administrator"
)
_LONG = ("topic", "client", "instance", "host", "reads", "writes", "state in")
_MOVABLE = ("members", "member id", "metadata", "partitions", "kept", "moved", *HEADINGS.values())
_NUMBERS = ("partition", "offset sum", "committed", "moved", "kept", "took", "after", "lag", "behind")
_MARKS = {"likely": " ~", "ambiguous": " ?"}

_GENERATIONS = """
SELECT
  g.generation, g.group_kind, g.protocol_type, g.protocol, g.record_partition, g.incarnation,
  g.started_at, g.stable_at, g.ended_at,
  g.member_count, g.partition_count, g.skew, g.is_assignors_own, g.assignment_note,
  r.cause, r.certainty, r.cause_note, r.members_joined, r.members_left, r.partitions_added, r.partitions_removed,
  r.partitions_moved, r.partitions_kept, r.skipped, r.seconds_since_previous, r.duration_ms, r.duration_of
FROM generations AS g
LEFT JOIN rebalances AS r
  ON r.cluster = :cluster AND r.group_id = :group AND r.record_offset = g.record_offset
WHERE g.cluster = :cluster AND g.group_id = :group AND g.started_at <= :time
ORDER BY g.record_offset DESC
LIMIT :count
"""
# Read separately: one generation is enough for a group with ten thousand members.
_MEMBERS = """
SELECT members
FROM generations
WHERE cluster = :cluster AND group_id = :group AND started_at <= :time
ORDER BY record_offset DESC
LIMIT 1
"""
_FIRST = {
    "generations": "SELECT min(started_at) AS at FROM generations WHERE cluster = :cluster AND group_id = :group",
    COMMITS: f"SELECT min(record_at) AS at FROM {COMMITS} WHERE cluster = :cluster AND group_id = :group",
}
"""By table: when the first row of a group was."""
_STATE = """
SELECT state, evidence, not_before, started_at AS state_since, note AS state_note
FROM group_states
WHERE cluster = :cluster AND group_id = :group
  AND started_at <= :time AND (ended_at IS NULL OR :time < ended_at)
ORDER BY record_offset DESC, started_at DESC
LIMIT 1
"""
_CLIENTS = "SELECT member_id, client_id FROM memberships WHERE cluster = :cluster AND group_id = :group"
_OFFSETS_PARTITIONS = "SELECT max(record_partition) + 1 AS count FROM ingest_progress WHERE cluster = :cluster"
# What is behind an open transaction cannot be read yet.
_HELD_BACK = f"""
SELECT log_end_offset - last_stable_offset AS records
FROM log_offsets
WHERE cluster = :cluster AND topic = '{OFFSETS_TOPIC}' AND partition = :partition
ORDER BY sampled_at DESC
LIMIT 1
"""
_COORDINATOR = """
SELECT broker_id, host, leader_epoch, valid_from, valid_to, last_seen_at,
  coalesce(last_seen_at < :time, FALSE) AS may_have_moved
FROM ({coordinators})
WHERE record_partition = :partition
"""
_FIRST_COMMIT = f"""
SELECT min(record_at) AS at
FROM {COMMITS}
WHERE cluster = :cluster AND group_id = :group AND record_at <= :time
"""
_OF_GROUP = ("group_kind", "protocol_type", "protocol", "record_partition", "incarnation", "generation")
_CHANGED = ("members_joined", "members_left")
_OF_ASSIGNMENT = ("partition_count", "skew", "is_assignors_own", "assignment_note")


def show_group(
    warehouse: Warehouse,
    group_id: str,
    *,
    at: datetime | None,
    generations: int,
    sample_seconds: float,
    format: RowsFormat,
    out: TextIO,
) -> None:
    """Print a group as it is now or was `at` a time, with this many of its last generations.

    JSON is one object; CSV has the members, or the committed offsets of a group that never had any.

    Raises QueryError for a group without a history at that time."""
    tables = SqlSnapshot(warehouse, TABLES)
    group = describe_group(tables, group_id, at=at, generations=generations)
    group["rollouts"] = _rollouts(tables, group, at or LATEST)
    note = stale_note(warehouse, sample_seconds, at)
    if format in ("table", "markdown"):
        write_document((*_described(group), *footer(note)), out, format=format)
        return
    if format == "json":
        out.write(harmless_json(json.dumps(group, ensure_ascii=False)) + "\n")
    else:
        _write_csv(group, out)
    print_note(note)


def _write_csv(group: Row, out: TextIO) -> None:
    has_members = group["committed"] is None
    columns = contracts.views()["members_at" if has_members else _OFFSETS].columns
    names = [column.name for column in columns] + ["partitions"] * has_members
    rows = group["members"] if has_members else group["committed"]
    write_rows(names, ([row[name] for name in names] for row in rows), out, format="csv")


def _first_times(tables: SqlSnapshot, ask: Callable[[str], list[Row]]) -> list[str | None]:
    return [ask(sql)[0]["at"] for name, sql in _FIRST.items() if name in tables.versions]


def describe_group(tables: SqlSnapshot, group_id: str, *, at: datetime | None, generations: int) -> Row:
    """Return the group with its `members` and `generations`, newest first, from `TABLES`; times are UTC in ISO 8601.

    `committed` has the offsets of a group that never had members; None for other groups. `generations_note`: why it
    may have had some all the same, as its generations may be in a damaged file. `held_back` is how many
    records of its partition are behind an open transaction now, and not read yet; None where that is not sampled.
    `coordinator` is the broker that led its partition by the samples of the cluster, `coordinator_now` the one that
    leads it now, if `at` is given; None where no sample shows it. `topology` and `task_lag` are those of a streams
    group, the latter only now; empty for others. `unready`: which topics make its topology unusable, as
    `group_tasks.unready_topics` has them; None unless its state is NotReady."""
    warehouse = tables.warehouse
    tables.require_group(group_id, "generations", COMMITS)
    values: dict[str, Value] = {
        "cluster": warehouse.cluster,
        "group": group_id,
        "time": at or LATEST,
        "count": generations,
    }

    def ask(sql: str) -> list[Row]:
        return tables.rows(filled(sql, values))

    views = contracts.views()
    last = ask(_GENERATIONS)
    committed = None if last else _committed(tables, ask)
    if not last and committed is None:
        raise BeforeHistoryError(group_id, min(filter(None, _first_times(tables, ask))))
    now = last[0] if last else dict.fromkeys((*_OF_GROUP, *_OF_ASSIGNMENT))
    states = ask(_STATE)
    members = ask(views["members_at"].sql + " ORDER BY client_id, member_id")
    if members:  # also if the rows of their generations cannot be read
        assigned = [member for row in ask(_MEMBERS) for member in row["members"] or ()]
        _add_partitions(members, ask(views["owners_at"].sql), assigned)
        add_tasks(tables, members, ask)
    state: Row = states[0] if states else {"state": None, "evidence": None}
    # Polled rows have no partition of the topic.
    count = None if state["evidence"] == "polled" else ask(_OFFSETS_PARTITIONS)[0]["count"]
    _add_clients(last, ask)
    computed = coordinator_partition(group_id, count) if count else None
    led = computed if now["record_partition"] is None else now["record_partition"]
    topology = topology_at(tables, ask)
    unready = None
    if state["state"] == group_tasks.NOT_READY:
        since = datetime.fromisoformat(state["state_since"])
        unready = group_tasks.unready_topics(tables, topology, ask, since=since)
    return {
        "group_id": group_id,
        "cluster": warehouse.cluster,
        "at": at.isoformat().replace("+00:00", "Z") if at else None,
        **{name: now[name] for name in _OF_GROUP},
        **state,
        "offsets_partitions": count,
        "coordinator_partition": computed,
        "coordinator": _led_by(tables, led, values["time"]),
        "coordinator_now": _led_by(tables, led, LATEST) if at else None,
        **{name: now[name] for name in _OF_ASSIGNMENT},
        "held_back": None if at else _held_back(tables, ask, values, now["record_partition"]),
        "members": members,
        "topology": topology,
        "unready": unready,
        "task_lag": task_lag(tables, group_id, at),
        "generations": last,
        "committed": committed,
        "generations_note": next(iter(damage_of(warehouse.table("generations").path)), None),
    }


def _led_by(tables: SqlSnapshot, partition: int | None, time: Value) -> Row | None:
    if partition is None or not {"coordinators", "brokers"} <= tables.versions.keys():
        return None
    values: dict[str, Value] = {"cluster": tables.warehouse.cluster, "partition": partition, "time": time}
    query = _COORDINATOR.format(coordinators=contracts.views()["coordinators_at"].sql)
    return next(iter(tables.rows(filled(query, values))), None)


def _rollouts(tables: SqlSnapshot, group: Row, time: datetime) -> list[Row]:
    """Return the rollouts that the listed generations belong to, the newest first."""
    if not group["generations"]:
        return []
    listed = {(row["incarnation"], row["generation"]) for row in group["generations"]}
    return [
        row
        for row in rollouts_of(tables, group["group_id"], until=time)
        if any(
            incarnation == row["incarnation"] and row["first_generation"] <= number <= row["last_generation"]
            for incarnation, number in listed
            if row["first_generation"] is not None
        )
    ]


def _held_back(
    tables: SqlSnapshot, ask: Callable[[str], list[Row]], values: dict[str, Value], partition: int | None
) -> int | None:
    if partition is None or "log_offsets" not in tables.versions:
        return None
    values["partition"] = partition
    sampled = ask(_HELD_BACK)
    return sampled[0]["records"] if sampled else None


def _committed(tables: SqlSnapshot, ask: Callable[[str], list[Row]]) -> list[Row] | None:
    """Return the committed offsets of a group without members; None before its first commit."""
    if COMMITS not in tables.versions or ask(_FIRST_COMMIT)[0]["at"] is None:
        return None
    return ask(contracts.views()[_OFFSETS].sql + " ORDER BY topic, partition")


def _add_partitions(members: list[Row], owners: Iterable[Row], assigned: Iterable[Row]) -> None:
    """Return `partitions` by topic; None for a member whose assignment could not be read."""
    owned: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in owners:
        owned[row["member_id"]][row["topic"]].append(row["partition"])
    unreadable = {member["member_id"] for member in assigned if member["partitions"] is None}
    for member in members:
        name = member["member_id"]
        topics = {topic: sorted(numbers) for topic, numbers in sorted(owned[name].items())}
        member["partitions"] = None if name in unreadable and not topics else topics


def _add_clients(generations: list[Row], ask: Callable[[str], list[Row]]) -> None:
    """Add the client id to each member id in `members_joined` and `members_left`."""
    changes = [(row, field) for row in generations for field in _CHANGED]
    ids = {member_id for row, field in changes for member_id in row[field] or ()}
    among = f" AND member_id IN ({', '.join(map(datafusion_literal, sorted(ids)))})"
    clients = {row["member_id"]: row["client_id"] for row in ask(_CLIENTS + among)} if ids else {}
    for row, field in changes:
        members = [{"member_id": name, "client_id": clients.get(name)} for name in row[field] or ()]
        row[field] = None if row[field] is None else members


def _described(group: Row) -> Iterator[Block]:
    if group["committed"] is not None:
        yield from _committed_offsets(group)
        return
    yield from map(Line, _head(group))
    yield Line()
    changed = (row[field] or () for row in group["generations"] for field in _CHANGED)
    names = distinct_names([*chain.from_iterable(changed), *group["members"]])
    yield _members(group, names) if group["members"] else Line(_no_members(group["generations"]))
    yield Line()
    yield from _tasks(group, names)
    yield from _generations(group["generations"], names)
    yield from map(Line, map(_rollout, group["rollouts"]))


def _no_members(generations: list[Row]) -> str:
    is_known = not generations or generations[0]["member_count"] is not None
    return "no members" if is_known else "no members that can be decoded: docs/undecodable.md"


def _head(group: Row) -> Iterator[str]:
    protocol = " / ".join(filter(None, (group["protocol_type"], group["protocol"]))) or "none"
    yield f"{group['group_id']}: {group['group_kind']} group of cluster {group['cluster']}, {_state(group)}"
    if group["evidence"] == "polled":
        counted = ", counted by what polls showed" if group["group_kind"] == "classic" else ""
        yield f"generation {group['generation']}{counted}, protocol {protocol}"
        yield "polled: times are the polls', and what happened between two of them is seen as one change"
    else:
        yield f"generation {group['generation']}, protocol {protocol}, {_coordinator(group)}"
    if group["members"]:
        yield _assignment(group)
    yield from _unready(group["unready"])
    if group["held_back"]:
        yield (
            f"an open transaction holds back {group['held_back']:,} records of that partition: what they say of the "
            "group, such as its deletion, is shown when the transaction ends"
        )


def _unready(unready: Row | None) -> Iterator[str]:
    """Yield why a topology is not ready, such as `not ready because of lines (subtopology 0) ~: missing: …`."""
    if unready is None:
        return
    for row in unready["topics"]:
        needed_by = f"subtopology {', '.join(row['subtopologies'])}"
        mark = _MARKS.get(row["certainty"], "")
        yield f"not ready because of {row['topic']} ({needed_by}){mark}: {row['problem']}"
    if unready["note"]:
        yield f"not ready: {unready['note']}"


def _state(group: Row) -> str:
    if group["state"] is None:
        return "state not known"
    inferred = "" if group["evidence"] == "recorded" else f" at the latest ({group['evidence']})"
    note = f" ({group['state_note']})" if group["state_note"] else ""
    return f"{group['state']} since {to_the_second(group['state_since'])} UTC{inferred}{note}"


def _coordinator(group: Row) -> str:
    recorded, computed, count = (
        group[name] for name in ("record_partition", "coordinator_partition", "offsets_partitions")
    )
    text = f"coordinator partition {recorded} of __consumer_offsets{_brokers(group)}"
    if computed in (None, recorded):
        return text
    return f"{text} (of {count} partitions it would be {computed}: were partitions added, or are not all read?)"


def _brokers(group: Row) -> str:
    """Return which broker led the group's partition, then and now."""
    then, now = group["coordinator"], group["coordinator_now"]
    if group["at"] is None or now == then:
        return f", on {_broker(then)}" if then else ""
    known = [f"{_broker(one)} {when}" for one, when in ((then, "then"), (now, "now")) if one]
    moved = ""
    if then and then["may_have_moved"]:
        moved = f" (it moved between {to_the_second(then['last_seen_at'])} and {to_the_second(then['valid_to'])} UTC)"
    return f", on {' and '.join(known)}{moved}" if known else ""


def _broker(coordinator: Row) -> str:
    host = f" ({coordinator['host']})" if coordinator["host"] else ""
    return f"broker {coordinator['broker_id']}{host}"


def _assignment(group: Row) -> str:
    if group["partition_count"] is None:
        return "assignment: unknown, not every member's can be read"
    own = {True: "the assignor's own", False: "not the assignor's own", None: "not compared with the assignor's own"}
    note = f" ({group['assignment_note']})" if group["assignment_note"] else ""
    skew = "" if group["skew"] is None else f", skew {group['skew']}"
    size = f"{group['partition_count']} {'tasks' if group['group_kind'] == 'streams' else 'partitions'}{skew}"
    return f"assignment: {size}, {own[group['is_assignors_own']]}{note}"


def _committed_offsets(group: Row) -> Iterator[Block]:
    yield Line(
        f"{group['group_id']}: group of cluster {group['cluster']}; {group['generations_note'] or _MEMBERLESS}"
    )
    yield Line()
    if group["committed"]:
        yield _grid(
            ("topic", "partition", "committed", "at (UTC)", "metadata"),
            (
                (
                    row["topic"],
                    str(row["partition"]),
                    "" if row["committed_offset"] is None else f"{row['committed_offset']:,}",
                    to_the_second(row["committed_at"]),
                    row["metadata"] or "",
                )
                for row in group["committed"]
            ),
        )
    else:
        yield Line("no committed offsets: they were deleted or have expired")


def _members(group: Row, distinct: Mapping[str, str]) -> Grid:
    members = group["members"]
    has_instances = any(member["instance_id"] for member in members)
    names = ["client", *(["instance"] if has_instances else []), "host", "since (UTC)"]
    # Of a streams group the history knows tasks, not the partitions that they read.
    is_streams = group["group_kind"] == "streams"
    is_connect = group["protocol_type"] == "connect"
    roles = roles_of(group["protocol_type"], (member["tasks"] for member in members))
    has_partitions = not (is_streams and roles)
    return _grid(
        (*names, *(["partitions"] if has_partitions else []), *roles.values(), "member id"),
        (
            (
                # The column beside it has the instance id.
                member["client_id"] if member["instance_id"] else distinct[member["member_id"]],
                *([member["instance_id"] or "-"] if has_instances else []),
                member["client_host"].removeprefix("/"),
                to_the_second(member["joined_at"]),
                *([_owned(member["partitions"], is_connect=is_connect)] if has_partitions else []),
                *(_held(member["tasks"].get(role, {})) for role in roles),
                member["member_id"],
            )
            for member in members
        ),
    )


def _tasks(group: Row, distinct: Mapping[str, str]) -> Iterator[Block]:
    """Yield the subtopologies of a Kafka Streams application, the active tasks with the most lag, and the copies."""
    if group["topology"]:
        used: dict[str, list[Row]] = defaultdict(list)
        for row in group["topology"]:
            used[row["subtopology"]].append(row)
        yield _grid(("subtopology", *USES), ((name, *_used(rows)) for name, rows in used.items()))
        yield Line()
    active = [row for row in group["task_lag"] if row["role"] == "active"]
    if not active:
        return
    shown = active[:_TASKS_SHOWN]
    reasons = ["unknown because"] if any(row["problem"] for row in shown) else []
    yield _grid(
        ("task", "client", "lag", "behind", *reasons),
        (
            (
                task_name(row),
                distinct.get(row["member_id"], row["client_id"]),
                "unknown" if row["lag"] is None else f"{row['lag']:,}",
                _span(row["max_lag_seconds"]),
                *(row["problem"] or "-" for _ in reasons),
            )
            for row in shown
        ),
    )
    if len(active) > len(shown):
        yield _more_tasks(len(active) - len(shown))
    yield Line()
    yield from _copies([row for row in group["task_lag"] if row["role"] != "active"], distinct)


def _copies(rows: list[Row], distinct: Mapping[str, str]) -> Iterator[Block]:
    """Yield how far standby and warm-up tasks were when their members last joined, and what is not known."""
    known = [row for row in rows if row["offset_sum_at"] is not None]
    if known:
        yield _grid(
            ("copy of task", "client", "offset sum", "as of (UTC)"),
            (
                (
                    task_name(row),
                    distinct.get(row["member_id"], row["client_id"]),
                    "unknown" if row["offset_sum"] is None else f"{row['offset_sum']:,}",
                    to_the_second(row["offset_sum_at"]),
                )
                for row in known[:_TASKS_SHOWN]
            ),
        )
        if len(known) > _TASKS_SHOWN:
            yield _more_tasks(len(known) - _TASKS_SHOWN)
    for reason in dict.fromkeys(row["problem"] for row in rows):
        yield Line(reason)
    if rows:
        yield Line()


def _more_tasks(count: int) -> Line:
    return Line(f"{count:,} more: grouptrail sql 'SELECT * FROM task_lag'")


def _used(topics: list[Row]) -> Iterator[str]:
    for usages in USES.values():
        yield ", ".join(row["topic"] for row in topics if row["usage"] in usages) or "-"


def _held(tasks: Mapping[str, list[int]]) -> str:
    """Return tasks by subtopology, such as `5 (0: 0-3; 1: 7)`."""
    listed = "; ".join(f"{name}: {ranges(numbers)}" for name, numbers in tasks.items())
    return f"{sum(map(len, tasks.values()))} ({listed})" if listed else "none"


def _owned(partitions: dict[str, list[int]] | None, *, is_connect: bool) -> str:
    """Return the partitions by topic or connector, such as `12: orders 0-3,7; payments 1`."""
    if partitions is None:
        return "unknown"
    count = sum(len(numbers) for numbers in partitions.values())
    listed = "; ".join(f"{topic} {ranges(numbers, is_connect=is_connect)}" for topic, numbers in partitions.items())
    return f"{count}: {listed}" if count else "none"


def ranges(numbers: Iterable[int], *, is_connect: bool = False) -> str:
    """Return partition numbers such as `0-3,7`; Connect's -1 is the connector itself."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1 and number > 0:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [f"{first}-{last}" if last > first else str(first) for first, last in runs]
    return ",".join("connector" if is_connect and text == "-1" else text for text in texts)


def _generations(rows: list[Row], distinct: Mapping[str, str]) -> Iterator[Block]:
    yield _grid(
        ("gen.", "at (UTC)", "cause", "members", "moved", "kept", "took", "after"),
        [list(_generation(row, distinct)) for row in rows],
    )
    if any(row["certainty"] in _MARKS for row in rows):
        yield Line("~ likely, ? ambiguous; other causes are recorded as such")
    notes: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        notes[row["cause_note"]].append(str(row["generation"]))
        if row["skipped"]:
            notes[f"{row['skipped']} generations before it are not in the log"].append(str(row["generation"]))
    for note, numbers in notes.items():
        if note:
            yield Line(f"{', '.join(numbers)}: {note}")


def _rollout(row: Row) -> str:
    """Return a line such as `12-23: rollout: 6 of 6 members, 12 rebalances, 3 min 20 s`."""
    first, last = row["first_generation"], row["last_generation"]
    parts = (
        f"rollout: {row['members']} of {counted(row['of_members'], 'member')}",
        name_of_way(row["way"]),
        counted(row["rebalances"], "rebalance"),
        "more may follow" if row["seconds"] is None else duration(row["seconds"]),
        "or the same processes joined again" if row["certainty"] == "ambiguous" else "",
    )
    return f"{first if first == last else f'{first}-{last}'}: {', '.join(filter(None, parts))}"


def _generation(row: Row, distinct: Mapping[str, str]) -> Iterator[str]:
    yield str(row["generation"])
    yield to_the_second(row["started_at"])
    if row["cause"] is None:
        yield from "-" * 6
        return
    yield row["cause"] + _MARKS.get(row["certainty"], "")
    changes = (_some(sign, row[field], distinct) for sign, field in zip("+-", _CHANGED, strict=True))
    yield " ".join(filter(None, changes))
    for name in ("partitions_moved", "partitions_kept"):
        yield "unknown" if row["partition_count"] is None else str(row[name])
    yield _span(None if row["duration_ms"] is None else row["duration_ms"] / 1000)
    yield _span(row["seconds_since_previous"])


def _some(sign: str, members: list[Row] | None, distinct: Mapping[str, str]) -> str:
    """Return the names of the first few members."""
    names = [sign + distinct[member["member_id"]] for member in members or ()]
    more = len(names) - _NAMES_SHOWN
    return " ".join(names[:_NAMES_SHOWN]) + (f" {sign}{more} more" if more > 0 else "")


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _grid(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Grid:
    return Grid(names, list(rows), _NUMBERS, _LONG, _MOVABLE)

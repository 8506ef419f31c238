"""`grouptrail diff`: what differs in a group between two moments: state, assignor, members, owners and lag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from datetime import datetime
from typing import Any, Literal, TextIO

from grouptrail.console.progress import print_note
from grouptrail.query.document import Block, Grid, Heading, Line, footer, write_document
from grouptrail.query.formats import RowsFormat, write_rows
from grouptrail.query.freshness import stale_note
from grouptrail.query.show_group import TABLES, describe_group
from grouptrail.query.views import filled
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.warehouse import Warehouse

Row = dict[str, Any]

_LAG_TABLE = "consumer_lag"
# Samples are thinned with age to one in ten minutes by default.
_LAG = f"""
SELECT
  topic, partition, max(sampled_at) AS sampled_at,
  first_value(lag ORDER BY sampled_at DESC) AS lag, first_value(status ORDER BY sampled_at DESC) AS status
FROM {_LAG_TABLE}
WHERE cluster = :cluster AND group_id = :group AND sampled_at <= :time AND sampled_at > :time - INTERVAL '15 minutes'
GROUP BY topic, partition
ORDER BY topic, partition
"""
_OF_GROUP = {
    "kind": "group_kind",
    "state": "state",
    "generation": "generation",
    "assignor": "protocol",
    "skew": "skew",
}
_HEADINGS = {"member": "Members", "owner": "Owners", "lag": "Lag"}


@dataclass(frozen=True)
class Difference:
    """One thing before and after; None where it was not there, or is not known.

    `what` is a property of the group, or member, owner or lag, and `name` then the member id or the partition.
    """

    what: str
    name: str
    before: str | int | None
    after: str | int | None


def diff_group(
    warehouse: Warehouse,
    group_id: str,
    first: datetime,
    second: datetime,
    *,
    sample_seconds: float,
    format: RowsFormat,
    out: TextIO,
) -> None:
    """Print what differs in a group between two moments.

    Raises QueryError for a group without a history at the first one."""
    differing = list(differences(warehouse, group_id, first, second))
    note = stale_note(warehouse, sample_seconds, second)
    if format in ("json", "csv"):
        names = [field.name for field in fields(Difference)]
        write_rows(names, (astuple(one) for one in differing), out, format=format)
        print_note(note)
        return
    form: Literal["table", "markdown"] = "table" if format == "table" else "markdown"
    blocks = _described(warehouse.cluster, group_id, first, second, differing)
    write_document((*blocks, *footer(note)), out, format=form)


def differences(warehouse: Warehouse, group_id: str, first: datetime, second: datetime) -> Iterator[Difference]:
    """Yield what differs in a group between two moments."""
    tables = SqlSnapshot(warehouse, {*TABLES, _LAG_TABLE})
    before, after = (describe_group(tables, group_id, at=at, generations=1) for at in (first, second))
    for what, column in _OF_GROUP.items():
        yield from _unlike(what, {"": before[column]}, {"": after[column]})
    yield from _unlike("members", {"": len(before["members"])}, {"": len(after["members"])})
    yield from _unlike("member", _members(before), _members(after))
    yield from _unlike("owner", _owners(before), _owners(after))
    lags = [_lag(tables, group_id, at) for at in (first, second)]
    yield from _unlike("total lag", *({"": _sum(lag)} for lag in lags))
    yield from _unlike("lag", *lags)


def _unlike(what: str, before: Row, after: Row) -> Iterator[Difference]:
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield Difference(what, name, before.get(name), after.get(name))


def _members(group: Row) -> Row:
    members = {}
    for one in group["members"]:
        instance = f" as {one['instance_id']}" if one["instance_id"] else ""
        members[one["member_id"]] = f"{one['client_id']}{instance} on {one['client_host'].removeprefix('/')}"
    return members


def _owners(group: Row) -> Row:
    owned = (
        (topic, partition, member["member_id"])
        for member in group["members"]
        for topic, partitions in (member["partitions"] or {}).items()
        for partition in partitions
    )
    owners: dict[tuple[str, int], list[str]] = {}
    for topic, partition, member_id in owned:
        owners.setdefault((topic, partition), []).append(member_id)
    return {f"{topic}-{number}": ", ".join(names) for (topic, number), names in sorted(owners.items())}


def _lag(tables: SqlSnapshot, group_id: str, at: datetime) -> Row:
    if _LAG_TABLE not in tables.versions:
        return {}
    rows = tables.rows(filled(_LAG, {"cluster": tables.warehouse.cluster, "group": group_id, "time": at}))
    return {f"{row['topic']}-{row['partition']}": row["lag"] for row in rows}


def _sum(lag: Row) -> int | None:
    known = [offsets for offsets in lag.values() if offsets is not None]
    return sum(known) if known else None


def _described(
    cluster: str, group_id: str, first: datetime, second: datetime, differing: list[Difference]
) -> Iterator[Block]:
    yield Line(f"{group_id} of cluster {cluster}, from {_text(first)} to {_text(second)}")
    if not differing:
        yield Line("nothing differs")
        return
    if of_group := [one for one in differing if one.what not in _HEADINGS]:
        yield Line()
        yield _grid("", ((one.what, one) for one in of_group))
    for what, heading in _HEADINGS.items():
        if listed := [one for one in differing if one.what == what]:
            yield Line()
            yield Heading(heading)
            yield _grid("member id" if what == "member" else "partition", ((one.name, one) for one in listed))


def _grid(name: str, listed: Iterable[tuple[str, Difference]]) -> Grid:
    columns = (name, "before", "after")
    return Grid(columns, [(label, _shown(one.before), _shown(one.after)) for label, one in listed], long=columns)


def _shown(value: str | int | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else value


def _text(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"

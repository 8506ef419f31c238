"""The commits of members that are gone, as `departures` needs them, and the rows that follow from them.

This module reads the commits into memory; `departures_with_spark` does the same for any number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.history.arrow_rows import equals_before, lines, with_rows, with_values
from grouptrail.history.departures import (
    EMPTIED,
    UNKNOWN,
    asks_others,
    cause_by_departures,
    end_by_commits,
    ending_of,
    is_by_commits,
    is_decided,
    is_open,
    window,
    with_reasons,
)
from grouptrail.history.handovers import PARTITION, CommitsBetween
from grouptrail.history.rows import Values
from grouptrail.storage.schema import gathered, table_schema

FIGURES_DDL = (
    "last_commit_at timestamp, last_commit_offset bigint, commits bigint, longest_gap_ms bigint, "
    "unchanged_commits bigint"
)
FIGURES = tuple(column.split()[0] for column in FIGURES_DDL.split(", "))
OTHERS = "others_advanced"

NEAR = timedelta(minutes=1)
"""Most departures are decided by the commits of the last minute; only for the others are those before it read."""

MEMBERSHIP = ("group_id", "incarnation", "left_generation", "member_id")
"""The columns of `memberships` by which a departure is found."""

MembershipKey = tuple[str, int, int, str]

_ROWS_AT_A_TIME = 1_000_000
_JUDGED = ("departed", "cause", "certainty", "cause_note", "rule", "evidence", "ruled_out")
_MOST_FACTS = 20
_NO_COMMITS: Values = {**dict.fromkeys(FIGURES), "commits": 0, OTHERS: None}

Place = tuple[int, int]
"""A row of `rebalances` and a position in its `departed`."""


def fill_departures(rebalances: pa.Table, commits: CommitsBetween, cluster: str, lookback: timedelta) -> pa.Table:
    """Fill the commits in `departed` of rows of `rebalances`, and what follows from them there and for the cause."""
    names = ("record_partition", "group_id", "record_offset")
    records = list(zip(*(rebalances[name].to_pylist() for name in names), strict=True))
    open_: dict[Place, Values] = {
        (row, position): {**dict(zip(names, records[row], strict=True)), **departure}
        for row, departed in enumerate(rebalances["departed"].to_pylist())
        for position, departure in enumerate(departed or ())
        if is_open(departure)
    }
    if not open_:
        return rebalances
    found = _figures_of(open_, commits, cluster, dict.fromkeys(open_, min(NEAR, lookback)))
    undecided = {
        place: one for place, one in open_.items() if not is_decided({**one, **found.get(place, _NO_COMMITS)})
    }
    farther = {place: window(one, lookback) for place, one in undecided.items()}
    found |= _figures_of(undecided, commits, cluster, farther)
    asking = {
        place: {**one, **found[place]}
        for place, one in undecided.items()
        if place in found and asks_others({**one, **found[place]})
    }
    for place in _where_others_advanced(asking, commits, cluster):
        found[place][OTHERS] = True
    return judged(rebalances, found)


def judged(rebalances: pa.Table, found: Mapping[Place, Values]) -> pa.Table:
    """Return rows of `rebalances` with the commits found of their departures, and what follows from them."""
    columns = {name: rebalances[name].to_pylist() for name in _JUDGED}
    partitions = rebalances["record_partition"].to_pylist()
    for row, listed in enumerate(columns["departed"]):
        departed = [
            end_by_commits({**one, **found.get((row, position), _NO_COMMITS)}) if is_open(one) else one
            for position, one in enumerate(listed or ())
        ]
        if departed == listed or not departed:
            continue
        columns["departed"][row] = departed
        facts = [_fact(one, partitions[row]) for one in departed if is_by_commits(one)]
        columns["evidence"][row] = [*(columns["evidence"][row] or ()), *facts[:_MOST_FACTS]]
        cause = cause_by_departures(departed) if columns["cause"][row] == UNKNOWN else None
        if columns["cause"][row] == EMPTIED:
            columns["cause_note"][row] = with_reasons(columns["cause_note"][row], listed, departed)
        if cause is not None:
            for name, value in cause.columns.items():
                columns[name][row] = value
    return with_values(rebalances, columns)


def _fact(departure: Values, partition: int) -> Values:
    """Return an element of `rebalances.evidence`: the last commit of a departed member."""
    return {
        "source": "commit",
        "at": departure["last_commit_at"],
        "record_partition": partition,
        "record_offset": departure["last_commit_offset"],
        "shows": f"{departure['member_id']}: {departure['ended_because']}",
    }


def ended_by_commits(memberships: pa.Table, rebalances: pa.Table) -> pa.Table:
    """Return rows of `memberships` that end as the departures in filled rows of `rebalances` say."""
    departed = dict(departed_members(rebalances))
    if not departed:
        return memberships
    return with_departures(memberships, [departed.get(key) for key in lines(memberships, MEMBERSHIP)])


def with_departures(memberships: pa.Table, departed: Sequence[Values | None]) -> pa.Table:
    """Return rows of `memberships`, each with how it ended by its departure, where the commits of that show it."""
    shown = {number: one for number, one in enumerate(departed) if one is not None and is_by_commits(one)}
    if not shown:
        return memberships
    ended = [ending_of(one).columns for one in shown.values()]
    before = lines(memberships.take(list(shown)), ("record_partition", "evidence"))
    evidence = [
        [*(facts or ()), _fact(one, partition)]
        for one, (partition, facts) in zip(shown.values(), before, strict=True)
    ]
    columns = {name: [one[name] for one in ended] for name in ended[0]}
    return with_rows(memberships, list(shown), {**columns, "evidence": evidence})


def departed_members(rebalances: pa.Table) -> Iterator[tuple[MembershipKey, Values]]:
    """Yield the members that are gone by rows of `rebalances`, and the departure of each."""
    names = ("group_id", "incarnation", "to_generation", "departed")
    for group, incarnation, generation, departed in lines(rebalances, names):
        for one in departed or ():
            yield (group, incarnation, generation, one["member_id"]), one


def commit_figures(events: pa.Table) -> dict[int, Values]:
    """Return the figures of each departure.

    `events` are the commits of the partitions that it owned, with columns departure, topic, partition, record_offset,
    at and committed_offset, in any order.
    """
    in_order = events.sort_by([(name, "ascending") for name in ("departure", "topic", "partition", "record_offset")])
    same = _repeats(in_order, "departure", "topic", "partition", "committed_offset")
    unchanged = pc.value_counts(in_order["departure"].filter(pa.array(same)))
    figures: dict[int, Values] = {
        number: {**_NO_COMMITS, "unchanged_commits": 0} for number in pc.unique(events["departure"]).to_pylist()
    }
    for one in unchanged.to_pylist():
        figures[one["values"]]["unchanged_commits"] = one["counts"]
    by_offset = events.sort_by([("departure", "ascending"), ("record_offset", "ascending")])
    last = by_offset.group_by("departure", use_threads=False).aggregate([("at", "last"), ("record_offset", "last")])
    for number, at, offset in lines(last, ("departure", "at_last", "record_offset_last")):
        figures[number] |= {"last_commit_at": at, "last_commit_offset": offset}
    times = events.group_by(["departure", "at"]).aggregate([])
    times = times.sort_by([("departure", "ascending"), ("at", "ascending")])
    gaps = np.diff(times["at"].cast(pa.int64()).to_numpy(), prepend=0) // 1000
    same = _repeats(times, "departure")
    for number, gap, is_next in zip(times["departure"].to_pylist(), gaps.tolist(), same.tolist(), strict=True):
        one = figures[number]
        one["commits"] += 1
        if is_next:
            one["longest_gap_ms"] = max(one["longest_gap_ms"] or 0, gap)
    return figures


def _repeats(rows: pa.Table, *names: str) -> npt.NDArray[np.bool_]:
    return equals_before(rows[name].combine_chunks() for name in names)


def _figures_of(
    departures: Mapping[Place, Values], commits: CommitsBetween, cluster: str, within: Mapping[Place, timedelta]
) -> dict[Place, Values]:
    """Return the figures of the commits within a time before each departure."""
    if not departures:
        return {}
    places = list(departures)
    owned = pa.Table.from_pylist(
        [
            {
                **{name: one[name] for name in PARTITION[:2]},
                **{name: part[name] for name in PARTITION[2:]},
                "departure": number,
                "after_offset": part["since_offset"],
                "before_offset": one["record_offset"],
                "not_before": one["left_at"] - within[place],
            }
            for number, place in enumerate(places)
            for one in (departures[place],)
            for part in one["owned"]
        ],
        _OWNED_SCHEMA,
    )
    first = pc.min(owned["not_before"]).as_py()
    last = max(one["left_at"] for one in departures.values())
    found = commit_figures(_events(owned, commits, cluster, first, last))
    return {place: found[number] for number, place in enumerate(places) if number in found}


_OWNED_SCHEMA = pa.schema(
    [
        *(table_schema("offset_commits").field(name) for name in PARTITION),
        pa.field("departure", pa.int32()),
        pa.field("after_offset", pa.int64()),
        pa.field("before_offset", pa.int64()),
        pa.field("not_before", pa.timestamp("us", "UTC")),
    ]
)
_EVENT_COLUMNS = ("departure", "topic", "partition", "record_offset", "at", "committed_offset")


def _where_others_advanced(
    departures: Mapping[Place, Values], commits: CommitsBetween, cluster: str
) -> Iterator[Place]:
    """Yield where commits in the topics of a departed member went on after its own had stopped."""
    if not departures:
        return
    first = min(one["last_commit_at"] for one in departures.values())
    last = max(one["left_at"] for one in departures.values())
    groups = pa.array(sorted({one["group_id"] for one in departures.values()}))
    batches = commits(first, last).to_batches(columns=_COMMIT_COLUMNS, filter=_plain(cluster, groups, first, last))
    listed = (pa.Table.from_batches(some) for some in gathered(batches, rows=_ROWS_AT_A_TIME))
    found = pa.concat_tables([_NO_COMMITS_READ, *(one.select(_NO_COMMITS_READ.column_names) for one in listed)])
    for place, one in departures.items():
        since = one["last_commit_at"] + timedelta(milliseconds=one["longest_gap_ms"] or 0)
        meanwhile = found.filter(
            (pc.field("group_id") == one["group_id"])
            & pc.field("topic").isin(sorted({part["topic"] for part in one["owned"]}))
            & (pc.field("at") > since)
            & (pc.field("at") <= one["left_at"])
            & (pc.field("record_offset") < one["record_offset"])
        )
        spans = meanwhile.group_by(["topic", "partition"]).aggregate([("committed_offset", "min_max")])
        if any(span["max"] > span["min"] for span in spans["committed_offset_min_max"].to_pylist()):
            yield place


def _events(owned: pa.Table, commits: CommitsBetween, cluster: str, first: datetime, last: datetime) -> pa.Table:
    """Return the plain commits of partitions while their departed owner had them."""
    among = _plain(cluster, pc.unique(owned["group_id"]), first, last)
    batches = commits(first, last).to_batches(columns=_COMMIT_COLUMNS, filter=among)
    in_time = (
        (pc.field("record_offset") > pc.field("after_offset"))
        & (pc.field("record_offset") < pc.field("before_offset"))
        & (pc.field("at") >= pc.field("not_before"))
    )
    matching = [
        pa.Table.from_batches(some).join(owned, list(PARTITION), join_type="inner").filter(in_time)
        for some in gathered(batches, rows=_ROWS_AT_A_TIME)
    ]
    return pa.concat_tables([_NO_EVENTS, *(one.select(_EVENT_COLUMNS) for one in matching)])


def _plain(cluster: str, groups: pa.Array, first: datetime, last: datetime) -> pc.Expression:
    """Return what is true of commits of groups in a time that are neither tombstones nor in a transaction."""
    return (
        (pc.field("cluster") == cluster)
        & (pc.field("record_at") >= first)
        & (pc.field("record_at") <= last)
        & pc.field("group_id").isin(groups)
        & pc.field("committed_offset").is_valid()
        & (pc.field("is_transactional") == pa.scalar(False))
    )


_COMMIT_COLUMNS = {
    **{name: pc.field(name) for name in (*PARTITION, "record_offset", "committed_offset")},
    "at": pc.field("record_at"),
}
_NO_COMMITS_READ = pa.schema(
    [
        *(table_schema("offset_commits").field(name) for name in (*PARTITION, "record_offset", "committed_offset")),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
).empty_table()
_NO_EVENTS = pa.schema(
    [
        pa.field("departure", pa.int32()),
        *(_NO_COMMITS_READ.schema.field(name) for name in _EVENT_COLUMNS[1:]),
    ]
).empty_table()

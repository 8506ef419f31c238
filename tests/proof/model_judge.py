"""Compare the rows of the history with the coordinator model's own state.

A fact is `right`; `unknown` if the row says so (null, or an `ambiguous` cause whose note names the true one); a
`wrong guess` if a `likely` cause with a note is not the true one; else `wrong`. So an `ambiguous` cause is `wrong` if
neither it nor its note names a true reason; only where records are missing may it name none.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise, takewhile
from typing import Any, Literal

import pyarrow as pa
import pyarrow.dataset as ds

from grouptrail.history.departure_commits import ended_by_commits, fill_departures
from grouptrail.history.evidence import COMPACTED_NOTE
from grouptrail.history.operations import Record
from grouptrail.history.rows import MembershipRow, RebalanceRow
from grouptrail.history.tasks import table_row
from grouptrail.storage.schema import table_schema
from proof.coordinator_model import Run
from proof.coordinator_model.cluster import Moment, TrueMember
from support.group_records import KeyedRows, Row, fold_in_pieces

Verdict = Literal["right", "unknown", "wrong guess", "wrong"]
Partition = tuple[str, int]

MINUTE_MS = 60_000
_READ_LATE_AT = 2_000_000_000_000
"""Long after the model's records (ms)."""

_LEFT = {"left"}
_EXPIRED = {"session", "rebalance timeout", "sync timeout"}
# Which departures each value of `memberships.ended` covers; members and administrators both send LeaveGroup.
_ENDINGS = {
    "left": _LEFT | {"removed"},
    "expired": _EXPIRED,
    "poll_timeout": _LEFT | {"rebalance timeout"},
    "left_or_expired": _LEFT | _EXPIRED | {"removed"},
    "expired_or_removed": _LEFT | _EXPIRED | {"removed"},
}
_GONE = {"member_left", "member_removed", "member_expired"}

# The reasons in the model for which each cause is correct.
_CAUSES: dict[str, set[str]] = {
    "member_joined": {"member_joined"},
    "member_left": {"member_left"},
    "member_expired": {"member_expired"},
    "member_poll_timeout": {"member_left", "member_expired"},
    "member_left_or_expired": {"member_left", "member_expired"},
    "static_member_expired_or_removed": {"member_expired", "member_removed"},
    "member_rejoined": {"member_rejoined"},
    "static_member_replaced": {"static_member_replaced"},
    "subscription_changed": {"subscription_changed"},
    "assignor_changed": {"assignor_changed"},
    "partitions_added": {"partitions_added"},
    "topic_created": {"topic_created"},
    "topic_deleted": {"topic_deleted"},
    "topic_metadata_changed": {
        *("topic_created", "topic_deleted", "partitions_added", "topic_remade"),
        *("broker_upgraded", "metadata_learned", "leader_knew_other_metadata"),
    },
    "leader_rejoined_or_coordinator_moved": {"forced", "coordinator_moved"},
    "leader_rejoined": {"leader_rejoined"},
    "coordinator_moved": {"coordinator_moved"},
    "cooperative_follow_up": {"cooperative_follow_up"},
    "group_started": {"member_joined"},
    "group_emptied": _GONE,
}
# The reasons that phrases of an ambiguous cause's note name.
_NAMED: dict[str, set[str]] = {
    "fresh metadata": {
        *("metadata_learned", "leader_knew_other_metadata", "topic_created"),
        *("topic_deleted", "topic_remade", "partitions_added"),
    },
    "knew no partitions": {"metadata_learned"},
    "now that its partitions are known": {"metadata_learned"},
    "topics? (was|were)? ?created|or it was created": {"topic_created"},
    "forced rebalance": {"forced", "downgraded"},
    "another member joined again": {"follower_rejoined"},
    "new coordinator|coordinator crashed": {"coordinator_moved"},
    "administrator": {"member_removed"},
    "recreated": {"topic_remade"},
    "deleted": {"topic_deleted"},
    "came and went": {"member_joined", *_GONE},
    "gave (it|them) up before": {"cooperative_follow_up"},
    "group was downgraded": {"downgraded"},
    "got more partitions": {"partitions_added"},
    "it had expired, left or been removed": {"member_joined", *_GONE},
    "went and came back under its id": {"member_joined", *_GONE},
    "changed back": {"subscription_changed"},
    "gave partitions up join again": {"cooperative_follow_up"},
}


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of a row, and its verdict."""

    about: str
    verdict: Verdict
    detail: str = ""


def compacted(records: Sequence[Record], start: int, *, keeps_tombstones: bool) -> list[Record]:
    """Return what the log cleaner leaves below an offset: the last record of each key, and recent tombstones."""
    last = {(record.type, record.name): record for record in records if record.offset < start}
    left = [record for record in last.values() if record.body is not None or keeps_tombstones]
    return [*sorted(left, key=lambda one: one.offset), *(record for record in records if record.offset >= start)]


def fold_over_a_stop(done: Run, stop: int, start: int, *, keeps_tombstones: bool) -> KeyedRows:
    """Return the rows where records between two offsets were compacted, and read together long after."""
    before = [record for record in done.records if record.offset < stop]
    after = [
        one._replace(read_late_at=_READ_LATE_AT if one.offset < start else None)
        for one in compacted(done.records, start, keeps_tombstones=keeps_tombstones)
        if one.offset >= stop
    ]
    return fold_in_pieces([*before, *after], [len(before)], done.names)


def with_commits(run: Run, rows: KeyedRows) -> KeyedRows:
    """Return the rows with what the members' own commits say of how they left."""
    commits = [
        {
            "cluster": "default",
            "group_id": "billing",
            "record_partition": 0,
            "is_transactional": False,
            "topic": one.topic,
            "partition": one.partition,
            "committed_offset": one.offset,
            "record_offset": one.record_offset,
            "record_at": one.at * 1000,
        }
        for one in run.commits
    ]
    listed = ds.dataset(pa.Table.from_pylist(commits, table_schema("offset_commits")))
    before = {
        name: pa.Table.from_pylist(
            [table_row(kind.of(row), None) for (table, *_), row in rows.items() if table == name], table_schema(name)
        )
        for name, kind in (("rebalances", RebalanceRow), ("memberships", MembershipRow))
    }
    rebalances = fill_departures(before["rebalances"], lambda *_: listed, "default", timedelta(hours=1))
    memberships = ended_by_commits(before["memberships"], rebalances)
    changed = dict(rows)
    for name, table, kept in (
        ("rebalances", rebalances, ("cause", "certainty", "cause_note")),
        ("memberships", memberships, ("ended", "ended_because")),
    ):
        keys = [key for key in rows if key[0] == name]
        for key, row in zip(keys, table.select(kept).to_pylist(), strict=True):
            changed[key] = {**rows[key], **row}
    return changed


def _rows_by_table(rows: KeyedRows) -> defaultdict[str, list[Row]]:
    tables: defaultdict[str, list[Row]] = defaultdict(list)
    for (table, *_), row in rows.items():
        tables[table].append(row)
    return tables


def judge(run: Run, rows: KeyedRows) -> list[Fact]:
    """Return a verdict on each fact of a run: those in the rows, and those that are missing from them."""
    tables = _rows_by_table(rows)
    truth = _Truth(run.moments)
    return [
        *_generations(truth, tables["generations"]),
        *_rebalances(truth, tables["rebalances"]),
        *_memberships(truth, tables["memberships"]),
        *_ownership(truth, tables["partition_ownership"]),
        *_states(truth, tables["group_states"]),
    ]


def judge_compacted(run: Run, rows: KeyedRows) -> list[Fact]:
    """Return a verdict on what the rows of a compacted log claim: causes, missing generations, times, states.

    What compaction took is missing from the rows. A beginning that its cause calls `likely` may be a wrong guess.
    """
    tables = _rows_by_table(rows)
    truth = _Truth(run.moments)
    rebalances = tables["rebalances"]
    causes = [fact for fact in _rebalances(truth, rebalances) if fact.about.startswith("cause")]
    guessed = {
        row["incarnation"]: row["at"] for row in rebalances if (row["cause"], row["certainty"]) == _LIKELY_BEGINNING
    }
    generations = sorted(tables["generations"], key=lambda row: row["record_offset"])
    return [
        *causes,
        *(_compacted_skipped(truth, before, row, guessed) for before, row in pairwise([None, *generations]) if row),
        *(fact for row in tables["memberships"] for fact in _compacted_membership(truth, row, guessed)),
        *_compacted_states(truth, tables["group_states"]),
        *(fact for row in generations for fact in _compacted_generation(truth, row)),
        *(_compacted_duration(truth, row) for row in rebalances),
    ]


_LIKELY_BEGINNING = ("group_started", "likely")


def _claim(about: str, row: Row, at: int, guessed: Mapping[int, int], *, is_right: bool, detail: str) -> Fact:
    if is_right:
        return Fact(about, "right")
    return Fact(about, "wrong guess" if at <= guessed.get(row["incarnation"], -1) else "wrong", detail)


def _compacted_skipped(truth: _Truth, before: Row | None, row: Row, guessed: Mapping[int, int]) -> Fact:
    about, skipped, offset = "generation.skipped", row["skipped"], row["record_offset"]
    if skipped is None:
        return Fact(about, "unknown")
    index = next(at for at, one in enumerate(truth.moments) if one.offset <= offset < one.end_offset)
    moment, previous = truth.moments[index], truth.previous_start(index)
    if before is not None and before["incarnation"] == row["incarnation"]:
        is_right = skipped == max(0, (moment.generation or 0) - before["generation"] - 1)
    else:
        # Generation 0 begins another count, also where it replaces an empty group.
        is_first = previous is None or 0 in (moment.generation, truth.moments[previous].generation)
        is_right = moment.is_new_generation and is_first and skipped == moment.hidden
    detail = f"generation {row['generation']} at {offset}: skipped {skipped}"
    return _claim(about, row, row["started_at"], guessed, is_right=is_right, detail=detail)


def _compacted_membership(truth: _Truth, row: Row, guessed: Mapping[int, int]) -> Iterator[Fact]:
    name, joined_at, where = row["member_id"], row["joined_at"], f"{row['member_id']} from {row['record_offset']}"
    its = [(since, until) for one, since, until in _true_memberships(truth) if one == name]
    covering = [
        (since, until)
        for since, until in its
        if truth.moments[since].at <= joined_at and (until is None or joined_at <= truth.moments[until].at)
    ]
    if not covering:
        yield Fact("membership", "wrong", f"{where}: was no member then")
        return
    since, until = max(covering)
    # A client that chooses its id may go and come back under it, and compaction may take all records of that.
    left_at = row["left_at"]
    later = [end for begin, end in its if begin >= since and (left_at is None or truth.moments[begin].at < left_at)]
    until = None if None in later else max((end for end in later if end is not None), default=until)
    start = truth.moments[since]
    if row["began"] == "there":
        yield Fact("membership.began", "unknown")
    else:
        detail = f"{where}: {row['began']} at {joined_at}, true {start.at}"
        yield _claim("membership.joined", row, joined_at, guessed, is_right=start.at == joined_at, detail=detail)
        yield _began(truth, since, start.members[name], row["began"], where)
    yield from _end_of_membership(truth, name, until, row, where)


def _compacted_states(truth: _Truth, rows: Iterable[Row]) -> Iterator[Fact]:
    """Ask for the state in the middle of each row that calls itself recorded, and is not over at once."""
    end = truth.moments[-1].at
    spans = [
        (state, since, end if until is None else until) for (_, state), (since, until) in _true_states(truth).items()
    ]
    for row in rows:
        until = end if row["ended_at"] is None else row["ended_at"]
        if until - row["started_at"] <= _A_MOMENT_MS:
            continue
        if row["evidence"] != "recorded":
            yield Fact("state", "unknown")
            continue
        middle = (row["started_at"] + until) / 2
        states = {state for state, since, until in spans if since <= middle <= until}
        verdict: Verdict = "right" if row["state"] in states else "wrong"
        yield Fact("state", verdict, f"{row['state']} at {row['record_offset']}: at {middle} it was {sorted(states)}")


_A_MOMENT_MS = 1_000
_LONGEST_SYNC_MS = 300_000


def _compacted_generation(truth: _Truth, row: Row) -> Iterator[Fact]:
    """A record that a static member's return has rewritten does not show when the generation began, only about."""
    start = _start_of(truth, row)
    where = f"generation {row['generation']} at {row['record_offset']}"
    if start is None:
        return
    late_ms = row["started_at"] - truth.moments[start].at
    verdict: Verdict = "right" if abs(late_ms) <= _LONGEST_SYNC_MS else "wrong"
    yield Fact("generation.started_at", verdict, f"{where}: {late_ms} ms late")
    if row["stable_at"] is not None:
        stable = [one.at for one in truth.window(start) if one.state == "Stable"]
        is_right = bool(stable) and abs(row["stable_at"] - stable[0]) <= _LONGEST_SYNC_MS
        yield Fact(
            "generation.stable_at", "right" if is_right else "wrong", f"{where}: {row['stable_at']}, {stable[:1]}"
        )


def _compacted_duration(truth: _Truth, row: Row) -> Fact:
    about, where = "rebalance.duration_ms", f"rebalance to {row['to_generation']} at {row['record_offset']}"
    if row["duration_ms"] is None:
        return Fact(about, "unknown")
    index = next(at for at, one in enumerate(truth.moments) if one.offset <= row["record_offset"] < one.end_offset)
    moment = truth.moments[index]
    if not moment.is_new_generation:
        return Fact(about, "wrong", f"{where}: {row['duration_ms']}, but nothing began there")
    if moment.kind == "classic":
        true = moment.at - boundary(moment, truth.before(index))
    else:
        stable = [one.at for one in truth.window(index) if one.state == "Stable"]
        true = stable[0] - moment.at if stable else -1
    return _compare(about, true, row["duration_ms"], where)


def _start_of(truth: _Truth, row: Row) -> int | None:
    """Return the moment that began a row's generation; None where the row is of another group's records."""
    index = next(at for at, one in enumerate(truth.moments) if one.offset <= row["record_offset"] < one.end_offset)
    starts = [start for start in truth.starts if start <= index]
    if not starts or truth.moments[starts[-1]].generation != row["generation"]:
        return None
    return starts[-1]


def tally(facts: Iterable[Fact]) -> Counter[tuple[str, Verdict]]:
    """Return how many facts of each kind got each verdict."""
    return Counter((fact.about, fact.verdict) for fact in facts)


def _compare(about: str, truth: object, actual: object, where: object) -> Fact:
    if actual == truth:
        return Fact(about, "right")
    return Fact(about, "unknown" if actual is None else "wrong", f"{where}: recorded {actual!r}, true {truth!r}")


class _Truth:
    """The moments of a run in order, with what precedes and follows each."""

    def __init__(self, moments: Sequence[Moment]) -> None:
        self.moments = moments = _without_hidden_deletions(moments)
        self.starts = [index for index, one in enumerate(moments) if one.is_new_generation]

    def before(self, index: int) -> Moment | None:
        """The moment before, of the same incarnation."""
        if index == 0 or self.moments[index - 1].kind is None:
            return None
        return self.moments[index - 1]

    def window(self, index: int) -> list[Moment]:
        """The moments of the generation that began with one."""
        found = [self.moments[index]]
        for one in self.moments[index + 1 :]:
            if one.is_new_generation or one.kind is None:
                break
            found.append(one)
        return found

    def end(self, index: int) -> Moment | None:
        """The moment that ended a generation."""
        rest = self.moments[index + len(self.window(index)) :]
        return rest[0] if rest else None

    def previous_start(self, index: int) -> int | None:
        """The generation before, of the same incarnation."""
        earlier = [start for start in self.starts if start < index]
        same = [start for start in earlier if self.moments[start].incarnation == self.moments[index].incarnation]
        return same[-1] if same else None


def _without_hidden_deletions(moments: Sequence[Moment]) -> list[Moment]:
    """Join the deletion of an empty group and the first member of the other protocol in the same millisecond.

    The log cannot tell them from a member that finds the empty group and replaces it: both write the group's
    tombstones (GMM.createGroupTombstoneRecords, called by deleteGroups and by maybeDeleteEmptyClassicGroup or
    maybeDeleteEmptyConsumerGroup), then what the first member of a new group writes. Tombstones of offsets before
    them may be an OffsetDelete request of their own. `_cause` requires that the history does not call this certain.
    """
    found: list[Moment] = []
    hidden = 0
    for moment in moments:
        one = replace(moment, incarnation=moment.incarnation - hidden)
        if len(found) > 1 and _is_hidden(found[-2], found[-1], moment):
            hidden += 1
            removal = found.pop()
            offset = removal.end_offset - (1 if found[-1].kind == "classic" else 3)
            one = replace(one, offset=offset, incarnation=one.incarnation - 1)
        found.append(one)
    return found


def _is_hidden(before: Moment, removal: Moment, after: Moment) -> bool:
    return (
        removal.kind is None
        and before.kind is not None
        and (removal.at, removal.end_offset) == (after.at, after.offset)
        and after.kind not in (None, before.kind)
    )


def boundary(moment: Moment, before: Moment | None) -> int:
    """Until when (ms) things may have been as before."""
    is_conversion = before is not None and before.kind != moment.kind
    if moment.kind != "classic" or not moment.is_new_generation or is_conversion or moment.join_ended_at is None:
        return moment.at
    return moment.join_ended_at


def _matched(
    about: str, expected: Mapping[Any, Any], rows: Iterable[Row], key: Any
) -> Iterator[tuple[Any, Any, Row] | Fact]:
    actual: dict[Any, Row] = {}
    for row in rows:
        if key(row) in actual:
            yield Fact(about, "wrong", f"two rows of {key(row)}")
        actual[key(row)] = row
    for missing in expected.keys() - actual.keys():
        yield Fact(about, "wrong", f"no row of {missing}: {expected[missing]}")
    for extra in actual.keys() - expected.keys():
        yield Fact(about, "wrong", f"a row of {extra}: {actual[extra]}")
    for found in expected.keys() & actual.keys():
        yield found, expected[found], actual[found]


# Generations


def _generations(truth: _Truth, rows: list[Row]) -> Iterator[Fact]:
    expected = {truth.moments[index].offset: index for index in truth.starts}
    for match in _matched("generation", expected, rows, lambda row: row["record_offset"]):
        if isinstance(match, Fact):
            yield match
        else:
            yield from _generation(truth, match[1], match[2])


def _generation(truth: _Truth, index: int, row: Row) -> Iterator[Fact]:
    first, window, end = truth.moments[index], truth.window(index), truth.end(index)
    last = window[-1]
    where = f"generation {first.generation} at {first.offset}"
    stable = next((one.at for one in window if one.state == "Stable"), None)
    pairs: dict[str, object] = {
        "incarnation": first.incarnation,
        "generation": first.generation,
        "group_kind": first.kind,
        "started_at": first.at,
        "ended_at": None if end is None else end.at,
        "skipped": first.hidden,
        "member_count": len(last.members),
        "stable_at": stable,
    }
    if first.kind == "classic":
        pairs |= {"protocol": last.protocol, "leader": last.leader}
    for column, true in pairs.items():
        yield _compare(f"generation.{column}", true, row[column], where)
    if row["members"] is None:
        is_assigned = any(one.is_assigned for one in window)
        yield Fact("generation.members", "unknown" if is_assigned else "right", where)
    else:
        actual = {
            member["member_id"]: (
                member["instance_id"],
                member["client_id"],
                tuple(member["topics"]),
                frozenset((part["topic"], number) for part in member["partitions"] for number in part["partitions"]),
            )
            for member in row["members"]
        }
        true_members = {
            name: (one.instance_id, one.client_id, tuple(sorted(one.topics)), one.assigned)
            for name, one in last.members.items()
        }
        yield _compare("generation.members", true_members, actual, where)
    if first.protocol in ("range", "roundrobin"):
        verdict: Verdict = "wrong" if row["is_assignors_own"] is False else "right"
        verdict = "unknown" if row["is_assignors_own"] is None else verdict
        yield Fact("generation.is_assignors_own", verdict, f"{where}: {row['assignment_note']}")


# Memberships


def _memberships(truth: _Truth, rows: list[Row]) -> Iterator[Fact]:
    expected = {
        (truth.moments[since].offset, name): (since, until) for name, since, until in _true_memberships(truth)
    }
    for match in _matched("membership", expected, rows, lambda row: (row["record_offset"], row["member_id"])):
        if isinstance(match, Fact):
            yield match
        else:
            (_, name), (since, until), row = match
            yield from _membership(truth, name, since, until, row)


def _true_memberships(truth: _Truth) -> list[tuple[str, int, int | None]]:
    """Each member, and the moments with which it came and went."""
    found: list[tuple[str, int, int | None]] = []
    open_since: dict[str, int] = {}
    for index, moment in enumerate(truth.moments):
        before = truth.before(index)
        had = before.members if before is not None else {}
        found += [(name, open_since.pop(name), index) for name in had.keys() - moment.members.keys()]
        for name in moment.members.keys() - had.keys():
            open_since[name] = index
    return [*found, *((name, since, None) for name, since in open_since.items())]


def _membership(truth: _Truth, name: str, since: int, until: int | None, row: Row) -> Iterator[Fact]:
    start = truth.moments[since]
    where = f"{name} from {start.offset}"
    yield _compare(
        "membership.joined", (start.at, start.generation), (row["joined_at"], row["joined_generation"]), where
    )
    yield _began(truth, since, start.members[name], row["began"], where)
    yield from _end_of_membership(truth, name, until, row, where)


def _end_of_membership(truth: _Truth, name: str, until: int | None, row: Row, where: str) -> Iterator[Fact]:
    if row["ended"] == "unknown":
        yield Fact("membership.ended", "unknown")
        return
    if until is None:
        yield _compare("membership.left", (None, None), (row["left_at"], row["ended"]), where)
        return
    end, before = truth.moments[until], truth.moments[until - 1]
    member = before.members[name]
    how = end.departures.get(name, "group removed")
    pairs = _successors(before, end)
    if row["ended"] == "replaced":
        is_right = member.instance_id is not None and name in pairs
    elif row["ended"] == "rejoined":
        is_right = member.instance_id is None and name in pairs
    elif row["ended"] == "group_ended":
        is_right = how == "group removed" or end.kind is None
    else:
        is_right = how in _ENDINGS.get(row["ended"], set())
    # By the last commits, which prove neither (docs/history.md).
    otherwise: Verdict = "wrong guess" if row["ended"] in ("expired", "poll_timeout") else "wrong"
    yield Fact(
        "membership.ended", "right" if is_right else otherwise, f"{where}: recorded {row['ended']}, true {how}"
    )
    left_at = end.at if row["ended"] == "replaced" else boundary(end, before)
    left_at = max(left_at, row["joined_at"])
    yield _compare("membership.left", (left_at, end.generation), (row["left_at"], row["left_generation"]), where)


def _successors(before: Moment, after: Moment) -> set[str]:
    """The members that are gone where one of the same instance id, or of the same client id and host, is new."""
    new = [one for name, one in after.members.items() if name not in before.members]
    gone = [one for name, one in before.members.items() if name not in after.members]
    return {one.member_id for one in gone if any(_trait(one) == _trait(other) for other in new)}


def _trait(member: TrueMember) -> tuple[str, ...]:
    return (member.instance_id,) if member.instance_id else (member.client_id, member.client_host)


def _began(truth: _Truth, since: int, member: TrueMember, actual: str, where: str) -> Fact:
    before, moment = truth.before(since), truth.moments[since]
    gone = [] if before is None else [one for name, one in before.members.items() if name not in moment.members]
    same = any(_trait(one) == _trait(member) for one in gone)
    if actual in ("replaced", "rejoined"):
        is_right = same and (actual == "replaced") == (member.instance_id is not None)
        return Fact("membership.began", "right" if is_right else "wrong", f"{where}: {actual}")
    return Fact("membership.began", "unknown" if actual == "there" else "right", f"{where}: {actual}")


# Ownership


def _ownership(truth: _Truth, rows: list[Row]) -> Iterator[Fact]:
    # By time: targets of one heartbeat and an assignment of the next in the same millisecond read like one operation.
    expected: dict[tuple[int, str, int, str], tuple[int, int | None]] = {}
    open_since: dict[tuple[str, int, str], int] = {}
    for index, moment in enumerate(truth.moments):
        before = truth.before(index)
        had = _owned(before.members.values()) if before is not None else set()
        has = _owned(moment.members.values())
        for place in had - has:
            since = open_since.pop(place)
            expected[(truth.moments[since].at, *place)] = (since, index)
        for place in has - had:
            open_since[place] = index
    for place, since in open_since.items():
        expected[(truth.moments[since].at, *place)] = (since, None)

    def key(row: Row) -> tuple[int, str, int, str]:
        return (row["owned_from"], row["topic"], row["partition"], row["member_id"])

    for match in _matched("ownership", expected, rows, key):
        if isinstance(match, Fact):
            yield match
            continue
        (_, topic, number, name), (since, until), row = match
        start = truth.moments[since]
        where = f"{topic}-{number} of {name} from {start.offset}"
        yield _compare(
            "ownership.from", (start.at, start.generation), (row["owned_from"], row["from_generation"]), where
        )
        actual = (row["owned_until"], row["until_generation"], row["ended"])
        if until is None:
            yield _compare("ownership.until", (None, None, None), actual, where)
            continue
        end, before = truth.moments[until], truth.moments[until - 1]
        stays = name in end.members
        is_cooperative = end.kind != "classic" or end.protocol == "cooperative-sticky"
        until_at = end.at if stays and is_cooperative else boundary(end, before)
        ended = "group_ended" if end.kind is None else "given_up" if stays else "member_gone"
        yield _compare("ownership.until", (max(until_at, start.at), end.generation, ended), actual, where)


def _owned(members: Iterable[TrueMember]) -> set[tuple[str, int, str]]:
    return {(topic, number, member.member_id) for member in members for topic, number in member.owned}


# States


def _states(truth: _Truth, rows: list[Row]) -> Iterator[Fact]:
    ends = {one.end_offset - 1: one for one in truth.moments}

    def key(row: Row) -> tuple[int, str]:
        # A removal may begin with tombstones of commits, which are an operation of their own.
        offset = row["record_offset"]
        if row["state"] == "Dead":
            offset = next(end for end, one in ends.items() if one.offset <= offset <= end)
        return offset, row["state"]

    starts = {one.offset: one for one in truth.moments}
    shown = _shown_states(_true_states(truth), {key(row) for row in rows})
    for match in _matched("state", shown, rows, key):
        if isinstance(match, Fact):
            yield match
            continue
        (offset, state), times, row = match
        where = f"{state} at {offset}"
        yield _compare("state", times, (row["started_at"], row["ended_at"]), where)
        since = starts[offset].preparing_since if state == "PreparingRebalance" else None
        if since is not None:
            is_right = row["not_before"] is not None and row["not_before"] <= since <= row["started_at"]
            detail = f"{where}: {row['not_before']} <= {since} <= {row['started_at']}"
            yield Fact("state.not_before", "right" if is_right else "wrong", detail)
        if state == "Dead":
            yield _removal(ends[offset].removal, row["note"])


def _shown_states(
    states: Mapping[tuple[int, str], tuple[int, int | None]], rows: Collection[tuple[int, str]]
) -> dict[tuple[int, str], tuple[int, int | None]]:
    """Return the states without those of 0 ms that a row reads as one with the next.

    Two heartbeats of one member in one millisecond write what one may write.
    """
    found = dict(states)
    for (one, (since, until)), (two, (next_since, _)) in pairwise(states.items()):
        merged = (one[0], two[1])
        if since == until == next_since and one not in rows and merged in rows and merged not in states:
            del found[one]
            found[merged] = found.pop(two)
    return found


def _true_states(truth: _Truth) -> dict[tuple[int, str], tuple[int, int | None]]:
    """From when to when (ms) each state was, by the offset at which it shows.

    A classic group's own state ends where the join phase did at the latest: when that began is not written.
    """
    found: dict[tuple[int, str], tuple[int, int | None]] = {}
    current: tuple[int, str] | None = None

    def begin(offset: int, state: str, at: int, ended_before: int) -> None:
        nonlocal current
        if current is not None:
            found[current] = (found[current][0], max(ended_before, found[current][0]))
        current = (offset, state)
        found[current] = (at, None)

    for index, moment in enumerate(truth.moments):
        before = truth.before(index)
        edge = boundary(moment, before)
        if moment.kind is None:
            begin(moment.end_offset - 1, "Dead", moment.at, moment.at)
        elif moment.generation is not None:
            is_empty = moment.state == "Empty" and moment.kind == "classic"
            is_conversion = before is not None and before.kind != moment.kind
            is_rebalance = moment.kind == "classic" and moment.is_new_generation and moment.generation != 0
            goes_through = is_rebalance and current is not None and not is_conversion
            if goes_through:
                found[(moment.offset, "PreparingRebalance")] = (edge, edge)
            if goes_through and moment.members:
                found[(moment.offset, "CompletingRebalance")] = (edge, moment.at)
            if goes_through or current is None or current[1] != moment.state:
                began = edge if is_empty else moment.at
                begin(moment.offset, moment.state, began, edge if goes_through else moment.at)
    return found


def _removal(true: str | None, note: str) -> Fact:
    words = {
        "deleted": "^deleted|: deleted|administrator deleted",
        "expired": "expire",
        "empty": "cleanup of empty groups",
        "offsets deleted": "were deleted",
    }[true or "deleted"]
    is_right = re.search(words, note) is not None
    return Fact("state.removal", "right" if is_right else "wrong", f"{true}: {note}")


# Rebalances


def _rebalances(truth: _Truth, rows: list[Row]) -> Iterator[Fact]:
    truth = _Truth(_without_conversions(truth.moments))
    expected = {
        truth.moments[index].offset: index
        for index in truth.starts
        if not (truth.moments[index].kind == "classic" and truth.moments[index].generation == 0)
    }
    for match in _matched("rebalance", expected, rows, lambda row: row["record_offset"]):
        if isinstance(match, Fact):
            yield match
        else:
            yield from _rebalance(truth, match[1], match[2], list(expected.values()))


def _without_conversions(moments: Sequence[Moment]) -> list[Moment]:
    """Let a conversion that keeps the generation's number be part of it, and its reasons those of the next one."""
    kept: list[Moment] = []
    reasons = frozenset[str]()
    for moment in moments:
        if kept and _keeps_generation(kept[-1], moment):
            reasons |= moment.reasons
            kept.append(replace(moment, is_new_generation=False))
            continue
        reasons = reasons if moment.kind is not None else frozenset()
        kept.append(replace(moment, reasons=moment.reasons | reasons) if moment.is_new_generation else moment)
        reasons = frozenset() if moment.is_new_generation else reasons
    return kept


def _keeps_generation(before: Moment, moment: Moment) -> bool:
    return (
        None not in (before.kind, moment.kind)
        and before.kind != moment.kind
        and before.generation == moment.generation
    )


def _left_by_conversion(truth: _Truth, index: int) -> set[str]:
    """Members that left as the other protocol took over in the generation before."""
    at = index - 1
    while (
        at > 0 and not truth.moments[at].is_new_generation and not _keeps_generation(*truth.moments[at - 1 : at + 1])
    ):
        at -= 1
    before, moment = truth.moments[max(at, 1) - 1], truth.moments[max(at, 0)]
    return before.members.keys() - moment.members.keys() if _keeps_generation(before, moment) else set()


def _rebalance(truth: _Truth, index: int, row: Row, all_of_them: list[int]) -> Iterator[Fact]:
    moment, before, window = truth.moments[index], truth.before(index), truth.window(index)
    where = f"rebalance to {moment.generation} at {moment.offset}"
    yield _cause(moment, before, row, where)
    had: Mapping[str, TrueMember] = before.members if before is not None else {}
    early = _joined_early(truth, index)
    joined = (moment.members.keys() - had.keys()) | (early & moment.members.keys())
    stayed = moment.members.keys() & had.keys()
    yield _compare("rebalance.members_joined", sorted(joined), row["members_joined"], where)
    left = (had.keys() - moment.members.keys()) | _left_by_conversion(truth, index)
    yield _compare("rebalance.members_left", sorted(left), row["members_left"], where)
    changed = sorted(name for name in stayed if sorted(had[name].topics) != sorted(moment.members[name].topics))
    yield _compare("rebalance.subscriptions_changed", changed, row["subscriptions_changed"], where)
    previous = truth.previous_start(index)
    earlier = [one for one in all_of_them if one < index and truth.moments[one].incarnation == moment.incarnation]
    previous_at = truth.moments[earlier[-1]].at if earlier else None
    followers = [
        one
        for one in all_of_them
        if one > index
        and truth.moments[one].incarnation == moment.incarnation
        and truth.moments[one].at - moment.at <= MINUTE_MS
    ]
    pairs = {
        "from_generation": None if previous is None else truth.moments[previous].generation,
        "to_generation": moment.generation,
        "at": moment.at,
        "skipped": moment.hidden,
        "previous_at": previous_at,
        "followed_within_minute": len(followers),
    }
    is_conversion = before is not None and before.kind != moment.kind
    if moment.kind == "classic":
        pairs["duration_ms"] = moment.at - boundary(moment, before) if moment.members and not is_conversion else None
    else:
        of_protocol = takewhile(lambda one: one.kind == moment.kind, window)
        stable = next((one.at for one in of_protocol if one.state == "Stable"), None)
        pairs["duration_ms"] = None if stable is None else stable - moment.at
    for column, true in pairs.items():
        yield _compare(f"rebalance.{column}", true, row[column], where)
    yield from _counts(truth, index, row, where)


def _joined_early(truth: _Truth, index: int) -> set[str]:
    """Members that joined since the epoch before, in operations without one."""
    found: set[str] = set()
    at = index - 1
    while at >= 0 and truth.moments[at].kind == "consumer" and not truth.moments[at].is_new_generation:
        before = truth.before(at)
        had: Mapping[str, TrueMember] = before.members if before is not None else {}
        new = truth.moments[at].members.keys() - had.keys()
        if "replaced" not in truth.moments[at].departures.values():
            found |= new
        at -= 1
    return found


def _counts(truth: _Truth, index: int, row: Row, where: str) -> Iterator[Fact]:
    first, before, window = truth.moments[index], truth.before(index), truth.window(index)
    last_owner: dict[Partition, str] = {}
    for one in truth.moments[:index]:
        if one.incarnation == first.incarnation:
            last_owner |= {place: _identity(one, name) for place, name in _holders(one).items()}
    had = {} if before is None else _holders(before)
    if any(_is_a_matter_of_words(one) for one in window) or (
        before is not None and _has_two_topics_of_one_name(before)
    ):
        return
    kept, given_up, holders = set(had), set[Partition](), had
    added = moved = 0
    is_converted = False
    for one in window:
        now = _holders(one)
        taken = {place for place, name in now.items() if holders.get(place) != name}
        is_converted |= one.kind != first.kind
        if not is_converted:  # what a conversion takes away is a matter of the next rebalance
            kept -= taken | (holders.keys() - now.keys())
            given_up = (given_up | (holders.keys() - now.keys())) - taken
        added += len(taken - last_owner.keys())
        moved += sum(
            last_owner.get(place, _identity(one, now[place])) != _identity(one, now[place]) for place in taken
        )
        last_owner |= {place: _identity(one, now[place]) for place in taken}
        holders = now
    counts = {"partitions_added": added, "partitions_moved": moved, "partitions_removed": len(given_up)}
    if row["ended_at"] is not None:
        counts["partitions_kept"] = len(kept)
    for column, true in counts.items():
        yield _compare(f"rebalance.{column}", true, row[column], where)


def _holders(moment: Moment) -> dict[Partition, str]:
    return {place: member.member_id for member in moment.members.values() for place in member.owned}


def _identity(moment: Moment, name: str) -> str:
    return moment.members[name].instance_id or name


def _is_a_matter_of_words(moment: Moment) -> bool:
    """Whether a static member came back (under another id: is that a handover?), or one name stood for two topics."""
    return "replaced" in moment.departures.values() or _has_two_topics_of_one_name(moment)


def _has_two_topics_of_one_name(moment: Moment) -> bool:
    """Whether members own the same partition of a topic that was deleted and of its successor: the model's members
    know names only, so it cannot tell whose partition the one that remains is."""
    return sum(len(member.owned) for member in moment.members.values()) > len(_holders(moment))


def _cause(moment: Moment, before: Moment | None, row: Row, where: str) -> Fact:
    cause, certainty, note = row["cause"], row["certainty"], row["cause_note"] or ""
    detail = f"{where}: {cause} ({certainty}: {note}), true {sorted(moment.reasons)}"
    is_true = _is_true(cause, moment, before)
    if certainty == "recorded":
        # See `_without_hidden_deletions`.
        could_be_new = cause == "protocol_migrated" and before is not None and not before.members
        return Fact("cause recorded", "right" if is_true and not could_be_new else "wrong", detail)
    if certainty == "likely":
        verdict: Verdict = "right" if is_true else "wrong guess" if note else "wrong"
        return Fact(f"cause likely: {cause}", verdict, detail)
    is_unknown = cause == "unknown" and note.startswith(("history begins here", "epochs missing"))
    if is_unknown or note.endswith(COMPACTED_NOTE):
        # The records before are missing: nothing can be ruled out, so there are no alternatives to name.
        return Fact("cause ambiguous: unknown", "unknown", detail)
    named = set().union(*(reasons for phrase, reasons in _NAMED.items() if re.search(phrase, note)))
    is_named = is_true or bool(named & moment.reasons)
    return Fact(f"cause ambiguous: {cause}", "unknown" if is_named else "wrong", detail)


def _is_true(cause: str, moment: Moment, before: Moment | None) -> bool:
    reasons = moment.reasons
    if cause == "protocol_migrated":
        return "downgraded" in reasons or (before is not None and before.kind != moment.kind)
    if cause == "group_started":
        return "member_joined" in reasons and (before is None or before.generation is None or not before.members)
    if cause == "group_emptied":
        return bool(reasons & _GONE) and not moment.members
    if cause == "members_joined_and_left":
        return "member_joined" in reasons and bool(reasons & _GONE)
    return bool(_CAUSES.get(cause, set()) & reasons)

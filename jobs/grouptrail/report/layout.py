"""Layout of the timeline of a group: lanes, tracks and colours, as the JSON that the browser draws.

Times in it are milliseconds since `start`; an end of null, or -1 in a list of numbers, is still open.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any

from grouptrail import contracts
from grouptrail.query.member_names import distinct_names
from grouptrail.query.rollouts import name_of_way
from grouptrail.report.group_rows import GroupRows, Row, microseconds

HUES, SHADES = 12, 2
_MOST_FACTS = 3

CAUSES = {
    "joined": ("group_started", "member_joined", "member_rejoined"),
    "left": ("member_left", "member_removed", "group_emptied"),
    "lost": (
        *("member_expired", "member_poll_timeout", "member_left_or_expired"),
        "static_member_expired_or_removed",
    ),
    "both": ("members_joined_and_left",),
    "replaced": ("static_member_replaced",),
    "metadata": (
        *("subscription_changed", "topics_matched_changed", "assignor_changed", "partitions_added", "topic_created"),
        *("topic_deleted", "topic_metadata_changed", "protocol_migrated", "topology_or_settings_changed"),
        *("member_metadata_changed", "topology_validated", "topology_invalid", "assignor_settings_changed"),
    ),
    "again": (
        *("cooperative_follow_up", "leader_rejoined", "coordinator_moved", "leader_rejoined_or_coordinator_moved"),
        *("share_state_ready", "tasks_warmed_up", "probing_rebalance"),
    ),
    "unknown": ("unknown",),
}
"""The categories of causes in the timeline."""

ROLLOUT_COLUMNS = (
    *("members", "of_members", "evidence", "certainty", "rebalances", "first_generation", "last_generation"),
    "seconds_without_owner",
)
_SORT_OF = {cause: sort for sort, causes in CAUSES.items() for cause in causes}
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def sort_of(cause: str) -> str:
    """Return the category in `CAUSES` of a cause."""
    return _SORT_OF.get(cause, "unknown")


def visible(text: str) -> str:
    """Return a name in which invisible characters and changes of the writing direction are escaped."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def lane_name(topic: str, partition: int) -> str:
    """Return a name such as orders-3; a connector, task -1 in Connect, has its own name."""
    return visible(topic) if partition < 0 else f"{visible(topic)}-{partition}"


@dataclass
class Member:
    """A member id. `seat` is its row and colour: those that follow one another as the same static instance, or as the
    same client on the same host, share it. `label` names the seat, for people."""

    number: int
    member_id: str
    instance_id: str | None
    client_id: str | None
    client_host: str | None
    began_us: int
    ended_us: int | None
    seat: str = ""
    label: str = ""


def arrange(group: GroupRows) -> dict[str, Any]:
    """Return the timeline of a group as data for JSON."""
    members = _members(group)
    slots = colour_slots(members.values())
    start = group.since_us // 1000
    last = group.generations[-1] if group.generations else {}
    named = next((row for row in reversed(group.generations) if row["protocol"]), last)
    return {
        "group": visible(group.group_id),
        "cluster": visible(group.cluster),
        "kind": last.get("group_kind"),
        "protocol": " / ".join(visible(named[name]) for name in ("protocol_type", "protocol") if named.get(name)),
        "start": start,
        "statuses": contracts.statuses(),
        "until": group.until_us // 1000 - start,
        "first": group.first_us // 1000 - start,
        "known": group.known_us // 1000 - start,
        "members": [
            {
                "id": visible(member.member_id),
                "client": visible(member.client_id or ""),
                "instance": visible(member.instance_id or ""),
                "host": visible(member.client_host or "").removeprefix("/"),
                "label": visible(member.label),
                "slot": slots[member.seat],
            }
            for member in members.values()
        ],
        "people": _people(group, members, start),
        **_topics(group, members, start),
        "generations": columnar(shown(row, start, "started_at", "ended_at") for row in group.generations),
        "states": columnar(shown(row, start, "started_at", "ended_at", "not_before") for row in group.states),
        "rebalances": columnar(_rebalance(row, members, start) for row in group.rebalances),
        "storms": columnar(_storm(row, start) for row in group.storms),
        "rollouts": arranged_rollouts(group.rollouts, start),
        "lag_step": group.lag_step_us // 1000,
        "lag": columnar(_lag(group, start)),
    }


def columnar(rows: Iterable[Row]) -> dict[str, Any]:
    """Return rows of equal columns as one list of names and lists of values."""
    whole = list(rows)
    return {"columns": list(whole[0]) if whole else [], "rows": [list(row.values()) for row in whole]}


class _Words:
    """A list of texts that occur often, which are referred to by their index."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(visible(text), len(self._numbers))

    def all(self) -> list[str]:
        return list(self._numbers)


def _members(group: GroupRows) -> dict[str, Member]:
    """Return every member in the rows in the order of joining; members without a membership come last."""
    members: dict[str, Member] = {}

    def add(row: Row, first: int, ended: int | None) -> None:
        known = members.get(row["member_id"])
        if known is not None:
            known.ended_us = None if ended is None or known.ended_us is None else max(ended, known.ended_us)
            return
        members[row["member_id"]] = Member(
            number=len(members),
            member_id=row["member_id"],
            instance_id=row.get("instance_id"),
            client_id=row.get("client_id"),
            client_host=row.get("client_host"),
            began_us=first,
            ended_us=ended,
        )

    for row in group.lives:
        add(row, row["joined_at"], row["left_at"])
    for row in group.spans:
        add(row, row["owned_from"], row["owned_until"])
    for row in group.rebalances:
        for name in (*(row["members_joined"] or ()), *(row["members_left"] or ())):
            if name not in members:
                add({"member_id": name}, row["at_us"], row["at_us"])
    _seat(members.values())
    _label(members.values())
    return members


def _seat(members: Iterable[Member]) -> None:
    taken_until: dict[str, float] = {}
    for member in sorted(members, key=lambda member: (member.began_us, member.number)):
        who = member.instance_id or (
            f"{member.client_id} {member.client_host}" if member.client_id else member.member_id
        )
        number = next(n for n in count() if taken_until.get(f"{who} {n}", 0) <= member.began_us)
        member.seat = f"{who} {number}"
        taken_until[member.seat] = float("inf") if member.ended_us is None else member.ended_us


def _label(members: Iterable[Member]) -> None:
    """Label each seat as the last member that has it."""
    last = {member.seat: member for member in members}
    names = distinct_names(vars(member) for member in last.values())
    for member in members:
        member.label = names[last[member.seat].member_id]


def colour_slots(members: Iterable[Member]) -> dict[str, int]:
    """Return a colour for each seat: by the hash of its name, or the next one far from concurrent colours.

    A slot is one of twelve hues, vivid or, from 12 on, pale. It is used again where seats are more than slots."""
    ordered = sorted(members, key=lambda member: (member.began_us, member.number))
    are_few = len({member.seat for member in ordered}) <= HUES * SHADES
    slots: dict[str, int] = {}
    busy_until: dict[int, float] = {}
    for member in ordered:
        slot = slots.get(member.seat)
        if slot is None:
            busy = [slot for slot, until in busy_until.items() if are_few or until > member.began_us]
            slot = slots[member.seat] = _free_slot(zlib.crc32(member.seat.encode()), busy)
        ended = float("inf") if member.ended_us is None else member.ended_us
        busy_until[slot] = max(busy_until.get(slot, 0), ended)
    return slots


def _free_slot(hashed: int, busy: list[int]) -> int:
    """Return the first vivid slot, from the hashed one on, that is farthest from the busy ones; else a pale one."""
    hues = [(hashed + step) % HUES for step in range(HUES)]
    vivid = [slot for slot in busy if slot < HUES]
    for least in (4, 3, 2, 1):
        for hue in hues:
            if all(least <= abs(hue - other) <= HUES - least for other in vivid):
                return hue
    return next((hue + HUES for hue in hues if hue + HUES not in busy), hashed % (HUES * SHADES))


def _people(group: GroupRows, members: dict[str, Member], start: int) -> list[list[Row]]:
    """Return the memberships of each seat in the order of the first ones."""
    people: dict[str, list[Row]] = {}
    for row in group.lives:
        member = members[row["member_id"]]
        life = shown({**row, "evidence": _facts(row)}, start, "joined_at", "left_at")
        for name in ("member_id", "instance_id", "client_id", "client_host", "rule"):
            del life[name]
        people.setdefault(member.seat, []).append({"member": member.number, **life})
    return list(people.values())


def _topics(group: GroupRows, members: dict[str, Member], start: int) -> dict[str, Any]:
    """Return each topic with a lane per partition that had an owner, a verdict or a commit, and the lanes' texts.

    Of a streams group subtopologies with their tasks have owners, and come before the topics.
    """
    lanes: dict[tuple[bool, str], dict[int, tuple[list[Row], list[Row], list[Row]]]] = {}
    began = [row["started_at"] for row in group.generations]
    for which, rows in enumerate((group.spans, group.verdicts, group.commits)):
        for row in rows:
            number = max(bisect_right(began, row["owned_from"]) - 1, 0) if which == 0 and began else None
            is_topic = number is None or group.generations[number]["group_kind"] != "streams"
            of_topic = lanes.setdefault((is_topic, row["topic"]), {})
            of_topic.setdefault(row["partition"], ([], [], []))[which].append(row)
    words = _Words()
    topics = [
        {
            "topic": visible(topic) if is_topic else f"subtopology {visible(topic)}",
            "lane_is": "partition" if is_topic else "task",
            "lanes": [
                {
                    "partition": partition,
                    "name": lane_name(topic, partition) if is_topic else f"{visible(topic)}_{partition}",
                    **_spans(spans, members, words, start),
                    "verdicts": _verdicts(verdicts, words, group.lag_step_us, start),
                    "commits": _commits(commits, group.lag_step_us, start),
                }
                for partition, (spans, verdicts, commits) in sorted(of_topic.items())
            ],
        }
        for (is_topic, topic), of_topic in sorted(lanes.items())
    ]
    return {"topics": topics, "words": words.all()}


def _spans(rows: list[Row], members: dict[str, Member], words: _Words, start: int) -> dict[str, Any]:
    """Return the owners of a partition. Concurrent owners are on separate tracks.

    `spans` is flat, six numbers each: member, track, milliseconds since the beginning of the span before (the first:
    since `start`), length or -1, generation, and how it ended, a word or -1."""
    spans: list[int] = []
    free: list[int] = []
    before = 0
    for row in rows:
        since = row["owned_from"] // 1000 - start
        length = -1 if row["owned_until"] is None else row["owned_until"] // 1000 - start - since
        until = 2**60 if length < 0 else since + length
        track = next((number for number, end in enumerate(free) if end <= since), len(free))
        free[track : track + 1] = [until]
        ending = -1 if row["ended"] is None else words.number(row["ended"])
        spans += (members[row["member_id"]].number, track, since - before, length, row["from_generation"], ending)
        before = since
    return {"tracks": len(free), "spans": spans}


def _verdicts(rows: list[Row], words: _Words, step: int, start: int) -> list[int]:
    """Return a partition's verdicts, flat, five numbers each: from and until when, and words.

    These are status, reason and what is ruled out, or -1. The same status in adjacent slots is one verdict, with the
    last reason."""
    verdicts: list[tuple[int, int, str, str, str | None]] = []
    for row in rows:
        since, until = row["slot"] * step // 1000 - start, (row["slot"] + 1) * step // 1000 - start
        if verdicts and verdicts[-1][1:3] == (since, row["status"]):
            since = verdicts.pop()[0]
        verdicts.append((since, until, row["status"], row["reason"], row["ruled_out"]))
    numbered = [
        (*times, words.number(status), words.number(reason), -1 if others is None else words.number(others))
        for *times, status, reason, others in verdicts
    ]
    return [number for verdict in numbered for number in verdict]


def _commits(rows: list[Row], step: int, start: int) -> list[int]:
    """Return when there were commits, flat, three numbers each: from and until when, and how many.

    Adjacent slots with commits are one."""
    runs: list[list[int]] = []
    for row in rows:
        since, until = row["slot"] * step // 1000 - start, (row["slot"] + 1) * step // 1000 - start
        if runs and runs[-1][1] == since:
            runs[-1][1:] = until, runs[-1][2] + row["commits"]
        else:
            runs.append([since, until, row["commits"]])
    return [number for run in runs for number in run]


def _rebalance(row: Row, members: dict[str, Member], start: int) -> Row:
    timed = shown({**row, "evidence": _facts(row)}, start, "at_us", "ended_at")
    timed["at"] = timed.pop("at_us")
    for name in ("members_joined", "members_left", "subscriptions_changed"):
        timed[name] = [members[member].number for member in row[name] or () if member in members]
    return {**timed, "sort": sort_of(row["cause"])}


def _facts(row: Row) -> list[str]:
    """Return the evidence of a row without what the group's records show, which its note has."""
    others = (fact for fact in row["evidence"] or () if fact["source"] != "record")
    return [visible(f"{fact['source']}: {fact['shows']}") for fact in others][:_MOST_FACTS]


def _storm(row: Row, start: int) -> Row:
    storm = shown(row, start, "began_us", "ended_us")
    return {"began": storm.pop("began_us"), "until": storm.pop("ended_us"), **storm}


def arranged_rollouts(rows: Iterable[Row], start: int = 0) -> dict[str, Any]:
    """Return rollouts, the oldest first, for the timeline; times are milliseconds since `start` (since 1970)."""
    ordered = sorted(rows, key=lambda row: row["started_at"])
    return columnar(
        {
            "began": _milliseconds(row["started_at"]) - start,
            "until": None if row["ended_at"] is None else _milliseconds(row["ended_at"]) - start,
            "way": name_of_way(row["way"]),
            **{name: row[name] for name in ROLLOUT_COLUMNS},
        }
        for row in ordered
    )


def _milliseconds(time: str | datetime) -> int:
    return microseconds(time if isinstance(time, datetime) else datetime.fromisoformat(time)) // 1000


def _lag(group: GroupRows, start: int) -> Iterator[Row]:
    for row in group.lag or ():
        yield {
            "at": row["slot"] * group.lag_step_us // 1000 - start,
            "lag": row["lag"],
            "seconds": None if row["seconds"] is None else round(row["seconds"], 1),
            "lag_is_least": row["partitions_with_lag"] < row["partitions"],
            "seconds_are_least": bool(row["is_bounded"]) or row["partitions_with_seconds"] < row["partitions"],
            "partitions_with_lag": row["partitions_with_lag"],
            "partitions": row["partitions"],
            "worst": lane_name(row["worst_topic"], row["worst_partition"]),
        }


def shown(row: Row, start: int, *times: str) -> Row:
    """Return a row with times relative to `start` and escaped texts."""
    texts = {name: visible(value) if isinstance(value, str) else value for name, value in row.items()}
    return texts | {name: None if row[name] is None else row[name] // 1000 - start for name in times}

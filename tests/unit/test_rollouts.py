"""The view `rollouts`: which replaced members of a group are one rollout, and which are none.

Each case is a group of one warehouse. Times are minutes; each moment at which members join or leave has a generation
and a rebalance of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from grouptrail.config import Config
from proof.recorded_runs import folded
from proof.recordings import Recording, load_recordings
from support.laid_history import lay_history
from support.queries import asked
from support.small_tables import at, lay

Row = dict[str, Any]

DECODED_UNTIL = 500


def life(client: str, since: float, until: float | None = None, *, host: str = "", **more: Any) -> Row:
    """Return a membership; its host is named after its client unless given, and it joined long ago if before 0."""
    return {
        "member_id": f"{client}-{host}-{since}",
        "client_id": client,
        "client_host": f"/{host or client}",
        "joined_at": since,
        "left_at": until,
        "began": "joined",
        "ended": None if until is None else "left",
        **more,
    }


def restart(client: str, left: float, back: float, *, host: str = "", since: float = -100, **more: Any) -> list[Row]:
    """Return the memberships of a client that left and came back, maybe on another host."""
    return [life(client, since, left, **more), life(client, back, host=host or client, **more)]


def rolling(since: float, *, clients: str = "abcd", step: float = 1, joined: float = -100, **more: Any) -> list[Row]:
    """Return the memberships of clients that are restarted one after another, each within half a step."""
    return [
        one
        for number, client in enumerate(clients)
        for one in restart(client, since + number * step, since + (number + 0.5) * step, since=joined, **more)
    ]


def surge(since: float, *, size: int = 4, step: float = 1, joined: float = -100) -> list[Row]:
    """Return the memberships of pods of one client id, each of which joins on a new host before an old one leaves."""
    return [
        one
        for number in range(size)
        for one in (
            life("app", joined, since + (number + 0.5) * step, host=f"old-{number}"),
            life("app", since + number * step, host=f"new-{number}"),
        )
    ]


def again(rows: list[Row], since: float, step: float = 1) -> list[Row]:
    """Return the rows of a rollout whose new members are restarted in turn."""
    new = [row for row in rows if row["left_at"] is None and row["joined_at"] > 0]
    more: list[Row] = []
    for number, row in enumerate(new):
        row |= {"left_at": since + number * step, "ended": "left"}
        more.append(life(row["client_id"], since + (number + 0.5) * step, host=row["client_host"][1:]))
    return rows + more


def static_rolling(since: float, new_host: str | None = None) -> list[Row]:
    """Return the memberships of static members that are fenced by their next start."""
    lives = []
    for number, client in enumerate("abcd"):
        moment = since + number
        lives += [
            life(client, -100, moment, instance_id=f"i-{client}", ended="replaced"),
            life(client, moment, instance_id=f"i-{client}", began="replaced"),
        ]
        if new_host is not None:
            lives[-1]["client_host"] = new_host
    return lives


ROLLING = {
    "started_at": "2026-03-04T12:10:00Z", "ended_at": "2026-03-04T12:13:30Z", "way": "rolling", "members": 4,
    "of_members": 4, "is_static": False, "evidence": "client_id_and_host", "certainty": "likely", "rebalances": 8,
    "seconds_without_owner": 120.0, "longest_without_owner_seconds": 30.0,
}  # fmt: skip
SURGE = ROLLING | {"evidence": "client_id", "seconds_without_owner": 0.0, "longest_without_owner_seconds": 0.0}

STATIC = {
    "is_static": True, "evidence": "instance_id", "certainty": "ambiguous", "rebalances": 0,
    "way": "rolling", "members": 4, "of_members": 4, "ended_at": "2026-03-04T12:13:00Z",
}  # fmt: skip

CASES: dict[str, tuple[list[Row], list[Row]]] = {
    "rolling": (rolling(10), [ROLLING]),
    "rolling-of-expired": (
        [{**one, "ended": one["ended"] and "left_or_expired"} for one in rolling(10)],
        [{**ROLLING, "certainty": "ambiguous"}],
    ),
    "half": (
        [*rolling(10, clients="ab"), life("c", -100), life("d", -100)],
        [{"way": "rolling", "members": 2, "of_members": 4, "rebalances": 4}],
    ),
    "less-than-half": ([*rolling(10, clients="ab"), *(life(one, -100) for one in "cde")], []),
    "one-of-one": (restart("a", 10, 10.5), []),
    "one-of-two": ([*restart("a", 10, 10.5), life("b", -100)], []),
    "crash-loop": (
        [
            *(life("a", 10 + number, 10.9 + number) for number in range(9)),
            life("a", -100, 9.5),
            *(life(one, -100) for one in "bcd"),
        ],
        [],
    ),
    "crash-loop-of-one-of-two": (
        [life("a", -100, 9.5), *(life("a", 10 + number, 11.5 + number) for number in range(9)), life("b", -100)],
        [],
    ),
    "crash-loop-with-one-client-id": (
        [
            life("app", -100, 9.5, host="1"),
            *(life("app", 10 + number, 10.9 + number, host="1") for number in range(9)),
            *(life("app", -100, host=host) for host in "234"),
        ],
        [],
    ),
    "deploy-that-ends-a-crash-loop": (
        [
            life("a", -100, 9.5),
            *(life("a", 10 + 2 * number, 10.5 + 2 * number) for number in range(20)),
            *restart("b", 49, 49.5),
            *restart("c", 50, 50.5),
            life("a", 51),
        ],
        [{"started_at": "2026-03-04T12:49:00Z", "members": 2, "of_members": 2}],
    ),
    "canary-that-crashes": (
        [
            life("a", -100, 10),
            *(life("a", 10.2 + number, 10.5 + number) for number in range(3)),
            life("a", 13.5),
            *(one for number, name in enumerate("bcd") for one in restart(name, 14 + number, 14.5 + number)),
        ],
        [{"started_at": "2026-03-04T12:10:00Z", "members": 4, "of_members": 4}],
    ),
    "scale-out": ([life("a", -100), life("b", -100), *(life(one, 10 + ord(one) / 100) for one in "cdef")], []),
    "scale-in": ([*(life("app", -100, 10 + n, host=str(n)) for n in range(3)), life("app", -100, host="3")], []),
    "scale-out-and-in-again": (
        [
            *(life("app", -100, host=str(number)) for number in range(4)),
            *(life("app", 10 + number, 13 + number, host=str(4 + number)) for number in range(3)),
        ],
        [],
    ),
    "start": ([life(one, number) for number, one in enumerate("abcd")], []),
    "start-and-stop": ([life(one, number, 5 + number) for number, one in enumerate("abcd")], []),
    "start-and-rolling": (
        [
            one | ({"joined_at": number / 4} if one["joined_at"] < 0 else {})
            for number, one in enumerate(rolling(5))
        ],
        [{"started_at": "2026-03-04T12:05:00Z", "members": 4, "of_members": 4, "way": "rolling"}],
    ),
    "scale-out-and-rolling": (
        [life("a", -100, 12), life("a", 12.5), life("b", 9, 13), life("b", 13.5), *rolling(14, clients="cd")],
        [{"started_at": "2026-03-04T12:12:00Z", "members": 4, "of_members": 4}],
    ),
    "replaced-by-other-clients": (
        [*(life(one, -100, 10) for one in "ab"), *(life(one, 11) for one in "cd")],
        [],
    ),
    "surge": (
        surge(10),
        [SURGE],
    ),
    "surge-of-expired": (
        [{**one, "ended": one["ended"] and "left_or_expired"} for one in surge(10)],
        [SURGE],
    ),
    "blue-green": (
        [
            *(life("app", -100, 15 + number / 2, host=f"old-{number}") for number in range(4)),
            *(life("app", 10 + number / 2, host=f"new-{number}") for number in range(4)),
        ],
        [{"way": "blue_green", "members": 4, "of_members": 4, "evidence": "client_id", "rebalances": 8}],
    ),
    "recreate": (
        [one for number, name in enumerate("abcd") for one in restart(name, 10 + number / 10, 12 + number / 10)],
        [{"way": "recreate", "members": 4, "of_members": 4, "started_at": "2026-03-04T12:10:00Z", "rebalances": 8}],
    ),
    "recreate-with-fewer": (
        [*restart("a", 10, 12), *restart("b", 10, 12), life("c", -100, 10)],
        [{"way": "recreate", "members": 2, "of_members": 3}],
    ),
    "all-at-once": (
        [
            one
            for name in "abcd"
            for one in (life(name, -100, 10, ended="rejoined"), life(name, 10, began="rejoined"))
        ],
        [{"way": None, "members": 4, "of_members": 4, "rebalances": 1, "certainty": "ambiguous"}],
    ),
    "two": (
        again(rolling(10), 60),
        [ROLLING, {**ROLLING, "started_at": "2026-03-04T13:00:00Z", "ended_at": "2026-03-04T13:03:30Z"}],
    ),
    "two-without-pause": (
        again(rolling(10), 15),
        [
            ROLLING,
            {**ROLLING, "started_at": "2026-03-04T12:15:00Z", "ended_at": "2026-03-04T12:18:30Z"},
        ],
    ),
    "two-of-a-surge-without-pause": (
        [
            row | ({"left_at": 15.5 + row["joined_at"] - 10, "ended": "left"} if row["left_at"] is None else {})
            for row in surge(10)
        ]
        + [life("app", 15 + number, host=f"newest-{number}") for number in range(4)],
        [
            SURGE,
            {**SURGE, "started_at": "2026-03-04T12:15:00Z", "ended_at": "2026-03-04T12:18:30Z"},
        ],
    ),
    "rolled-back-early": (
        again([*rolling(10, clients="a"), *(life(one, -100) for one in "bcd")], 13),
        [],
    ),
    "rolled-back-halfway": (
        again([*rolling(10, clients="abc"), *(life(one, -100) for one in "def")], 15),
        [{"members": 3, "of_members": 6, "started_at": f"2026-03-04T12:{minute}:00Z"} for minute in (10, 15)],
    ),
    "scaled-out-after": (
        [*rolling(10), life("e", 14), life("f", 14.5)],
        [ROLLING],
    ),
    "grows": (
        [*rolling(10, clients="ab"), life("c", 12), life("d", 12.5)],
        [{"members": 2, "of_members": 2, "ended_at": "2026-03-04T12:11:30Z"}],
    ),
    "slow": (rolling(10, step=20), []),
    "static": (static_rolling(10), [STATIC]),
    "static-on-other-hosts": (static_rolling(10, new_host="/new"), [STATIC | {"certainty": "likely"}]),
    "static-that-expired": (
        [{**one, "instance_id": one["client_id"], "ended": one["ended"] and "expired_or_removed"}
         for one in rolling(10)],
        [{"is_static": True, "evidence": "instance_id", "certainty": "ambiguous", "rebalances": 8}],
    ),
    "static-and-dynamic": (
        [*static_rolling(10), *rolling(14, clients="xy")],
        [{"is_static": False, "evidence": "mixed", "members": 6, "of_members": 6}],
    ),
    "compacted": (
        [{**one, "ended": one["ended"] and "unknown", "began": "there"} for one in rolling(10)],
        [],
    ),
    "partly-compacted": (
        [*rolling(10, clients="ab"), *(life(one, 12, began="there") for one in "cd"),
         *(life(one, -100, 12, ended="unknown") for one in "cd")],
        [{"members": 2, "of_members": 4}],
    ),
    "deleted-and-begun-again": (
        [*(life(one, -100, 10, ended="group_ended") for one in "ab"),
         *(life(one, 10.5, incarnation=2) for one in "ab")],
        [],
    ),
    "polled": (
        [*(life(one, -100, 10) for one in "ab"), *(life(one, -100, 11) for one in "cd"),
         *(life(one, 10) for one in "ab"), *(life(one, 11) for one in "cd")],
        [{"way": "rolling", "members": 4, "rebalances": 2}],
    ),
    "open": (rolling(DECODED_UNTIL - 4), [{"members": 4, "ended_at": None}]),
    "open-so-far": (
        [*rolling(DECODED_UNTIL - 4, clients="ab"), life("c", -100), life("d", -100)],
        [{"members": 2, "of_members": 4, "ended_at": None}],
    ),
}  # fmt: skip


def lay_groups(
    config: Config, groups: dict[str, Iterable[Row]], *, owners: bool = True, is_reversed: bool = False
) -> None:
    """Write memberships, their rebalances and what their members owned: one partition for each."""
    memberships: list[Row] = []
    rebalances: list[Row] = []
    ownership: list[Row] = []
    for group, rows in groups.items():
        lives = sorted((dict(row) for row in rows), key=lambda row: (row["joined_at"], row["member_id"]))
        static = {row["joined_at"] for row in lives if row["began"] == "replaced"}
        clients = sorted({row["client_id"] for row in lives})
        moments = sorted({row[name] for row in lives for name in ("joined_at", "left_at")} - {None})
        begun = [moment for moment in moments if moment not in static]
        number = {moment: sum(one <= moment for one in begun) for moment in moments}
        for row in lives:
            joined, left = row["joined_at"], row["left_at"]
            row |= {"group_id": group, "joined_at": at(joined), "joined_generation": number[joined]}
            if left is not None:
                row |= {"left_at": at(left), "left_generation": number[left]}
            memberships.append(row)
            owner = {name: row[name] for name in ("group_id", "member_id", "client_id")}
            times = {"owned_from": row["joined_at"], "owned_until": row["left_at"]}
            ownership.append({**owner, **times, "topic": "orders", "partition": clients.index(row["client_id"])})
        rebalances += [{"group_id": group, "to_generation": number[moment], "at": at(moment)} for moment in begun]
    if is_reversed:
        memberships.reverse()
    lay(config, "memberships", *memberships, *({**row, "cluster": "other"} for row in memberships))
    lay(config, "rebalances", *rebalances)
    lay(config, "partition_ownership", *(ownership if owners else ()))
    lay(config, "ingest_progress", {"landed_at": at(DECODED_UNTIL)})


def rollouts(config: Config, where: str = "TRUE") -> list[Row]:
    return asked(config, f"SELECT * FROM rollouts WHERE {where} ORDER BY group_id, started_at")


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = Config(warehouse=str(tmp_path_factory.mktemp("lake")))
    lay_groups(config, {name: rows for name, (rows, _) in CASES.items()})
    return config


@pytest.fixture(scope="module")
def found(warehouse: Config) -> dict[str, list[Row]]:
    by_group: dict[str, list[Row]] = {}
    for row in rollouts(warehouse):
        by_group.setdefault(row["group_id"], []).append(row)
    return by_group


@pytest.mark.parametrize("case", CASES)
def test_rollouts_of_the_case_are_the_expected_ones(found: dict[str, list[Row]], case: str) -> None:
    _, wanted = CASES[case]
    rows = found.get(case, [])
    assert len(rows) == len(wanted), rows
    for row, expected in zip(rows, wanted, strict=True):
        assert {name: row[name] for name in expected} == expected


def test_rollout_without_known_owners_has_no_seconds_without_owner(tmp_path: Path) -> None:
    config = Config(warehouse=str(tmp_path))
    lay_groups(config, {"g": rolling(10)}, owners=False)
    [row] = rollouts(config)
    assert row["seconds_without_owner"] is row["longest_without_owner_seconds"] is None


def test_rollout_of_a_cooperative_group_ends_with_its_last_follow_up(tmp_path: Path) -> None:
    """A later follow-up, of another rebalance, is none of it, nor is a later rebalance."""
    config = Config(warehouse=str(tmp_path))
    lay_groups(config, {"g": rolling(10)})
    follow_up = {"group_id": "g", "cause": "cooperative_follow_up"}
    lay(
        config,
        "rebalances",
        {**follow_up, "from_generation": 9, "to_generation": 10, "at": at(14), "ended_at": at(14.2)},
        {**follow_up, "from_generation": 10, "to_generation": 11, "at": at(15)},
        {**follow_up, "from_generation": 9, "to_generation": 12, "at": at(15.5), "cause": "partitions_added"},
    )
    [row] = rollouts(config)
    assert (row["rebalances"], row["last_generation"]) == (9, 10)
    assert row["ended_at"] == "2026-03-04T12:14:12Z"


def test_rollout_whose_last_member_leaves_has_the_rebalance_of_that_leave(tmp_path: Path) -> None:
    """The record of a classic rebalance follows the end of its join phase, at which the member left."""
    config = Config(warehouse=str(tmp_path))
    rows = [row for row in surge(10) if row["left_at"] is not None]
    late = {
        "group_id": "h", "joined_at": at(-100), "joined_generation": 1, "left_at": at(10), "left_generation": 2,
    }  # fmt: skip
    lay(config, "memberships", *({**row, **late} for row in rows))
    new = {"group_id": "h", "joined_at": at(9), "joined_generation": 1}
    lay(config, "memberships", *({**row, **new, "left_at": None} for row in surge(10) if row["left_at"] is None))
    times = enumerate((9, 10.1, 10.2), 1)
    lay(config, "rebalances", *({"group_id": "h", "to_generation": number, "at": at(time)} for number, time in times))
    lay(config, "partition_ownership")
    lay(config, "ingest_progress", {"landed_at": at(DECODED_UNTIL)})
    [row] = rollouts(config)
    assert (row["way"], row["rebalances"], row["last_generation"]) == ("blue_green", 2, 2)
    assert row["ended_at"] == "2026-03-04T12:10:06Z"


def test_pause_given_separates_or_joins_restarts(warehouse: Config) -> None:
    slow = "FROM rollouts('{}') WHERE group_id = '{}'"
    [row] = asked(warehouse, f"SELECT * {slow.format('11 minutes', 'slow')}")
    assert (row["members"], row["of_members"]) == (4, 4)
    assert not asked(warehouse, f"SELECT * {slow.format('20 seconds', 'rolling')}")


LIVES = st.lists(
    st.builds(
        life,
        st.sampled_from("abc"),
        st.integers(0, 30),
        host=st.sampled_from(["", "x"]),
        began=st.sampled_from(["joined", "joined", "joined", "there"]),
    ),
    max_size=12,
)
STAYS = st.lists(st.integers(1, 40) | st.none(), min_size=12, max_size=12)


@st.composite
def any_group(draw: st.DrawFn) -> list[Row]:
    """Return memberships of a few clients in any order, half of them after a rollout."""
    lives = draw(LIVES)
    for number, (row, stay) in enumerate(zip(lives, draw(STAYS), strict=False)):
        row["member_id"] += f"-{number}"
        if stay is not None:
            row |= {
                "left_at": row["joined_at"] + stay,
                "ended": draw(st.sampled_from(["left", "rejoined", "unknown"])),
            }
    return lives + (rolling(draw(st.integers(0, 40)), clients="abc") if draw(st.booleans()) else [])


@settings(max_examples=4, deadline=None, phases=[Phase.generate])
@given(groups=st.lists(any_group(), min_size=60, max_size=60), shift=st.integers(1, 400))
def test_rollouts_of_any_groups_are_disjoint_and_move_with_time(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[Row]], shift: int
) -> None:
    """Each replaced member is in one rollout at most, and of_members is what the group had then."""
    config = Config(warehouse=str(tmp_path_factory.mktemp("lake")))
    moved = [
        [
            row | {name: None if row[name] is None else row[name] + shift for name in ("joined_at", "left_at")}
            for row in rows
        ]
        for rows in groups
    ]
    named = {f"{number:02}": rows for number, rows in enumerate(groups)}
    lay_groups(config, {**named, **{f"{number:02}-moved": rows for number, rows in enumerate(moved)}})
    found: dict[str, list[Row]] = {}
    for row in rollouts(config):
        found.setdefault(row.pop("group_id"), []).append(row)
    for name, rows in named.items():
        ours, theirs = found.get(name, []), found.get(f"{name}-moved", [])
        assert [_moved(row, shift) for row in ours] == theirs
        assert sum(row["members"] for row in ours) <= sum(row["left_at"] is not None for row in rows)
        for row in ours:
            start = (datetime.fromisoformat(row["started_at"]) - at(0)) / timedelta(minutes=1)
            there = [one for one in rows if _is_member(one, start)]
            assert 2 <= row["members"] <= row["of_members"] <= 2 * row["members"]
            assert row["of_members"] == len(there)
        for one, other in pairwise(ours):
            assert one["ended_at"] <= other["started_at"]


@settings(max_examples=4, deadline=None, phases=[Phase.generate])
@given(groups=st.lists(any_group(), min_size=60, max_size=60))
def test_rollouts_do_not_depend_on_the_order_in_which_rows_are_stored(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[Row]]
) -> None:
    named = {f"{number:02}": rows for number, rows in enumerate(groups)}
    found = []
    for is_reversed in (False, True):
        config = Config(warehouse=str(tmp_path_factory.mktemp("lake")))
        lay_groups(config, named, is_reversed=is_reversed)
        found.append(rollouts(config))
    assert found[0] == found[1]


def _is_member(row: Row, start: float) -> bool:
    """Return whether a member was there before whatever happened at a time; undated changes came earlier."""
    has_joined = row["joined_at"] < start or (row["joined_at"] == start and row["began"] == "there")
    has_left = row["left_at"] is not None and (
        row["left_at"] < start or (row["left_at"], row["ended"]) == (start, "unknown")
    )
    return has_joined and not has_left


def _moved(row: Row, minutes: int) -> Row:
    times = {
        name: row[name]
        and (datetime.fromisoformat(row[name]) + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
        for name in ("started_at", "ended_at")
    }
    return row | times


@pytest.mark.parametrize("recording", load_recordings(), ids=lambda one: one.version)
def test_rollouts_of_the_recorded_runs_are_those_of_their_schedules(recording: Recording, tmp_path: Path) -> None:
    """Both static members were restarted. Clients whose broker was killed joined again: the log looks the same."""
    config = Config(warehouse=str(tmp_path))
    lay_history(config, folded(recording.records, recording.names))
    rows = asked(config, "SELECT * FROM rollouts('5 seconds')")
    assert all(row["certainty"] == "ambiguous" for row in rows)
    restarted = {row["group_id"] for row in rows if not row["group_id"].startswith("killed")}
    assert {"static-range", "static-python", "static-cooperative"} <= restarted
    assert restarted <= {"static-range", "static-python", "static-cooperative", "kip-848-static"}


def test_rollouts_of_random_runs_whose_brokers_were_killed_are_ambiguous(tmp_path: Path) -> None:
    """No run restarts half of a group on purpose; clients, static ones too, join again after an outage."""
    [recording] = load_recordings("random")
    config = Config(warehouse=str(tmp_path))
    lay_history(config, folded(recording.records, recording.names))
    for pause in ("5 seconds", "20 seconds", "5 minutes"):
        rows = asked(config, f"SELECT * FROM rollouts('{pause}')")
        assert all(row["certainty"] == "ambiguous" for row in rows)

"""What the lag job reads from the history: states, subscriptions, and how a group's last members left."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from grouptrail.config import Config
from grouptrail.lag.group_status import GroupStatus
from grouptrail.lag.groups import TABLES, GroupStatuses
from support import small_tables

OPEN = {"is_open": True, "open_bucket": 1}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = Config(warehouse=str(tmp_path))
    for table in TABLES:
        small_tables.lay(config, table)
    return config


def read(config: Config) -> GroupStatuses:
    groups = GroupStatuses(config)
    groups.refresh()
    return groups


def generation(*members: tuple[list[str] | None, str | None], **more: object) -> dict[str, object]:
    """Return a generation whose members have these topics and patterns."""
    shown = [
        {"member_id": str(number), "topics": topics, "topic_regex": regex}
        for number, (topics, regex) in enumerate(members)
    ]
    return {"members": shown, "started_at": small_tables.at(0)} | OPEN | more


def test_groups_without_history_tables_are_empty(tmp_path: Path) -> None:
    """The lag job may run alone, or start first."""
    groups = read(Config(warehouse=str(tmp_path)))
    assert (groups.by_id, len(groups.owned)) == ({}, 0)


def test_groups_have_the_current_state_and_topics_of_all_members(config: Config) -> None:
    """Ended rows and groups of other clusters do not count."""
    small_tables.lay(
        config,
        "group_states",
        {"state": "Empty", "started_at": small_tables.at(0), "ended_at": small_tables.at(1)} | OPEN,
        {"state": "Stable", "started_at": small_tables.at(1)} | OPEN,
        {"state": "Dead", "started_at": small_tables.at(2), "cluster": "other"} | OPEN,
    )
    small_tables.lay(
        config,
        "generations",
        generation((["old"], None), ended_at=small_tables.at(1)),
        generation((["orders"], None), (["orders", "payments"], None)),
    )
    known = {"record_partition": 9, "filled_at": small_tables.at(1)}
    assert read(config).by_id == {"billing": GroupStatus("Stable", frozenset({"orders", "payments"}), **known)}


@pytest.mark.parametrize(
    ("table", "record", "is_returning"),
    [
        ("group_metadata", {"leader": "a"}, True),
        ("group_metadata", {"leader": None}, False),
        ("group_records", {"member_id": "a", "value_json": "{}"}, True),
        ("group_records", {"member_id": "a", "value_json": None}, False),
        ("group_records", {"member_id": None, "value_json": "{}"}, False),
    ],
)
def test_groups_with_records_of_members_that_the_history_has_not_read_are_returning(
    config: Config, table: str, record: dict[str, object], *, is_returning: bool
) -> None:
    small_tables.lay(config, "group_states", {"state": "Empty", "started_at": small_tables.at(0)} | OPEN)
    for other in ("group_metadata", "group_records"):
        small_tables.lay(config, other)
    small_tables.lay(config, "history_positions", {"told_to": 7})
    small_tables.lay(config, table, record | {"record_offset": 7})
    assert read(config).by_id["billing"].is_returning is is_returning
    small_tables.lay(config, "history_positions", {"told_to": 8, "cluster": "other"})
    assert read(config).by_id["billing"].is_returning is is_returning


@pytest.mark.parametrize("member", [(None, None), (["orders"], "^pay")], ids=["unreadable", "a pattern"])
def test_groups_unknown_or_pattern_subscription_ignores_no_topic(
    config: Config, member: tuple[list[str] | None, str | None]
) -> None:
    """One such member is enough."""
    small_tables.lay(config, "group_states", {"state": "Stable", "started_at": small_tables.at(0)} | OPEN)
    small_tables.lay(config, "generations", generation((["orders"], None), member))
    [group] = read(config).by_id.values()
    assert group.topics is None
    assert not group.ignores("anything")


def test_groups_empty_group_has_the_endings_of_its_last_members(config: Config) -> None:
    """Members that left earlier do not count."""
    small_tables.lay(config, "group_states", {"state": "Empty", "started_at": small_tables.at(5)} | OPEN)
    small_tables.lay(
        config,
        "memberships",
        {"member_id": "a", "left_at": small_tables.at(1), "ended": "expired"},
        {"member_id": "b", "left_at": small_tables.at(5), "ended": "left"},
        {"member_id": "c", "left_at": small_tables.at(5), "ended": "left_or_expired"},
    )
    [group] = read(config).by_id.values()
    assert (group.state, group.emptied_at) == ("Empty", small_tables.at(5))
    assert group.endings == {"left", "left_or_expired"}


@pytest.mark.parametrize(
    ("endings", "last_commit_at", "on_purpose"),
    [
        ({"left"}, None, True),
        ({"expired"}, small_tables.at(5), False),
        ({"left_or_expired"}, small_tables.at(5) - timedelta(seconds=5.9), True),
        ({"left_or_expired"}, small_tables.at(5) - timedelta(seconds=6), False),
        ({"left_or_expired"}, None, False),
        ({"left", "rejoined"}, small_tables.at(5), False),
        (set(), small_tables.at(5), False),
    ],
)
def test_left_by_itself_only_after_a_leave_or_a_recent_commit(
    endings: set[str], last_commit_at: datetime | None, on_purpose: bool
) -> None:
    """By default no session timeout is below six seconds, and a commit keeps the session alive."""
    group = GroupStatus("Empty", emptied_at=small_tables.at(5), endings=frozenset(endings))
    assert group.left_on_purpose(last_commit_at) is on_purpose


def test_groups_owned_lists_only_current_consumer_partitions(config: Config) -> None:
    """A Connect connector is no partition, and share groups do not commit."""
    small_tables.lay(
        config,
        "partition_ownership",
        {"topic": "orders", "partition": 0, "owned_until": small_tables.at(1)} | OPEN,
        {"topic": "orders", "partition": 1, "member_id": "a"} | OPEN,
        {"topic": "orders", "partition": 1, "member_id": "b"} | OPEN,
        {"topic": "a-connector", "partition": -1} | OPEN,
        {"topic": "orders", "partition": 2, "group_id": "sharing"} | OPEN,
    )
    small_tables.lay(
        config,
        "generations",
        {"group_kind": "consumer", "started_at": small_tables.at(0)} | OPEN,
        {"group_kind": "share", "group_id": "sharing", "started_at": small_tables.at(0)} | OPEN,
    )
    small_tables.lay(config, "group_states", {"state": "Stable", "started_at": small_tables.at(0)} | OPEN)
    assert read(config).owned.to_pylist() == [{"group_id": "billing", "topic": "orders", "partition": 1}]


def test_groups_refresh_does_not_read_unchanged_tables_again(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tables' versions are read then."""
    small_tables.lay(config, "group_states", {"state": "Stable", "started_at": small_tables.at(0)} | OPEN)
    groups = read(config)
    monkeypatch.setattr("grouptrail.lag.groups.statuses", lambda *_: pytest.fail("read again"))
    groups.refresh()
    assert set(groups.by_id) == {"billing"}

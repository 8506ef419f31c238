"""What the lag job reads from the history: states, subscriptions, and how a group's last members left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from grouptrail.config import Config
from grouptrail.history.broker_log_conclusions import KEPT_ENDING
from grouptrail.lag.group_status import GroupStatus
from grouptrail.lag.groups import TABLES, GroupStatuses
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.schema import table_schema
from support import small_tables

OPEN = {"is_open": True, "open_bucket": 1}


@pytest.fixture
def config(config: Config) -> Config:
    for table in TABLES:
        small_tables.lay(config, table)
    return config


def read(config: Config) -> GroupStatuses:
    groups = GroupStatuses(warehouse_of(config))
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
    small_tables.lay(config, "history_positions", {"processed_to": 7})
    small_tables.lay(config, table, record | {"record_offset": 7})
    assert read(config).by_id["billing"].is_returning is is_returning
    small_tables.lay(config, "history_positions", {"processed_to": 8, "cluster": "other"})
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


def resolved(pattern: str, *topics: str, **more: object) -> dict[str, object]:
    """Return the broker's record of the topics that match a pattern; None for its tombstone."""
    key = {"groupId": "billing", "regularExpression": pattern}
    of = {"record_type": "ConsumerGroupRegularExpression", "key_json": json.dumps(key), "member_id": None}
    return of | {"value_json": json.dumps({"topics": topics, "version": 1}), "record_offset": 7} | more


@pytest.mark.parametrize(
    ("records", "topics"),
    [
        pytest.param([resolved("^pay", "payments")], {"orders", "payments"}, id="resolved"),
        pytest.param([resolved("^pay", "payments", "payouts")], {"orders", "payments", "payouts"}, id="two topics"),
        pytest.param([resolved("^pay")], {"orders"}, id="to no topic"),
        pytest.param(
            [resolved("^pay", "payments"), resolved("^pay", "payouts", record_offset=8)],
            {"orders", "payouts"},
            id="again",
        ),
        pytest.param([resolved("^ord", "orders")], None, id="another pattern"),
        pytest.param([resolved("^pay", "payments", group_id="audit")], None, id="another group"),
        pytest.param([resolved("^pay", "payments", cluster="other")], None, id="another cluster"),
        pytest.param(
            [resolved("^pay", "payments"), resolved("^pay", value_json=None, record_offset=8)], None, id="deleted"
        ),
        pytest.param([resolved("^pay", "payments", record_type="ConsumerGroupMetadata")], None, id="other record"),
        pytest.param([], None, id="not resolved yet"),
    ],
)
def test_groups_resolved_pattern_of_a_member_is_what_it_subscribes_to(
    config: Config, records: list[dict[str, object]], topics: set[str] | None
) -> None:
    """So that a topic that no pattern matches any more is UNSUBSCRIBED."""
    small_tables.lay(config, "group_states", {"state": "Stable", "started_at": small_tables.at(0)} | OPEN)
    small_tables.lay(config, "generations", generation((["orders"], None), ([], "^pay")))
    for table in ("group_metadata", "history_positions"):
        small_tables.lay(config, table)
    small_tables.lay(config, "group_records", *records)
    group = read(config).by_id["billing"]
    assert group.topics == topics
    assert group.ignores("invoices") is (topics is not None)
    assert not group.ignores("orders")


def test_groups_of_which_one_pattern_is_not_resolved_ignore_no_topic(config: Config) -> None:
    """The other one's topics are not all that the group subscribes to."""
    small_tables.lay(config, "group_states", {"state": "Stable", "started_at": small_tables.at(0)} | OPEN)
    small_tables.lay(config, "generations", generation(([], "^inv"), ([], "^pay")))
    for table in ("group_metadata", "history_positions"):
        small_tables.lay(config, table)
    small_tables.lay(config, "group_records", resolved("^pay", "payments"))
    assert read(config).by_id["billing"].topics is None


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


def lay_empty_group(config: Config, *, processed_to: int) -> None:
    """Write that members a and b of billing were gone at 12:05; a had left by itself, c had left earlier."""
    gone = {"left_at": small_tables.at(5), "ended": "left_or_expired", "joined_at": small_tables.at(-9)}
    small_tables.lay(
        config, "group_states", {"state": "Empty", "started_at": small_tables.at(5), "record_offset": 50} | OPEN
    )
    small_tables.lay(
        config,
        "memberships",
        gone | {"member_id": "a", "ended": "left"},
        gone | {"member_id": "b"},
        gone | {"member_id": "c", "left_at": small_tables.at(1)},
    )
    owned = {"topic": "orders", "owned_until": small_tables.at(5)}
    small_tables.lay(
        config,
        "partition_ownership",
        owned | {"partition": 0, "member_id": "a"},
        owned | {"partition": 1, "member_id": "b"},
        owned | {"partition": 1, "member_id": "c", "owned_until": small_tables.at(1)},
        owned | {"partition": -1, "member_id": "b"},
    )
    small_tables.lay(config, "group_records")
    small_tables.lay(config, "history_positions", {"processed_to": processed_to})
    timeouts = {"session_timeout_ms": 45_000, "rebalance_timeout_ms": 300_000}
    members = [{"member_id": name} | timeouts for name in "ab"]
    joined = {"leader": "a", "members": members, "state_at": small_tables.at(3), "record_at": small_tables.at(4)}
    small_tables.lay(
        config,
        "group_metadata",
        joined | {"record_offset": 40},
        joined | {"record_offset": 30, "state_at": small_tables.at(2)},
        joined | {"record_offset": 60, "state_at": small_tables.at(6)},
        {"record_offset": 50, "leader": None, "members": []},
    )


def last_owners(config: Config) -> list[dict[str, object]]:
    return sorted(read(config).last_owners.to_pylist(), key=lambda row: row["partition"])


def test_groups_last_owners_have_the_timeouts_of_their_last_generation(config: Config) -> None:
    """Earlier owners, earlier generations and one that came back since do not count."""
    lay_empty_group(config, processed_to=51)
    times = {"joined_at": small_tables.at(-9), "session_ms": 45_000, "poll_ms": 300_000}
    owned = {"group_id": "billing", "topic": "orders"}
    assert last_owners(config) == [
        owned | {"partition": 0, "member_id": "a", "has_left": True} | times,
        owned | {"partition": 1, "member_id": "b", "has_left": False} | times,
    ]


@pytest.mark.parametrize(
    ("ended", "without_log", "endings", "has_left", "has_timeouts"),
    [
        pytest.param("left", None, {"left"}, True, True, id="by-records"),
        pytest.param("left", "left_or_expired", {"left_or_expired"}, False, True, id="by-the-log-alone"),
        pytest.param("left", "expired_or_removed", {"expired_or_removed"}, False, False, id="static-by-the-log"),
        pytest.param("removed", "expired_or_removed", {"expired_or_removed"}, False, False, id="static-removed"),
        pytest.param("removed", "left", {"left"}, True, True, id="removed-of-those-that-left"),
        pytest.param("removed", "left_or_expired", {"left_or_expired"}, False, True, id="removed-by-the-log-alone"),
        pytest.param("left_or_poll_timeout", "left_or_expired", {"left_or_expired"}, False, True, id="no-reason"),
        pytest.param("rebalance_timeout", "left_or_expired", {"rebalance_timeout"}, False, False, id="missed"),
        pytest.param("poll_timeout", "left_or_expired", {"poll_timeout"}, False, False, id="stalled-by-the-log"),
        pytest.param("expired", "left_or_expired", {"expired"}, False, False, id="expired-by-the-log"),
        pytest.param("left_or_expired", "left", {"left_or_expired"}, False, False, id="the-log-says-expired"),
        pytest.param("left_or_expired", "expired", {"left_or_expired"}, False, False, id="the-log-says-left"),
    ],
)
def test_groups_leave_that_only_the_brokers_log_shows_is_no_evidence(
    config: Config,
    ended: str,
    without_log: str | None,
    endings: set[str],
    *,
    has_left: bool,
    has_timeouts: bool,
) -> None:
    """A client may have written it: no alert fires for a group that has left. What speaks against a leave counts."""
    lay_empty_group(config, processed_to=51)
    table = DeltaTable(warehouse_of(config).table("memberships").path)
    rows = [{**row, "ended": ended, "ended_without_log": without_log} for row in table.to_pyarrow_table().to_pylist()]
    warehouse_of(config).table("memberships").replace(pa.Table.from_pylist(rows, table_schema("memberships")))
    assert read(config).by_id["billing"].endings == endings
    owners = last_owners(config)
    assert {row["has_left"] for row in owners} == {has_left}
    assert {row["session_ms"] is not None for row in owners} == {has_timeouts}


def test_groups_of_memberships_that_an_earlier_version_wrote_are_read(config: Config) -> None:
    """The lag job may run before the history job has added the column."""
    lay_empty_group(config, processed_to=51)
    expected = last_owners(config)
    stored = warehouse_of(config).table("memberships")
    rows = DeltaTable(stored.path).to_pyarrow_table().drop(list(KEPT_ENDING.values()))
    shutil.rmtree(stored.path)
    write_deltalake(stored.path, rows, partition_by=list(stored.contract.partition_by))
    assert last_owners(config) == expected


def test_groups_last_owners_that_are_static_have_no_timeouts(config: Config) -> None:
    """They do not leave when they close: one that is gone early was removed, perhaps because it had died."""
    lay_empty_group(config, processed_to=51)
    DeltaTable(warehouse_of(config).table("memberships").path).update({"ended": "'expired_or_removed'"})
    assert {(row["session_ms"], row["poll_ms"]) for row in last_owners(config)} == {(None, None)}


def test_groups_last_owners_without_the_decoded_tables_have_no_timeouts(config: Config) -> None:
    """The lag job may start before the decode job has created its tables."""
    small_tables.lay(config, "group_states", {"state": "Empty", "started_at": small_tables.at(5)} | OPEN)
    small_tables.lay(config, "memberships", {"member_id": "a", "left_at": small_tables.at(5), "ended": "left"})
    owned = {"topic": "orders", "partition": 0, "member_id": "a", "owned_until": small_tables.at(5)}
    small_tables.lay(config, "partition_ownership", owned)
    [row] = last_owners(config)
    assert (row["member_id"], row["has_left"], row["session_ms"]) == ("a", True, None)


@pytest.mark.parametrize(("processed_to", "is_asked_again"), [(51, False), (50, True)])
def test_groups_that_stay_empty_are_asked_for_until_the_history_has_written_all(
    config: Config, processed_to: int, *, is_asked_again: bool
) -> None:
    """The history writes its tables at once, and how far it has come afterwards."""
    lay_empty_group(config, processed_to=processed_to)
    groups = read(config)
    late = {"topic": "orders", "partition": 2, "member_id": "b", "owned_until": small_tables.at(5)}
    small_tables.lay(config, "partition_ownership", late)
    groups.refresh()
    assert set(groups.last_owners["partition"].to_pylist()) == ({0, 1, 2} if is_asked_again else {0, 1})
    assert groups.by_id["billing"].endings == {"left", "left_or_expired"}


def test_groups_that_are_no_longer_empty_have_no_last_owners(config: Config) -> None:
    lay_empty_group(config, processed_to=51)
    groups = read(config)
    DeltaTable(warehouse_of(config).table("group_states").path).delete()
    small_tables.lay(config, "group_states", {"state": "Stable", "started_at": small_tables.at(7)} | OPEN)
    groups.refresh()
    assert (len(groups.last_owners), groups.by_id["billing"].endings) == (0, frozenset())


def test_groups_know_the_pauses_of_this_group_but_not_those_of_a_deleted_one(config: Config) -> None:
    """Of many only the last ones count; the open state is no pause yet."""
    states = [
        {"state": "Empty", "started_at": small_tables.at(-90), "ended_at": small_tables.at(-60)},
        *(
            {"state": "Empty", "started_at": small_tables.at(n), "ended_at": small_tables.at(n + 1)}
            for n in range(12)
        ),
        {"state": "Stable", "started_at": small_tables.at(-60), "ended_at": small_tables.at(0)},
        {"state": "Empty", "started_at": small_tables.at(99)} | OPEN,
    ]
    earlier = {
        "state": "Empty",
        "started_at": small_tables.at(-999),
        "ended_at": small_tables.at(-100),
        "incarnation": 1,
    }
    small_tables.lay(config, "group_states", earlier, *({"incarnation": 2, **state} for state in states))
    group = read(config).by_id["billing"]
    assert (group.pauses, group.longest_pause_seconds, group.known_since) == (10, 60, small_tables.at(-90))
    assert group.habitual_pause_seconds == 60


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

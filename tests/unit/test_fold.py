"""A group's story: what each kind of record makes of the history tables, and that the cuts do not show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.history.group import Partition, partitions
from grouptrail.history.operations import Record
from support.group_records import Row, Rows, classic, fold, gone, member, real_logs, worker

REAL_LOGS = real_logs()
INTERVALS = (
    ("generations", "started_at", "ended_at"),
    ("group_states", "started_at", "ended_at"),
    ("memberships", "joined_at", "left_at"),
    ("partition_ownership", "owned_from", "owned_until"),
)


def test_fold_classic_group_member_joins_fills_every_history_table() -> None:
    """A second member joins: generations, states, members, ownership and the rebalance."""
    rows = fold(
        [
            classic(10, 1_000, 0, {}),
            classic(11, 5_000, 1, {"a": {"orders": [0, 1]}}, state_at=4_900),
            classic(12, 9_000, 2, {"a": {"orders": [0]}, "b": {"orders": [1]}}, state_at=8_000),
        ]
    )
    first, second, third = rows["generations"]
    assert [row["generation"] for row in (first, second, third)] == [0, 1, 2]
    assert (second["started_at"], second["ended_at"], second["skipped"], second["skew"]) == (5_000, 9_000, 0, 0)
    assert (third["is_open"], third["ended_at"], third["partition_count"], third["leader"]) == (True, None, 2, "a")
    states = [(row["state"], row["evidence"], row["started_at"], row["ended_at"]) for row in rows["group_states"]]
    assert sorted(states, key=lambda state: (state[2], state[3] or 99_999)) == [
        ("Empty", "recorded", 1_000, 4_900),
        ("PreparingRebalance", "inferred", 4_900, 4_900),
        ("CompletingRebalance", "recorded", 4_900, 5_000),
        ("Stable", "recorded", 5_000, 8_000),
        ("PreparingRebalance", "inferred", 8_000, 8_000),
        ("CompletingRebalance", "recorded", 8_000, 9_000),
        ("Stable", "recorded", 9_000, None),
    ]
    owned = {
        (row["partition"], row["member_id"]): (row["owned_from"], row["owned_until"])
        for row in rows["partition_ownership"]
    }
    assert owned == {(0, "a"): (5_000, None), (1, "a"): (5_000, 8_000), (1, "b"): (9_000, None)}
    start, joined = rows["rebalances"]
    assert (start["cause"], start["partitions_added"]) == ("group_started", 2)
    assert (joined["cause"], joined["members_joined"], joined["duration_ms"]) == ("member_joined", ["b"], 1_000)
    assert (joined["partitions_moved"], joined["partitions_kept"], joined["partitions_added"]) == (1, 1, 0)
    assert joined["seconds_since_previous"] == 4.0
    assert start["followed_within_minute"] == 1
    [handed] = joined["handed_over"]
    assert (handed["from_member"], handed["to_member"], handed["given_up_at"]) == ("a", "b", 8_000)


@pytest.mark.parametrize(
    ("state_at", "more", "ended", "cause"),
    [
        (9_000, {}, "left", "member_left"),
        (90_000, {}, "left_or_expired", "member_left_or_expired"),
        (9_000, {"group_instance_id": "static-1"}, "expired_or_removed", "static_member_expired_or_removed"),
    ],
)
def test_fold_departed_member_ending_depends_on_timeout_and_instance_id(
    state_at: int, more: dict[str, str], ended: str, cause: str
) -> None:
    """The session timeout proves the ending, under one coordinator."""
    log = [
        classic(1, 1_000, 3, {"a": {"orders": [0]}, "b": member({"orders": [1]}, **more)}),
        classic(2, state_at + 5, 4, {"a": {"orders": [0, 1]}}, state_at=state_at),
    ]
    rows = fold(record._replace(leader_epoch=3) for record in log)
    [left] = [row for row in rows["memberships"] if row["member_id"] == "b"]
    assert (left["ended"], left["left_at"], left["began"]) == (ended, state_at, "there")
    assert rows["rebalances"][-1]["cause"] == cause


def test_fold_static_member_restart_is_not_a_rebalance() -> None:
    """The same generation, a new member id under the same instance id."""
    rows = fold(
        [
            classic(1, 1_000, 1, {"s-1": member({"orders": [0]}, group_instance_id="s")}),
            classic(2, 2_000, 1, {"s-2": member({"orders": [0]}, group_instance_id="s")}),
        ]
    )
    assert len(rows["generations"]) == len(rows["rebalances"]) == 1
    assert [row["ended"] for row in rows["memberships"]] == ["replaced", None]
    assert rows["generations"][0]["members"][0]["member_id"] == "s-2"
    assert rows["rebalances"][0]["handed_over"] == []


def test_fold_skipped_generations_are_counted() -> None:
    """From generation 1 to 4, two have no record."""
    rows = fold([classic(1, 1_000, 1, {"a": {}}), classic(2, 2_000, 4, {"a": {}, "b": {}})])
    assert [row["skipped"] for row in rows["generations"]] == [0, 2]
    assert rows["rebalances"][-1]["skipped"] == 2


def test_fold_first_record_mid_life_has_unknown_cause() -> None:
    """A first record in the middle of a group's life."""
    rows = fold([classic(1, 1_000, 17, {"a": {"orders": [0]}})])
    [generation], [rebalance], [state] = rows["generations"], rows["rebalances"], rows["group_states"]
    assert (generation["skipped"], rebalance["cause"], rebalance["certainty"]) == (None, "unknown", "ambiguous")
    assert "history begins here" in state["note"]


def test_fold_recreated_group_starts_a_new_incarnation() -> None:
    """The same name, another incarnation; nothing stays open from the first."""
    day = 86_400_000
    rows = fold(
        [
            classic(1, 1_000, 1, {"a": {"orders": [0]}}),
            classic(2, 2_000, 2, {}),
            Record(3, 8 * day, "OffsetCommit", None, None),
            gone(4, 8 * day),
            classic(9, 9 * day, 0, {}),
            classic(10, 9 * day + 5, 1, {"b": {"orders": [0]}}),
        ]
    )
    dead = [row for row in rows["group_states"] if row["state"] == "Dead"]
    assert [row["note"].split(":")[0] for row in dead] == ["expired"]
    assert [row["incarnation"] for row in rows["generations"]] == [1, 1, 2, 2]
    assert [row["cause"] for row in rows["rebalances"]] == ["group_started", "group_emptied", "group_started"]


def test_fold_group_removed_twice_had_an_incarnation_of_commits_alone() -> None:
    """An administrator's commit creates a group without GroupMetadata; its removal writes a tombstone all the
    same."""
    log = [classic(1, 1_000, 1, {"a": {"orders": [0]}}), classic(2, 2_000, 2, {}), gone(3, 9_000), gone(7, 50_000)]
    rows = fold([*log, classic(9, 90_000, 1, {"b": {"orders": [0]}})])
    assert [row["incarnation"] for row in rows["generations"]] == [1, 1, 3]
    assert [row["incarnation"] for row in rows["group_states"] if row["state"] == "Dead"] == [1, 2]


CONNECT = {"protocol_type": "connect", "protocol": "sessioned"}


def owned(generation: Row) -> dict[str, frozenset[Partition]]:
    """Return what each member of a generation owns."""
    return {
        member["member_id"]: partitions((part["topic"], part["partitions"]) for part in member["partitions"])
        for member in generation["members"]
    }


@pytest.mark.parametrize(
    ("started", "cause", "note"),
    [
        ({"sink": [0], "source": [-1]}, "cooperative_follow_up", "assigns partitions that members gave up before"),
        ({"sink": [0], "source": [-1], "late": [0]}, "partitions_added", "of late"),
    ],
)
def test_fold_connect_tasks_reassigned_after_the_delay_count_as_moved(
    started: dict[str, list[int]], cause: str, note: str
) -> None:
    """Also if a connector was created in between."""
    log = [
        classic(1, 1_000, 1, {"a": worker({"sink": [-1]}), "b": worker({"sink": [0], "source": [-1]})}, **CONNECT),
        classic(2, 9_000, 2, {"a": worker({}, had={"sink": [-1]}, delay_ms=3_000)}, **CONNECT),
        classic(3, 10_000, 3, {"a": worker({"late": [-1]}, had={"sink": [-1]}, delay_ms=2_000)}, **CONNECT),
        classic(4, 12_000, 4, {"a": worker(started, had={"sink": [-1], "late": [-1]})}, **CONNECT),
    ]
    log = [record._replace(leader_epoch=3) for record in log]
    rows = fold(log)
    *_, left, made, given = rows["rebalances"]
    assert (left["cause"], left["partitions_removed"]) == ("member_left", 2)
    assert (made["cause"], made["cause_note"].split(":")[0]) == ("topic_created", "late")
    assert (given["cause"], given["cause_note"].split(",")[0]) == (cause, note)
    assert (given["partitions_moved"], given["unowned_partition_ms"]) == (2, 2 * 3_000)
    assert fold(log, cuts=range(len(log))) == rows


def test_fold_connect_first_connector_cause_is_topic_created() -> None:
    """A consumer group's leader may not have known the topics; a Connect leader always knows its connectors."""
    log = [
        classic(1, 1_000, 1, {"a": worker({})}, **CONNECT),
        classic(2, 2_000, 2, {"a": worker({"sink": [-1]})}, **CONNECT),
    ]
    assert fold(log)["rebalances"][-1]["cause"] == "topic_created"


def test_fold_rejoined_connect_worker_owns_only_its_new_assignment() -> None:
    """A worker that lost its coordinator stops all its tasks and rejoins with its old member id."""
    log = [
        classic(1, 1_000, 1, {"a": worker({"sink": [-1], "source": [-1]}), "b": worker({"sink": [0]})}, **CONNECT),
        classic(2, 9_000, 2, {"a": worker({"sink": [0]}), "b": worker({"sink": [-1], "source": [-1]})}, **CONNECT),
    ]
    first, second = map(owned, fold(log)["generations"])
    assert first == {"a": {("sink", -1), ("source", -1)}, "b": {("sink", 0)}}
    assert second == {"a": {("sink", 0)}, "b": {("sink", -1), ("source", -1)}}


def test_fold_connect_worker_with_unreadable_metadata_keeps_previous_tasks() -> None:
    unreadable = worker({"late": [-1]}) | {"subscription": {"error": {"kind": "truncated"}}}
    log = [
        classic(1, 1_000, 1, {"a": worker({"sink": [-1, 0]})}, **CONNECT),
        classic(2, 2_000, 2, {"a": unreadable}, **CONNECT),
    ]
    *_, last = fold(log)["generations"]
    assert owned(last) == {"a": {("sink", -1), ("sink", 0), ("late", -1)}}


@pytest.mark.parametrize(("name", "records"), REAL_LOGS, ids=[name for name, _ in REAL_LOGS])
def test_fold_real_log_does_not_depend_on_batch_boundaries(name: str, records: list[Record]) -> None:
    """Fold record by record, in halves, and at once."""
    whole = fold(records)
    assert fold(records, cuts=range(len(records))) == whole
    assert fold(records, cuts=[len(records) // 2]) == whole
    assert_consistent(whole)


@given(st.data())
def test_fold_generated_log_does_not_depend_on_batch_boundaries(data: st.DataObject) -> None:
    """Random histories of a classic group, cut at random."""
    records = data.draw(classic_logs())
    cuts = data.draw(st.lists(st.integers(0, len(records))))
    whole = fold(records)
    assert fold(records, cuts=cuts) == whole
    assert_consistent(whole)


@st.composite
def classic_logs(draw: st.DrawFn) -> list[Record]:
    """Values and tombstones in any order that a compacted log allows; times may go backwards."""
    steps = draw(
        st.lists(
            st.tuples(
                st.integers(1, 3),
                st.integers(-5_000, 70_000),
                st.sampled_from(["value", "value", "value", "tombstone", "same", "commit"]),
                st.integers(1, 4),
                st.lists(st.tuples(st.sampled_from("abcd"), st.sets(st.integers(0, 5), max_size=3)), max_size=4),
                st.sampled_from(["range", "cooperative-sticky", "sticky"]),
                st.booleans(),
            ),
            min_size=1,
            max_size=12,
        )
    )
    offset, at, generation, records = 0, 1_000_000, 0, []
    for step, later, what, jump, members, protocol, is_static in steps:
        offset, at = offset + step, at if what == "same" and step == 1 else at + later
        if what == "tombstone":
            generation = draw(st.sampled_from([0, generation]))
            records.append(gone(offset, at))
        elif what == "commit":
            records.append(Record(offset, at, "OffsetCommit", None, None))
        else:
            generation += jump if what == "value" else 0
            owned: dict[str, list[int]] = {}
            taken: set[int] = set()
            for name, numbers in members:
                owned[name] = sorted(numbers - taken)
                taken |= numbers
            records.append(
                classic(
                    offset,
                    at,
                    generation,
                    {
                        name: member({"orders": numbers}, **({"group_instance_id": name[0]} if is_static else {}))
                        for name, numbers in owned.items()
                    },
                    state_at=at - later // 2,
                    protocol=protocol,
                )
            )
    return records


def assert_consistent(rows: Rows) -> None:
    """Assert what every history must satisfy: at most one open row of each kind, and no partition owned twice."""
    for table, began, ended in INTERVALS:
        assert all(row[ended] is None or row[began] <= row[ended] for row in rows[table])
    for table in ("generations", "group_states"):
        assert sum(row["is_open"] for row in rows[table]) <= 1
    owners = [
        (row["topic"], row["partition"])
        for row in rows["partition_ownership"]
        if row["is_open"] and row["ended"] is None
    ]
    kinds = {row["group_kind"] for row in rows["generations"]}
    assert "share" in kinds or len(owners) == len(set(owners))
    members = [row["member_id"] for row in rows["memberships"] if row["is_open"]]
    assert len(members) == len(set(members))
    if rows["group_states"] and not kinds:
        return
    [generation] = [row for row in rows["generations"] if row["is_open"]] or [None]
    if generation is not None and generation["members"] is not None:
        assert sorted(members) == [one["member_id"] for one in generation["members"]]

"""Polled groups as records: only changes, in Kafka's own format, and reports of problems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import DescribeGroupsResponse

from grouptrail.config import Config
from grouptrail.config.model import AdminConfig
from grouptrail.decode.rows import decode_row
from grouptrail.jobs import POLL
from grouptrail.kafka import groups
from grouptrail.kafka.errors import KafkaDeniedError, KafkaUnreachableError
from grouptrail.kafka.group import Committed, PolledGroup
from grouptrail.kafka.groups import Brokers, GroupCoordinators, Throttle
from grouptrail.polling import job
from grouptrail.polling.changes import PolledChange, StoredGroup, apply_changes, changes, removal
from grouptrail.polling.poller import Poller
from grouptrail.wire.records import encode_key, encode_value
from support.contexts import context
from support.group_records import classic, fold, gone
from support.polled_groups import AT_5, classic_group, consumer_group, member


def rows(changed: Sequence[PolledChange]) -> list[tuple[str, dict[str, Any]]]:
    """Return records as rows of the decoder."""
    return [decode_row(encode_key(change.key), encode_value(change.key, change.value)) for change in changed]


def polled(*polls: PolledGroup) -> tuple[StoredGroup, list[PolledChange]]:
    """Return the state after some polls, and the changes of the last one."""
    known, changed = StoredGroup(), list[PolledChange]()
    for seen in polls:
        changed = changes("billing", known, seen)
        apply_changes(known, changed)
    return known, changed


# --- what has changed --------------------------------------------------------------------------------------------


def test_changes_offset_moved_or_deleted_gives_commit_or_tombstone() -> None:
    """As rows of offset_commits without a commit time, which polling cannot observe."""
    known = StoredGroup()
    changed = changes("billing", known, classic_group("Empty", commits={("orders", 0): Committed(5, 2, "here")}))
    (_, group), (table, row) = rows(changed)
    assert group["members"] == []
    assert (table, row["group_id"], row["topic"], row["partition"]) == ("offset_commits", "billing", "orders", 0)
    assert (row["committed_offset"], row["leader_epoch"], row["metadata"], row["commit_at"]) == (5, 2, "here", None)
    apply_changes(known, changed)
    [(_, row)] = rows(changes("billing", known, classic_group("Empty", commits={("orders", 0): Committed(6, 2, "")})))
    assert row["committed_offset"] == 6
    [(_, row)] = rows(changes("billing", known, classic_group("Empty", commits={})))
    assert row["is_tombstone"]


@pytest.mark.parametrize(
    "seen",
    [
        classic_group("Stable", member("a", 0), member("b", 1), commits=AT_5),
        classic_group("Empty", commits=AT_5),
        consumer_group(3, {"a": [0, 1], "b": [2]}),
        consumer_group(3, {"a": [0]}, target=[0, 1]),
    ],
    ids=["classic", "empty", "consumer", "reconciling"],
)
def test_changes_same_poll_twice_gives_nothing(seen: PolledGroup) -> None:
    assert polled(seen)[1]
    assert polled(seen, seen)[1] == []


def test_changes_classic_group_new_members_give_the_next_generation() -> None:
    """Members and assignments are the same as if they had been read; the leader and timeouts are unknown."""
    _, changed = polled(
        classic_group("Stable", member("a", 0, 1)), classic_group("Stable", member("b", 1), member("a", 0))
    )
    [(table, row)] = rows(changed)
    assert (table, row["generation"], row["protocol"], row["leader"]) == ("group_metadata", 2, "range", None)
    assert [one["member_id"] for one in row["members"]] == ["a", "b"]
    assert row["members"][1]["assignment"]["partitions"] == [{"topic": "orders", "partitions": [1]}]
    assert row["verbatim_value"] is None


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance", "Dead"])
def test_changes_classic_group_without_described_assignment_gives_nothing(state: str) -> None:
    """Data that a poll did not return is kept: a missing answer makes no tombstones."""
    steady = classic_group("Stable", member("a", 0), commits=AT_5)
    assert polled(steady, classic_group(state, commits=AT_5))[1] == []
    assert polled(steady, PolledGroup("billing", "classic", "consumer", "Stable", None, None, "denied"))[1] == []


def test_changes_group_with_only_commits_gives_no_group_record() -> None:
    seen = PolledGroup("billing", "classic", "", "Empty", {"group_state": "Empty", "members": []}, AT_5)
    assert [table for table, _ in rows(polled(seen)[1])] == ["offset_commits"]


def test_changes_consumer_group_gives_epochs_assignments_and_member_tombstones() -> None:
    """A member that has left gets tombstones of its records."""
    known, changed = polled(consumer_group(3, {"a": [0, 1], "b": [2]}))
    parts = [(row["record_type"], row["member_id"], row["epoch"]) for _, row in rows(changed)]
    assert parts[2] == ("ConsumerGroupMetadata", None, 3)
    assert parts.count(("ConsumerGroupCurrentMemberAssignment", "b", 3)) == 1
    changed = changes("billing", known, consumer_group(4, {"a": [0, 1, 2]}))
    tombstones = [(change.key.type, change.key.data["memberId"]) for change in changed if change.value is None]
    assert tombstones == [(8, "b"), (7, "b"), (5, "b")]
    assert {change.key.type for change in changed if change.value is not None} == {3, 6, 7, 8}


def test_removal_gives_a_tombstone_for_each_record() -> None:
    known, _ = polled(classic_group("Stable", member("a", 0), commits=AT_5))
    removed = removal("billing", known)
    assert [(change.key.type, change.value) for change in removed] == [(1, None), (2, None)]
    apply_changes(known, removed)
    assert known == StoredGroup()


# --- the history of polled groups --------------------------------------------------------------------------------


def test_fold_polled_records_leaves_cause_and_skipped_generations_uncertain() -> None:
    """Unknown: skipped generations, the group's beginning, certain causes, exact times, and why a group
    disappeared."""
    at = {"is_polled": True}
    records = [
        classic(10, 1_000, 1, {"a": {"orders": [0, 1]}}, state_at=None)._replace(**at),
        classic(11, 5_000, 2, {"a": {"orders": [0]}, "b": {"orders": [1]}})._replace(**at, not_before=2_000),
        gone(12, 9_000)._replace(**at, not_before=6_000),
    ]
    for record in records[:2]:
        assert record.body is not None
        record.body["state_at"] = None
    folded = fold(records)
    assert [row["skipped"] for row in folded["generations"]] == [None, None]
    first, second = folded["rebalances"]
    assert (first["cause"], first["certainty"]) == ("unknown", "ambiguous")
    assert (second["cause"], second["certainty"]) == ("member_joined", "likely")
    assert "polled: all changes since the previous poll" in second["cause_note"]
    states = {row["state"]: row for row in folded["group_states"] if row["evidence"] == "polled"}
    assert (states["Dead"]["not_before"], states["Dead"]["started_at"]) == (6_000, 9_000)
    assert states["Dead"]["note"] == "polled: deleted or expired since the previous poll"
    assert [row["began"] for row in folded["memberships"]] == ["there", "joined"]


# --- requests ----------------------------------------------------------------------------------------------------


def test_throttle_spreads_requests_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that advances only while the throttle sleeps."""
    now, waits = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        waits.append(round(seconds, 3))
        now[0] += seconds

    monkeypatch.setattr(groups, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    throttle = Throttle(4)
    for _ in range(3):
        throttle.wait()
    now[0] += 60
    throttle.wait()
    throttle.wait()
    assert waits == [0, 0.25, 0.25, 0, 0.25]


def test_classic_group_description_keeps_member_metadata_bytes() -> None:
    """kafka-python would decode them as text."""
    group = DescribeGroupsResponse.DescribedGroup
    one = group.DescribedGroupMember(member_id="a", client_id="c", client_host="/1", member_metadata=b"\0\1\xff")
    answer = DescribeGroupsResponse(groups=[group(group_id="billing", group_state="Stable", members=[one])])
    [description] = DescribeGroupsResponse.decode(answer.encode(version=0), version=0).groups
    [described] = groups._classic(description)["members"]
    assert (described["member_metadata"], described["member_assignment"]) == (b"\0\1\xff", b"")
    assert described["group_instance_id"] is None


class FakeBroker:
    """Return its groups, or raise."""

    def __init__(self, node: int, answer: list[PolledGroup] | Exception) -> None:
        self.node = node
        self._answer = answer

    def listed(self) -> list[PolledGroup]:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def describe(self, groups: list[PolledGroup]) -> None:
        """Do nothing: the groups are already described."""

    def close(self) -> None:
        """Do nothing: no connection is open."""


def test_poll_unreachable_broker_is_reported_and_its_groups_are_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is gone if its coordinator listed its groups without it."""
    poller = Poller(AdminConfig(deny_groups=("tmp-*",)), {"bootstrap.servers": "nowhere:9092"})
    nodes = {
        1: FakeBroker(1, [classic_group("Stable"), PolledGroup("tmp-1", "classic", "", "Empty")]),
        2: FakeBroker(2, KafkaUnreachableError("no Kafka broker answers at b:9092")),
    }
    coordinates = {"gone": 1, "out-of-sight": 2, "tmp-2": 1}

    def coordinator(group_id: str) -> int:
        if group_id not in coordinates:
            raise KafkaDeniedError("denied")
        return coordinates[group_id]

    monkeypatch.setattr(poller, "_brokers", SimpleNamespace(groups=lambda node, _server: nodes[node]))
    monkeypatch.setattr(
        poller,
        "_coordinators",
        SimpleNamespace(nodes=lambda: {1: "a", 2: "b"}, coordinator=coordinator, close=lambda: None),
    )
    poll = poller.poll()
    assert list(poll.groups) == ["billing"]
    assert poll.listed == {1}
    assert poll.problems == ["broker 2: no Kafka broker answers at b:9092"]
    gone_ones = [name for name in ("gone", "out-of-sight", "hidden", "tmp-2") if poller.is_gone(name, poll)]
    assert gone_ones == ["gone"]


@pytest.mark.parametrize("refused", ["all brokers", "one of them"])
def test_check_refused_login_is_no_unreachable_broker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: str
) -> None:
    """The run ends with it, and does not wait for a broker that answers."""
    denied = KafkaDeniedError("a:9092 refuses this user or password")

    def nodes(_coordinators: GroupCoordinators) -> dict[int, str]:
        if refused == "all brokers":
            raise denied
        return {1: "a", 2: "b"}

    asked = {1: FakeBroker(1, denied), 2: FakeBroker(2, KafkaUnreachableError("no Kafka broker answers at b:9092"))}
    monkeypatch.setattr(GroupCoordinators, "nodes", nodes)
    monkeypatch.setattr(Brokers, "groups", lambda _brokers, node, _server: asked[node])
    with pytest.raises(KafkaDeniedError, match="refuses this user"):
        job.check(context(POLL, Config(warehouse=str(tmp_path), source="admin")))

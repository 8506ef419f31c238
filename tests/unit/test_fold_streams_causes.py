"""Causes of the epochs of a streams group: each by what GMM.streamsGroupHeartbeat writes for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from grouptrail.history.operations import Record
from support.fold_records import at_once, last, streams
from support.group_records import Row, fold
from support.streams_records import assignment_epoch, current_tasks, group_epoch, target_tasks, thread, thread_leaves

ONE_STANDBY = [{"key": "num.standby.replicas", "value": "1"}]
NO_STANDBY = [{"key": "num.standby.replicas", "value": "0"}]
TASKS = {"0": [0, 1]}


def started(**more: Any) -> list[Record]:
    """Return the records of a group with one member, without a valid topology unless `more` of its epoch says so."""
    return at_once(
        [
            thread(0, 1_000, "a"),
            streams(1, 1_000, "Topology", None, {"epoch": 0, "subtopologies": []}),
            _epoch(2, 1_000, 2, **{"validatedTopologyEpoch": -1, **more}),
            current_tasks(3, 1_000, "a", 1, previous=0),
        ]
    )


def running() -> list[Record]:
    """Return the records of a group with one member, which has two tasks."""
    assigned = [target_tasks(4, 1_000, "a", active=TASKS), assignment_epoch(5, 1_000, 2)]
    return started(validatedTopologyEpoch=0) + at_once([*assigned, current_tasks(6, 1_000, "a", 2, active=TASKS)])


def _epoch(offset: int, at: int, number: int, **more: Any) -> Record:
    return group_epoch(offset, at, number, **{"lastAssignmentConfigs": ONE_STANDBY, **more})


def cause(records: Sequence[Record]) -> tuple[str, str, str | None]:
    row = last(fold(records))
    return row["cause"], row["certainty"], row["cause_note"]


@pytest.mark.parametrize("metadata_hash", [5, 6])
def test_cause_of_a_topology_that_becomes_valid_is_recorded_whether_or_not_its_topics_changed(
    metadata_hash: int,
) -> None:
    """As a real broker of 4.4 writes it once it has created the internal topics, with another hash."""
    valid = _epoch(10, 2_000, 3, validatedTopologyEpoch=0, metadataHash=metadata_hash)
    assigned = [target_tasks(11, 2_000, "a", active=TASKS), assignment_epoch(12, 2_000, 3)]
    rows = fold([*started(), *at_once([valid, *assigned, current_tasks(13, 2_000, "a", 3, active=TASKS)])])
    assert (last(rows)["cause"], last(rows)["certainty"], last(rows)["cause_note"]) == (
        "topology_validated",
        "recorded",
        "topology epoch 0",
    )
    assert [row["state"] for row in rows["group_states"]] == ["NotReady", "Stable"]


def test_cause_of_a_topology_whose_topics_are_gone_is_recorded() -> None:
    gone = at_once([_epoch(10, 2_000, 3, validatedTopologyEpoch=-1, metadataHash=0)])
    none = at_once([target_tasks(11, 2_100, "a"), assignment_epoch(12, 2_100, 3), current_tasks(13, 2_100, "a", 3)])
    assert cause([*running(), *gone]) == ("topology_invalid", "recorded", "topology epoch 0")
    assert fold([*running(), *gone, *none])["group_states"][-1]["state"] == "NotReady"


def test_cause_of_other_settings_names_them() -> None:
    changed = _epoch(10, 2_000, 3, lastAssignmentConfigs=NO_STANDBY)
    assert cause([*running(), *at_once([changed])]) == (
        "assignor_settings_changed",
        "recorded",
        "num.standby.replicas from 1 to 0",
    )


def test_cause_of_a_members_own_change_with_other_settings_names_both() -> None:
    changed = [thread(10, 2_000, "a", rackId="r2"), _epoch(11, 2_000, 3, lastAssignmentConfigs=NO_STANDBY)]
    assert cause([*running(), *at_once(changed)]) == (
        "assignor_settings_changed",
        "recorded",
        "num.standby.replicas from 1 to 0; of a",
    )


@pytest.mark.parametrize(
    ("has", "found"),
    [
        ({"0": [0, 1, 2]}, "partitions_added likely"),
        (TASKS, "topic_metadata_changed ambiguous"),
        ({"0": [0]}, "topic_metadata_changed ambiguous"),
    ],
)
def test_cause_of_other_topics_follows_from_the_targets(has: dict[str, list[int]], found: str) -> None:
    """A topic that a pattern matches can give tasks, too: more tasks are not only more partitions."""
    changed = [_epoch(10, 2_000, 3, metadataHash=6), target_tasks(11, 2_000, "a", active=has)]
    changed += [assignment_epoch(12, 2_000, 3), current_tasks(13, 2_000, "a", 3, active=has)]
    name, certainty, note = cause([*running(), *at_once(changed)])
    assert f"{name} {certainty}" == found
    assert "task" in (note or "")


def test_cause_of_an_epoch_in_which_nothing_differs_needs_warmups_to_be_that_one_caught_up() -> None:
    """Settings of warm-up tasks are in no record."""
    without = cause([*running(), *at_once([_epoch(10, 2_000, 3)])])
    assert without[:2] == ("topology_or_settings_changed", "likely")
    warming = at_once([current_tasks(7, 1_500, "a", 2, active=TASKS, warmup={"1": [0]})])
    name, certainty, note = cause([*running(), *warming, *at_once([_epoch(10, 2_000, 3)])])
    assert (name, certainty) == ("tasks_warmed_up", "likely")
    assert "acceptable.recovery.lag" in (note or "")


def test_cause_of_a_static_members_return_with_another_process_is_recorded() -> None:
    """GMM.replaceStreamsMember of 4.4: tombstones of the old id, the records of the new one, and an epoch."""
    static = {"instanceId": "i"}
    records = [record._replace(body={**(record.body or {}), **static}) for record in running()[:1]] + running()[1:]
    again = [*thread_leaves(10, 2_000, "a"), thread(13, 2_000, "b", processId="q", **static)]
    again += [target_tasks(14, 2_000, "b", active=TASKS), current_tasks(15, 2_000, "b", 0, active=TASKS)]
    again += [_epoch(16, 2_000, 3), assignment_epoch(17, 2_000, 3), current_tasks(18, 2_000, "b", 3, active=TASKS)]
    assert cause([*records, *at_once(again)]) == ("static_member_replaced", "recorded", "of i")


@pytest.mark.parametrize(("described", "incarnations"), [({}, {1, 2}), ({"storedDescriptionTopologyEpoch": 0}, {1})])
def test_record_of_a_topologys_description_after_a_stop_is_not_of_another_group(
    described: Row, incarnations: set[int]
) -> None:
    """Else an epoch is written once: after missing records the same one is that of a group that began again."""
    late = _epoch(100, 90_000, 2, validatedTopologyEpoch=0, **described)._replace(read_late_at=95_000)
    rows = fold([*running(), late])
    assert {row["incarnation"] for row in rows["generations"]} == incarnations

"""Notes say no more than the records: racks are in them, and not every epoch alone is compaction's."""

from __future__ import annotations

from typing import Any

import pytest

from grouptrail.history.operations import Record
from support.fold_records import classic, consumer, current, joins, target, target_epoch
from support.group_records import Row, fold

NAMES = {"T": "orders"}


def counted(offset: int, at: int, topics: dict[str, tuple[str, list[list[str]]]]) -> Record:
    """Return type 4 as Kafka 3.7 to 4.0 write it: {topic id: (name, racks of each partition)}."""
    listed = [
        {
            "topicId": topic_id,
            "topicName": name,
            "numPartitions": len(racks),
            "partitionMetadata": [{"partition": number, "racks": one} for number, one in enumerate(racks)],
        }
        for topic_id, (name, racks) in topics.items()
    ]
    return consumer(offset, at, "PartitionMetadata", None, {"topics": listed})


def bare(offset: int, at: int, number: int) -> Record:
    return consumer(offset, at, "Metadata", None, {"epoch": number})


def cause(before: dict[str, Any], after: dict[str, Any] | None, *, numbers: tuple[int, ...] = (0, 1)) -> Row:
    """Return the rebalance after the metadata of topics changed (None: it was not written again)."""
    records = [joins(0, 1_000, "a"), counted(1, 1_000, before), bare(2, 1_000, 1), target(3, 1_000, "a", [0, 1])]
    records += [target_epoch(4, 1_000, 1), current(5, 1_000, "a", 1, [0, 1], previous=0)]
    records += [] if after is None else [counted(10, 9_000, after)]
    records += [bare(11, 9_000, 2), target(12, 9_000, "a", numbers), target_epoch(13, 9_000, 2)]
    return fold([*records, current(14, 9_000, "a", 2, numbers, previous=1)], names=NAMES)["rebalances"][-1]


ORDERS = {"T": ("orders", [["r1"], ["r1"]])}


@pytest.mark.parametrize(
    "after",
    [
        {"T": ("orders", [["r2"], ["r1"]])},
        {"T": ("orders", [["r2"], ["r2"]])},
        {"T": ("orders", [["r1", "r2"], ["r1"]])},
        {"T": ("orders", [[], []])},
    ],
)
def test_cause_of_an_epoch_with_other_racks_is_the_topics_metadata(after: dict[str, Any]) -> None:
    row = cause(ORDERS, after)
    assert (row["cause"], row["certainty"]) == ("topic_metadata_changed", "recorded")
    assert row["cause_note"] == "of the replicas of orders"


def test_cause_of_racks_in_another_order_is_not_their_change() -> None:
    row = cause({"T": ("orders", [["r1", "r2"], []])}, {"T": ("orders", [["r2", "r1"], []])})
    assert (row["cause"], row["certainty"]) == ("unknown", "ambiguous")


def test_cause_of_more_partitions_with_their_racks_is_the_partitions() -> None:
    row = cause(ORDERS, {"T": ("orders", [["r1"], ["r1"], ["r2"]])}, numbers=(0, 1, 2))
    assert (row["cause"], row["certainty"]) == ("partitions_added", "recorded")


def test_cause_of_another_topic_with_other_racks_is_the_topic() -> None:
    row = cause(ORDERS, {"T": ("orders", [["r2"], ["r1"]]), "P": ("payments", [["r1"]])})
    assert (row["cause"], row["certainty"]) == ("topic_created", "recorded")


def test_cause_of_racks_of_two_topics_names_those_that_changed() -> None:
    both = {**ORDERS, "P": ("payments", [["r1"]])}
    assert cause(both, {**both, "P": ("payments", [["r3"]])})["cause_note"] == "of the replicas of payments"


@pytest.mark.parametrize("is_written", [True, False])
def test_note_on_an_epoch_alone_does_not_claim_that_compaction_took_records(is_written: bool) -> None:
    row = cause(ORDERS, ORDERS if is_written else None)
    assert (row["cause"], row["certainty"]) == ("unknown", "ambiguous")
    assert "compaction took what did" not in row["cause_note"]
    assert "the log does not show what did, or compaction took it" in row["cause_note"]


def test_racks_are_compared_after_the_state_was_saved() -> None:
    records = [joins(0, 1_000, "a"), counted(1, 1_000, ORDERS), bare(2, 1_000, 1), target(3, 1_000, "a", [0, 1])]
    records += [target_epoch(4, 1_000, 1), current(5, 1_000, "a", 1, [0, 1], previous=0)]
    records += [
        counted(10, 9_000, {"T": ("orders", [["r2"], ["r1"]])}),
        bare(11, 9_000, 2),
        target_epoch(12, 9_000, 2),
    ]
    records.append(current(13, 9_000, "a", 2, [0, 1], previous=1))
    assert fold(records, [(6, 7), (10, 99)], names=NAMES) == fold(records, names=NAMES)


def test_evidence_of_a_cause_is_the_record_that_shows_it() -> None:
    row = cause({"T": ("orders", [["a"]])}, {"T": ("orders", [["b"]])})
    (record,) = row["evidence"]
    assert (row["rule"], record["source"], record["record_offset"], record["at"]) == (
        *("RACKS_DIFFER", "record"),
        *(10, 9_000),
    )
    assert "other racks of their replicas" in record["shows"]


def test_evidence_of_an_end_is_the_record_without_the_member() -> None:
    before = classic(1, 1_001, 5, {"a": {"orders": [0]}, "b": {"orders": [1]}}, state_at=1_000)
    after = classic(2, 3_000, 6, {"a": {"orders": [0, 1]}}, state_at=2_000)
    rows = {row["member_id"]: row for row in fold([before, after])["memberships"]}
    assert (rows["a"]["rule"], rows["a"]["evidence"]) == (None, None)
    (record,) = rows["b"]["evidence"]
    assert (rows["b"]["rule"], record["source"], record["record_offset"]) == ("WITHIN_TIMEOUTS", "record", 2)
    assert rows["b"]["ruled_out"].startswith("an expired session")


def test_evidence_of_a_change_of_metadata_has_the_targets_that_show_which() -> None:
    def hashed(offset: int, at: int, number: int) -> Record:
        return consumer(offset, at, "Metadata", None, {"epoch": number, "metadataHash": number})

    records = [joins(0, 1_000, "a"), hashed(1, 1_000, 1), target(2, 1_000, "a", [0, 1]), target_epoch(3, 1_000, 1)]
    records += [current(4, 1_000, "a", 1, [0, 1], previous=0), hashed(10, 90_000, 2)]
    records += [target(20, 91_000, "a", [0, 1, 2]), target_epoch(21, 91_000, 2)]
    row = fold([*records, current(30, 91_000, "a", 2, [0, 1, 2], previous=1)], names=NAMES)["rebalances"][-1]
    assert (row["cause"], row["rule"]) == ("partitions_added", "PARTITIONS_ASSIGNED")
    assert [one["record_offset"] for one in row["evidence"]] == [10, 20]

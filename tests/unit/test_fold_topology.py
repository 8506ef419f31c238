"""Rows of `streams_topology`, and what memberships say of Kafka Streams' processes."""

from __future__ import annotations

import json
from typing import Any

from grouptrail.history.fold import fold_group
from grouptrail.history.operations import Record
from grouptrail.history.state import FoldState, decode_state, encode_state
from support.fold_records import at_once, classic, streams
from support.group_records import Row, Rows, fold, fold_in_pieces
from support.streams_records import group_epoch, thread

COUNTS = {"name": "app-counts-changelog", "partitions": 0, "replicationFactor": -1, "topicConfigs": []}
BY_KEY = {"name": "app-by-key-repartition", "partitions": 6, "replicationFactor": 3, "topicConfigs": []}


def subtopology(name: str, **topics: Any) -> Row:
    empty: Row = {"sourceTopics": [], "sourceTopicRegex": [], "stateChangelogTopics": [], "repartitionSinkTopics": []}
    return {"subtopologyId": name, **empty, "repartitionSourceTopics": [], "copartitionGroups": [], **topics}


def topology(offset: int, at: int, epoch: int, *parts: Row) -> Record:
    return streams(offset, at, "Topology", None, {"epoch": epoch, "subtopologies": list(parts)})


def word_count(offset: int, at: int) -> Record:
    reads = subtopology("0", sourceTopics=["lines"], sourceTopicRegex=["^more.*"])
    reads["repartitionSinkTopics"] = [BY_KEY["name"]]
    counts = subtopology("1", repartitionSourceTopics=[BY_KEY], stateChangelogTopics=[COUNTS])
    return topology(offset, at, 0, reads, counts)


def lines(rows: Rows) -> list[tuple[Any, ...]]:
    names = ("subtopology", "topic", "usage", "partitions", "replication_factor", "known_from", "known_until")
    listed = sorted(rows["streams_topology"], key=lambda row: (row["known_from"], row["subtopology"], row["usage"]))
    return [tuple(row[name] for name in names) for row in listed]


def started() -> list[Record]:
    return [thread(0, 1_000, "a"), word_count(1, 1_000), group_epoch(2, 1_000, 2)]


def test_topology_has_a_row_for_each_topic_and_its_usage() -> None:
    """A partition count of 0 and a replication factor of -1 are the defaults: the topology does not fix them."""
    rows = fold(started())
    assert lines(rows) == [
        ("0", "app-by-key-repartition", "repartition_sink", None, None, 1_000, None),
        ("0", "lines", "source", None, None, 1_000, None),
        ("0", "^more.*", "source_pattern", None, None, 1_000, None),
        ("1", "app-counts-changelog", "changelog", None, None, 1_000, None),
        ("1", "app-by-key-repartition", "repartition_source", 6, 3, 1_000, None),
    ]
    assert {row["topology_epoch"] for row in rows["streams_topology"]} == {0}


def test_topology_of_a_later_epoch_ends_the_one_before() -> None:
    rows = fold([*started(), topology(10, 5_000, 1, subtopology("0", sourceTopics=["lines"]))])
    assert {row["known_until"] for row in rows["streams_topology"] if row["topology_epoch"] == 0} == {5_000}
    assert lines(rows)[-1] == ("0", "lines", "source", None, None, 5_000, None)


def test_topology_ends_with_its_group_and_when_another_kind_takes_over() -> None:
    """An empty one is deleted when a classic member joins (GMM maybeDeleteEmptyStreamsGroup)."""
    parts = ("TargetAssignmentMetadata", "Metadata", "Topology")
    removed = [streams(20 + index, 9_000, part, None, None) for index, part in enumerate(parts)]
    for more in ([], [classic(23, 9_000, 0, {})]):
        rows = fold([*started(), *removed, *more])
        assert {row["known_until"] for row in rows["streams_topology"]} == {9_000}
        assert not any(row["is_open"] for row in rows["streams_topology"])


def test_topology_does_not_depend_on_the_cut_and_survives_a_saved_state() -> None:
    records = [*started(), topology(10, 5_000, 1, subtopology("0", sourceTopics=["lines"]))]
    for cut in range(len(records)):
        assert fold_in_pieces(records, [cut]) == fold_in_pieces(records)
    state = fold_group(FoldState("app", 0), records, complete_to=12, names={}).state
    assert decode_state("app", 0, encode_state(state), {}).rows.topology == state.rows.topology


def test_topology_of_a_state_saved_without_it_is_absent_until_the_next_record() -> None:
    state = fold_group(FoldState("app", 0), at_once(started()), complete_to=4, names={}).state
    values = json.loads(encode_state(state))
    del values["open"]["streams_topology"]
    state = decode_state("app", 0, json.dumps(values), {})
    result = fold_group(state, [group_epoch(9, 9_000, 3)], complete_to=11, names={})
    assert [row for row in result.rows if row.table == "streams_topology"] == []


def test_topology_read_after_missing_records_stays_with_the_group_that_follows() -> None:
    """Compaction took the tombstones of the first group; its topology ends with it."""
    again = [thread(100, 90_000, "b"), word_count(101, 90_000), group_epoch(102, 90_000, 1)]
    rows = fold([*at_once(started()), *(record._replace(read_late_at=95_000) for record in again)])
    listed = {(row["incarnation"], row["known_from"], row["known_until"]) for row in rows["streams_topology"]}
    assert listed == {(1, 1_000, 90_000), (2, 90_000, None)}


def test_membership_has_the_process_endpoint_and_topology_epoch_as_last_recorded() -> None:
    moved = thread(10, 2_000, "a", userEndpoint={"host": "app-1", "port": 8080}, topologyEpoch=1)
    [member] = fold([*started(), moved, group_epoch(11, 2_000, 3)])["memberships"]
    assert (member["process_id"], member["endpoint"], member["topology_epoch"]) == ("process-a", "app-1:8080", 1)

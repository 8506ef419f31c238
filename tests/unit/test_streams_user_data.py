"""The column `streams` of `group_metadata`: what the user data of a Kafka Streams application's members say."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.decode.rows import decode_row, encode_row
from grouptrail.history.records import COLUMNS, converter
from grouptrail.storage.schema import table_schema
from grouptrail.wire.blobs import decode_blob
from support.strategies import MANY, mutated
from support.streams_user_data import assignment, group_metadata, subscription
from support.wire_vectors import BY_NAME

PROCESS = "550bb8b2-a454-404b-b65d-144f6d2c9d6b"
USER_DATA = st.binary(max_size=60) | st.sampled_from(["subscription", "assignment"]).flatmap(
    lambda kind: mutated(vector(f"{kind}-v11"))
)


def vector(name: str) -> bytes:
    """Return user data that Kafka's own classes wrote."""
    value = BY_NAME[f"blob/streams-{name}"].value
    assert value is not None
    return value


def said_by(subscribed: bytes, assigned: bytes) -> dict[str, Any]:
    """Return what the only member of a group says, whose record must come back from its row."""
    record = group_metadata(1_000, 1, {"m": ({"orders": [0]}, subscribed, assigned)})
    table, row = decode_row(*record)
    assert encode_row(table, row) == record
    said: dict[str, Any] = json.loads(row["streams"])["m"]
    return said


def test_streams_column_has_process_endpoint_tasks_and_next_rebalance() -> None:
    """In Kafka's names; the maps of hosts, which repeat the whole group's partitions, are left out."""
    said = said_by(vector("subscription-v11"), vector("assignment-v11"))
    assert said["subscription"] == {
        "version": 11,
        "latestSupportedVersion": 11,
        "processId": PROCESS,
        "userEndPoint": "10.0.0.1:8080",
        "taskOffsetSums": [
            {"topicGroupId": group, "partition": number, "offsetSum": total, "namedTopology": None}
            for group, number, total in ((0, 1, -2), (1, 0, 671), (1, 2, 7_000_000_000))
        ],
        "uniqueField": 3,
        "errorCode": 0,
        "clientTags": {"zone": "b"},
    }
    assert said["assignment"].keys() == {
        *("version", "commonlySupportedVersion", "activeTasks", "standbyTasks", "errCode", "nextRebalanceMs")
    }
    assert [task["topicGroupId"] for task in said["assignment"]["activeTasks"]] == [0, 1, 1]
    assert said["assignment"]["nextRebalanceMs"] == 1_795_243_335_411


@pytest.mark.parametrize("version", range(1, 12))
def test_streams_column_every_version_has_process_and_tasks(version: int) -> None:
    said = said_by(vector(f"subscription-v{version}"), vector(f"assignment-v{version}"))
    assert (said["subscription"]["version"], said["assignment"]["version"]) == (version, version)
    assert said["subscription"]["processId"] == PROCESS
    tasks = [(task["topicGroupId"], task["partition"]) for task in said["assignment"]["activeTasks"]]
    assert tasks == [(0, 0), (1, 0), (1, 2)]


def test_streams_column_newer_version_has_only_its_version() -> None:
    newer = (12).to_bytes(4, "big") + b"whatever"
    unknown = {"version": 12, "error": "unknown_version"}
    assert said_by(newer, newer) == {"subscription": unknown, "assignment": unknown}


def test_streams_column_without_user_data_is_null() -> None:
    assert said_by(b"", b"") == {"subscription": None, "assignment": None}


@MANY
@given(USER_DATA, USER_DATA)
def test_streams_column_any_user_data_has_fields_or_an_error(subscribed: bytes, assigned: bytes) -> None:
    """Nothing is raised, and the record comes back from its row."""
    said = said_by(subscribed, assigned)
    for part, layout in (("subscription", "StreamsSubscriptionInfo"), ("assignment", "StreamsAssignmentInfo")):
        content = subscribed if part == "subscription" else assigned
        error = decode_blob(layout, content).error if content else None
        assert (said[part] or {}).get("error") == (error and error.kind)


def test_streams_column_of_other_protocols_is_null() -> None:
    assert decode_row(BY_NAME["group-metadata/v3"].key, BY_NAME["group-metadata/v3"].value)[1]["streams"] is None


def test_history_of_rows_without_the_column_decodes_their_user_data() -> None:
    """An earlier grouptrail has written them; other rows of the batch stay as they are."""
    key, value = group_metadata(1_000, 1, {"m": ({"orders": [0]}, subscription(1), assignment([(0, 0)]))})
    _, row = decode_row(key, value)
    other = {**row, "protocol": "range", "streams": None}
    known = {**row, "streams": '{"m":{"subscription":null,"assignment":null}}'}
    schema = pa.schema([table_schema("group_metadata").field(name) for name in COLUMNS["group_metadata"]])
    batch = pa.RecordBatch.from_pylist([{**row, "streams": None}, other, known, row], schema=schema)
    [result] = converter("group_metadata")([batch])
    said = [json.loads(body).get("streams") for body in result["body"].to_pylist()]
    assert said == [json.loads(row["streams"]), None, json.loads(known["streams"]), json.loads(row["streams"])]
    assert said[0]["m"]["assignment"]["activeTasks"][0]["topicGroupId"] == 0

"""States between two folds: those that grouptrail 0.1 wrote are read, and nothing is lost on the way through JSON."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from grouptrail.history.fold import fold_group
from grouptrail.history.rows import OwnershipRow
from grouptrail.history.state import VERSION, decode_state, encode_state
from support.fold_records import classic, current, joins

_DATA = Path(__file__).parents[1] / "data"
_STATES = (_DATA / "states-0.1.jsonl").read_text("utf-8").splitlines()
# A KIP-848 group of one member, whose topic's name was unknown then; a classic one with a static member.
CONSUMER, CLASSIC = _STATES


def test_state_of_0_1_is_written_back_with_a_version() -> None:
    for text in _STATES:
        assert "version" not in json.loads(text)
        written = encode_state(decode_state("billing", 0, text, {}))
        assert json.loads(written)["version"] == VERSION
        assert encode_state(decode_state("billing", 0, written, {})) == written


def test_state_of_0_1_with_an_unnamed_topic_keeps_its_ownership_when_the_name_is_known() -> None:
    state = decode_state("billing", 0, CONSUMER, {"T": "orders"})
    result = fold_group(state, [current(10, 9_000, "a", 2, [0, 1])], complete_to=12, names={"T": "orders"})
    assert [row for row in result.rows if isinstance(row, OwnershipRow)] == []
    assert sorted(result.state.rows.ownership) == [("T", 0, "a"), ("T", 1, "a")]


def test_state_stored_by_0_1_continues_with_the_next_records() -> None:
    state = decode_state("billing", 0, CONSUMER, {})
    records = [joins(10, 9_000, "b"), current(11, 9_000, "b", 1, [], previous=0)]
    [joined] = fold_group(state, records, complete_to=13, names={}).state.joined_before_epoch
    assert joined == "b"
    state = decode_state("billing", 0, CLASSIC, {})
    result = fold_group(state, [classic(5, 9_000, 2, {"a": {"orders": [0, 1]}})], complete_to=7, names={})
    ended = {row.values()["member_id"]: row.values()["ended"] for row in result.rows if row.table == "memberships"}
    assert ended == {"b": "expired_or_removed"}


@pytest.mark.parametrize("frozen", ["pipeline-0.1.zip", "warehouse-0.1.zip"])
def test_every_state_of_a_frozen_0_1_warehouse_is_read(frozen: str) -> None:
    """Some states lack fields that were added later within 0.1."""
    states = []
    with zipfile.ZipFile(_DATA / frozen) as archive:
        for name in archive.namelist():
            if "/history_positions/" in f"/{name}" and name.endswith(".parquet"):
                states += pq.read_table(io.BytesIO(archive.read(name)))["state"].to_pylist()
    assert states
    for text in states:
        decoded = decode_state("billing", 0, text, {})
        later = classic(decoded.processed_to + 9, 5_000_000_000_000, (decoded.group.generation or 0) + 1, {})
        result = fold_group(decoded, [later], complete_to=later.offset + 2, names={})
        assert result.rows
        assert json.loads(encode_state(result.state))["version"] == VERSION

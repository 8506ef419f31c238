"""Files of Delta tables that Arrow writes: what is in them, and the bounds by which readers pass over them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.storage import files
from grouptrail.storage.location import TableLocation
from grouptrail.storage.schema import compact, table_schema

TABLE = "offset_commits"
SCHEMA = table_schema(TABLE, without=("cluster", "source", "not_before"))
BEGAN = datetime(1970, 1, 1, tzinfo=UTC)

# Most texts are short; those that are truncated have equal prefixes.
texts = st.text(st.characters(codec="utf-8"), max_size=5) | st.text("a\x7f\U0010ffff", min_size=28, max_size=36)
times = st.integers(-(10**15), 10**16).map(lambda micros: BEGAN + timedelta(microseconds=micros))
commits = st.fixed_dictionaries(
    {
        "record_partition": st.integers(0, 2**31 - 1),
        "record_offset": st.integers(0, 2**63 - 1),
        "record_at": times,
        "group_id": texts,
        "topic": texts,
        "partition": st.integers(-(2**31), 2**31 - 1),
        "committed_offset": st.none() | st.integers(-(2**63), 2**63 - 1),
        "commit_at": st.none() | times,
        "key_type": st.just(1),
        "is_tombstone": st.booleans(),
    }
)


def write(folder: Path, *batches: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> dict[str, Any] | None:
    place = TableLocation(TABLE, str(folder), {}, "test", {"source": None})
    made = (pa.RecordBatch.from_pylist(rows, schema=SCHEMA).cast(schema) for rows in batches)
    added = list(files.write(made, place))
    return json.loads(added[0])["add"] if added else None


@given(
    st.lists(st.lists(commits, max_size=4), min_size=1, max_size=3).filter(any),
    st.sampled_from([SCHEMA, compact(SCHEMA)]),
)
def test_write_stores_every_row_within_the_file_statistics(
    batches: list[list[dict[str, Any]]], schema: pa.Schema
) -> None:
    """Also if a text is truncated or a time has microseconds."""
    rows = [row for batch in batches for row in batch]
    with TemporaryDirectory() as folder:
        added = write(Path(folder), *batches, schema=schema)
        assert added is not None
        path = Path(folder) / added["path"]
        assert path.stat().st_size == added["size"]
        there = pq.read_table(path)
    assert there.schema.names == table_schema(TABLE).names
    same = {"cluster": "test", "source": None, "not_before": None}
    assert there.to_pylist() == [{**dict.fromkeys(SCHEMA.names), **row, **same} for row in rows]
    stats = json.loads(added["stats"])
    assert stats["numRecords"] == len(rows)
    for name, nulls in stats["nullCount"].items():
        values = there[name].to_pylist()
        assert nulls == values.count(None)
        for value in (value for value in values if value is not None):
            assert bound(stats["minValues"][name]) <= value
            assert name not in stats["maxValues"] or value <= bound(stats["maxValues"][name])
    assert stats["nullCount"].keys() >= {"cluster", "record_at", "group_id", "commit_at"}


def bound(value: Any) -> Any:
    is_time = isinstance(value, str) and value.endswith("Z") and value[4:5] == "-"
    return datetime.fromisoformat(value) if is_time else value


def test_write_long_string_has_truncated_min_and_max_statistics(tmp_path: Path) -> None:
    row = dict.fromkeys(SCHEMA.names) | {"group_id": "g" * 100}
    added = write(tmp_path, [row])
    assert added is not None
    stats = json.loads(added["stats"])
    assert stats["minValues"]["group_id"] == "g" * 32
    assert stats["maxValues"]["group_id"] == "g" * 32 + "\U0010ffff"


def test_write_without_rows_creates_no_file(tmp_path: Path) -> None:
    assert write(tmp_path, []) is None
    assert not list(tmp_path.iterdir())


def test_write_rows_lacking_a_required_column_raises_and_writes_nothing(tmp_path: Path) -> None:
    """Before anything is written."""
    rows = pa.RecordBatch.from_pydict({"topic": ["orders"]})
    with pytest.raises(ValueError, match="rows of offset_commits lack record_partition"):
        list(files.write([rows], TableLocation(TABLE, str(tmp_path), {}, "test")))
    assert not list(tmp_path.iterdir())

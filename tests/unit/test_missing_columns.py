"""Queries of tables that an earlier version wrote: columns that came later are null, also to a filter."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from grouptrail.storage.datafusion import DataFusion, null_of
from grouptrail.storage.schema import table_schema

VALUES = {
    "boolean": "true",
    "smallint": "1",
    "int": "1",
    "bigint": "1",
    "double": "1.0",
    "string": "'1'",
    "binary": "CAST('1' AS BYTEA)",
    "timestamp": "now()",
}


@pytest.fixture
def engine(tmp_path: Path) -> DataFusion:
    before = [field for field in table_schema("consumer_lag") if field.name != "readable_lag"]
    rows = [{"cluster": "c", "group_id": name, "lag": 1} for name in ("a", "b", "c")]
    write_deltalake(tmp_path / "consumer_lag", pa.Table.from_pylist(rows, pa.schema(before)))
    return DataFusion({"consumer_lag": DeltaTable(tmp_path / "consumer_lag")})


def count(engine: DataFusion, table: str, condition: str) -> int:
    [row] = pa.table(engine.rows(f"SELECT count(*) AS count FROM {table} WHERE {condition}")).to_pylist()
    return int(row["count"])


@pytest.mark.parametrize("condition", ["readable_lag = 1", "readable_lag < 0", "NOT readable_lag = 1"])
def test_filter_on_a_column_that_the_table_lacks_passes_no_row(engine: DataFusion, condition: str) -> None:
    assert count(engine, "consumer_lag", condition) == 0
    assert count(engine, "consumer_lag", "readable_lag IS NULL") == 3


@pytest.mark.parametrize("type_", VALUES)
def test_null_of_any_type_passes_no_filter(engine: DataFusion, type_: str) -> None:
    table = f"(SELECT {null_of(type_)} AS missing FROM consumer_lag)"
    assert count(engine, table, f"missing = {VALUES[type_]}") == 0
    assert count(engine, table, f"missing <> {VALUES[type_]}") == 0
    assert count(engine, table, "missing IS NULL") == 3


def test_null_of_an_array_has_its_type(engine: DataFusion) -> None:
    query = f"SELECT {null_of('array<struct<topic:string,partitions:array<int>>>')} AS missing FROM consumer_lag"
    answer = pa.table(engine.rows(query))
    assert answer["missing"].null_count == 3
    assert [field.name for field in answer.schema.field("missing").type.value_type] == ["topic", "partitions"]

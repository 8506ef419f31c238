"""Tables opened with delta-rs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from grouptrail.config import Config
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.schema import table_schema


def test_datafusion_table_of_an_earlier_version_has_later_columns_as_nulls(tmp_path: Path) -> None:
    """Commands read warehouses that no job has written to since the columns were added."""
    table = warehouse_of(Config(warehouse=str(tmp_path))).table("consumer_lag")
    later = {"usual_wait_seconds", "last_wait_seconds", "first_unread_record_at"}
    earlier = table_schema("consumer_lag", without=tuple(sorted(later)))
    row = {"cluster": "default", "group_id": "billing", "topic": "orders", "partition": 0, "status": "OK"}
    row |= {"sampled_at": datetime(2026, 3, 4, tzinfo=UTC), "status_reason": "lag is not above 0"}
    write_deltalake(table.path, pa.Table.from_pylist([row], earlier))
    [stored] = table.select("*")
    assert stored.keys() == set(table_schema("consumer_lag").names)
    assert {stored[name] for name in later} == {None}

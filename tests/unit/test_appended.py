"""Following a Delta table without Spark: new rows, and files that OPTIMIZE has rewritten."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from grouptrail.config import Config
from grouptrail.storage.rows import AppendedRows
from support import small_tables

COLUMNS = pa.schema({"record_offset": pa.int64(), "topic": pa.string(), "cluster": pa.string()})


def offsets(rows: AppendedRows) -> list[int]:
    return sorted(offset for part in rows.fresh() for offset in part["record_offset"].to_pylist())


def test_appended_rows_returns_each_files_rows_once_and_again_after_optimize(tmp_path: Path) -> None:
    """Only files that were added are read, and of them only the requested rows."""
    config = Config(warehouse=str(tmp_path), cluster="c")
    path = config.table_path("offset_commits")
    small_tables.lay(
        config, "offset_commits", {"record_offset": 1, "cluster": "c"}, {"record_offset": 9, "cluster": "d"}
    )
    rows = AppendedRows(path, COLUMNS, pc.field("cluster") == "c")
    assert offsets(rows) == [1]
    for offset in (2, 3):
        small_tables.lay(config, "offset_commits", {"record_offset": offset, "cluster": "c"})
    assert offsets(rows) == [2, 3]
    assert offsets(rows) == []
    DeltaTable(path).optimize.compact()
    assert offsets(rows) == [1, 2, 3]

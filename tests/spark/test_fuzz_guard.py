"""A fuzz target: whatever text `sql --engine spark` gets, it changes no table, writes no file and shows no secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from grouptrail.query.errors import QueryError
from grouptrail.query.spark.engine import SparkEngine
from grouptrail.storage.warehouse import Warehouse
from support.fuzz import FUZZ, for_seconds

pytestmark = pytest.mark.full

SECONDS = 15
TABLE = "offset_commits"
SECRET = "s3cret-of-the-file"
# Where Spark's rules of comments, quotes and statements may differ from those of a reader.
GAPS = (
    "",
    " ",
    "\n",
    "\r",
    "\\\n",
    " -- \\\n",
    "-- \r",
    "/* */",
    "/*+ */",
    "/* /* */ */",
    ";",
    "\u2028",
    "`",
    "'",
    '"',
)


def statements(table: Path, out: Path, secret: Path) -> list[str]:
    """Return statements, most of them forbidden."""
    return [
        "SELECT group_id FROM offset_commits",
        "SELECT 1",
        "WITH a AS (SELECT 1 x)",
        "EXPLAIN",
        "DESCRIBE offset_commits",
        f"DELETE FROM delta.`{table}`",
        "DELETE FROM offset_commits",
        "INSERT INTO offset_commits SELECT * FROM offset_commits",
        f"INSERT OVERWRITE DIRECTORY '{out}' USING csv SELECT 1",
        f"CREATE TABLE t USING csv LOCATION '{out}' AS SELECT 1",
        "DROP TABLE offset_commits",
        "DROP VIEW offset_commits",
        f"VACUUM delta.`{table}`",
        f"SELECT TRANSFORM(1) USING 'touch {out}'",
        f"SELECT * FROM text.`{secret}`",
        f"SELECT * FROM read_files('{secret}')",
        "SELECT java_method('java.lang.System', 'getenv', 'SECRET')",
        f"SELECT reflect('java.nio.file.Files', 'readString', '{secret}')",
        f"ADD FILE '{secret}'",
        "SET spark.sql.ansi.enabled = false",
        "SELECT '${env:SECRET}'",
        "CALL system.x()",
        f"EXECUTE IMMEDIATE 'DELETE FROM delta.`{table}`'",
        f"BEGIN DELETE FROM delta.`{table}`; END",
    ]


def test_fuzz_spark_queries_change_nothing_and_show_no_secret(
    spark: SparkSession, warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = warehouse.table(TABLE)
    stored.ensure()
    stored.append_rows([{"record_partition": 0, "record_offset": 1, "group_id": "billing"}])
    table, out, secret = Path(stored.path), tmp_path / "out", tmp_path / "secret.txt"
    secret.write_text(SECRET)
    monkeypatch.setenv("SECRET", SECRET)
    engine = SparkEngine(warehouse)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    settings = spark.conf.get("spark.sql.ansi.enabled")
    answered = 0
    pieces = st.sampled_from(statements(table, out, secret)) | st.sampled_from(GAPS)
    texts = st.lists(pieces | st.text(max_size=3), min_size=1, max_size=5)
    wrapped = st.sampled_from(["{}", "({})", "SELECT * FROM ({})", "WITH q AS ({}) SELECT * FROM q", "SELECT ({})"])

    @FUZZ
    @given(texts, wrapped, st.sampled_from(["", " ", "\n"]))
    def is_harmless(parts: list[str], around: str, gap: str) -> None:
        nonlocal answered
        try:
            schema, batches = engine.answer(around.replace("{}", gap.join(parts)), [TABLE])
        except QueryError:
            return
        answered += 1
        shown = [str(batch.columns[index].to_pylist()) for batch in batches for index in range(len(schema))]
        assert SECRET not in "".join(shown)

    for_seconds(SECONDS, is_harmless)
    assert answered > 0
    assert DeltaTable(table).version() == 1
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == files
    assert not out.exists()
    assert spark.conf.get("spark.sql.ansi.enabled") == settings

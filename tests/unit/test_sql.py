"""`grouptrail sql` and `grouptrail tables`, over small tables written by delta-rs."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.query import formats
from grouptrail.query.errors import QueryError
from grouptrail.query.formats import whole_file
from grouptrail.query.sql import list_tables, print_columns, print_tables, run_sql, save_sql
from grouptrail.runtime.warehouses import warehouse_of
from support.from_config import sql_context
from support.queries import printed, refused

AT = datetime(2026, 3, 4, 5, 6, 7, 890000, tzinfo=UTC)
MEMBERS = pa.list_(
    pa.struct([("member_id", pa.string()), ("user_data", pa.binary()), ("ports", pa.list_(pa.int32()))])
)


class Terminal(io.StringIO):
    """A terminal 80 columns wide."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def warehouse(config: Config) -> Config:
    """Three commits in two files, one of group metadata."""
    commits = pa.table(
        {
            "record_at": pa.array([AT, AT.replace(hour=1), None], pa.timestamp("us", "UTC")),
            "group_id": ["billing", "billing", "[bold]\x1b[31m"],
            "committed_offset": pa.array([7, 8, None], pa.int64()),
            "verbatim_key": pa.array([None, b"\x00\xff", None], pa.binary()),
        }
    )
    write_deltalake(warehouse_of(config).table("offset_commits").path, commits.slice(0, 2))
    write_deltalake(warehouse_of(config).table("offset_commits").path, commits.slice(2), mode="append")
    members = pa.array([[{"member_id": "m", "user_data": b"ab", "ports": [1, 2]}]], MEMBERS)
    metadata = {"record_at": pa.array([AT], pa.timestamp("us", "UTC")), "members": members}
    write_deltalake(warehouse_of(config).table("group_metadata").path, pa.table(metadata))
    return config


def test_sql_json_prints_one_object_per_row(warehouse: Config) -> None:
    """UTC in ISO 8601, bytes in base64, null as null."""
    lines = printed(warehouse, "SELECT * FROM offset_commits WHERE group_id = 'billing' ORDER BY committed_offset")
    assert [json.loads(line) for line in lines.splitlines()] == [
        {
            "record_at": "2026-03-04T05:06:07.890Z",
            "group_id": "billing",
            "committed_offset": 7,
            "verbatim_key": None,
        },
        {
            "record_at": "2026-03-04T01:06:07.890Z",
            "group_id": "billing",
            "committed_offset": 8,
            "verbatim_key": "AP8=",
        },
    ]


def test_sql_nested_values_are_json_in_every_format(warehouse: Config) -> None:
    """Lists and structs, with the bytes inside them."""
    query, members = "SELECT members FROM group_metadata", [{"member_id": "m", "user_data": "YWI=", "ports": [1, 2]}]
    assert json.loads(printed(warehouse, query)) == {"members": members}
    [_, [cell]] = csv.reader(io.StringIO(printed(warehouse, query, "csv")))
    assert json.loads(cell) == members
    assert json.dumps(members) in printed(warehouse, query, "table")


def test_sql_csv_has_a_header_and_empty_nulls(warehouse: Config) -> None:
    """Booleans in lower case."""
    text = printed(
        warehouse, "SELECT committed_offset c, group_id = 'billing' b FROM offset_commits ORDER BY c", "csv"
    )
    assert text == "c,b\n7,true\n8,true\n,false\n"


def test_sql_table_ends_with_the_row_count_and_time(warehouse: Config) -> None:
    """They are on the last line."""
    lines = printed(warehouse, "SELECT max(record_at) newest FROM offset_commits", "table").splitlines()
    assert [line.strip() for line in lines if "─" not in line][:2] == ["newest", "2026-03-04 05:06:07.890Z"]
    assert lines[-1].startswith("1 row in 0.")


def test_sql_table_markup_and_control_codes_are_shown_as_text(warehouse: Config) -> None:
    """Neither markup nor terminal control codes in the data take effect."""
    assert r"[bold]\x1b[31m" in printed(warehouse, "SELECT group_id FROM offset_commits", "table")


def test_sql_table_many_rows_shows_the_first_and_counts_all(
    warehouse: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line has the number of all rows and the option that prints them."""
    text = printed(warehouse, "SELECT value FROM generate_series(1, 1000)", "table")
    assert f"1000 rows in 0.{text.split(' in 0.')[1][:2]} s, the first {formats.MAX_TABLE_ROWS} shown" in text
    assert len(text.splitlines()) == formats.MAX_TABLE_ROWS + 3


def test_sql_table_too_wide_for_the_terminal_prints_one_column_per_line(
    warehouse: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = Terminal()
    run_sql(
        sql_context(warehouse), "SELECT * FROM offset_commits WHERE committed_offset = 7", format="table", out=out
    )
    assert "committed_offset  7\n" in out.getvalue()


def test_sql_duplicate_column_names_get_a_suffix(warehouse: Config) -> None:
    """A join of a table with itself loses no column in JSON."""
    query = (
        "SELECT a.group_id, b.group_id FROM offset_commits a JOIN offset_commits b USING (committed_offset) LIMIT 1"
    )
    assert json.loads(printed(warehouse, query)) == {"group_id": "billing", "group_id_2": "billing"}


def test_sql_json_timestamp_after_year_9999_is_printed(warehouse: Config) -> None:
    """Python's datetime ends at the year 9999."""
    query = "SELECT record_at + INTERVAL '9000 years' t FROM offset_commits WHERE committed_offset = 7"
    assert json.loads(printed(warehouse, query)) == {"t": "+11026-03-04T05:06:07.890Z"}


def test_sql_json_nan_and_infinity_are_null(warehouse: Config) -> None:
    """NaN and infinity would break every reader."""
    assert json.loads(printed(warehouse, "SELECT 'NaN'::double n, 1.0/0.0 i")) == {"n": None, "i": None}


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO offset_commits VALUES (1)",
        "DELETE FROM offset_commits",
        "DROP TABLE offset_commits",
        "CREATE TABLE t AS SELECT 1",
        "COPY (SELECT 1) TO '{folder}/out.csv'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/out.csv'",
        "/* SELECT */ -- SELECT\n COPY (SELECT 1) TO '{folder}/out.csv'",
        "/* /* */ SELECT 1 */ COPY (SELECT 1) TO '{folder}/out.csv'",
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/etc/hosts'",
        "SET datafusion.execution.batch_size = 1",
        "",
    ],
)
def test_sql_statement_that_is_not_a_query_is_rejected_and_writes_nothing(
    warehouse: Config, tmp_path: Path, text: str
) -> None:
    """Nothing is written, not even by way of EXPLAIN or behind comments."""
    assert "only queries are answered" in refused(warehouse, text.format(folder=tmp_path))
    assert not (tmp_path / "out.csv").exists()
    assert DeltaTable(warehouse_of(warehouse).table("offset_commits").path).version() == 1


def test_sql_insert_after_with_is_rejected_and_writes_nothing(warehouse: Config) -> None:
    """The engine rejects it, because it has no such statement."""
    refused(warehouse, "WITH x AS (SELECT 1) INSERT INTO offset_commits SELECT * FROM x")
    assert DeltaTable(warehouse_of(warehouse).table("offset_commits").path).version() == 1


@pytest.mark.parametrize(
    "text",
    [
        "-- how many\nselect 1",
        "/* a */ (SELECT 1)",
        "WITH x AS (SELECT 1) SELECT * FROM x",
        "VALUES (1)",
        "EXPLAIN VERBOSE SELECT 1",
        "DESCRIBE offset_commits",
        "SHOW TABLES",
    ],
)
def test_sql_every_form_of_query_is_answered(warehouse: Config, text: str) -> None:
    """Comments and parentheses may come first."""
    assert printed(warehouse, text)


def test_save_sql_writes_parquet_and_csv_files(warehouse: Config, tmp_path: Path) -> None:
    """Parquet keeps the column types; equal column names get a suffix."""
    query = (
        "SELECT a.group_id, b.group_id, committed_offset FROM offset_commits a "
        "JOIN offset_commits b USING (committed_offset) ORDER BY committed_offset"
    )
    save_sql(sql_context(warehouse), query, format="parquet", path=tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names == ["group_id", "group_id_2", "committed_offset"]
    assert table["committed_offset"].to_pylist() == [7, 8]
    save_sql(sql_context(warehouse), "SELECT 1 AS one", format="csv", path=tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == "one\n1\n"


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_save_sql_failed_query_keeps_the_existing_file(warehouse: Config, tmp_path: Path, format: str) -> None:
    """Also if the query fails while it runs; no partial file is left."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "file").write_text("before")
    query = "SELECT committed_offset / 0 FROM offset_commits"
    with pytest.raises(QueryError, match="Divide by zero"):
        save_sql(sql_context(warehouse), query, format=format, path=folder / "file")  # type: ignore[arg-type]
    assert [(file.name, file.read_text()) for file in folder.iterdir()] == [("file", "before")]


def test_save_sql_type_unknown_to_parquet_raises_and_leaves_no_file(warehouse: Config, tmp_path: Path) -> None:
    """The error suggests a cast."""
    query = "SELECT INTERVAL '1 month' AS length"
    with pytest.raises(QueryError, match="cast the column"):
        save_sql(sql_context(warehouse), query, format="parquet", path=tmp_path / "a.parquet")
    assert not list(tmp_path.glob("*parquet*"))


def test_save_sql_unwritable_path_raises_naming_the_out_option(warehouse: Config, tmp_path: Path) -> None:
    """The error names the option to change."""
    with pytest.raises(QueryError, match="--out"):
        save_sql(sql_context(warehouse), "SELECT 1", format="csv", path=tmp_path / "no" / "folder")


def test_sql_reset_offsets_prints_topic_partition_offset(warehouse: Config) -> None:
    """Lines of topic,partition,offset without a header; a query without these columns raises QueryError."""
    query = "SELECT 'x' AS metadata, 7 AS committed_offset, 2 AS partition, 'orders' AS topic"
    assert printed(warehouse, query, "reset-offsets") == "orders,2,7\n"
    with pytest.raises(QueryError, match="no column topic"):
        printed(warehouse, "SELECT 1 AS committed_offset", "reset-offsets")


def test_sql_unknown_table_error_suggests_the_nearest_name(warehouse: Config) -> None:
    """If no name is similar, the error says how to list them."""
    assert refused(warehouse, "SELECT * FROM offset_commit").endswith("did you mean offset_commits?")
    assert "`grouptrail tables`" in refused(warehouse, "SELECT * FROM zebra")


def test_sql_table_not_yet_written_error_says_nothing_has_landed(warehouse: Config) -> None:
    """A table of the contracts without data is not reported as a misspelling."""
    assert "nothing has landed in group_records" in refused(warehouse, "SELECT * FROM group_records")


def test_sql_missing_warehouse_raises_and_is_not_created(tmp_path: Path) -> None:
    config = Config(warehouse=str(tmp_path / "nowhere"))
    assert "--warehouse" in refused(config, "SELECT * FROM offset_commits")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT grop_id FROM offset_commits", "No field named grop_id. Did you mean 'offset_commits.group_id'"),
        ("SELECT (1 FROM offset_commits", "Expected"),
        ("SELECT committed_offset / 0 FROM offset_commits", "Divide by zero"),
        ("SELECT 1; SELECT 2", "single SQL statement"),
    ],
)
def test_sql_invalid_query_raises_one_line_error(warehouse: Config, text: str, message: str) -> None:
    """Also if it fails only while it runs."""
    assert message in refused(warehouse, text)


def test_list_tables_reports_rows_files_and_size(warehouse: Config) -> None:
    """Rows, files and the newest time come from Delta's log."""
    tables = {table.name: table for table in list_tables(warehouse_of(warehouse))}
    commits = tables["offset_commits"]
    assert (commits.rows, commits.files) == (3, 2)
    assert commits.size_bytes is not None
    assert commits.size_bytes > 0
    assert tables["group_records"].rows is None


def test_list_tables_newest_at_is_the_latest_record_time(warehouse: Config) -> None:
    """A file without statistics is counted by a query; both ways agree."""
    tables = {table.name: table for table in list_tables(warehouse_of(warehouse))}
    assert tables["group_metadata"].newest_at == "2026-03-04T05:06:07.890Z"
    assert tables["offset_commits"].newest_at == "2026-03-04T05:06:07.890Z"


def test_print_tables_prints_rows_files_and_description_in_one_line(warehouse: Config) -> None:
    """One line per table."""
    out = io.StringIO()
    print_tables(warehouse_of(warehouse), out)
    [line] = [line for line in out.getvalue().splitlines() if line.startswith("offset_commits")]
    assert line.split()[1:3] == ["3", "2"]
    assert "One OffsetCommit record or its tombstone" in line


def test_print_tables_empty_warehouse_suggests_grouptrail_run(tmp_path: Path) -> None:
    """An empty list is no error."""
    out = io.StringIO()
    print_tables(warehouse_of(Config(warehouse=str(tmp_path))), out)
    assert "run `grouptrail run`" in out.getvalue()


def test_print_columns_prints_descriptions_and_unknown_table_raises() -> None:
    """They come from the contract: no warehouse is needed."""
    out = io.StringIO()
    print_columns("offset_commits", out)
    assert "the next offset to consume (null: tombstone)" in out.getvalue()
    with pytest.raises(QueryError, match="did you mean offset_commits"):
        print_columns("offset_comits", out)


@pytest.mark.parametrize("name", ["rows.csv", "rows.json", "rows.parquet"])
def test_whole_file_planted_symbolic_link_is_not_followed(tmp_path: Path, name: str) -> None:
    """Another user may have foreseen the name of the temporary file."""
    victim, planted = tmp_path / "victim", tmp_path / f".{name}.partial"
    victim.write_text("precious")
    planted.symlink_to(victim)
    with whole_file(tmp_path / name) as partial:
        assert not partial.is_symlink()
        assert partial.parent == tmp_path
        partial.write_text("rows")
        assert not (tmp_path / name).exists()
    assert victim.read_text() == "precious"
    assert planted.is_symlink()
    assert (tmp_path / name).read_text() == "rows"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, planted.name, victim.name])


def test_whole_file_is_readable_as_the_umask_allows(tmp_path: Path) -> None:
    umask = os.umask(0o027)
    try:
        with whole_file(tmp_path / "rows.csv") as partial:
            partial.write_text("rows")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "rows.csv").stat().st_mode) == 0o640


def test_whole_file_failure_leaves_nothing_and_taken_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "rows.csv"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("secrets.token_hex", lambda _: "known")
    (tmp_path / ".known.partial").symlink_to(tmp_path / "victim")
    with pytest.raises(QueryError, match="cannot be written"), whole_file(tmp_path / "rows.csv"):
        pass
    assert (tmp_path / ".known.partial").is_symlink()
    assert not (tmp_path / "victim").exists()


def test_sql_markdown_is_a_table_in_which_nothing_is_markup(warehouse: Config) -> None:
    text = "SELECT 1 AS one, '<b>|[x](http://evil)`*' AS \"a|b\", 'line\n\x1b[2J' AS c"
    markdown = printed(warehouse, text, "markdown")
    assert markdown.splitlines() == [
        "| one | a\\|b | c |",
        "| --- | --- | --- |",
        r"| 1 | \<b\>\|\[x\](http://evil)\`\* | line\\x0a\\x1b\[2J |",
    ]


@pytest.mark.parametrize(("format", "begins"), [("json", '{"name":'), ("csv", "name,"), ("markdown", "| name |")])
def test_tables_other_formats_have_a_row_for_each_table(warehouse: Config, format: Any, begins: str) -> None:
    out = io.StringIO()
    print_tables(warehouse_of(warehouse), out, format=format)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith(begins)
    assert len(lines) >= len(contracts.tables())
    out = io.StringIO()
    print_columns("offset_commits", out, format=format)
    assert "the next offset to consume" in out.getvalue()

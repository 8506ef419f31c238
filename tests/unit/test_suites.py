"""What is expected of the tables, and what is looked at, without Spark."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.quality import snapshot, suites
from grouptrail.quality.check import ExpectationError, Result, TableResult, print_checked, raise_on_failures
from grouptrail.quality.docs import Entry, index, offline
from grouptrail.quality.snapshot import tables_being_written, take
from grouptrail.query.formats import console_on
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.reader import Commit
from support.deadlines import scaled
from support.small_tables import HISTORY, lay

SUITES = contracts.expectations()
EACH = [(table, one) for table, listed in SUITES.items() for one in listed]
EVIL = "</td><script src=https://evil.example/x.js></script>\x1b[2J"

each_expectation = pytest.mark.parametrize(
    ("table", "one"), EACH, ids=[f"{table}.{one['meta']['name']}" for table, one in EACH]
)


def test_every_table_has_expectations() -> None:
    """All but the one that keeps what came of them."""
    assert SUITES.keys() == contracts.tables().keys() - {"check_results"}


@pytest.mark.parametrize("table", contracts.tables().values(), ids=lambda table: table.name)
def test_expectation_names_are_unique_in_their_table(table: contracts.Table) -> None:
    """Results are stored and counted by these names."""
    names = [one["meta"]["name"] for one in suites.expectations(table)]
    assert sorted(names) == sorted(set(names))


@each_expectation
def test_expectation_query_selects_only_key_columns(table: str, one: suites.Expectation) -> None:
    """Some of the rows found are stored and shown, and must not contain other data."""
    query = one["kwargs"]["unexpected_rows_query"]
    assert "{batch}" in query
    selected = re.match(r"SELECT (.*?) FROM ", query)
    assert selected
    columns = {column.strip().split(".")[-1] for column in selected[1].split(",")}
    assert columns <= set(suites.key_columns(contracts.tables()[table])) | {"record_partition"}
    assert one["description"]


def test_suite_files_have_the_great_expectations_format() -> None:
    """Each is named after its table and can be loaded without grouptrail."""
    folder = Path(__file__).resolve().parents[2] / "schemas" / "tables"
    for file in folder.glob("*.expectations.json"):
        suite = json.loads(file.read_text("utf-8"))
        assert suite["name"] == file.name.removesuffix(".expectations.json")
        assert all(one.keys() == {"type", "kwargs", "description", "meta"} for one in suite["expectations"])


def test_from_contract_gives_key_null_and_type_expectations() -> None:
    """A column that a table lacks may be null in all its rows."""
    table = contracts.tables()["topic_names"]
    by_name = {one["meta"]["name"]: one["kwargs"] for one in suites.from_contract(table)}
    assert by_name["key_unique"]["unexpected_rows_query"].endswith("GROUP BY topic_id HAVING count(*) > 1")
    assert by_name["type_of_learned_at"] == {"column": "learned_at", "type_": "TimestampType"}
    lacking = {one["meta"]["name"]: one["kwargs"] for one in suites.from_contract(table, {"learned_at"})}
    assert "learned_at IS NULL" in by_name["never_null"]["unexpected_rows_query"]
    assert "learned_at IS NULL" not in lacking["never_null"]["unexpected_rows_query"]


def test_tables_read_returns_the_other_tables_of_an_expectation() -> None:
    """A column with a table's name does not count."""
    read = {
        one["meta"]["name"]: suites.tables_read(one) for one in suites.expectations(contracts.tables()["generations"])
    }
    assert read["key_unique"] == read["type_of_started_at"] == set()
    assert read["record_has_landed"] == {"group_metadata", "group_records", "ingest_progress"}
    (adds_up,) = (one for one in SUITES["ingest_progress"] if one["meta"]["name"] == "adds_up")
    assert "offset_commits" in adds_up["kwargs"]["unexpected_rows_query"]
    assert suites.tables_read(adds_up) == set()


def test_check_module_import_does_not_load_great_expectations_or_pyspark() -> None:
    """Importing them takes seconds."""
    program = (
        "import sys, grouptrail.quality.check; print('great_expectations' in sys.modules, 'pyspark' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=scaled(60), check=True
    )
    assert run.stdout == "False False\n"


def test_under_way_lists_tables_written_after_the_batchs_last_table() -> None:
    """The last table is ingest_progress for the decode job and history_positions for the history job."""
    commits = {"offset_commits": Commit(3, 20), "ingest_progress": Commit(2, 10), "generations": Commit(1, 50)}
    assert tables_being_written(commits) == ["offset_commits"]
    assert tables_being_written(commits | {"ingest_progress": Commit(3, 20)}) == []
    assert tables_being_written(commits | {"history_positions": Commit(1, 40)}) == ["generations", "offset_commits"]


def test_snapshot_waits_for_the_batch_until_its_patience_ends(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After that it takes the tables as they are."""
    lay(config, "ingest_progress", {})
    lay(config, "offset_commits", {})
    late = take(warehouse_of(config), patience_seconds=0)
    assert {name: commit.version for name, commit in late.versions.items()} == {
        "ingest_progress": 0,
        "offset_commits": 0,
    }
    monkeypatch.setattr(snapshot.time, "sleep", lambda _: lay(config, "ingest_progress", {}))
    assert take(warehouse_of(config), patience_seconds=60).versions["ingest_progress"].version == 1


def test_snapshot_lists_the_contract_columns_a_table_lacks(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in HISTORY:
        lay(config, table, {})
    assert {commit.lacking for commit in take(warehouse_of(config), patience_seconds=0).versions.values()} == {()}
    whole = contracts.tables()["generations"]
    grown = {
        **contracts.tables(),
        "generations": contracts.Table(**{**vars(whole), "columns": (*whole.columns, NEW)}),
    }
    monkeypatch.setattr(contracts, "tables", lambda: grown)
    assert take(warehouse_of(config), patience_seconds=0).versions["generations"].lacking == ("coolness",)


NEW = contracts.Column("coolness", "double", "how cool it was", null_means="written before version 9")


def test_snapshot_unreadable_table_is_reported_and_others_are_taken(config: Config) -> None:
    lay(config, "rebalances", {})
    log = Path(warehouse_of(config).table("generations").path) / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("nonsense\n")
    taken = take(warehouse_of(config), patience_seconds=0)
    assert taken.versions.keys() == {"rebalances"}
    assert taken.unreadable.keys() == {"generations"}
    assert "\n" not in taken.unreadable["generations"]


def checked(*results: Result, rows: int = 7) -> TableResult:
    return TableResult("rebalances", 12, rows, results, 1.5, lacking=())


HOLDS = Result("key_unique", "no two rows alike", True, 0)
BREACH = Result("led_to", "it led to a generation", False, 3, (f'{{"group_id": "{EVIL}"}}',))


def test_print_checked_failure_is_printed_without_control_codes(config: Config) -> None:
    """Names from the log must not control the terminal."""
    out = io.StringIO()
    print_checked([checked(HOLDS, BREACH)], warehouse_of(config), console_on(out))
    assert "rebalances.led_to: 3 rows; expected: it led to a generation" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    assert "\\x1b[2J" in out.getvalue()


def test_expectation_that_could_not_be_evaluated_is_a_failure(config: Config) -> None:
    """The result contains the reason."""
    result = Result("led_to", "it led to a generation", False, None, problem="no such column")
    out = io.StringIO()
    print_checked([checked(result)], warehouse_of(config), console_on(out))
    assert "rebalances.led_to: not counted" in out.getvalue()
    assert "no such column" in out.getvalue()
    with pytest.raises(ExpectationError, match=r"^1 expectation failed, in rebalances: docs/operations.md"):
        raise_on_failures([checked(HOLDS, result)])


def test_raise_on_failures_without_tables_raises() -> None:
    """An empty folder means a wrong --warehouse."""
    with pytest.raises(ExpectationError, match="there is no table to check"):
        raise_on_failures([])
    raise_on_failures([checked(HOLDS)])


def test_offline_page_has_no_scripts_and_no_external_resources() -> None:
    """Those that Great Expectations inserts are removed."""
    page = (
        '<html><head><link rel="stylesheet" href="https://cdn.example/a.css"><script>alert(1)</script></head><body>'
        '<img src="//cdn.example/logo.png?d=1"><a href="https://elsewhere.example">x</a>'
        '<a href="../index.html">Home</a>'
    )
    text = offline(page)
    assert "example" not in text
    assert "alert" not in text
    assert '<a href="index.html">Home</a>' in text
    assert "default-src 'none'" in text


def test_index_page_escapes_html_in_names() -> None:
    """Any client can choose a group's name."""
    text = index(f"Tables of cluster {EVIL}", ("table", "rows"), [Entry("rebalances", ("7",), [EVIL])])
    assert "<script" not in text
    assert "&lt;script src=" in text
    assert '<a href="rebalances.html">rebalances</a>' in text

"""`grouptrail check` without a JVM: the same results as with Great Expectations (tests/spark/test_check.py)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from grouptrail import cli, contracts
from grouptrail.config import Config, load_config
from grouptrail.jobs import CLUSTER as CLUSTER_FACTS
from grouptrail.jobs import SHARE_STATE
from grouptrail.quality import check
from grouptrail.quality.results import TableResult
from grouptrail.quality.snapshot import take
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.engines.spark import Spark
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.table import Table
from support.broken_tables import BROKEN, expected_names, lay_broken
from support.deadlines import scaled
from support.frozen_warehouse import CLUSTER, thaw
from support.small_tables import at, lay


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config(None, {"warehouse": str(tmp_path / "warehouse"), "cluster": CLUSTER}, {})


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(*_: Any, **__: Any) -> Iterator[None]:
        pytest.fail("Spark was started")
        yield

    monkeypatch.setattr("grouptrail.spark.session.session", session)


def checked(config: Config, *names: str, **options: Any) -> dict[str, TableResult]:
    warehouse = warehouse_of(config)
    options = {"start_spark": lambda: pytest.fail("Spark was started"), **options}
    results = check.run_with_delta_rs(warehouse, names, take(warehouse, patience_seconds=0), **options)
    return {one.table: one for one in results}


def stored(config: Config, where: str) -> list[dict[str, Any]]:
    return SqlSnapshot(warehouse_of(config), ["check_results"]).rows(f"SELECT * FROM check_results WHERE {where}")


def test_check_invalid_rows_fail_every_expectation(config: Config) -> None:
    """Each because of its rows, not because of an error in its query; results store only key columns."""
    lay_broken(config)
    results = checked(config)
    assert results.keys() == BROKEN.keys()
    held = {
        f"{name}.{one}"
        for name, table in results.items()
        for one in expected_names(name) - {result.expectation for result in table.failures}
    }
    assert held == set()
    failures = [result for table in results.values() for result in table.failures]
    assert [result.problem for result in failures if result.problem] == []
    assert all(result.unexpected_count and result.sample_keys for result in failures)
    for table in results.values():
        keys = {*contracts.tables()[table.table].key, "record_partition"}
        assert all(json.loads(key).keys() <= keys for result in table.failures for key in result.sample_keys)
    assert len(stored(config, "NOT success")) == len(failures)


def test_check_healthy_warehouse_has_no_failures(config: Config) -> None:
    """Nor has a column that an older version did not write; `since` excludes older rows."""
    thaw(config)
    (Path(config.warehouse) / "check_results").rename(Path(config.warehouse).parent / "clustered")
    results = checked(config)
    assert [(table.table, result) for table in results.values() for result in table.failures] == []
    later = {"check_results", "broker_log_events", *SHARE_STATE.writes, *CLUSTER_FACTS.writes}
    later |= {"streams_topology", "task_assignments", "tombstone_checks"}
    assert results.keys() == contracts.tables().keys() - later
    assert results["generations"].rows == 9
    late = checked(config, "consumer_lag", since=at(0) + timedelta(days=999))
    assert (late["consumer_lag"].rows, late["consumer_lag"].failures) == (0, [])
    assert len({row["run_id"] for row in stored(config, "true")}) == 2


def test_check_wrong_type_of_a_column_fails(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(config, "topic_names", {})
    known = contracts.tables()
    table = known["topic_names"]
    columns = tuple(
        contracts.Column(**{**vars(column), "type": "bigint"}) if column.name == "topic" else column
        for column in table.columns
    )
    changed = contracts.Table(**{**vars(table), "columns": columns})
    monkeypatch.setattr(contracts, "tables", lambda: known | {"topic_names": changed})
    [failure] = [one for one in checked(config)["topic_names"].failures if one.expectation == "type_of_topic"]
    assert failure.problem == "it is StringType"


def test_check_missing_file_makes_its_table_unreadable_and_others_are_checked(config: Config) -> None:
    lay(config, "topic_names", {})
    lay(config, "rebalances", {"record_offset": 1, "cluster": CLUSTER})
    for file in Path(warehouse_of(config).table("rebalances").path).rglob("*.parquet"):
        file.unlink()
    results = checked(config)
    assert not results["rebalances"].is_readable
    assert "\n" not in str(results["rebalances"].failures[0].problem)
    assert results["topic_names"].is_readable


def test_check_stored_results_have_the_contracts_table(config: Config) -> None:
    """Its comments and properties are those that Spark gives a table, but it is not clustered."""
    lay(config, "topic_names", {})
    checked(config)
    table = DeltaTable(warehouse_of(config).table("check_results").path)
    assert table.metadata().description == contracts.tables()["check_results"].about
    assert table.metadata().configuration["delta.checkpointInterval"] == "10"
    comments = [field.metadata.get("comment") for field in table.schema().fields]
    assert all(comments)
    assert len(comments) == len(contracts.tables()["check_results"].columns)


def test_check_results_are_appended_to_a_table_of_version_0_1(config: Config) -> None:
    """It had liquid clustering, which delta-rs does not write to."""
    thaw(config)
    found = checked(config)
    [row] = warehouse_of(config).table("check_results").select("COUNT(*) AS rows")
    assert row["rows"] == sum(len(table.results) for table in found.values()) > 0


def test_check_results_in_a_table_that_lacks_columns_need_spark(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only to append them."""
    lay(config, "topic_names", {"topic_id": "a", "topic": "t", "learned_from": "x", "cluster": CLUSTER})
    schema = pa.schema({"cluster": pa.string()})
    write_deltalake(warehouse_of(config).table("check_results").path, schema.empty_table())
    appended: list[int] = []

    def append_in_session(table: Table, rows: list[dict[str, Any]]) -> None:
        assert table._spark is not None
        appended.append(len(rows))

    monkeypatch.setattr(Table, "append_rows", append_in_session)
    monkeypatch.setattr(Spark, "create", lambda *_: None)
    in_session = replace(warehouse_of(config), spark=Mock())
    results = checked(config, start_spark=lambda: nullcontext(in_session))
    assert appended == [sum(len(table.results) for table in results.values())]


@pytest.mark.parametrize(
    ("format", "begins"), [("json", '{"table": "topic_names"'), ("csv", "table,"), ("markdown", "|")]
)
def test_check_command_prints_a_row_for_each_expectation_and_starts_no_jvm(
    config: Config, format: str, begins: str
) -> None:
    lay(config, "topic_names", {"topic_id": "a", "topic": "t", "learned_from": "x", "cluster": CLUSTER})
    command = ["check", "--warehouse", config.warehouse, "--cluster", CLUSTER, "--format", format]
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 1
    assert result.stdout.startswith(begins)
    assert "1 expectation failed, in topic_names" in result.stderr
    assert result.stdout.count("key_unique") == 1


def test_check_command_since_the_pipeline_stopped_fails(config: Config) -> None:
    """Nothing was checked, which would look as if all were well."""
    lay(config, "ingest_progress", {"cluster": CLUSTER, "landed_at": at(0)})
    command = ["check", "--since", "1h", "--warehouse", config.warehouse, "--cluster", CLUSTER]
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 1
    assert re.fullmatch(
        r"grouptrail: no row is newer than [-\d]+ [:\d]+ UTC, so nothing was checked; as of 2026-03-04 12:00:00 UTC "
        r"\(.*\): nothing has been recorded since, see whether `grouptrail run` runs",
        result.stderr.splitlines()[-1],
    )


def test_check_command_imports_neither_pyspark_nor_great_expectations(config: Config) -> None:
    lay(config, "topic_names", {"cluster": CLUSTER})
    arguments = ["check", "--warehouse", config.warehouse, "--cluster", CLUSTER]
    program = (
        f"import sys; sys.argv = ['grouptrail', *{arguments}]\n"
        "from grouptrail.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'pyspark', 'great_expectations'} & set(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=scaled(60), check=False
    )
    assert run.stderr.splitlines()[-1] == "[]"


def test_snapshot_of_a_batch_interrupted_long_ago_does_not_wait(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    thaw(config)
    monkeypatch.setattr(check.snapshot.time, "sleep", lambda _: pytest.fail("it waited"))
    assert take(warehouse_of(config), patience_seconds=30).versions


def test_check_of_a_table_too_large_for_memory_uses_spark(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(config, "topic_names", {"cluster": CLUSTER}, {"cluster": CLUSTER})
    monkeypatch.setattr(check, "MOST_ROWS", 1)

    @contextmanager
    def session(*_: Any, **__: Any) -> Iterator[None]:
        yield None

    monkeypatch.setattr("grouptrail.spark.session.session", session)
    monkeypatch.setattr(check, "run", lambda *_, **__: [TableResult("topic_names", 0, 2, (), 0.0)])
    command = ["check", "--warehouse", config.warehouse, "--cluster", CLUSTER]
    assert CliRunner().invoke(cli.app, command).exit_code == 0
    monkeypatch.setattr(check, "MOST_ROWS", 2)
    monkeypatch.setattr(check, "run", lambda *_, **__: pytest.fail("Spark was used"))
    assert "topic_names" in CliRunner().invoke(cli.app, command).output

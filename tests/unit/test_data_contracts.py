"""`grouptrail contracts export`: the tables' contracts, and what jobs read and write, as other tools read them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable
from typer.testing import CliRunner

from grouptrail import cli
from grouptrail.config import Config
from grouptrail.contracts import tables
from grouptrail.jobs import JOBS
from grouptrail.runtime.warehouses import warehouse_of

# dbt-core 2 downloads its parser from a place of its own.
TOOLS = ("dbt-core==1.10.*", "dbt-duckdb<2", "datacontract-cli>=1")


def exported(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli.app, ["contracts", "export", *arguments])
    assert (result.exit_code, result.stderr) == (0, "")
    return dict(yaml.safe_load(result.stdout))


def test_dbt_sources_have_every_table_and_column_with_its_tests() -> None:
    (source,) = exported("--to", "dbt", "--schema", "kafka_history")["sources"]
    assert (source["name"], source["schema"]) == ("grouptrail", "kafka_history")
    assert [table["name"] for table in source["tables"]] == list(tables())
    for table in source["tables"]:
        for column, contract in zip(table["columns"], tables()[table["name"]].columns, strict=True):
            assert (column["name"], column["data_type"]) == (contract.name, contract.type)
            tests = column.get("data_tests", [])
            assert ("not_null" in tests) == (contract.null_means is None)
            accepted = [test["accepted_values"]["arguments"]["values"] for test in tests if test != "not_null"]
            assert accepted == ([list(contract.values)] if contract.values else [])


def test_data_contract_has_every_table_with_its_keys() -> None:
    contract = exported("--to", "odcs")
    assert (contract["kind"], contract["apiVersion"]) == ("DataContract", "v3.1.0")
    assert [one["name"] for one in contract["schema"]] == list(tables())
    for one in contract["schema"]:
        table = tables()[one["name"]]
        assert one["physicalName"] == f"grouptrail.{table.name}"
        keys = [column for column in one["properties"] if column.get("primaryKey")]
        named = sorted(keys, key=lambda column: column["primaryKeyPosition"])
        assert [column["name"] for column in named] == list(table.key)
        for column, described in zip(table.columns, one["properties"], strict=True):
            assert described["required"] == (column.null_means is None)
            assert ("items" in described) == column.type.startswith("array<")


def test_contracts_export_of_an_unknown_format_says_which_there_are() -> None:
    result = CliRunner().invoke(cli.app, ["contracts", "export", "--to", "avro"])
    assert result.exit_code == 2
    assert "'avro' is not one of 'dbt', 'odcs', 'openlineage'" in result.stderr


BROKER = ("--bootstrap-server", "SASL_SSL://kafka-1:9092,kafka-2:9092")


def lineage(*arguments: str) -> dict[str, dict[str, Any]]:
    """Return the events by the names of their jobs."""
    result = CliRunner().invoke(cli.app, ["contracts", "export", "--to", "openlineage", *BROKER, *arguments])
    assert (result.exit_code, result.stderr) == (0, "")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert {event["job"]["namespace"] for event in events} == {"grouptrail"}
    return {event["job"]["name"]: event for event in events}


def named(datasets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["namespace"], one["name"]) for one in datasets]


def test_lineage_has_each_job_with_what_it_reads_and_writes() -> None:
    events = lineage(
        "--warehouse", "/data", "--cluster", "east", "--set", "broker_log.files=/var/log/kafka/server.log"
    )
    assert list(events) == [f"east.{job.name}" for job in JOBS]
    topic = ("kafka://kafka-1:9092", "__consumer_offsets")
    for job in JOBS:
        event = events[f"east.{job.name}"]
        read = [topic if name == "__consumer_offsets" else ("file", f"/data/{name}") for name in job.reads]
        assert named(event["inputs"]) == read
        assert named(event["outputs"]) == [("file", f"/data/{name}") for name in job.writes]
        assert event["job"]["facets"]["documentation"]["description"] == job.about
        for name, output in zip(job.writes, event["outputs"], strict=True):
            fields = output["facets"]["schema"]["fields"]
            assert [(one["name"], one["type"]) for one in fields] == [
                (one.name, one.type) for one in tables()[name].columns
            ]


def test_lineage_of_a_cluster_without_access_to_the_topic_has_the_polling_job() -> None:
    events = lineage("--set", "source=admin", "--cluster", "east")
    assert events["east.decode"]["inputs"] == []
    assert "polls the groups" in events["east.decode"]["job"]["facets"]["documentation"]["description"]


@pytest.mark.parametrize(
    ("warehouse", "place"),
    [
        ("/data/lake", ("file", "/data/lake/rebalances")),
        ("file:/data/lake", ("file", "/data/lake/rebalances")),
        ("s3a://bucket/lake/", ("s3://bucket", "lake/rebalances")),
        ("s3://user:pass/word@bucket/lake?sig=secret", ("s3://bucket", "lake/rebalances")),
        ("gs://bucket", ("gs://bucket", "rebalances")),
        (
            "abfss://lake@account.dfs.core.windows.net/a",
            ("abfss://lake@account.dfs.core.windows.net", "/a/rebalances"),
        ),
        ("hdfs://name-1:8020/lake", ("hdfs://name-1:8020", "/lake/rebalances")),
    ],
)
def test_lineage_names_tables_by_the_conventions_of_openlineage(warehouse: str, place: tuple[str, str]) -> None:
    [history] = [event for name, event in lineage("--warehouse", warehouse).items() if name.endswith(".history")]
    assert place in named(history["outputs"])


def test_tables_need_no_feature_that_a_catalogs_readers_may_lack(tmp_path: Path) -> None:
    """docs/catalogs.md says so."""
    warehouse = warehouse_of(Config(warehouse=str(tmp_path)))
    for name in tables():
        warehouse.table(name).ensure()
        table = DeltaTable(str(tmp_path / name))
        protocol = table.protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
        assert protocol.reader_features is None
        assert table.metadata().description == tables()[name].about
        assert all(field.metadata["comment"] for field in table.schema().fields)


@pytest.mark.full
def test_contracts_are_read_by_dbt_and_by_datacontract(tmp_path: Path) -> None:
    """The tools are installed into an environment of their own."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    installed = subprocess.run(
        [str(environment / "bin" / "pip"), "install", "--quiet", *TOOLS], capture_output=True, text=True, check=False
    )
    if installed.returncode != 0:
        pytest.skip(f"the tools cannot be installed: {installed.stderr.strip().splitlines()[-1]}")
    project = tmp_path / "project"
    (project / "models").mkdir(parents=True)
    profile = {"grouptrail": {"target": "dev", "outputs": {"dev": {"type": "duckdb", "path": "history.duckdb"}}}}
    (project / "profiles.yml").write_text(yaml.safe_dump(profile))
    (project / "dbt_project.yml").write_text(yaml.safe_dump({"name": "history", "profile": "grouptrail"}))
    (project / "models" / "groups.sql").write_text("SELECT group_id FROM {{ source('grouptrail', 'generations') }}")
    for to, path in (("dbt", project / "models" / "sources.yml"), ("odcs", tmp_path / "contract.yaml")):
        path.write_text(CliRunner().invoke(cli.app, ["contracts", "export", "--to", to]).stdout)
    dbt = [str(environment / "bin" / "dbt"), "list", "--no-use-colors", "--resource-type", "source"]
    listed = subprocess.run([*dbt, "--output", "name"], cwd=project, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stdout
    assert {f"grouptrail.{name}" for name in tables()} <= set(listed.stdout.split())
    lint = [str(environment / "bin" / "datacontract"), "lint", str(tmp_path / "contract.yaml")]
    linted = subprocess.run(lint, capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout
    shutil.rmtree(environment)

"""A warehouse on an object store: Spark's settings, reading by delta-rs, and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from grouptrail import contracts
from grouptrail.config import Config, ConfigError, load_config
from grouptrail.log_offsets.committed import CommittedPartitions
from grouptrail.quality import snapshot
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.spark import object_stores
from grouptrail.storage.errors import TableError
from grouptrail.storage.reader import store_fault
from grouptrail.storage.schema import table_schema
from grouptrail.storage.sql_snapshot import SqlSnapshot
from servers.object_store import BUCKET, object_store
from support.from_config import snapshot_reader
from support.small_tables import lay


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with object_store(tmp_path_factory.mktemp("objects")) as options:
        yield options


@pytest.fixture
def config(options: dict[str, str]) -> Config:
    return Config(cluster="c", warehouse=f"s3a://{BUCKET}/grouptrail", storage=options)


def test_storage_spark_settings_map_delta_rs_options_to_hadoop_names(config: Config, options: dict[str, str]) -> None:
    """Hadoop's scheme for s3:// is s3a://."""
    settings = object_stores.spark_settings("s3a://lake/x", options)
    assert settings["spark.hadoop.fs.s3a.endpoint"] == options["aws_endpoint_url"]
    assert settings["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"
    assert settings["spark.hadoop.fs.s3a.access.key"] == "reader"
    assert settings["spark.hadoop.fs.s3a.secret.key"] == "hunter2"
    assert settings["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert object_stores.spark_settings("s3://lake/x", {"REGION": "eu-central-1"}) == {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.delta.logStore.s3.impl": "io.delta.storage.S3SingleDriverLogStore",
        "spark.hadoop.fs.s3a.endpoint.region": "eu-central-1",
    }
    virtual = {"aws_endpoint_url": "https://s3", "aws_virtual_hosted_style_request": "true"}
    assert object_stores.spark_settings("s3a://lake/x", virtual)["spark.hadoop.fs.s3a.path.style.access"] == "false"
    assert object_stores.spark_settings("/lake/x", options) == {}


@pytest.mark.parametrize("feature", ["catalogManaged", "catalogOwned-preview"])
def test_storage_catalog_managed_table_is_refused_with_one_line(tmp_path: Path, feature: str) -> None:
    """Its newest commits are known only to the catalog: what the folder holds may be old."""
    config = Config(warehouse=str(tmp_path))
    lay(config, "generations", {"generation": 1})
    table = warehouse_of(config).table("generations")
    commit = Path(table.path, "_delta_log", f"{0:020}.json")
    features = {"readerFeatures": [feature, "vacuumProtocolCheck"]}
    features["writerFeatures"] = [*features["readerFeatures"], "inCommitTimestamp"]
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    actions = [json.loads(line) for line in commit.read_text("utf-8").splitlines()]
    actions = [protocol if "protocol" in action else action for action in actions]
    commit.write_text("".join(f"{json.dumps(action)}\n" for action in actions), "utf-8")
    with pytest.raises(TableError, match="catalog-managed") as refused:
        table.open()
    assert "\n" not in str(refused.value)


def test_storage_options_come_from_file_and_environment_with_secrets_redacted(tmp_path: Path) -> None:
    file = tmp_path / "grouptrail.toml"
    file.write_text('[storage]\naws_region = "eu-central-1"\nazure_storage_account_key = "hunter2"\n')
    config = load_config(file, {}, {"GROUPTRAIL_STORAGE__AWS_SECRET_ACCESS_KEY": "hunter2"})
    assert config.storage_options() == {
        "aws_region": "eu-central-1",
        "azure_storage_account_key": "hunter2",
        "aws_secret_access_key": "hunter2",
    }
    assert "hunter2" not in f"{config!r} {config} {config.redacted()}"
    with pytest.raises(ConfigError, match="GROUPTRAIL_STORAGE__AWS_SECRET_ACCESS_KEY") as caught:
        load_config(None, {"storage.aws_secret_access_key": "hunter2"}, {})
    assert "hunter2" not in str(caught.value)


def test_object_store_is_read_by_every_reader_without_a_jvm(config: Config, options: dict[str, str]) -> None:
    """SQL, the exporter, checks, and what the log-offsets job follows."""
    row = {"cluster": "c", "group_id": "billing", "topic": "orders", "partition": 3, "is_tombstone": False}
    whole = {column.name: row.get(column.name) for column in contracts.tables()["offset_commits"].columns}
    rows = pa.Table.from_pylist([whole | {"record_partition": 1, "record_offset": 7}], table_schema("offset_commits"))
    path = warehouse_of(config).table("offset_commits").path
    write_deltalake(path, rows, storage_options=options)
    tables = SqlSnapshot(warehouse_of(config), ["offset_commits"])
    assert tables.rows("SELECT topic FROM offset_commits") == [{"topic": "orders"}]
    assert CommittedPartitions(warehouse_of(config).table("offset_commits")).partitions() == {"orders": [3]}
    assert snapshot.take(warehouse_of(config), patience_seconds=0).versions["offset_commits"].version == 0
    table = warehouse_of(config).table("offset_commits").open()
    assert snapshot_reader(config)._commits.now(table)["count"].to_pylist() == [1]


def test_check_warehouse_unreachable_object_store_raises_one_line_error(config: Config) -> None:
    """The bucket is missing or the server does not answer; stores unknown to delta-rs are not checked."""
    warehouse_of(config).check()
    absent = config.model_copy(update={"warehouse": "s3a://nobodys/grouptrail"})
    with pytest.raises(
        TableError, match=r"s3a://nobodys/grouptrail cannot be reached \(The specified bucket"
    ) as caught:
        warehouse_of(absent).check()
    assert "\n" not in str(caught.value)
    nowhere = config.model_copy(update={"storage": config.storage | {"aws_endpoint_url": "http://127.0.0.1:1"}})
    with pytest.raises(TableError, match=r"cannot be reached \(.*refused") as caught:
        warehouse_of(nowhere).check()
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert store_fault("hdfs://name-node/x", {}) is None

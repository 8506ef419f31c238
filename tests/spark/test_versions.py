"""Tables of other versions: those of before are gone on with, those of later are left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from grouptrail import contracts
from grouptrail.config import Config, MaintainConfig
from grouptrail.maintenance import maintain
from grouptrail.quality import check
from grouptrail.query.errors import QueryError
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.spark.jars import silent
from grouptrail.storage.schema import arrow_type
from grouptrail.storage.warehouse import Warehouse
from support.frozen_warehouse import thaw
from support.queries import asked

# One table for each kind of thinning, retention and sorting.
EACH_KIND = ("offset_commits", "rebalances", "log_offsets", "consumer_lag", "check_results")


def newest_column(table: contracts.Table) -> contracts.Column:
    """Return a column that an older version may have lacked: the last one that is no key, partition or clustering
    column."""
    fixed = {*table.key, *table.partition_by, *table.cluster_by, "is_open", "record_offset", "error"}
    return [column for column in table.columns if column.name not in fixed][-1]


def lay_older(config: Config) -> dict[str, str]:
    """Write one row to every table without its newest column; return that column of each table."""
    lacking = {}
    for table in contracts.tables().values():
        gone = newest_column(table)
        columns = [column for column in table.columns if column != gone]
        schema = pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])
        row = {"cluster": config.cluster, "is_open": False}
        rows = pa.Table.from_pylist([{column.name: row.get(column.name) for column in columns}], schema)
        write_deltalake(
            warehouse_of(config).table(table.name).path, rows, partition_by=list(table.partition_by) or None
        )
        lacking[table.name] = gone.name
    return lacking


@pytest.mark.full
def test_tables_missing_their_newest_column_are_checked_maintained_and_appended_to(
    warehouse: Warehouse, config: Config
) -> None:
    """They can be queried, checked, maintained and appended to, before and after the column is added."""
    lacking = lay_older(config)
    checked = check.run(warehouse, ("topic_names", "log_offsets", "memberships"), patience_seconds=0)
    assert {one.table: one.lacking for one in checked} == {one.table: (lacking[one.table],) for one in checked}
    assert [result.problem for one in checked for result in one.results if result.problem] == []
    maintain.maintain(warehouse, MaintainConfig(), EACH_KIND, log=silent)
    for name, column in lacking.items():
        assert asked(config, f"SELECT * FROM {name} WHERE cluster = 'test'"), name
        table = warehouse.of_cluster("new").table(name)
        table.ensure()
        table.append_rows([{}])
        assert asked(config, f"SELECT {column} FROM {name} WHERE cluster = 'new'") == [{column: None}], name


def test_warehouse_of_version_0_1_gains_missing_columns_and_answers_queries(
    warehouse: Warehouse, config: Config
) -> None:
    thaw(config)
    warehouse.ensure(contracts.tables())
    answer = asked(config, "SELECT cause FROM rebalances WHERE group_id = 'billing' ORDER BY to_generation")
    assert [row["cause"] for row in answer] == [
        "group_started",
        "member_joined",
        "member_left_or_expired",
        "member_joined",
    ]
    assert asked(config, "SELECT status FROM consumer_lag ORDER BY sampled_at")[-1] == {"status": "STOP"}
    assert asked(config, "SELECT * FROM owners_at('search', now())")[0]["member_id"] == "m1"


@pytest.mark.full
def test_table_with_columns_of_a_later_version_keeps_them(warehouse: Warehouse, config: Config) -> None:
    """Retention, thinning and compaction keep them, too."""
    thaw(config)
    table = warehouse.table("consumer_lag")
    path, spark = table.path, warehouse.session
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (coolness double)")
    spark.sql(f"UPDATE delta.`{path}` SET coolness = 1.5")
    table.ensure()
    (checked,) = check.run(warehouse, ("consumer_lag",), patience_seconds=0)
    assert checked.failures == []
    maintain.maintain(warehouse, MaintainConfig(), ("consumer_lag",), log=silent)
    left = asked(config, "SELECT coolness, count(*) AS rows FROM consumer_lag GROUP BY coolness")
    assert [row["coolness"] for row in left] == [1.5]
    assert 0 < left[0]["rows"] < 12


def test_table_with_unsupported_delta_protocol_is_reported_and_left_unchanged(
    warehouse: Warehouse, config: Config
) -> None:
    """The error is one line; the other tables are maintained."""
    thaw(config)
    log = Path(warehouse_of(config).table("topic_names").path) / "_delta_log"
    newest = max(log.glob("*.json"))
    features = {"readerFeatures": ["fromTheFuture"], "writerFeatures": ["fromTheFuture"]}
    later = json.dumps({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})
    (log / f"{int(newest.stem) + 1:020}.json").write_text(later + "\n")
    files = sorted(log.iterdir())
    with pytest.raises(QueryError, match=r"fromTheFuture|cannot be read"):
        asked(config, "SELECT * FROM topic_names")
    names = ("topic_names", "committed_offsets", "rebalances")
    for file in Path(warehouse_of(config).table("rebalances").path).rglob("*.parquet"):
        file.unlink()
    unknown, whole, gone = check.run(warehouse, names, patience_seconds=0)
    assert "fromTheFuture" in str(unknown.results[0].problem)
    assert unknown.version is None
    assert (whole.rows > 0, whole.failures) == (True, [])
    assert (gone.version is None, gone.is_readable) == (False, False)
    with pytest.raises(check.ExpectationError, match="2 expectations failed, in topic_names, rebalances"):
        check.raise_on_failures([unknown, whole, gone])
    kept = asked(config, "SELECT table_name, problem FROM check_results WHERE NOT success ORDER BY table_name")
    assert [row["table_name"] for row in kept] == ["rebalances", "topic_names"]
    assert all(row["problem"].startswith("it cannot be read (") for row in kept)
    with pytest.raises(maintain.MaintenanceError, match=r"^topic_names: .*not maintained") as maintain_error:
        maintain.maintain(warehouse, MaintainConfig(), ("topic_names", "committed_offsets"), log=silent)
    assert "\n" not in str(maintain_error.value)
    assert sorted(log.iterdir()) == files

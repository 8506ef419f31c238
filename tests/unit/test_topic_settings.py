"""Settings of topics as other jobs read them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from grouptrail.cluster_facts.sample import TABLES
from grouptrail.cluster_facts.sampler import COLUMN_OF, Sampler
from grouptrail.cluster_facts.state import OpenRows
from grouptrail.config import Config
from grouptrail.kafka.cluster_metadata import CONFIGS_DENIED
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.topic_settings import TopicSettings, read_topic_settings
from support.fake_cluster import DEFAULTS, FakeCluster


def test_topic_settings_are_those_of_the_last_sample(tmp_path: Path) -> None:
    warehouse, cluster = warehouse_of(Config(warehouse=str(tmp_path))), FakeCluster()
    assert read_topic_settings(warehouse) == {}
    for name in ("orders", "audit", "gone"):
        cluster.create(name)
    warehouse.ensure(TABLES)
    rows = OpenRows(warehouse, lambda: "app")
    rows.update(Sampler(cluster).sample(rows.tables))
    cluster.configs = {"orders": {**DEFAULTS, "retention.ms": "1000"}, "audit": CONFIGS_DENIED}
    del cluster.topics["gone"]
    rows.update(Sampler(cluster, missing=["gone"]).sample(rows.tables))
    settings = read_topic_settings(warehouse)
    assert settings.keys() == {"audit", "orders"}
    orders = settings["orders"]
    assert (orders.retention_ms, orders.segment_bytes, orders.message_timestamp_type, orders.problem) == (
        1000, 1_073_741_824, "CreateTime", None,
    )  # fmt: skip
    assert (settings["audit"].retention_ms, settings["audit"].problem) == (None, CONFIGS_DENIED)
    assert read_topic_settings(warehouse, ["orders", "never-there"]) == {"orders": orders}
    assert read_topic_settings(warehouse, []) == {}


def test_topic_settings_have_every_setting_that_is_read() -> None:
    assert {field.name for field in fields(TopicSettings)} == {*COLUMN_OF.values(), "problem"}

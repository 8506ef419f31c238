"""A warehouse of its own for each test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from grouptrail.config import Config, load_config
from grouptrail.runtime.warehouses import warehouse_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from grouptrail.storage.warehouse import Warehouse


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("spark")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config(None, {"warehouse": str(tmp_path / "warehouse"), "cluster": "test"}, {})


@pytest.fixture
def warehouse(config: Config, spark: SparkSession) -> Warehouse:
    return warehouse_of(config, spark)

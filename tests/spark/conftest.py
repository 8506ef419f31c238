"""One Spark session for the floor; a warehouse of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from grouptrail.config import Config, load_config
from grouptrail.session import start_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    config = load_config(None, {"warehouse": str(tmp_path_factory.mktemp("session"))}, {})
    session = start_session(config, "tests")
    yield session
    session.stop()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config(None, {"warehouse": str(tmp_path / "warehouse"), "cluster": "test"}, {})


@pytest.fixture
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Plans that are run once, on a few rows: to compile them takes far longer."""
    settings = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)

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
    # Plans that are run once, on a few rows: to compile them takes far longer.
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield session
    session.stop()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config(None, {"warehouse": str(tmp_path / "warehouse"), "cluster": "test"}, {})

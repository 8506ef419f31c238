"""How thoroughly hypothesis looks, the Spark session of a process, and warehouses that are only read.

`HYPOTHESIS_PROFILE=thorough` is for an hour's worth, quick otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from grouptrail.config import Config, load_config
from grouptrail.session import start_session
from support.sample_groups import billing, quiet, shared
from support.sample_history import lay_shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No JVM of a test lives so long that what its second compiler makes would pay. Without that one it has a fifth of the
# room for compiled code, which a pipeline fills: then calls fail that Java compiles as they are first made.
for name in ("SPARK_SUBMIT_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS"):
    os.environ.setdefault(name, "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")

_ALWAYS = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _ALWAYS, max_examples=20)
settings.register_profile("thorough", _ALWAYS, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one of this process: whoever stops it stops it for all files that come later."""
    config = load_config(None, {"warehouse": str(tmp_path_factory.mktemp("session"))}, {})
    session = start_session(config, "tests")
    # Plans that are run once, on a few rows: to compile them takes far longer.
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A warehouse in which every view finds something."""
    config = Config(warehouse=str(tmp_path_factory.mktemp("shop")))
    lay_shop(config)
    return config


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A cluster with the stories of some groups."""
    config = Config(warehouse=str(tmp_path_factory.mktemp("lake")))
    billing(config)
    quiet(config)
    shared(config)
    return config

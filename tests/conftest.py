"""How thoroughly hypothesis looks, and warehouses that are only read.

`HYPOTHESIS_PROFILE=thorough` is for an hour's worth, quick otherwise.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from grouptrail.config import Config
from invented_stories import billing, quiet, shared
from shop import lay_shop

# No JVM of a test lives so long that what its second compiler makes would pay.
for name in ("SPARK_SUBMIT_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS"):
    os.environ.setdefault(name, "-XX:TieredStopAtLevel=1")

_ALWAYS = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _ALWAYS, max_examples=20)
settings.register_profile("thorough", _ALWAYS, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


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

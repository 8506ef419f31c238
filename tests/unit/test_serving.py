"""Which cluster `grouptrail serve` serves, and what it says of one that the warehouse does not have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grouptrail.config import Config
from grouptrail.query.clusters import is_without_tables
from grouptrail.runtime.serving import stored_clusters
from grouptrail.runtime.warehouses import warehouse_of
from support.exporter_tables import configured, lay_everything
from support.small_tables import lay
from support.web_client import Site

REASON = 'the warehouse has no cluster "absent": it has "prod"; set --cluster'


@pytest.fixture
def prod(tmp_path: Path) -> Config:
    """The tables of a cluster named prod, and a configuration that names none."""
    config = configured(tmp_path)
    lay(config, "ingest_progress", {"cluster": "prod"})
    return config


def test_serve_without_a_configured_cluster_takes_the_only_one_and_says_so(prod: Config) -> None:
    lines: list[str] = []
    [config] = stored_clusters([prod], lines.append)
    assert (config.cluster, lines) == ("prod", ["cluster prod, the only one in the warehouse"])


def test_serve_without_a_configured_cluster_takes_all_of_several(prod: Config) -> None:
    lay(prod, "ingest_progress", {"cluster": "test"})
    lines: list[str] = []
    assert [config.cluster for config in stored_clusters([prod], lines.append)] == ["prod", "test"]
    assert lines == ["clusters prod, test, all that the warehouse has"]


def test_warehouse_without_tables_is_known_from_one_with_some(prod: Config, tmp_path: Path) -> None:
    assert not is_without_tables(warehouse_of(prod))
    assert is_without_tables(warehouse_of(configured(tmp_path / "none")))


def test_serve_with_a_cluster_that_is_not_there_says_which_are_and_serves_it(prod: Config) -> None:
    """It may have been configured before its first record was read."""
    lines: list[str] = []
    absent = prod.model_copy(update={"cluster": "absent"})
    assert stored_clusters([absent], lines.append) == [absent]
    assert lines == [f"there are no figures of cluster absent: {REASON}"]


def test_serve_with_its_cluster_or_an_empty_warehouse_says_nothing(tmp_path: Path) -> None:
    lines: list[str] = []
    for folder in ("empty", "full"):
        config = configured(tmp_path / folder)
        if folder == "full":
            lay_everything(config)
        assert stored_clusters([config], lines.append) == [config]
    assert lines == []


def test_pages_of_a_cluster_that_the_warehouse_gets_under_another_name_say_so(prod: Config) -> None:
    [notice] = json.loads(Site(prod).get("/api/v1/groups"))["notices"]
    assert 'he warehouse has no cluster "default": it has "prod"' in notice["detail"]

"""Metrics that are served only if a setting asks for them: who owns each partition, and lag for scalers."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from grouptrail.exporter.governor import governed
from support.exporter_tables import OPEN, configured, figures, lag_row, lag_table, lay_everything, now
from support.from_config import snapshot_reader
from support.small_tables import lay

NAME = "kafka_consumer_group_owner_info"


def lay_owners(lake: Path) -> None:
    """Let `b` own partition 1 of `orders` after `a`, which still has a row, and a partition of another topic."""
    config = configured(lake)
    lay_everything(config)
    owner = {**OPEN, "partition": 1, "member_id": "b", "client_id": "app", "owned_until": None}
    owner |= {"owned_from": now() + timedelta(days=400)}
    lay(
        config,
        "partition_ownership",
        {**owner, "topic": "orders"},
        {**owner, "topic": "secret"},
        {**owner, "topic": "orders", "partition": 2, "owned_until": now()},
    )
    lay(config, "memberships", {**OPEN, "member_id": "b", "client_id": "app", "client_host": "/10.0.0.7"})


def served(lake: Path, **exporter: Any) -> dict[tuple[str, ...], float] | None:
    """Return what is served of the owners; None if there is no such family."""
    config = configured(lake, owner_info=True, **exporter)
    families = governed(snapshot_reader(config).read(), config.exporter).families
    return figures(families, NAME) if NAME in {family.name for family in families} else None


def test_owner_info_has_the_newest_owner_of_each_partition_with_its_host(tmp_path: Path) -> None:
    lay_owners(tmp_path)
    owners = served(tmp_path, deny_topics="secret")
    assert owners is not None
    assert {(topic, number, member) for _, topic, number, member, *_ in owners} == {
        ("orders", "0", "a"),
        ("orders", "1", "b"),
    }
    assert owners["billing", "orders", "1", "b", "app", "/10.0.0.7"] == 1


@pytest.mark.parametrize("exporter", [{"granularity": "topic"}, {"allow_groups": "none-*"}, {"series_budget": 20}])
def test_owner_info_of_what_has_no_series_by_partition_is_not_served(
    tmp_path: Path, exporter: dict[str, Any]
) -> None:
    lay_owners(tmp_path)
    assert not served(tmp_path, **exporter)


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_readable_lag_is_served_where_it_is_known_if_it_is_asked_for(tmp_path: Path, *, is_asked_for: bool) -> None:
    config = configured(tmp_path, readable_lag=is_asked_for)
    rows = lag_table(lag_row(0, lag=5, readable_lag=2), lag_row(1, lag=5, readable_lag=None))
    families = governed(snapshot_reader(config).read(rows), config.exporter).families
    assert NAME not in {family.name for family in families}
    if is_asked_for:
        assert figures(families, "kafka_consumer_group_readable_lag") == {("billing", "orders", "0"): 2}
    else:
        assert "kafka_consumer_group_readable_lag" not in {family.name for family in families}

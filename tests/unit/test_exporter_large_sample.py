"""Samples of lag with more rows than a snapshot holds: the same is served as if it held all of them."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.config import Config, load_config
from grouptrail.errors import GrouptrailError
from grouptrail.exporter import snapshot as snapshots
from grouptrail.exporter.alias import ALIASES
from grouptrail.exporter.families import STATUSES
from grouptrail.exporter.governor import Governed, governed, groups_to_read
from grouptrail.exporter.page import ClusterPage
from grouptrail.exporter.service import Exporter
from grouptrail.exporter.snapshot import Snapshot, SnapshotReader
from support.exporter_tables import OPEN, configured, figures, lag_row, lag_table, now, until
from support.small_tables import lay

EVERY_ALIAS = [alias for aliases in ALIASES.values() for alias in aliases]
GROUPS = [*(f"group-{number}" for number in range(12)), "other", "g" * 70, "g" * 71]
TOPICS = ["orders", "payments", "t" * 80]


@contextmanager
def few_rows() -> Iterator[None]:
    """Hold at most twice as many rows as there may be series."""
    with mock.patch.object(snapshots, "_FEW_ROWS", 0):
        yield


@contextmanager
def still_time() -> Iterator[None]:
    at = now().timestamp()
    with mock.patch.object(snapshots, "time", SimpleNamespace(time=lambda: at, perf_counter=lambda: 0.0)):
        yield


def rows_of(seed: int, count: int, newest: datetime) -> list[dict[str, Any]]:
    """Return rows of a sample of this many positions, and older rows of some of them."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        group = chance.choice(GROUPS[: chance.randint(1, len(GROUPS))])
        place = {"group_id": group, "topic": chance.choice(TOPICS), "partition": number}
        for _ in range(chance.choice([1, 1, 2])):
            lag = chance.choice([None, 0, chance.randrange(1000), 10**6])
            rows.append(
                lag_row(
                    **place,
                    lag=lag,
                    sampled_at=newest - timedelta(milliseconds=number and chance.randrange(12_000)),
                    committed_offset=chance.choice([None, 7]),
                    lag_seconds=None if lag is None else chance.choice([0.0, chance.random() * 100]),
                    lag_seconds_error=chance.choice([None, chance.random()]),
                    catch_up_seconds=chance.choice([None, chance.random()]),
                    status=chance.choice([*STATUSES, "DRAINING"]),
                )
            )
    return rows


def serve(reader: SnapshotReader, config: Config, lag: pa.Table | None, before: Collection[str] = ()) -> Governed:
    snapshot = reader.read(lag, choose=lambda one: groups_to_read(one, config.exporter, EVERY_ALIAS, before))
    return governed(snapshot, config.exporter, EVERY_ALIAS, before)


def series(found: Governed) -> dict[str, list[dict[str, Any]]]:
    return {family.name: sorted(family.rows.to_pylist(), key=str) for family in found.families}


def assert_same(large: Governed, small: Governed) -> None:
    """All that is served is equal; of what the budget drops, a large sample only knows an upper bound."""
    assert large.kept == small.kept
    assert series(large) == series(small)
    assert large.dropped["budget"] >= small.dropped["budget"]
    assert (large.dropped["pattern"] > 0) == (small.dropped["pattern"] > 0)


def settings(draw: st.DrawFn) -> dict[str, Any]:
    groups, topics = st.sampled_from(["", "group-1*", "g*g", "other"]), st.sampled_from(["", "pay*", "t*,orders"])
    return {
        "series_budget": draw(st.integers(1, 250)),
        "page_bytes": draw(st.sampled_from([1_000_000, 64_000_000])),
        "label_bytes": draw(st.sampled_from([64, 256])),
        "granularity": draw(st.sampled_from(["partition", "group"])),
        "deny_groups": draw(groups),
        "deny_topics": draw(topics),
    }


@given(st.data(), st.integers(0, 2**32), st.integers(1, 700), st.sets(st.sampled_from(GROUPS)))
def test_governed_large_published_sample_serves_what_all_rows_would(
    data: st.DataObject, seed: int, count: int, before: set[str]
) -> None:
    """For any rows, budgets, patterns and groups kept before, with lag in seconds as of now."""
    config = configured("nowhere", **settings(data.draw))
    lag = lag_table(*rows_of(seed, count, now() - timedelta(seconds=3)))
    reader = SnapshotReader(config)
    with still_time():
        small = serve(reader, config, lag, before)
        with few_rows():
            assert_same(serve(reader, config, lag, before), small)

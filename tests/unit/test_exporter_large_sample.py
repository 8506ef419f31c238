"""Samples of lag with more rows than a snapshot holds: the same is served as if it held all of them."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.config import Config, load_config
from grouptrail.errors import GrouptrailError
from grouptrail.exporter.alias import ALIASES
from grouptrail.exporter.families import STATUSES
from grouptrail.exporter.governor import Governed, governed, groups_to_read
from grouptrail.exporter.page import ClusterPage
from grouptrail.exporter.service import Exporter
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.snapshot import reader as snapshots
from grouptrail.snapshot.reader import SnapshotReader
from grouptrail.snapshot.state import ClusterState
from grouptrail.snapshot.summary import combine
from support.deadlines import until
from support.exporter_tables import OPEN, configured, figures, lag_row, lag_table, now
from support.from_config import exporter_of, snapshot_reader
from support.small_tables import lay
from support.web_client import Site

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


def series(governed: Governed) -> dict[str, list[dict[str, Any]]]:
    return {family.name: sorted(family.rows.to_pylist(), key=str) for family in governed.families}


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
    reader = snapshot_reader(config)
    with still_time():
        small = serve(reader, config, lag, before)
        with few_rows():
            assert_same(serve(reader, config, lag, before), small)


# --- stored samples -----------------------------------------------------------------------------------------


def write(config: Config, rows: pa.Table, files: int = 1) -> None:
    """Add rows to consumer_lag in this many files, each with every n-th row."""
    for number in range(files):
        some = rows.take(pa.array(range(number, len(rows), files)))
        write_deltalake(warehouse_of(config).table("consumer_lag").path, some, mode="append")


def budgeted(warehouse: Path, **exporter: Any) -> Config:
    return load_config(
        None,
        {"warehouse": str(warehouse), "log_offsets.interval_seconds": "4"}
        | {f"exporter.{name}": str(value) for name, value in exporter.items()},
        {},
    )


@pytest.mark.parametrize("seed", range(3))
def test_governed_large_stored_sample_serves_what_all_rows_would(tmp_path: Path, seed: int) -> None:
    """With samples so close together that positions occur twice, in several files, and rows of another cluster."""
    config = budgeted(tmp_path, series_budget=300)
    newest = now() - timedelta(seconds=20)
    for ago in (0, 4, 8, 30):
        rows = rows_of(seed if ago else seed + 100, 400, newest - timedelta(seconds=ago))
        theirs = lag_row(group_id="theirs", cluster="other", sampled_at=now(), lag=10**9)
        write(config, lag_table(*rows, theirs), files=3)
    small = serve(snapshot_reader(config), config, None)
    with few_rows():
        assert len(snapshot_reader(config).read().lag) == 0
        assert_same(serve(snapshot_reader(config), config, None), small)
    assert small.kept


def test_snapshot_large_sample_newest_row_of_a_position_counts(tmp_path: Path) -> None:
    """Positions that the newest sample lacks are dropped, and groups that have none."""
    config = budgeted(tmp_path, series_budget=1)
    at = now() - timedelta(seconds=20)
    for ago, lag in ((0, 1), (5, 10), (9, 100), (11, 1000)):
        rows = [lag_row(n, lag=lag, sampled_at=at - timedelta(seconds=ago)) for n in range(ago, 12)]
        write(config, lag_table(*rows, lag_row(group_id=f"ago-{ago}", sampled_at=at - timedelta(seconds=ago))))
    with few_rows():
        snapshot = snapshot_reader(config).read()
        assert snapshot.newest["consumer_lag"] == at.timestamp()
    by_group = combine(snapshot.lag_by_group(), by=["group_id"])
    lag = dict(zip(by_group["group_id"].to_pylist(), by_group["lag"].to_pylist(), strict=True))
    assert lag == {"billing": 12, "ago-0": 0, "ago-5": 0, "ago-9": 0}
    assert sum(snapshot.extent["positions"].to_pylist()) == 12 + 3


def test_snapshot_stale_samples_in_large_files_have_no_lag(tmp_path: Path) -> None:
    """The files' statistics show many rows, but those are of another cluster, or too old."""
    config = budgeted(tmp_path, series_budget=1)
    old = [lag_row(number, sampled_at=now() - timedelta(hours=1)) for number in range(5)]
    write(config, lag_table(*old, *(lag_row(number, cluster="other") for number in range(5))))
    with few_rows():
        snapshot = snapshot_reader(config).read()
        assert (len(snapshot.lag), len(snapshot.extent)) == (0, 0)
        assert "start `grouptrail run`" not in str(snapshot.not_ready)
        write(config, lag_table(lag_row(7)))
        held = snapshot_reader(config).read(choose=lambda one: groups_to_read(one, config.exporter))
        assert held.lag["partition"].to_pylist() == [7]


def test_snapshot_few_rows_in_large_files_are_all_held(tmp_path: Path) -> None:
    """After compaction, the newest sample is in one file with older ones."""
    config = budgeted(tmp_path, series_budget=3)
    for seconds in (100, 50, 0):
        at = now() - timedelta(seconds=seconds)
        write(config, lag_table(*(lag_row(number, sampled_at=at, group_id=f"g{number}") for number in range(5))))
    DeltaTable(warehouse_of(config).table("consumer_lag").path).optimize.compact()
    with few_rows():
        snapshot = snapshot_reader(config).read(choose=lambda one: groups_to_read(one, config.exporter))
    assert (len(snapshot.lag), len(snapshot.summary), len(snapshot.extent)) == (5, 0, 0)


def test_snapshot_large_sample_with_a_damaged_file_names_it_and_has_the_other_rows_next(tmp_path: Path) -> None:
    config = budgeted(tmp_path, series_budget=1)
    write(config, lag_table(*(lag_row(number) for number in range(5))))
    write(config, lag_table(*(lag_row(number) for number in range(5, 12))))
    with few_rows():
        reader = snapshot_reader(config)
        file = max((tmp_path / "consumer_lag").glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)
        content = bytearray(file.read_bytes())
        content[58:100] = bytes(42)  # group_id, which the query for the newest time does not read
        file.write_bytes(content)
        with pytest.raises(GrouptrailError, match=f"{file.name} is damaged") as caught:
            reader.read()
        assert "\n" not in str(caught.value)
        read = reader.read()
    assert pc.sum(read.lag_by_group()["positions"]).as_py() == 5
    assert [name for name, texts in read.damage.items() if file.name in texts[0]] == ["consumer_lag"]


# --- served -------------------------------------------------------------------------------------------------


def test_exporter_large_published_sample_keeps_its_groups(tmp_path: Path) -> None:
    """A group with series stays until another has 1.5 times its lag, as with few rows."""
    config = configured(tmp_path, series_budget=39)
    small = [lag_row(number, group_id=f"small-{number}", lag=1) for number in range(80)]

    def kept(exporter: Exporter, one: int, other: int) -> set[tuple[str, ...]]:
        rows = [lag_row(1, group_id="one", lag=one), lag_row(1, group_id="two", lag=other)]
        exporter.publish("default", lag_table(*small, *rows))

        def sums() -> dict[tuple[str, ...], float]:
            snapshot = exporter.state("default").snapshot
            pages = [] if snapshot is None else [ClusterPage(snapshot, config.exporter)]
            return figures(list(pages[0].families), "kafka_consumer_group_sum_lag") if pages else {}

        until(lambda: sum(sums().values()) == 80 + one + other)
        return set(sums())

    with few_rows(), exporter_of([config], lambda _: None) as exporter:
        assert kept(exporter, 100, 90) == {("one",), ("other",)}
        assert kept(exporter, 100, 149) == {("one",), ("other",)}
        assert kept(exporter, 100, 151) == {("two",), ("other",)}
        assert kept(exporter, 110, 100) == {("two",), ("other",)}


@pytest.mark.parametrize("granularity", ["partition", "group"])
def test_pages_show_groups_of_a_large_sample_without_rows(tmp_path: Path, granularity: str) -> None:
    """The list has their sums and verdicts; the pages of a group and of a topic read the table."""
    config = budgeted(tmp_path, series_budget=60, granularity=granularity)
    rows = [lag_row(number % 4, group_id=f"g{number // 4:02d}") for number in range(200)]
    write(
        config, lag_table(*rows, lag_row(1, topic="rare", group_id="late", lag_seconds=9e3, lag_seconds_error=None))
    )
    lay(config, "group_states", {**OPEN, "group_id": "idle", "state": "Empty", "started_at": now()})
    with few_rows():
        snapshot = snapshot_reader(config).read(choose=lambda one: groups_to_read(one, config.exporter))
    assert len(snapshot.extent) > 0
    site = Site(config, default=ClusterState(snapshot, None, {}))
    groups = json.loads(site.get("/api/v1/groups?per_page=100"))["groups"]
    by_name = {group["group_id"]: group for group in groups}
    assert len(groups) == 52
    late, usual = by_name["late"], by_name["g49"]
    assert (late["lag"], late["lag_seconds"], late["lag_seconds_is_least"]) == (5, 9000.0, True)
    assert (usual["lag"], usual["partitions"], usual["status"], usual["lag_is_least"]) == (30, 4, "WARN", False)
    partitions = json.loads(site.get("/api/v1/groups/g49"))["partitions"]
    assert sorted(row["lag"] for row in partitions) == [0, 5, 10, 15]
    consumers = json.loads(site.get("/api/v1/topics/rare"))["consumers"]
    assert [row["group_id"] for row in consumers] == ["late"]


def test_large_sample_has_no_groups_that_were_deleted_since(tmp_path: Path) -> None:
    config = configured(tmp_path, series_budget=1)
    lay(config, "consumer_lag", *(lag_row(1, group_id=name, sampled_at=now()) for name in ("gone", "here", "again")))
    deleted = {**OPEN, "state": "Dead"}
    lay(
        config,
        "group_states",
        {**deleted, "group_id": "gone", "started_at": now()},
        {**deleted, "group_id": "again", "started_at": now() - timedelta(minutes=1)},
    )
    with few_rows():
        snapshot = snapshot_reader(config).read()
    assert not len(snapshot.lag)
    for rows in (snapshot.summary, snapshot.extent):
        assert sorted(rows["group_id"].to_pylist()) == ["again", "here"]

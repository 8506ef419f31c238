"""The pages' part of `make bench`: how long a browser waits for them, over HTTP, from tables with an hour of samples.

The page of all groups has a limit for the median of warm requests: the run fails where it is exceeded.
"""

from __future__ import annotations

import itertools
import statistics
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from bench.exporter import lag_rows
from bench.measure import seconds
from bench.simulated_groups import Client, SimulatedGroup, lay_rows
from grouptrail.config import Config, load_config
from grouptrail.exporter.service import Exporter
from grouptrail.runtime.serving import exporter_with_pages
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.spark.jars import silent

LIMITS = {1_000: 0.3, 10_000: 1.0}
"""The most seconds that the page of so many groups may take."""

ROUNDS = 9
_SAMPLES = 30
_APART = timedelta(minutes=2)


def measure(folder: Path, limits: dict[int, float] = LIMITS) -> dict[str, Any]:
    """Return for each number of groups the seconds of the first request, and the medians of warm ones."""
    figures = {f"{groups:,}": _measure(folder / str(groups), groups) for groups in limits}
    for groups, limit in limits.items():
        took = max(figures[f"{groups:,}"][name] for name in ("groups", "groups_of_a_new_snapshot"))
        if took > limit:
            raise SystemExit(f"bench: the page of {groups:,} groups took {took} s, more than {limit} s")
    return figures


def _measure(folder: Path, groups: int) -> dict[str, Any]:
    settings = {"exporter.listen": "127.0.0.1:0", "exporter.refresh_seconds": "3600"}
    config = load_config(None, {"warehouse": str(folder), "cluster": "bench", **settings}, {})
    rows = _lay(config, groups)
    with exporter_with_pages([config], silent) as exporter:
        exporter.publish(config.cluster, rows)
        while exporter.page is None or not len(exporter.page.snapshots[0].lag):
            time.sleep(0.01)
        group, topic = rows["group_id"][-1].as_py(), rows["topic"][-1].as_py()
        paths = {
            "groups": "/",
            "groups_filtered": "/?group=*service-0*7&sort=-lag&status=WARN&page=2",
            "groups_json": "/api/v1/groups",
            "group": f"/groups/{group}",
            "topic": f"/topics/{topic}",
        }
        first = seconds(lambda: _get(exporter.url + paths["groups"]))
        if b'id="data"' not in _get(exporter.url + paths["group"]):
            raise SystemExit("bench: the page of a group has no timeline")
        figures: dict[str, Any] = {"first_request": round(first, 3)}
        for name, path in paths.items():
            took = [seconds(partial(_get, exporter.url + path)) for _ in range(ROUNDS)]
            figures[name] = round(statistics.median(took), 3)
        figures["groups_of_a_new_snapshot"] = _after_a_snapshot(exporter, config.cluster, rows)
        figures["bytes"] = len(_get(exporter.url + "/"))
    print(f"{groups:,} groups: {figures}", flush=True)
    return figures


def _after_a_snapshot(exporter: Exporter, cluster: str, rows: pa.Table) -> float:
    """Return the median seconds of the first request after a new snapshot, which indexes the groups again."""
    took = []
    for _ in range(ROUNDS):
        before = exporter.page
        exporter.publish(cluster, rows)
        while exporter.page is before:
            time.sleep(0.01)
        took.append(seconds(partial(_get, f"{exporter.url}/")))
    return round(statistics.median(took), 3)


def _lay(config: Config, groups: int) -> pa.Table:
    """Write an hour of samples, and the history of one group; return the newest sample."""
    rows = lag_rows(groups)
    start = datetime.fromtimestamp(datetime.now(UTC).timestamp() // 120 * 120, UTC)
    for number in reversed(range(_SAMPLES)):
        sampled_at = pa.repeat(pa.scalar(start - number * _APART, pa.timestamp("us", "UTC")), len(rows))
        sample = rows.set_column(rows.column_names.index("sampled_at"), "sampled_at", sampled_at)
        write_deltalake(warehouse_of(config).table("consumer_lag").path, sample, mode="append")
    group = SimulatedGroup(rows["group_id"][-1].as_py(), {rows["topic"][-1].as_py(): 12}, cluster=config.cluster)
    clients = [Client(f"member-{number}", f"client-{number}") for number in range(40)]
    group.rebalance(start - 40 * _APART, "group_started", joined=clients[:4])
    for number, client in enumerate(clients[4:]):
        oldest = {clients[number].member_id: ("left", "left before its time")}
        group.rebalance(start - (36 - number) * _APART, "members_joined_and_left", joined=[client], left=oldest)
    group.lay(config)
    lay_rows(config, "ingest_progress", [{"cluster": config.cluster, "record_partition": 9, "landed_at": start}])
    lay_rows(config, "offset_commits", _commits(config, group, start))
    return rows


def _commits(config: Config, group: SimulatedGroup, start: datetime) -> Iterator[dict[str, Any]]:
    """Yield a commit per partition and sample."""
    [(topic, partitions)] = group.topics.items()
    of_group = {"cluster": config.cluster, "group_id": group.group_id, "topic": topic, "record_partition": 9}
    for number, partition in itertools.product(range(_SAMPLES), range(partitions)):
        place = number * partitions + partition
        at = start - (_SAMPLES - number) * _APART
        commit = {"partition": partition, "record_at": at, "record_offset": place, "committed_offset": 100 * number}
        yield {**of_group, **commit, "is_tombstone": False}


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())

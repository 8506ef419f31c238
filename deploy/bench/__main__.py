"""`make bench`: measure decoding, history, lag, metrics, views, timelines and web pages.

Each benchmark has a module of its own in this folder. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.cluster import measure_executors
from bench.cluster_facts import measure as measure_cluster_facts
from bench.decode import measure_decode
from bench.exporter import measure as measure_exporter
from bench.exporter_topics import measure as measure_exporter_topics
from bench.history import measure as measure_history
from bench.lag import measure as measure_lag
from bench.pages import measure as measure_pages
from bench.peers import measure_peers, measure_release
from bench.quality import measure_check, measure_keep
from bench.sample import measure_sample
from bench.shards import measure_shards
from bench.start import measure_start
from bench.timeline import measure as measure_timeline
from bench.timestamps import measure_timestamps
from bench.views import measure as measure_views
from grouptrail.config import load_config
from grouptrail.runtime.warehouses import session_settings
from grouptrail.spark.session import start_session


def main() -> None:
    """Run the benchmark or parts of it, and print its figures, as text and as one line of JSON."""
    parts: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
        "decode": lambda folder, options: measure_decode(folder, records=options.records),
        "cluster": lambda folder, options: measure_executors(folder, records=options.records),
        "start": lambda folder, options: measure_start(
            folder, records=options.records, history=options.history, batches=options.batches
        ),
        "history": lambda folder, options: _on_tables(
            folder,
            measure_history,
            groups=options.groups,
            generations=options.generations,
            commits=options.commits,
        ),
        "lag": lambda folder, options: measure_lag(
            folder,
            partitions=options.partitions,
            groups=options.groups_each,
            minutes=options.minutes,
            a_second=options.a_second,
            on_cluster=options.on_cluster,
        ),
        "sample": lambda _folder, options: measure_sample(positions=options.positions),
        "timestamps": lambda folder, options: measure_timestamps(
            folder, partitions=options.partitions, groups=options.groups_each
        ),
        "shards": lambda folder, options: measure_shards(folder, positions=options.positions),
        "cluster-facts": lambda folder, options: measure_cluster_facts(folder, topics=options.topics),
        "views": lambda folder, options: measure_views(
            load_config(None, {}, {}),
            folder,
            groups=options.groups,
            generations=options.generations,
            commits=options.commits,
        ),
        "check": lambda folder, options: _on_tables(folder, measure_check, rows=options.rows),
        "keep": lambda folder, options: _on_tables(folder, measure_keep, partitions=options.lag_partitions),
        "exporter": lambda _folder, _: measure_exporter(),
        "exporter-topics": lambda folder, options: measure_exporter_topics(folder, topics=options.topics),
        "timeline": lambda folder, _: measure_timeline(folder),
        "pages": lambda folder, _: measure_pages(folder),
        "peers": lambda folder, options: measure_peers(folder, binary=os.environ.get("KMINION"), **_beside(options)),
        "release": lambda folder, options: measure_release(
            folder, release=os.environ.get("RELEASE"), binary=os.environ.get("KMINION"), **_beside(options)
        ),
    }
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    default = [name for name in parts if name != "release"]  # needs a checkout to compare with
    parser.add_argument("--only", type=lambda text: text.split(","), default=default, help=", ".join(parts))
    parser.add_argument("--records", type=int, default=4_000_000, help="commits to decode")
    parser.add_argument("--history", type=int, default=100_000_000, help="commits in the table at a late start")
    parser.add_argument("--batches", type=int, default=17_280, help="batches at a late start that are not compacted")
    parser.add_argument("--groups", type=int, default=5_000, help="groups of the history")
    parser.add_argument("--generations", type=int, default=40, help="generations of each of them")
    parser.add_argument("--commits", type=int, default=49, help="commits in each generation")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows to check")
    parser.add_argument("--lag-partitions", type=int, default=240, help="group-partitions of a day of lag samples")
    parser.add_argument("--partitions", type=int, default=5_000, help="number of real partitions")
    parser.add_argument("--groups-each", type=int, default=10, help="groups that commit to each of them")
    parser.add_argument("--positions", type=int, default=1_008_000, help="positions (group, partition) of a sample")
    parser.add_argument("--topics", type=int, default=10_000, help="topics of the cluster that is sampled")
    parser.add_argument("--a-second", type=int, default=1_000, help="commits that are written meanwhile")
    parser.add_argument("--on-cluster", action="store_true", help="on three brokers, which can open more files")
    parser.add_argument("--minutes", type=float, default=10, help="for how long")
    parser.add_argument("--groups-beside", type=int, default=400, help="groups of several monitors' bench")
    parser.add_argument("--minutes-beside", type=float, default=1, help="for how long each of them is watched")
    options = parser.parse_args()
    if unknown := [name for name in options.only if name not in parts]:
        parser.error(f"--only: no such benchmark: {unknown[0]}: choose from {', '.join(parts)}")
    figures: dict[str, Any] = {"cores": os.cpu_count()}
    for name, part in parts.items():
        if name in options.only:
            with tempfile.TemporaryDirectory(prefix="grouptrail-bench-") as folder:
                figures[name] = part(Path(folder), options)
    print(json.dumps(figures))


def _beside(options: argparse.Namespace) -> dict[str, Any]:
    """Return the size of what several monitors read."""
    return {
        "records": options.records,
        "groups": options.groups_beside,
        "a_second": options.a_second,
        "minutes": options.minutes_beside,
    }


def _on_tables(folder: Path, measure: Callable[..., dict[str, Any]], **size: int) -> dict[str, Any]:
    """Run the parts that need only tables, on a session of their own."""
    config = load_config(None, {"warehouse": str(folder)}, {})
    spark = start_session(session_settings(config), "bench", print)
    try:
        return measure(spark, config, folder, **size)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()

"""`grouptrail maintain --dry-run` without a JVM; tests/spark/test_maintain.py compares it with what is deleted."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from grouptrail.cluster_facts.sample import TABLES as CLUSTER_FACTS
from grouptrail.config import Config, MaintainConfig
from grouptrail.maintenance import maintain
from grouptrail.maintenance.queries import DeltaRsQueries
from grouptrail.runtime.warehouses import warehouse_of
from support.deadlines import scaled
from support.frozen_warehouse import CLUSTER, thaw
from support.frozen_warehouse import NOON as WRITTEN
from support.small_tables import NOON, lay


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(warehouse=str(tmp_path), cluster=CLUSTER)


def shown(config: Config, *names: str, at: Any, **settings: Any) -> dict[str, list[int]]:
    """Return the rows that would be deleted by table, one number for each rule."""
    source, keep = DeltaRsQueries(warehouse_of(config)), MaintainConfig(**settings)
    out = io.StringIO()
    maintain.write_removals(maintain.removals_found(source, keep, names, at), out, "json")
    rows: dict[str, list[int]] = {}
    for row in map(json.loads, out.getvalue().splitlines()):
        rows.setdefault(row["table"], []).append(row["rows"])
    return rows


def test_dry_run_thinning_keeps_one_sample_a_minute_and_every_change(config: Config) -> None:
    """Of 180 samples 30 are the last of their minute; a change between two verdicts keeps both samples at it."""
    samples = (
        {"cluster": CLUSTER, "topic": "orders", "partition": 1, "sampled_at": NOON + timedelta(seconds=10 * number)}
        | {"status": "STOP" if 97 <= number < 101 else "OK"}
        for number in range(360)
    )
    lay(config, "consumer_lag", *samples)
    now = NOON + timedelta(days=1, minutes=30)
    kept = {*range(5, 180, 6), 96, 97, 100, 101}
    assert shown(config, "consumer_lag", at=now, thin_samples=["1:60"]) == {"consumer_lag": [180 - len(kept)]}
    assert shown(config, "consumer_lag", at=NOON, thin_samples=["1:60"]) == {"consumer_lag": [0]}


def test_dry_run_retention_keeps_the_newest_poll_of_each_share_partition_until_it_is_superseded(
    config: Config,
) -> None:
    outcomes = (["returned", "returned"], ["returned", "gone"], ["gone", "superseded"], ["superseded", "returned"])
    rows = [
        {"cluster": CLUSTER, "group_id": "queue", "topic": "orders", "partition": partition, "outcome": outcome}
        | {"polled_at": NOON + timedelta(minutes=minute)}
        for partition, some in enumerate(outcomes)
        for minute, outcome in enumerate(some)
    ]
    lay(config, "share_group_offsets", *rows)
    late = NOON + timedelta(days=30)
    assert shown(config, "share_group_offsets", at=late, decoded_days=7) == {"share_group_offsets": [5]}
    assert shown(config, "share_group_offsets", at=NOON, decoded_days=7) == {"share_group_offsets": [0]}


def test_dry_run_retention_counts_closed_rows_and_processed_records(config: Config) -> None:
    """Open rows, the generations of open rebalances and the newest record of each key stay."""
    thaw(config)
    late = WRITTEN + timedelta(days=30)
    late_rows = shown(config, at=late, decoded_days=7, history_days=7, samples_days=7)
    assert late_rows["consumer_lag"] == [12, 0]
    assert (late_rows["offset_commits"], late_rows["group_metadata"], late_rows["ingest_progress"]) == ([1], [7], [5])
    assert (late_rows["generations"], late_rows["rebalances"]) == ([4], [4])
    early = shown(config, at=WRITTEN, decoded_days=7, history_days=7, samples_days=7)
    assert {sum(rows) for rows in early.values()} == {0}


def test_dry_run_retention_counts_rows_of_the_cluster_that_have_ended(config: Config) -> None:
    row, ended = {"cluster": CLUSTER, "valid_from": NOON}, {"valid_to": NOON + timedelta(days=1)}
    for name in CLUSTER_FACTS:
        lay(config, name, row | ended, row | {"is_open": True, "open_bucket": 0})
    for days, expected in ((9, 1), (7, 0)):
        rows = shown(config, *CLUSTER_FACTS, at=NOON + timedelta(days=days), history_days=7)
        assert rows == {name: [expected] for name in CLUSTER_FACTS}


def test_dry_run_command_starts_no_jvm_and_prints_every_format(config: Config) -> None:
    thaw(config)
    for form, expected in (
        ("table", "nothing was deleted"),
        ("csv", "table,rows,in files"),
        ("markdown", "| table |"),
    ):
        arguments = [
            "maintain",
            "--dry-run",
            "--warehouse",
            config.warehouse,
            "--cluster",
            CLUSTER,
            "--format",
            form,
        ]
        program = (
            f"import sys; sys.argv = ['grouptrail', *{arguments}]\n"
            "from grouptrail.cli import main\n"
            "try: main()\n"
            "except SystemExit as end: assert not end.code\n"
            "print('pyspark' in sys.modules, file=sys.stderr)"
        )
        run = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=scaled(60), check=False
        )
        assert expected in run.stdout
        assert run.stderr == "False\n"


def test_dry_run_of_several_clusters_has_one_header_and_names_them(config: Config) -> None:
    thaw(config)
    warehouses = [warehouse_of(config).of_cluster(name) for name in (CLUSTER, "another")]
    out = io.StringIO()
    maintain.dry_run(
        warehouses,
        MaintainConfig(),
        ("consumer_lag",),
        start_spark=lambda: pytest.fail("Spark was started"),
        format="csv",
        out=out,
    )
    header, *lines = out.getvalue().splitlines()
    assert header.startswith("cluster,table,rows")
    assert {line.split(",")[0] for line in lines} == {CLUSTER, "another"}
    assert "cluster,table" not in "".join(lines)

"""A part of `make bench`: the time that a start of `grouptrail run` takes, by what there is to read.

A probe commits before each start, which ends when the exporter serves the probe's offset.
"""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from bench.commits import commits
from bench.lag import running_pipeline
from bench.probe import Probe
from grouptrail.config import Config, load_config
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.files import write
from grouptrail.storage.table_log import log_file
from servers.kafka import uncleaned_broker
from servers.offsets_topic import ensure_offsets_topic, load_raw

FEW = 100_000

_TOPIC = "probed"
_RUN_DEADLINE_SECONDS = 600.0
_DAY = timedelta(days=1)
# By table, how many decoded batches there are for each of its files: a sample takes twice as long.
_GROWING = {"offset_commits": 1, "ingest_progress": 1, "log_offsets": 2, "consumer_lag": 2}
_OFFSETS = ("record_offset", "start_offset", "end_offset")


def measure_start(folder: Path, *, records: int, history: int, batches: int) -> dict[str, Any]:
    """Measure a first start and restarts until the first correct metric, by number of records.

    Then restarts with so many commits of `history` in `offset_commits`, and with the small files of so many
    `batches`. Of each the first one reads all, as no job has appended these rows.
    """
    figures: dict[str, Any] = {}
    with (
        uncleaned_broker(folder / "kafka") as broker,
        closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin,
    ):
        ensure_offsets_topic(broker.bootstrap)
        admin.create_topics([NewTopic(_TOPIC, 1, 1)], timeout_ms=60_000)
        probe = Probe(admin, _TOPIC)

        def measured(name: str, config: Config, *starts: str) -> None:
            figures[name] = {start: _until_served(probe, config, folder / f"{start}.log") for start in starts}
            print(f"{name}: {figures[name]}", flush=True)

        loaded = 0
        configs = []
        for count in (FEW, records):
            load_raw(broker.bootstrap, commits(count - loaded))
            loaded = count
            settings = {"kafka.bootstrap.servers": broker.bootstrap, "warehouse": str(folder / f"of-{count}")}
            configs.append(config := load_config(None, settings, {}))
            # The second run resumes after the first one, past the batches of the first minute.
            measured(f"{count:,} records", config, "first", "resumed", "resumed again")
        few, many = configs
        rows = _lengthen(many, history)
        measured(f"{rows:,} commits in the table", many, "reads all", "resumed", "resumed again")
        _scatter(few, batches)
        measured(f"files of {batches:,} batches", few, "reads all", "resumed", "resumed again")
    return figures


def _lengthen(config: Config, wanted: int) -> int:
    """Append the commits of `offset_commits` again, as older ones, until there are as many; return their number."""
    location = warehouse_of(config).table("offset_commits").location
    table = DeltaTable(location.path)
    rows = table.to_pyarrow_table()
    many, added = max(1, wanted // len(rows)), list[str]()
    end = 1 + pc.max(rows["record_offset"]).as_py()
    for number in range(1, many):
        added += write(_older(rows, number * end, timedelta()).to_batches(), location)
    _add(table, added)
    return many * len(rows)


def _scatter(config: Config, batches: int) -> None:
    """Add small files, as so many batches of a day without `grouptrail maintain` leave them, with older rows."""
    for name, batches_a_file in _GROWING.items():
        location = warehouse_of(config).table(name).location
        table = DeltaTable(location.path)
        newest = max(table.file_uris(), key=lambda file: Path(file).stat().st_mtime)
        rows, files, added = pq.read_table(newest, partitioning=None), batches // batches_a_file, list[str]()
        for number in range(1, 1 + files):
            added += write(_older(rows, number, _DAY / files * number).to_batches(), location)
        _add(table, [action.replace('"dataChange": true', '"dataChange": false') for action in added])
        DeltaTable(location.path).create_checkpoint()
        print(f"{name}: {files:,} files of {len(rows):,} rows", flush=True)


def _older(rows: pa.Table, number: int, age: timedelta) -> pa.Table:
    for at, field in enumerate(rows.schema):
        by = pa.scalar(age) if pa.types.is_timestamp(field.type) else number if field.name in _OFFSETS else None
        if by is not None:
            rows = rows.set_column(at, field, pc.cast(pc.subtract(rows[field.name], by), field.type))
    return rows


def _add(table: DeltaTable, added: list[str]) -> None:
    log = Path(table.table_uri.removeprefix("file://"), log_file(table.version() + 1))
    log.write_text("".join(f"{action}\n" for action in added))


def _until_served(probe: Probe, config: Config, log: Path) -> dict[str, float]:
    wanted = probe.commit()
    with running_pipeline(config, log) as pipeline:
        return pipeline.cost_until(wanted, _RUN_DEADLINE_SECONDS)

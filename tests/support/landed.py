"""What has landed in a warehouse, read with delta-rs, so that the tests do not believe the writer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from grouptrail.config import Config, load_config
from grouptrail.decode.rows import encode_row
from grouptrail.decode.schema import TABLES
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.table import Table
from servers.kafka import OFFSETS_FORMATTER, Broker
from servers.offsets_topic import read_records

Coordinates = tuple[int, int]
Bytes = tuple[bytes | None, bytes | None]


def config_of(bootstrap: str, folder: Path) -> Config:
    """Return a configuration of the cluster `test` with one batch per second."""
    settings = {"warehouse": str(folder), "cluster": "test", "kafka.bootstrap.servers": bootstrap}
    return load_config(None, {**settings, "decode.trigger_seconds": "1"}, {})


def rows(config: Config, table: str) -> list[dict[str, Any]]:
    """Return the cluster's rows of a table; none if the table does not exist yet."""
    path, options = warehouse_of(config).table(table).path, config.storage_options()
    if not DeltaTable.is_deltatable(path, options):
        return []
    there = DeltaTable(path, storage_options=options).to_pyarrow_table()
    return [row for row in there.to_pylist() if row["cluster"] == config.cluster]


def records(config: Config) -> dict[Coordinates, Bytes]:
    """Return every landed record, encoded again from its row; fail if one is in two rows."""
    landed = [
        ((row["record_partition"], row["record_offset"]), encode_row(table, row))
        for table in TABLES
        for row in rows(config, table)
    ]
    twice = [where for where, count in Counter(where for where, _ in landed).items() if count > 1]
    assert not twice, f"{len(twice)} records landed more than once, such as {twice[:3]}"
    return dict(landed)


def assert_progress_adds_up(config: Config) -> None:
    """Assert that every offset range of `ingest_progress` adds up, and that each partition's ranges have no gaps."""
    expected: dict[int, int] = {}
    order = itemgetter("record_partition", "start_offset", "end_offset")
    for row in sorted(rows(config, "ingest_progress"), key=order):
        landed = sum(row[table] for table in TABLES)
        assert row["end_offset"] - row["start_offset"] == landed + row["holes"] + row["lost"], row
        assert min(row["holes"], row["lost"]) >= 0, row
        assert row["start_offset"] == expected.get(row["record_partition"], row["start_offset"]), row
        expected[row["record_partition"]] = row["end_offset"]


def in_topic(bootstrap: str) -> dict[Coordinates, Bytes]:
    """Return every record of the offsets topic."""
    return {(at.partition, at.offset): (at.key, at.value) for at in read_records(bootstrap)}


def assert_formatter_agrees(broker: Broker, config: Config) -> None:
    """Assert that Kafka's own formatter prints the same commits."""
    landed = {(row["record_partition"], row["record_offset"]): row for row in rows(config, "offset_commits")}
    lines = broker.formatted(OFFSETS_FORMATTER)
    assert len(lines) == len(landed)
    for line in lines:
        row, key, value = landed[line["partition"], line["offset"]], line["key"]["data"], line["value"]
        assert (row["group_id"], row["topic"], row["partition"]) == (key["group"], key["topic"], key["partition"])
        assert row["committed_offset"] == (value and value["data"]["offset"])


@contextmanager
def dying_before(table: str) -> Iterator[None]:
    """Fail before rows are written to a table, and assert that this happened."""

    def dying(write: Any) -> Any:
        def dies(written: Table, *given: Any, **how: Any) -> None:
            if written.name == table:
                raise RuntimeError("killed here")
            write(written, *given, **how)

        return dies

    with pytest.MonkeyPatch.context() as patch:
        for name in ("append", "upsert", "replace", "replace_where"):
            patch.setattr(Table, name, dying(getattr(Table, name)))
        with pytest.raises(RuntimeError, match="killed here"):
            yield

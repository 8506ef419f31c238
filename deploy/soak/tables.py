"""How far the pipeline has come with the topic, and whether its tables have exactly the records of the topic."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from deltalake import DeltaTable

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.decode.rows import encode_row
from grouptrail.decode.schema import TABLES
from grouptrail.kafka.errors import ClusterError
from grouptrail.kafka.log import LogBounds
from grouptrail.kafka.offsets_topic import OffsetsTopic
from grouptrail.query.errors import QueryError
from grouptrail.runtime.warehouses import warehouse_of
from servers.kafka import GROUP_METADATA_FORMATTER, OFFSETS_FORMATTER, Broker
from servers.offsets_topic import read_records
from servers.pipeline import query

_CATCH_UP_SECONDS = 600.0
_FEW_RECORDS = 1_000


def topic_bounds(broker: Broker, config: Config) -> dict[int, LogBounds]:
    """Return the bounds of the topic's partitions, asked without the proxy."""
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    direct = config.model_copy(update={"kafka": {"bootstrap.servers": broker.bootstrap}})
    while True:
        try:
            with OffsetsTopic(direct.kafka_settings()) as topic:
                return topic.bounds()
        except ClusterError:  # its partitions have no leader yet
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def landed_ends(config: Config) -> dict[int, int]:
    """Return up to which offset each partition of the topic is in the tables; empty while that cannot be read."""
    text = "SELECT record_partition, max(end_offset) AS landed FROM ingest_progress GROUP BY record_partition"
    try:
        return {row["record_partition"]: row["landed"] for row in query(config, text)}
    except QueryError:
        return {}  # the pipeline has not made its tables yet, or their store is throttled


def compare(broker: Broker, config: Config, ends: Mapping[int, int]) -> list[str]:
    """Return differences of the tables from the topic, byte for byte, and from the output of Kafka's formatters.

    Of the topic the records before `ends` are compared: its coordinators still write when they miss members of the
    workload that has ended.
    """
    wrong = []
    landed: Counter[tuple[int, int]] = Counter()
    encoded = {}
    for table in TABLES:
        for row in _open(config, table).to_pyarrow_table().to_pylist():
            where = row["record_partition"], row["record_offset"]
            landed[where] += 1
            encoded[where] = encode_row(table, row)
    topic = {
        (record.partition, record.offset): (record.key, record.value)
        for record in read_records(broker.bootstrap)
        if record.offset < ends.get(record.partition, 0)
    }
    print(f"{len(topic):,} records in the topic, {landed.total():,} in the tables")
    if len(topic) < _FEW_RECORDS:
        wrong.append("the workload has written almost no records")
    for what, records in (
        ("missing", topic.keys() - encoded.keys()),
        ("not in the topic", encoded.keys() - topic.keys()),
        ("twice", {where for where, count in landed.items() if count > 1}),
        ("of other bytes", {where for where in topic.keys() & encoded.keys() if topic[where] != encoded[where]}),
    ):
        if records:
            wrong.append(f"{len(records):,} records {what}, such as {sorted(records)[0]}")
    text = "SELECT record_partition, record_offset, {} FROM {}"
    commits = query(config, text.format("group_id, topic, partition, committed_offset", "offset_commits"))
    rows = {(row["record_partition"], row["record_offset"]): row for row in commits}
    lines = _formatted(broker, OFFSETS_FORMATTER, ends)
    for line in lines:
        row, key, value = rows[line["partition"], line["offset"]], line["key"]["data"], line["value"]
        ours = (row["group_id"], row["topic"], row["partition"], row["committed_offset"])
        if ours != (key["group"], key["topic"], key["partition"], value and value["data"]["offset"]):
            wrong.append(f"OffsetsMessageFormatter prints {line}, the table has {ours}")
            break
    groups = len(_formatted(broker, GROUP_METADATA_FORMATTER, ends))
    metadata = len(query(config, text.format("group_id", "group_metadata")))
    print(f"Kafka's formatters print {len(lines):,} commits and {groups:,} group records")
    if (len(lines), groups) != (len(rows), metadata):
        wrong.append(f"the tables have {len(rows):,} commits and {metadata:,} group records")
    return wrong


def _formatted(broker: Broker, formatter: str, ends: Mapping[int, int]) -> list[dict[str, Any]]:
    return [line for line in broker.formatted(formatter) if line["offset"] < ends.get(line["partition"], 0)]


def live_files(config: Config) -> int:
    """Return the number of files in the newest version of every table; deleted files stay on disk for seven days."""
    there = [name for name in contracts.tables() if DeltaTable.is_deltatable(warehouse_of(config).table(name).path)]
    return sum(len(_open(config, name).file_uris()) for name in there)


def _open(config: Config, table: str) -> DeltaTable:
    return DeltaTable(warehouse_of(config).table(table).path, storage_options=config.storage_options())

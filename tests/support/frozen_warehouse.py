"""Writes the small warehouse that later versions must open, with `tests` on PYTHONPATH:
`python tests/support/frozen_warehouse.py tests/data/warehouse-0.1.zip`.

Every table there is, as this version's jobs write it: records of classic and KIP-848 groups and one that nobody can
decode, their history, and samples of logs and of lag. `tests/spark/test_versions.py` reads it.
"""

from __future__ import annotations

import shutil
import sys
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from grouptrail import contracts
from grouptrail.config import Config, load_config
from grouptrail.decode.writer import DecodeBatchWriter
from grouptrail.history.job import HistoryBatchWriter
from grouptrail.history.rebuild import READ_OR_WRITTEN
from grouptrail.jobs import HISTORY
from grouptrail.kafka.log import LogBounds
from grouptrail.runtime.warehouses import context_of, warehouse_in_session, warehouse_of
from grouptrail.spark.jars import silent
from grouptrail.storage.progress import PROGRESS, RANGE_COLUMNS
from grouptrail.storage.warehouse import Warehouse
from grouptrail.wire.records import Key, Value, encode_key, encode_value
from support.history_batches import BATCHES, NOON
from support.records_in_memory import RecordsInMemory
from support.small_tables import lay

CLUSTER = "test"
ARCHIVE = Path(__file__).parents[1] / "data" / "warehouse-0.1.zip"
NOBODY_KNOWS: list[tuple[bytes, bytes | None]] = [(b"\x00\x63\x00\x01g", b"\x00\x00")]
ORDERS = "b3JkZXJzb3JkZXJzb3JkZQ"


def consumer_group() -> list[tuple[bytes, bytes | None]]:
    """Return the records of a KIP-848 group whose only member owns its target assignment."""
    group = {"groupId": "search"}
    member = {**group, "memberId": "m1"}
    owned = [{"topicId": ORDERS, "partitions": [0, 1]}]
    subscription = {
        "instanceId": None,
        "rackId": None,
        "clientId": "search-1",
        "clientHost": "/10.0.0.7",
        "subscribedTopicNames": ["orders"],
        "subscribedTopicRegex": None,
        "rebalanceTimeoutMs": 60_000,
        "serverAssignor": "uniform",
    }
    current = {
        "memberEpoch": 1,
        "previousMemberEpoch": 0,
        "state": 0,
        "assignedPartitions": owned,
        "partitionsPendingRevocation": [],
    }
    records: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
        (5, member, subscription),
        (3, group, {"epoch": 1}),
        (7, member, {"topicPartitions": owned}),
        (6, group, {"assignmentEpoch": 1}),
        (8, member, current),
    ]
    return [
        (encode_key(key), encode_value(key, Value(0, value)))
        for key, value in ((Key(number, fields), value) for number, fields, value in records)
    ]


LANDED = [*BATCHES, consumer_group(), NOBODY_KNOWS]


def land(config: Config, warehouse: Warehouse) -> None:
    """Write the decoded tables and their history, one micro-batch after the other."""
    warehouse.ensure((*READ_OR_WRITTEN, "undecodable_records"))
    writer = HistoryBatchWriter(context_of(HISTORY, config, warehouse, silent), app=lambda: "history")
    ends = [sum(map(len, LANDED[: number + 1])) for number in range(len(LANDED))]
    for number, batch in enumerate(LANDED):
        start = ends[number] - len(batch)
        records = [
            (0, start + index, NOON + timedelta(seconds=10 * (start + index)), *record)
            for index, record in enumerate(batch)
        ]
        DecodeBatchWriter(
            warehouse,
            records=RecordsInMemory(records),
            app=lambda: "decode",
            end_offsets=lambda asked, number=number: {0: ends[asked]} if 0 <= asked <= number else {0: 0},
            bounds=lambda number=number: {0: LogBounds(0, ends[number], ends[number])},
            max_record_bytes=lambda _: 1 << 20,
            log=silent,
        ).write(number)
        progress = warehouse.table(PROGRESS).dataframe().where(f"batch_id = {number}")
        writer.process(progress.select(*RANGE_COLUMNS).toArrow(), number)


def sample(config: Config) -> None:
    """Write samples of a log that grows by 10 a minute, and of a group that stops half way."""
    logs, lags = [], []
    for minute in range(12):
        at = NOON + timedelta(minutes=10 + minute)
        end, committed = 100 + 10 * minute, 100 + 10 * min(minute, 6)
        figures = {"log_start_offset": 0, "log_end_offset": end, "last_stable_offset": end}
        place = {"cluster": config.cluster, "topic": "orders", "partition": 1, "sampled_at": at}
        logs.append({**place, **figures, "topic_id": ORDERS})
        lags.append(
            {
                **place,
                **figures,
                "group_id": "billing",
                "committed_offset": committed,
                "commit_at": at,
                "lag": end - committed,
                "lost_records": 0,
                "lag_seconds": 60.0 * (end - committed) / 10,
                "lag_seconds_method": "observed",
                "lag_seconds_error": 60.0,
                "status": "OK" if minute <= 6 else "STOP",
                "status_reason": "as the fixture tells",
                "group_state": "Stable",
            }
        )
    lay(config, "log_offsets", *logs)
    lay(config, "consumer_lag", *lags)
    newest = warehouse_of(config).table("offset_commits").select("*", "ORDER BY record_offset DESC LIMIT 1")
    lay(config, "committed_offsets", *({**row, "record_at": NOON, "commit_at": NOON} for row in newest))


def write(config: Config, warehouse: Warehouse, scratch: str) -> None:
    """Write all tables as the jobs do in a scratch folder, then rewrite each in one commit to keep them small."""
    own = config.model_copy(update={"warehouse": scratch})
    written = warehouse_of(own, warehouse.session)
    land(own, written)
    sample(own)
    for name in contracts.tables():
        table = warehouse.table(name)
        table.ensure()
        if written.table(name).exists():
            rows = written.table(name).dataframe().coalesce(1)
            rows.write.format("delta").mode("append").save(table.path)


def thaw(config: Config) -> None:
    """Unpack the warehouse of version 0.1 as the configured warehouse."""
    shutil.unpack_archive(ARCHIVE, config.warehouse)


def main(archive: str) -> None:
    """Write the archive."""
    with TemporaryDirectory() as folder, TemporaryDirectory() as scratch:
        config = load_config(None, {"warehouse": folder, "cluster": CLUSTER}, {})
        with warehouse_in_session(config, "frozen", silent) as warehouse:
            write(config, warehouse, scratch)
        for checksum in Path(folder).rglob("*.crc"):
            checksum.unlink()
        shutil.make_archive(archive.removesuffix(".zip"), "zip", folder)


if __name__ == "__main__":
    main(sys.argv[1])

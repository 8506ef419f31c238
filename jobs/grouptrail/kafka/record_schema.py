"""The columns of records of the offsets topic before they are decoded.

`is_transactional` is whether the record's batch belongs to a transaction, `partition_leader_epoch` the epoch of the
leader that wrote it; null: unknown.
"""

from __future__ import annotations

import pyarrow as pa

RECORD_SCHEMA = pa.schema(
    [
        pa.field("record_partition", pa.int32()),
        pa.field("record_offset", pa.int64()),
        pa.field("record_at", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("is_transactional", pa.bool_()),
        pa.field("partition_leader_epoch", pa.int32()),
    ]
)

RECORD_DDL = (
    "record_partition int, record_offset bigint, record_at timestamp, "
    "key binary, value binary, is_transactional boolean, partition_leader_epoch int"
)
"""The same for Spark."""

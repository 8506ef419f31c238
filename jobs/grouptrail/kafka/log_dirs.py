"""What a broker says of its log directories: the size of each replica's log (DescribeLogDirs, KIP-113)."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pyarrow as pa

from grouptrail.kafka.errors import error_name

CLUSTER_DENIED = "DESCRIBE on the cluster is denied"

_NAME = pa.dictionary(pa.int32(), pa.string())

LOG_SIZES = pa.schema(
    [
        ("topic", _NAME),
        ("partition", pa.int32()),
        ("log_dir", _NAME),
        ("is_future", pa.bool_()),
        ("size_bytes", pa.int64()),
    ]
)

_CLUSTER_DENIED = 31


def log_sizes_of(response: Any) -> tuple[pa.Table, dict[str, str]] | str:
    """Return what a response of kafka-python says, or why it says nothing.

    The table has the columns `LOG_SIZES`; the dictionary says by log directory why its replicas are missing.
    """
    code = getattr(response, "error_code", None) or 0
    # Before version 3 (Kafka 3.2) a denied request was answered without directories, of which any broker has one.
    if code == _CLUSTER_DENIED or not (code or response.results):
        return CLUSTER_DENIED
    if code:
        return error_name(code)
    failed = {one.log_dir: error_name(one.error_code) for one in response.results if one.error_code}
    dirs, topics = list[str](), list[str]()
    of_topic, partitions, of_dir, sizes, are_future = array("i"), array("i"), array("i"), array("q"), array("b")
    for one in response.results:
        if one.error_code:
            continue
        for topic in one.topics:
            count = len(topic.partitions)
            of_topic.extend([len(topics)] * count)
            of_dir.extend([len(dirs)] * count)
            for replica in topic.partitions:
                partitions.append(replica.partition_index)
                sizes.append(replica.partition_size)
                are_future.append(replica.is_future_key)
            topics.append(topic.name)
        dirs.append(one.log_dir)
    columns = {
        "topic": _named(topics, of_topic),
        "partition": pa.array(np.array(partitions, np.int32)),
        "log_dir": _named(dirs, of_dir),
        "is_future": pa.array(np.array(are_future, np.bool_)),
        "size_bytes": pa.array(np.array(sizes, np.int64)),
    }
    return pa.table(columns, schema=LOG_SIZES), failed


def _named(names: list[str], codes: array[int]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.array(codes, np.int32), pa.array(names, pa.string()))

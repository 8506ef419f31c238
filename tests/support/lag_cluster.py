"""A made-up cluster's commits, history and log ends, laid into the tables that the lag job reads."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake

from grouptrail.config import Config
from grouptrail.lag import groups
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.lineage import SourceVersion, noted
from grouptrail.storage.share_progress import TABLES as SHARE_TABLES
from support import small_tables
from support.lag_samples import LOGS, at, log

_GROUPS, _PARTITIONS, _OF_TOPIC = 12, 5, 3


def empty_tables(folder: Path, **lag: Any) -> Config:
    """Return the configuration of a warehouse with empty tables, and of brokers that do not answer."""
    config = Config(warehouse=str(folder), kafka={"bootstrap.servers": "127.0.0.1:9"}, lag=lag)
    for table in (
        "log_offsets",
        "offset_commits",
        "consumer_lag",
        "committed_offsets",
        "tombstone_checks",
        *SHARE_TABLES,
        *groups.TABLES,
    ):
        small_tables.lay(config, table)
    return config


def store_commits(config: Config, rows: pa.Table, *sources: SourceVersion) -> None:
    """Store the newest commits, and of what they were made, as the lag job does."""
    noted_ = [json.loads(action)["txn"] for action in noted(sources, config.cluster)]
    of = CommitProperties(app_transactions=[Transaction(one["appId"], one["version"]) for one in noted_])
    write_deltalake(
        warehouse_of(config).table("committed_offsets").path, rows, mode="overwrite", commit_properties=of
    )


def _group_row(number: int) -> dict[str, Any]:
    return {"group_id": f"group-{number}", "record_partition": number % _PARTITIONS}


def written_out(rows: pa.Table) -> pa.Table:
    """Return rows with texts in place of dictionary codes."""
    types = [one.type.value_type if pa.types.is_dictionary(one.type) else one.type for one in rows.schema]
    return rows.cast(pa.schema(list(zip(rows.column_names, types, strict=True))))


class LagCluster:
    """A made-up cluster: some groups commit, some have a state, some own partitions without a commit."""

    def __init__(self, config: Config, seed: int) -> None:
        self._config = config
        self._random = random.Random(seed)
        self._offset = 0
        self._committed: dict[tuple[int, int], int] = {}
        stated = [number for number in range(_GROUPS) if self._random.random() < 0.7]
        started = {"started_at": at(-600), "is_open": True, "open_bucket": 1}
        states = [
            _group_row(number) | started | {"state": self._random.choice(["Stable", "Empty"])} for number in stated
        ]
        small_tables.lay(config, "group_states", *states)
        generation = {"protocol_type": "consumer", "group_kind": "classic", "members": []}
        small_tables.lay(config, "generations", *(_group_row(number) | started | generation for number in stated))
        owned = {"topic": "orders", "partition": 2, "owned_from": at(-600), "is_open": True, "open_bucket": 1}
        small_tables.lay(config, "partition_ownership", *(_group_row(number) | owned for number in stated[::2]))

    def sample(self, seconds: float) -> pa.Table:
        """Commit some offsets, and return a sample of the logs after them, which is stored."""
        rows = []
        for group in range(_GROUPS):
            for partition in range(_OF_TOPIC - 1):
                if self._random.random() < 0.4:
                    self._offset += 1
                    # Some go back.
                    offset = self._committed.get((group, partition), 100) + self._random.randint(-3, 12)
                    self._committed[group, partition] = offset
                    row = {"topic": "orders", "partition": partition, "record_offset": self._offset}
                    row |= {"record_at": at(seconds - 1), "commit_at": at(seconds - 1)}
                    is_tombstone = self._random.random() < 0.05
                    row |= {"committed_offset": None if is_tombstone else offset, "is_tombstone": is_tombstone}
                    rows.append(_group_row(group) | row)
        small_tables.lay(self._config, "offset_commits", *rows)
        end = 150 + round(seconds)
        logs = [
            log(seconds, end, cluster=self._config.cluster, partition=partition) for partition in range(_OF_TOPIC)
        ]
        sample = pa.Table.from_pylist(logs, LOGS)
        write_deltalake(warehouse_of(self._config).table("log_offsets").path, sample, mode="append")
        return sample


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows of `consumer_lag` by sample and position."""
    key = [(name, "ascending") for name in ("sampled_at", "group_id", "topic", "partition")]
    ordered: list[dict[str, Any]] = written_out(rows).sort_by(key).to_pylist()
    return ordered

"""What becomes of partitions when brokers stop: pure, and without loops over partitions.

Brokers go by these rules. A stopped broker leaves the replicas in sync. A partition is led by one of those that are
left, and is offline without any: an unclean leader election is not assumed. With fewer than `min.insync.replicas` in
sync its leader refuses writes with acks=all; more than the number of replicas counts as that number
(`Partition.effectiveMinIsr`, since Kafka 3.7).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

OFFLINE: Final = "offline"
BELOW_MIN_ISR: Final = "below_min_isr"
UNKNOWN: Final = "unknown"
OFFLINE_ALREADY: Final = "offline_already"
BELOW_MIN_ISR_ALREADY: Final = "below_min_isr_already"
LEADER_MOVES: Final = "leader_moves"
FEWER_IN_SYNC: Final = "fewer_in_sync"
NOTHING: Final = "none"
EFFECTS = (
    *(OFFLINE, BELOW_MIN_ISR, UNKNOWN, OFFLINE_ALREADY, BELOW_MIN_ISR_ALREADY, LEADER_MOVES, FEWER_IN_SYNC),
    NOTHING,
)
"""What a stop does to a partition, the worst first, as the view `what_if_broker` names it."""

NOT_IN_SYNC = "its leader is not among its replicas in sync"
NOT_READ = "its settings have not been read yet"

PARTITIONS = pa.schema(
    {
        "topic": pa.string(), "partition": pa.int32(), "leader": pa.int32(), "replicas": pa.list_(pa.int32()),
        "isr": pa.list_(pa.int32()), "offline": pa.list_(pa.int32()),
    }
)  # fmt: skip
"""The columns of `topic_partitions` that the effects follow from."""

SETTINGS = pa.schema({"topic": pa.string(), "min_insync_replicas": pa.int32(), "problem": pa.string()})
"""Those of `topic_configs`."""

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]


def loss_effects(partitions: pa.Table, settings: pa.Table, stopped: Collection[int]) -> pa.Table:
    """Return what stops of brokers do to each partition, in the order of the partitions.

    In: rows with the columns `PARTITIONS`, and a row of `SETTINGS` for each topic whose settings were read.
    Out: topic, partition, leader, replicas, isr; `has_replica`: on one of the brokers; `is_led`: by one of them;
    `isr_left`, the replicas in sync that are left; `min_insync_replicas`; `effect`, and `problem`, why it is unknown.
    """
    rows = len(partitions)
    replicas, isr, offline = (_Lists(partitions[name], rows) for name in ("replicas", "isr", "offline"))
    leader = pc.fill_null(partitions["leader"], -1).to_numpy().astype(np.int64)
    stops = np.array(sorted(stopped), np.int64)
    stops_in_sync = np.isin(isr.values, stops)
    is_left = ~stops_in_sync & ~np.isin(isr.keys, offline.keys)
    left = isr.counts(is_left)
    has_leader = leader >= 0
    is_led = has_leader & np.isin(leader, stops)
    is_touched = is_led | (isr.counts(stops_in_sync) > 0)
    leads_out_of_sync = has_leader & (isr.counts(isr.values == leader[isr.rows]) == 0)

    place = pc.index_in(partitions["topic"], settings["topic"].combine_chunks())
    least = settings["min_insync_replicas"].combine_chunks().take(place)
    most = replicas.counts()
    is_known = pc.is_valid(least).to_numpy(zero_copy_only=False)
    need = np.minimum(pc.fill_null(least, 1).to_numpy(zero_copy_only=False).astype(np.int64), most)
    # Whatever the setting is, all replicas are enough.
    is_known |= most <= 1
    is_known_left = is_known | (left >= most)
    leads_on_out_of_sync = leads_out_of_sync & ~is_led

    offline_now = ~has_leader
    below_now = has_leader & is_known & (isr.counts() < need)
    offline_then = is_touched & (left == 0) & ~leads_on_out_of_sync
    below_then = is_touched & (left < need)
    unknown_then = is_touched & (leads_on_out_of_sync | ~is_known_left)
    has_replica = replicas.counts(np.isin(replicas.values, stops)) > 0
    effect = np.select(
        [
            offline_now,
            offline_then,
            unknown_then,
            below_now,
            below_then,
            is_led,
            is_touched,
        ],
        [OFFLINE_ALREADY, OFFLINE, UNKNOWN, BELOW_MIN_ISR_ALREADY, BELOW_MIN_ISR, LEADER_MOVES, FEWER_IN_SYNC],
        NOTHING,
    )
    reason = pc.coalesce(settings["problem"].combine_chunks().take(place), pa.scalar(NOT_READ))
    problem = pc.if_else(pa.array(leads_on_out_of_sync), pa.scalar(NOT_IN_SYNC), reason)
    names = pa.array(effect, pa.string())
    return pa.table(
        {
            **{name: partitions[name] for name in ("topic", "partition", "leader", "replicas", "isr")},
            "has_replica": pa.array(has_replica | is_led),
            "is_led": pa.array(is_led),
            "isr_left": isr.among(is_left),
            "min_insync_replicas": least,
            "problem": pc.if_else(pc.equal(names, UNKNOWN), problem, pa.scalar(None, pa.string())),
            "effect": names,
        }
    )


class _Lists:
    """A column of lists, flat: `values`, the row of each in `rows`, and `keys` that tell values of two rows apart."""

    def __init__(self, column: pa.ChunkedArray, rows: int) -> None:
        lists: Any = column.combine_chunks().cast(pa.list_(pa.int32()))
        self.values = pc.list_flatten(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        self.rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        self.keys = (self.rows << 32) | self.values
        self._many = rows

    def counts(self, chosen: Mask | None = None) -> Counts:
        """Return how many values, or chosen ones, each row has."""
        return np.bincount(self.rows if chosen is None else self.rows[chosen], minlength=self._many)

    def among(self, chosen: Mask) -> pa.Array:
        """Return the lists of the chosen values."""
        ends = np.concatenate([[0], np.cumsum(self.counts(chosen))])
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(self.values[chosen], pa.int32()))

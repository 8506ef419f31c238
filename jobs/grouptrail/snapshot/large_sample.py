"""The newest sample of lag where it has too many rows to hold: its summary, and the rows of some groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from grouptrail.errors import first_cause
from grouptrail.memory import release_memory
from grouptrail.snapshot.errors import SnapshotError
from grouptrail.snapshot.summary import SUMMARY, combine, summarize
from grouptrail.storage import positions
from grouptrail.storage.schema import gathered

_POSITION = ("group_id", "topic", "partition")
_SUMMARIZED = (
    *("group_id", "topic", "sampled_at", "commit_at", "lag", "lag_seconds", "lag_seconds_error"),
    *("consume_rate", "produce_rate", "catch_up_seconds", "time_to_loss_seconds"),
    *("awaiting_redelivery", "most_deliveries", "status"),
)
_ROWS_AT_A_TIME = 250_000
_ROWS_TO_COMBINE = 1_000_000

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class LargeSample:
    """The newest row of each position (group, topic and partition) in a sample, read many rows at a time."""

    def __init__(
        self,
        rows: ds.Dataset,
        among: ds.Expression,
        newest_at: datetime,
        *,
        as_of_now: Callable[[pa.Table], pa.Table],
        is_topic_allowed: Callable[[str], bool],
        reading: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`rows` have the columns of `consumer_lag`; those that match `among` are the sample's, the newest of
        `newest_at`.

        `as_of_now` changes lag in seconds to what is served; `is_topic_allowed` selects the topics to summarize. The
        rows are read in the context `reading`.
        """
        self.newest_at = newest_at
        self._rows = rows
        self._among = among
        self._as_of_now = as_of_now
        self._is_topic_allowed = is_topic_allowed
        self._reading = reading

    def summary(self) -> tuple[pa.Table, pa.Table]:
        """Return the summary of the allowed topics (`SUMMARY`), and the extent of all (`EXTENT`)."""
        extent, is_newest = self._extent()
        topics = pc.unique(extent["topic"])
        allowed = topics.filter(pa.array(list(map(self._is_topic_allowed, topics.to_pylist())), pa.bool_()))
        seen = 0
        summaries = [SUMMARY.empty_table()]
        for rows in self._read(_SUMMARIZED):
            is_wanted = pc.is_in(rows["topic"], allowed)
            if is_newest is not None:
                is_wanted = pc.and_(is_wanted, pa.array(is_newest[seen : seen + len(rows)]))
                seen += len(rows)
            wanted = rows if pc.all(is_wanted).as_py() else rows.filter(is_wanted)
            summaries.append(summarize(self._as_of_now(wanted)))
            if sum(map(len, summaries[1:])) > len(summaries[0]) + _ROWS_TO_COMBINE:
                summaries = [combine(pa.concat_tables(summaries))]
        release_memory()
        return combine(pa.concat_tables(summaries)), extent

    def rows(self, groups: pa.Array) -> pa.Table:
        """Return the rows of some groups, at least one, with all columns and topics."""
        rows = pa.concat_tables(self._read(self._rows.schema.names, pc.field("group_id").isin(groups)))
        return self._as_of_now(positions.newest(rows, order="sampled_at"))

    def _extent(self) -> tuple[pa.Table, Bools | None]:
        """Return the topics of each group, and which rows are the newest of their position: None if all are."""
        keys = pa.concat_tables(self._read(_POSITION)).unify_dictionaries()
        release_memory()  # reading them took more than they do
        groups, topics = (keys[name].chunk(0).dictionary for name in ("group_id", "topic"))
        partition = np.asarray(keys["partition"])
        partitions = int(partition.max()) + 1
        key = _codes(keys["group_id"]).astype(np.int64)
        for codes, number in ((_codes(keys["topic"]), len(topics)), (partition, partitions)):
            key *= number
            key += codes
        del keys, partition, codes
        in_order, is_newest = np.sort(key), None
        if not _differs(in_order).all():
            del in_order
            is_newest = self._newest(key)
            in_order = np.sort(key[is_newest])
        del key
        of_topic = np.floor_divide(in_order, partitions, out=in_order)
        begins = np.flatnonzero(_differs(of_topic))
        of_topic, count = of_topic[begins], np.diff(begins, append=len(of_topic))
        group, topic = np.divmod(of_topic, len(topics))
        columns = {"group_id": groups.take(pa.array(group)), "topic": topics.take(pa.array(topic))}
        return pa.table(columns | {"positions": count}), is_newest

    def _newest(self, key: Ints) -> Bools:
        """Return which rows are the newest of their key; of several with the same time, the last."""
        sampled_at, seen = np.empty(len(key), np.int64), 0
        for rows in self._read(["sampled_at"]):
            sampled_at[seen : seen + len(rows)] = pc.cast(rows["sampled_at"], pa.int64())
            seen += len(rows)
        order = np.lexsort((sampled_at, key))
        in_order = np.take(key, order, out=sampled_at)
        is_newest = np.zeros(len(key), np.bool_)
        is_newest[order[np.roll(_differs(in_order), -1)]] = True
        return is_newest

    def _read(self, columns: Sequence[str], among: ds.Expression | None = None) -> Iterator[pa.Table]:
        """Yield the rows, always in the same order, with texts as dictionary codes. Raises SnapshotError."""
        among = self._among if among is None else self._among & among
        batches = self._rows.to_batches(
            columns=list(columns), filter=among, batch_readahead=1, fragment_readahead=1, use_threads=False
        )
        try:
            with self._reading():
                for group in gathered(batches, rows=_ROWS_AT_A_TIME):
                    yield _coded(pa.Table.from_batches(group))
        except (OSError, ValueError) as error:
            raise SnapshotError(f"consumer_lag cannot be read: {first_cause(error)}") from error


def _coded(rows: pa.Table) -> pa.Table:
    for number, column in enumerate(rows.columns):
        if pa.types.is_string(column.type):
            rows = rows.set_column(number, rows.column_names[number], column.dictionary_encode())
    return rows.unify_dictionaries()


def _codes(column: pa.ChunkedArray) -> npt.NDArray[np.int32]:
    return np.concatenate([np.asarray(chunk.indices) for chunk in column.chunks])


def _differs(values: Ints) -> Bools:
    """Return which values differ from the one before; the first does."""
    return np.append(True, values[1:] != values[:-1])

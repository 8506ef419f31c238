"""How far share groups have got in their partitions, up to date.

By the records of `__share_group_state`; where these may not be read, by what coordinators return to polls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.storage.positions import CAME_BACK
from grouptrail.storage.schema import ADMIN, columns_of, table_schema

if TYPE_CHECKING:
    from grouptrail.storage.warehouse import Warehouse

STATE = "share_group_state"
NAMES = "topic_names"
POLLED = "share_group_offsets"
TABLES = (STATE, NAMES, POLLED)

RETURNED, GONE, SUPERSEDED = "returned", "gone", "superseded"
"""The outcomes of polls in `share_group_offsets`."""

_SAID = (
    *("group_id", "topic_id", "partition", "record_at", "start_offset", "delivery_complete_count", "is_tombstone"),
    *(*CAME_BACK, "reason"),
)
PROGRESS = pa.schema(
    [
        *columns_of(STATE, _SAID),
        table_schema(NAMES).field("topic"),
        ("source", pa.string()),
        ("lag_error", pa.int64()),
    ]
)
"""What a record or a poll says of a group in a partition: columns of `share_group_state`, and the topic's name.

`start_offset` is the one in effect, also where an update leaves it; null in tombstones. A record with a `reason` was
not decoded: the start offset is the last one that is known, and what is complete is not. Polls have the `source`
ADMIN: `record_at` is when they showed that the group had got further, `lag_error` by how much lag may be too high.
"""

_STATE_COLUMNS = columns_of(STATE, ("cluster", "record_partition", "record_offset", *_SAID))
_NAME_COLUMNS = columns_of(NAMES, ("cluster", "topic_id", "topic", "learned_at"))
_POLLED_COLUMNS = columns_of(
    POLLED,
    (
        *("cluster", "group_id", "topic", "partition", "polled_at", "outcome", "topic_id", "start_offset"),
        *("delivery_complete_count", "delivery_complete_most", "changed_at"),
    ),
)

_Place = tuple[str, str, int]


class ShareProgress:
    """Reads the tables as they grow; the tables must exist.

    Records have ids of topics: those of a topic whose name is not known yet wait for it. Once a partition has been
    polled, polls count there until they are superseded, whatever records say.
    """

    def __init__(self, warehouse: Warehouse) -> None:
        state, names, polled = warehouse.tables(TABLES)
        self._rows = state.new_rows(_STATE_COLUMNS, pc.field("topic_id").is_valid())
        self._new_names = names.new_rows(_NAME_COLUMNS)
        self._polls = polled.new_rows(_POLLED_COLUMNS)
        self._names: dict[str, str] = {}
        self._unnamed: list[dict[str, Any]] = []
        self._start_offsets: dict[_Place, int] = {}
        self._by_records: dict[_Place, dict[str, Any]] = {}
        self._by_polls: dict[_Place, bool] = {}

    def fresh(self) -> pa.Table:
        """Return what is new (`PROGRESS`), in the order in which records were written, and then polls."""
        # Read first: the records by which they were superseded are then among those that are read next.
        polls = [row for rows in self._polls.fresh() for row in rows.to_pylist()]
        for names in self._new_names.fresh():
            for row in names.sort_by("learned_at").to_pylist():
                self._names[row["topic_id"]] = row["topic"]
        rows = [*self._unnamed, *(row for rows in self._rows.fresh() for row in rows.to_pylist())]
        self._unnamed = [row for row in rows if row["topic_id"] not in self._names]
        named = [row for row in rows if row["topic_id"] in self._names]
        named.sort(key=lambda row: (row["record_at"], row["record_partition"], row["record_offset"]))
        polls.sort(key=lambda row: row["polled_at"])
        said = [row for row in self._said_by(named) if _place(row) not in self._by_polls]
        return pa.Table.from_pylist([*said, *self._said_by_polls(polls)], PROGRESS)

    def partitions(self) -> dict[str, list[int]]:
        """Return the partitions in which a group has a state, by topic, both ascending."""
        by_records = self._by_records.keys() - self._by_polls.keys()
        partitions: dict[str, set[int]] = {}
        for _, topic, partition in (*by_records, *(place for place, is_there in self._by_polls.items() if is_there)):
            partitions.setdefault(topic, set()).add(partition)
        return {topic: sorted(partitions[topic]) for topic in sorted(partitions)}

    def _said_by(self, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            group, topic_id, partition = row["group_id"], row["topic_id"], row["partition"]
            topic = self._names[topic_id]
            of_id, of_name = (group, topic_id, partition), (group, topic, partition)
            if row["is_tombstone"]:
                self._start_offsets.pop(of_id, None)
                known = self._by_records.get(of_name)
                if known is not None and known["topic_id"] == topic_id:  # and not of a topic that has its name now
                    del self._by_records[of_name]
                    yield {**row, "topic": topic}
                continue
            if row["reason"] is not None:
                self._start_offsets.pop(of_id, None)
                known = self._by_records.get(of_name)
                if known is not None and known["topic_id"] == topic_id:
                    unknown = dict.fromkeys(("delivery_complete_count", *CAME_BACK))
                    self._by_records[of_name] = {**known, **unknown, "reason": row["reason"]}
                    yield self._by_records[of_name]
                continue
            start_offset = self._start_offsets.get(of_id) if row["start_offset"] is None else row["start_offset"]
            if start_offset is not None:
                self._start_offsets[of_id] = start_offset
                self._by_records[of_name] = {**row, "topic": topic, "start_offset": start_offset}
                yield self._by_records[of_name]

    def _said_by_polls(self, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            place = _place(row)
            if row["outcome"] == SUPERSEDED:
                self._by_polls.pop(place, None)
                yield self._by_records.get(place) or _without_state(row)
                continue
            self._by_polls[place] = row["outcome"] == RETURNED
            if row["outcome"] == GONE:
                yield _without_state(row)
                continue
            least, most = row["delivery_complete_count"], row["delivery_complete_most"]
            error = None if least is None else most - least
            yield {**row, "record_at": row["changed_at"], "is_tombstone": False, "source": ADMIN, "lag_error": error}


def _place(row: dict[str, Any]) -> _Place:
    return row["group_id"], row["topic"], row["partition"]


def _without_state(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "record_at": row["polled_at"], "is_tombstone": True}

"""How far share groups have got in their partitions, as the records of `__share_group_state` say, up to date."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.storage.positions import CAME_BACK
from grouptrail.storage.schema import columns_of, table_schema

if TYPE_CHECKING:
    from grouptrail.storage.warehouse import Warehouse

STATE = "share_group_state"
NAMES = "topic_names"
TABLES = (STATE, NAMES)

_SAID = (
    *("group_id", "topic_id", "partition", "record_at", "start_offset", "delivery_complete_count", "is_tombstone"),
    *CAME_BACK,
)
PROGRESS = columns_of(STATE, _SAID).append(table_schema(NAMES).field("topic"))
"""What a record says of a group in a partition: the columns of `share_group_state`, and the topic's name.

`start_offset` is the one in effect, also where an update leaves it; null in tombstones.
"""

_STATE_COLUMNS = columns_of(STATE, ("cluster", "record_partition", "record_offset", *_SAID, "reason"))
_NAME_COLUMNS = columns_of(NAMES, ("cluster", "topic_id", "topic", "learned_at"))

_Place = tuple[str, str, int]


class ShareProgress:
    """Reads both tables as they grow; the tables must exist.

    Records have ids of topics: those of a topic whose name is not known yet wait for it.
    """

    def __init__(self, warehouse: Warehouse) -> None:
        state, names = warehouse.tables(TABLES)
        self._rows = state.new_rows(_STATE_COLUMNS, pc.field("reason").is_null())
        self._new_names = names.new_rows(_NAME_COLUMNS)
        self._names: dict[str, str] = {}
        self._unnamed: list[dict[str, Any]] = []
        self._start_offsets: dict[_Place, int] = {}
        self._topic_ids: dict[_Place, str] = {}

    def fresh(self) -> pa.Table:
        """Return what the new records say (`PROGRESS`), in the order in which they were written."""
        for names in self._new_names.fresh():
            for row in names.sort_by("learned_at").to_pylist():
                self._names[row["topic_id"]] = row["topic"]
        rows = [*self._unnamed, *(row for rows in self._rows.fresh() for row in rows.to_pylist())]
        self._unnamed = [row for row in rows if row["topic_id"] not in self._names]
        named = [row for row in rows if row["topic_id"] in self._names]
        named.sort(key=lambda row: (row["record_at"], row["record_partition"], row["record_offset"]))
        return pa.Table.from_pylist(list(self._said_by(named)), PROGRESS)

    def partitions(self) -> dict[str, list[int]]:
        """Return the partitions in which a group has a state, by topic, both ascending."""
        partitions: dict[str, set[int]] = {}
        for _, topic, partition in self._topic_ids:
            partitions.setdefault(topic, set()).add(partition)
        return {topic: sorted(partitions[topic]) for topic in sorted(partitions)}

    def _said_by(self, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            group, topic_id, partition = row["group_id"], row["topic_id"], row["partition"]
            topic = self._names[topic_id]
            of_id, of_name = (group, topic_id, partition), (group, topic, partition)
            if row["is_tombstone"]:
                self._start_offsets.pop(of_id, None)
                if self._topic_ids.get(of_name) == topic_id:  # and not of a topic that has its name now
                    del self._topic_ids[of_name]
                    yield {**row, "topic": topic}
                continue
            start_offset = self._start_offsets.get(of_id) if row["start_offset"] is None else row["start_offset"]
            if start_offset is not None:
                self._start_offsets[of_id], self._topic_ids[of_name] = start_offset, topic_id
                yield {**row, "topic": topic, "start_offset": start_offset}

"""Compare what is valid with a new sample: which rows end, and which begin. Pure, and without loops over rows.

At any time since the first sample the rows with `valid_from <= time < valid_to` are those of the newest sample before
it that answered: `tests/unit/test_cluster_changes.py` replays them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.cluster_facts.sample import (
    KEYS,
    OBSERVED_SCHEMAS,
    OPEN_SCHEMAS,
    PARTITIONS,
    TOPICS,
    LastSeen,
    Observation,
)
from grouptrail.storage.buckets import bucket_of
from grouptrail.storage.schema import table_schema

Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]

_TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class TableChanges:
    """Changed rows of a table.

    `rows` have all its columns but the cluster: first `ended` rows that were open, then those that begin, and those
    that were over before the sample. `buckets` has the bucket of each, of ended ones where they were. `open_rows` are
    valid now, with the columns `OPEN_SCHEMAS`.
    """

    rows: pa.Table
    ended: int
    buckets: Places
    open_rows: pa.Table

    @property
    def began(self) -> int:
        """How many rows begin, or were over already."""
        return len(self.rows) - self.ended

    def parts(self, most_rows: int) -> Iterator[tuple[pa.Table, Collection[int]]]:
        """Yield the rows to write at a time, with the buckets in which they replace rows.

        They are all, or with more than `most_rows` open rows those of each bucket, which has all rows of its topics.
        """
        are_many = len(self.open_rows) > most_rows
        for bucket in np.unique(self.buckets).tolist() if are_many else [None]:
            chosen = np.ones(len(self.rows), np.bool_) if bucket is None else self.buckets == bucket
            replaced = np.unique(self.buckets[: self.ended][chosen[: self.ended]])
            yield self.rows.filter(pa.array(chosen)), replaced.tolist()


def compare(
    table: str,
    open_rows: pa.Table,
    seen: Observation,
    *,
    at: datetime,
    last: LastSeen | None = None,
    is_first: bool = False,
) -> TableChanges:
    """Compare the open rows of a table with a sample taken `at`, which is later than all of them.

    `last` is the last sample before, if it is known. With `is_first` topics have been there for an unknown time.
    """
    observed = _with_created_at(open_rows, seen.rows, at, is_first=is_first) if table == TOPICS else seen.rows
    found = _found(open_rows, observed, KEYS[table])
    is_known = found >= 0
    changed = np.zeros(len(observed), np.bool_)
    changed[is_known] = ~_same_rows(open_rows, found[is_known], observed, is_known)
    ends = np.ones(len(open_rows), np.bool_)
    ends[found[is_known & ~changed]] = False
    ends &= ~_is_of(table, open_rows, seen.unanswered)
    began = _begun(table, _chosen(observed, changed | ~is_known), at)
    ended, stay = _chosen(open_rows, ends), _chosen(open_rows, ~ends)
    past = _over(table, seen.past, at)
    rows = pa.concat_tables([_ended(table, ended, observed, at, last), _as_rows(table, began, is_open=True), past])
    return TableChanges(
        rows=rows,
        ended=len(ended),
        buckets=np.concatenate(
            [
                *(one["open_bucket"].to_numpy().astype(np.int64) for one in (ended, began)),
                np.zeros(len(past), np.int64),
            ]
        ),
        open_rows=pa.concat_tables([stay, began]).combine_chunks() if len(stay) else began,
    )


def is_outdated(open_topics: pa.Table, open_partitions: pa.Table, topics: pa.Table, partitions: pa.Table) -> bool:
    """Return whether a sample is older than what is known: leaders' epochs of the same topic never decrease.

    A broker that has lost its controller goes on answering what it knew.
    """
    found = _found(open_partitions, partitions, KEYS[PARTITIONS])
    is_known = found >= 0
    before = open_partitions["leader_epoch"].take(found[is_known])
    answered = partitions.filter(pa.array(is_known))
    lower = answered.filter(pc.fill_null(pc.less(answered["leader_epoch"], before), False))
    return bool(pc.any(pc.is_in(lower["topic"], _same_topics(open_topics, topics))).as_py())


def _same_topics(open_topics: pa.Table, topics: pa.Table) -> pa.Array:
    """Return the topics that have the id that they had. Without ids one may have been created again."""
    found = _found(open_topics, topics, ("topic",))
    is_known = found >= 0
    before = open_topics["topic_id"].take(found[is_known])
    there = topics.filter(pa.array(is_known))
    return there.filter(pc.fill_null(pc.equal(there["topic_id"], before), False))["topic"].combine_chunks()


def _with_created_at(open_topics: pa.Table, topics: pa.Table, at: datetime, *, is_first: bool) -> pa.Table:
    """Return topics with the time of the first sample that showed them with their id."""
    found = _found(open_topics, topics, ("topic",))
    is_known = found >= 0
    created = pa.array([None if is_first else at], _TIME).take(np.zeros(len(topics), np.int64))
    if is_known.any():
        before = open_topics.take(np.maximum(found, 0))
        is_same = is_known & _same(before["topic_id"], topics["topic_id"])
        created = pc.if_else(pa.array(is_same), before["created_at"], created)
    return topics.append_column("created_at", created)


def _ended(table: str, ended: pa.Table, observed: pa.Table, at: datetime, last: LastSeen | None) -> pa.Table:
    """Return rows that end, each last seen when it began or later."""
    last_seen = ended["valid_from"]
    for one in filter(None, (last and last.before, last)):
        seen_at = pa.scalar(one.at, _TIME)
        was_answered = pa.array(~_is_of(table, ended, one.unanswered))
        last_seen = pc.if_else(pc.and_(was_answered, pc.less(last_seen, seen_at)), seen_at, last_seen)
    rows = _as_rows(table, ended, is_open=False)
    times = {"valid_to": _repeated(at, len(ended)), "last_seen_at": last_seen}
    if table == TOPICS:
        found = _found(observed, ended, KEYS[table])
        is_same = found >= 0
        if is_same.any():
            is_same &= _same(observed["topic_id"].take(np.maximum(found, 0)), ended["topic_id"])
        times["deleted_at"] = pc.if_else(pa.array(is_same), pa.scalar(None, _TIME), times["valid_to"])
    for name, values in times.items():
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), values)
    return rows


def _over(table: str, past: pa.Table | None, at: datetime) -> pa.Table:
    """Return rows that were over before a sample; when they began, and when they were so, is not known."""
    rows = _as_rows(table, OBSERVED_SCHEMAS[table].empty_table() if past is None else past, is_open=False)
    place = rows.schema.get_field_index("valid_to")
    return rows.set_column(place, rows.schema.field(place), _repeated(at, len(rows)))


def _begun(table: str, rows: pa.Table, at: datetime) -> pa.Table:
    """Return rows that begin, with the columns of open rows."""
    columns = {name: rows[name] for name in rows.column_names}
    columns |= {"valid_from": _repeated(at, len(rows)), "open_bucket": _buckets(rows)}
    return pa.table({name: columns[name] for name in OPEN_SCHEMAS[table].names}, schema=OPEN_SCHEMAS[table])


def _as_rows(table: str, rows: pa.Table, *, is_open: bool) -> pa.Table:
    """Return rows with all columns of the table; times of an end are null, and the bucket of ended rows."""
    schema = table_schema(table, without=("cluster",))
    known = {name: rows[name] for name in rows.column_names if is_open or name != "open_bucket"}
    known["is_open"] = pa.array(np.full(len(rows), is_open))
    columns = [known[one.name] if one.name in known else pa.nulls(len(rows), one.type) for one in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _buckets(rows: pa.Table) -> pa.Array:
    if "topic" not in rows.column_names:
        return pa.array(np.zeros(len(rows), np.int32))
    coded = rows["topic"].combine_chunks().dictionary_encode()
    of_topic = np.array([bucket_of(topic) for topic in coded.dictionary.to_pylist()], np.int32)
    return pa.array(of_topic[coded.indices.to_numpy()] if len(rows) else of_topic)


def _chosen(rows: pa.Table, is_chosen: Mask) -> pa.Table:
    """Return the rows where the mask is true; all of them without a copy."""
    return rows if is_chosen.all() else rows.filter(pa.array(is_chosen))


def _is_of(table: str, rows: pa.Table, unanswered: Collection[str | int]) -> Mask:
    """Return whether each row is of one of these topics, or partitions (`Observation.unanswered`)."""
    if not len(unanswered) or not len(rows):
        return np.zeros(len(rows), np.bool_)
    column = rows[KEYS[table][0]]
    is_of: Mask = pc.is_in(column, pa.array(list(unanswered), column.type)).to_numpy()
    return is_of


def _found(among: pa.Table, rows: pa.Table, key: Sequence[str]) -> Places:
    """Return the place of each row's key in another table, in which keys are unique; -1 where it has none."""
    there, wanted = _codes(among, rows, key)
    places = pc.index_in(pa.array(wanted), value_set=pa.array(there))
    found: Places = pc.fill_null(places, -1).to_numpy().astype(np.int64)
    return found


def _codes(one: pa.Table, other: pa.Table, key: Sequence[str]) -> tuple[Places, Places]:
    """Return a number for the key of each row of two tables; equal keys have the same."""
    codes = np.zeros(len(one) + len(other), np.int64)
    for name in key:
        values = pa.chunked_array([*one[name].chunks, *other[name].chunks], one.schema.field(name).type)
        column = values.combine_chunks()
        if pa.types.is_string(column.type):
            column = column.dictionary_encode().indices
        codes = codes << 32 | column.to_numpy().astype(np.int64)
    return codes[: len(one)], codes[len(one) :]


def _same_rows(open_rows: pa.Table, places: Places, observed: pa.Table, is_known: Mask) -> Mask:
    """Return whether open rows at these places have what the known ones of the observed rows have.

    One column at a time: copies of whole tables would take several times the memory.
    """
    same = np.ones(len(places), np.bool_)
    chosen = pa.array(is_known)
    for name in observed.column_names:
        same &= _same(open_rows[name].take(places), observed[name].filter(chosen))
    return same


def _same(before: pa.ChunkedArray, after: pa.ChunkedArray) -> Mask:
    """Return whether values at the same place are the same; two nulls are."""
    one, other = before.combine_chunks(), after.combine_chunks()
    both_null: Mask = pc.and_(pc.is_null(one), pc.is_null(other)).to_numpy(zero_copy_only=False)
    equal: Mask = pc.fill_null(pc.equal(*map(_comparable, (one, other))), False).to_numpy(zero_copy_only=False)
    return equal | both_null


def _comparable(values: pa.Array) -> pa.Array:
    """Return values that Arrow can compare: it compares no lists, but their bytes."""
    if not pa.types.is_list(values.type):
        return values
    if not pa.types.is_int32(values.type.value_type):
        return pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.string())
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(lengths * 4, out=ends[1:])
    content = np.ascontiguousarray(values.flatten().to_numpy())
    is_there = pc.is_valid(values)
    as_bytes = pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(content)])
    return pc.if_else(is_there, as_bytes, pa.scalar(None, pa.binary()))


def _repeated(at: datetime, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(at, _TIME), count)

"""Shorten long names, which Kafka does not limit for groups, before they become label values."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.snapshot.reader import BY_GROUP, Snapshot

_HASH_DIGITS = 32  # 128 bits: nobody can find two names with the same hash
_SHORTENED = re.compile(rf"~[0-9a-f]{{{_HASH_DIGITS}}}")
# A cut character of UTF-8 leaves up to three bytes unused.
_UNUSED_BYTES = 3


def shorten(name: str, limit_bytes: int) -> str:
    """Return a name of at most `limit_bytes`: a longer one is cut, followed by `~` and a hash of the whole name.

    Different names stay different: a name that could be the result for another is replaced, too.
    """
    data = name.encode()
    if len(data) <= limit_bytes and not (
        len(data) >= limit_bytes - _UNUSED_BYTES and _SHORTENED.fullmatch(name[-_HASH_DIGITS - 1 :])
    ):
        return name
    start = data[: limit_bytes - _HASH_DIGITS - 1].decode(errors="ignore")
    return f"{start}~{hashlib.sha256(data).hexdigest()[:_HASH_DIGITS]}"


def shorten_names(snapshot: Snapshot, limit_bytes: int) -> Snapshot:
    """Return the snapshot with all its names at most `limit_bytes` long."""
    return replace(snapshot, **{rows: _shorten_columns(getattr(snapshot, rows), limit_bytes) for rows in BY_GROUP})


def _shorten_columns(rows: pa.Table, limit_bytes: int) -> pa.Table:
    for number, column in enumerate(rows.columns):
        if not pa.types.is_string(column.type):
            continue
        longest = pc.max(pc.binary_length(column)).as_py()
        if longest is not None and longest >= limit_bytes - _UNUSED_BYTES:
            names = pc.drop_null(pc.unique(column))
            shortened = pa.array([shorten(name, limit_bytes) for name in names.to_pylist()], pa.string())
            rows = rows.set_column(
                number, rows.column_names[number], pc.take(shortened, pc.index_in(column, value_set=names))
            )
    return rows

"""Make names label values: long ones are shortened, and those with control characters get visible ones.

Kafka does not limit the names of groups. Prometheus takes any character, but `/metrics` is also read on terminals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.console.text import harmless
from grouptrail.snapshot.reader import BY_GROUP, Snapshot

_HASH_DIGITS = 32  # 128 bits: nobody can find two names with the same hash
# Tabs do no harm, and the format escapes line breaks.
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x{9f}]"
_HASH = rf"~[0-9a-f]{{{_HASH_DIGITS}}}$"
# What a name with control characters may become, unless that is cut.
_ESCAPED = rf"(?s)\\x[0-9a-f]{{2}}.*{_HASH}"
# A cut character of UTF-8 leaves up to three bytes unused.
_UNUSED_BYTES = 3


def label_values(names: Sequence[str], limit_bytes: int) -> list[str]:
    r"""Return names as a label's values, of at most `limit_bytes`.

    A longer name is cut, and followed by `~` and a hash of the whole name; so is one with control characters, which
    become `\x1b`. Different names stay different: a name that could be the result for another is replaced, too.
    """
    values: list[str] = _values(pa.array(names, pa.string()), limit_bytes).to_pylist()
    return values


def with_label_values(snapshot: Snapshot, limit_bytes: int) -> Snapshot:
    """Return the snapshot with all its names as label values."""
    named = {name: rows_with_label_values(getattr(snapshot, name), limit_bytes) for name in BY_GROUP}
    return replace(snapshot, **named)


def rows_with_label_values(rows: pa.Table, limit_bytes: int) -> pa.Table:
    """Return rows with all texts as label values; the same columns where these are the texts themselves."""
    for number, column in enumerate(rows.columns):
        if pa.types.is_string(column.type):
            names = pc.drop_null(pc.unique(column))
            values = _values(names, limit_bytes)
            if values is not names:
                values = pc.take(values, pc.index_in(column, value_set=names))
                rows = rows.set_column(number, rows.column_names[number], values)
    return rows


def _values(names: pa.Array, limit_bytes: int) -> pa.Array:
    """Return the value for each name; the same array if these are the names themselves."""
    sizes = pc.binary_length(names)
    is_cut = pc.and_(
        pc.greater_equal(sizes, limit_bytes - _UNUSED_BYTES),
        pc.or_(pc.greater(sizes, limit_bytes), pc.match_substring_regex(names, _HASH)),
    )
    is_replaced = pc.or_(is_cut, pc.match_substring_regex(names, f"{_CONTROL}|{_ESCAPED}"))
    if not pc.any(is_replaced).as_py():
        return names
    replaced = [_replaced(name, limit_bytes) for name in names.filter(is_replaced).to_pylist()]
    return pc.replace_with_mask(names, is_replaced, pa.array(replaced, pa.string()))


def _replaced(name: str, limit_bytes: int) -> str:
    start = harmless(name).encode()[: limit_bytes - _HASH_DIGITS - 1].decode(errors="ignore")
    return f"{start}~{hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]}"

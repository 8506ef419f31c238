"""Metric families as text: Prometheus' format 0.0.4, or OpenMetrics 1.0.

Arrow joins a family's lines as one array of strings, without a Python step for each line. The text equals that of
prometheus-client's encoder except for the format of numbers (5 for 5.0, 1000000 for 1e+06).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

EOF = b"# EOF\n"

# The longest number, 26 characters, and the characters between a series' parts.
_NUMBERS_BYTES = 32

_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ('"', '\\"'))


@dataclass(frozen=True)
class Family:
    """A metric and its series.

    `labels` names the column of `rows` that holds each label's values, `fixed` gives those that all series share.
    The figure is in the column `value`; a row in which it or a label is null is no series. The rows of a histogram
    have `le_N`, how many were in the Nth bucket alone, and `seconds`, the sum; `buckets` are the upper bounds.
    `created` is the time, in seconds, at which the counters were 0 and began; None if that is not known.
    """

    name: str
    type: str
    help: str
    labels: Mapping[str, str]
    rows: pa.Table
    fixed: Mapping[str, str] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()
    created: float | None = None

    @property
    def series_a_row(self) -> int:
        """Return the number of series of a row: for a histogram its buckets with +Inf, its count and its sum."""
        return len(self.buckets) + 3 if self.buckets else 1

    @property
    def series(self) -> int:
        """Return how many lines its text has, if no row has a null."""
        return len(self.rows) * self.series_a_row


def row_bytes(family: Family) -> pa.Array:
    """Return for each row of a family how many bytes the text of its series has at most.

    Label values may be dictionary codes, which are faster to look up."""
    names = len(f"{family.name}_bucket") + sum(len(f'{label}="",') for label in (*family.labels, "le"))
    fixed = sum(len(_escaped(value).encode()) + len(f'{label}="",') for label, value in family.fixed.items())
    total: pa.Array = pa.repeat(pa.scalar(names + fixed + _NUMBERS_BYTES, pa.int64()), len(family.rows))
    for column in family.labels.values():
        values = family.rows[column]
        if pa.types.is_string(values.type):
            values = values.dictionary_encode()
        if pa.types.is_dictionary(values.type):
            values = values.combine_chunks()
            lengths = pc.cast(pc.binary_length(_escaped(values.dictionary)), pa.int64())
            total = pc.add(total, pc.fill_null(pc.take(lengths, values.indices), 0))
        else:
            total = pc.add(total, _NUMBERS_BYTES)
    return pc.multiply(total, family.series_a_row)


def written(families: Iterable[Family], *, openmetrics: bool) -> bytes:
    """Return the families' text, one head for each name, without the `EOF` that ends OpenMetrics."""
    by_name: dict[str, list[Family]] = {}
    for family in families:
        by_name.setdefault(family.name, []).append(family)
    return b"".join(
        part
        for named in by_name.values()
        for part in (
            _head(named[0], openmetrics=openmetrics),
            *(_lines(one, with_created=openmetrics) for one in named),
        )
    )


def _head(family: Family, *, openmetrics: bool) -> bytes:
    name = family.name.removesuffix("_total") if openmetrics and family.type == "counter" else family.name
    help_ = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    if openmetrics:
        help_ = help_.replace('"', '\\"')
    return f"# HELP {name} {help_}\n# TYPE {name} {family.type}\n".encode()


def _lines(family: Family, *, with_created: bool) -> bytes:
    rows = family.rows
    if any(column.null_count for column in rows.columns):
        rows = rows.drop_null()
    if not len(rows):
        return b""
    rows = rows.combine_chunks()
    labels: dict[str, pa.Array | str] = {name: _escaped(value) for name, value in family.fixed.items()}
    labels |= {name: _label(rows[column]) for name, column in family.labels.items()}
    parts = _histogram(family, labels, rows) if family.buckets else _line(family.name, labels, rows["value"])
    if with_created and family.created is not None:
        created = pa.repeat(round(family.created, 3), len(rows))
        parts += _line(f"{family.name.removesuffix('_total')}_created", labels, created)
    return _joined(parts)


def _line(name: str, labels: Mapping[str, pa.Array | str], value: pa.Array) -> list[pa.Array | str]:
    """Return the pieces of a line: strings that all rows share, and arrays."""
    parts: list[pa.Array | str] = [name]
    for number, (label, text) in enumerate(sorted(labels.items())):
        parts += [f'{"," if number else "{"}{label}="', text, '"']
    return [*parts, "} " if labels else " ", _number(value), "\n"]


def _histogram(family: Family, labels: Mapping[str, pa.Array | str], rows: pa.Table) -> list[pa.Array | str]:
    parts: list[pa.Array | str] = []
    count = pa.scalar(0, pa.int64())
    for number, bound in enumerate([*map(float, family.buckets), "+Inf"]):
        count = pc.add(rows[f"le_{number}"], count)
        parts += _line(f"{family.name}_bucket", {**labels, "le": str(bound)}, count)
    parts += _line(f"{family.name}_count", labels, count)
    return parts + _line(f"{family.name}_sum", labels, rows["seconds"])


def _joined(parts: Iterable[pa.Array | str]) -> bytes:
    pieces: list[pa.Array | str] = []
    for part in parts:
        if isinstance(part, str) and pieces and isinstance(pieces[-1], str):
            pieces[-1] += part
        else:
            pieces.append(part)
    joined = pc.binary_join_element_wise(*pieces, "")
    chunks = joined.chunks if isinstance(joined, pa.ChunkedArray) else [joined]
    return b"".join(_data(chunk) for chunk in chunks)


def _data(lines: pa.Array) -> memoryview:
    """Return the concatenated text of all values from Arrow's buffer."""
    ends = memoryview(lines.buffers()[1]).cast("i")
    return memoryview(lines.buffers()[2])[ends[lines.offset] : ends[lines.offset + len(lines)]]


def _label(values: pa.Array) -> pa.Array:
    return _escaped(values) if pa.types.is_string(values.type) else pc.cast(values, pa.string())


def _escaped(values: pa.Array | str) -> pa.Array | str:
    for char, escape in _ESCAPES:
        values = (
            values.replace(char, escape) if isinstance(values, str) else pc.replace_substring(values, char, escape)
        )
    return values


def _number(values: pa.Array) -> pa.Array:
    text = pc.cast(values, pa.string())
    if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values)).as_py():
        for ours, theirs in (("inf", "+Inf"), ("-inf", "-Inf"), ("nan", "NaN")):
            text = pc.if_else(pc.equal(text, ours), theirs, text)
    return text

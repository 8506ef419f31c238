"""The chart of a result: which columns it shows, and where its lines, bars and axes are.

A time and numbers are lines, one panel for each number; a text and numbers are bars. Texts before the first number
name the lines and bars; partitions count as texts. Positions are percentages, so that a chart fits any width; the
template draws them.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.query.formats import displayed

MAX_PANELS = 4
MAX_LINES = 8
MAX_BARS = 40
_SLOTS = 1000
_DAY = 86_400
# Beyond these a double has no room for steps of an axis.
_MAX_VALUE, _MIN_STEP = 1e300, 1e-300
_TICKS = 5

_UNITS = {
    r"_seconds$": "s", r"_ms$": "ms", r"_bytes$": "bytes", r"(_rate|per_second)$": "per second",
    r"(^|_)lag$|offset$": "offsets",
}  # fmt: skip
_LABEL_NUMBER = re.compile(r"(^|_)partition$")
_TIME_STEPS = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200),
    *(days * _DAY for days in (1, 2, 7, 14, 28, 91, 182)),
)

Point = tuple[float, float | None]


@dataclass(frozen=True)
class Tick:
    """A place on an axis in percent, and its text."""

    place: float
    text: str


@dataclass(frozen=True)
class Line:
    """A line: its name, and its path on a square of 1000."""

    name: str
    path: str


@dataclass(frozen=True)
class Bar:
    """A bar: where it begins and how long it is, in percent, and its value."""

    name: str
    start: float
    length: float
    text: str


@dataclass(frozen=True)
class Panel:
    """What is drawn of a number column: lines with two axes, or bars. `left_out` counts those that are not drawn."""

    name: str
    unit: str
    lines: Sequence[Line] = ()
    bars: Sequence[Bar] = ()
    values: Sequence[Tick] = ()
    times: Sequence[Tick] = ()
    left_out: int = 0


@dataclass(frozen=True)
class Chart:
    """A chart. `since` and `until` are the ends of the time axis; without panels, the columns fit no chart."""

    panels: Sequence[Panel] = ()
    numbers_left_out: int = 0
    since: datetime | None = None
    until: datetime | None = None

    @property
    def longest_value(self) -> int:
        """Return the length of the longest text at an axis of values, for axes that are in line."""
        return max((len(tick.text) for panel in self.panels for tick in panel.values), default=0)


def chart(table: pa.Table, names: Sequence[str]) -> Chart:
    """Return the chart of a result whose columns have these names."""
    types = table.schema.types
    numbers = [at for at, type_ in enumerate(types) if is_number(type_) and not _LABEL_NUMBER.search(names[at])]
    times = [at for at, type_ in enumerate(types) if pa.types.is_timestamp(type_) or pa.types.is_date(type_)]
    before = numbers[0] if numbers else 0
    labels = [at for at, type_ in enumerate(types[:before]) if at not in times and _is_label(type_)]
    shown = numbers[:MAX_PANELS]
    if not numbers or not len(table) or not (times or labels):
        return Chart()
    keys = _texts(table, labels)
    columns = [(names[at], _unit(names[at]), _floats(table.column(at))) for at in shown]
    left_out = len(numbers) - len(shown)
    if not times:
        return Chart([_bars(name, unit, keys, values) for name, unit, values in columns], left_out)
    moments = pc.cast(pc.cast(table.column(times[0]), pa.timestamp("us")), pa.int64()).to_pylist()
    known = [moment / 1e6 for moment in moments if moment is not None]
    if not known:
        return Chart()
    since, until = min(known), max(known)
    drawn = [_lines(name, unit, _by_key(keys, moments, values), (since, until)) for name, unit, values in columns]
    return Chart(drawn, left_out, _moment(since), _moment(until))


def is_number(type_: pa.DataType) -> bool:
    """Return whether a column of this type has numbers."""
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _is_label(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_boolean(type_) or pa.types.is_integer(type_))


def _unit(name: str) -> str:
    return next((unit for pattern, unit in _UNITS.items() if re.search(pattern, name)), "")


def _texts(table: pa.Table, columns: Sequence[int]) -> list[str]:
    """Return a name for each row."""
    if not columns:
        return [""] * len(table)
    values = zip(*(table.column(at).to_pylist() for at in columns), strict=True)
    return [" · ".join(map(displayed, row)) for row in values]


def _floats(column: pa.ChunkedArray) -> list[float | None]:
    values = (None if value is None else float(value) for value in column.to_pylist())
    return [value if value is not None and abs(value) < _MAX_VALUE else None for value in values]


def _moment(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _bars(name: str, unit: str, keys: Sequence[str], values: Sequence[float | None]) -> Panel:
    shown = list(zip(keys, values, strict=True))[:MAX_BARS]
    known = [value for _, value in shown if value is not None]
    low, high = min([0.0, *known]), max([0.0, *known])
    width = (high - low) or 1.0
    bars = [
        Bar(
            key,
            round((min(value or 0.0, 0.0) - low) / width * 100, 2),
            round(abs(value or 0.0) / width * 100, 2),
            "NULL" if value is None else _plain(value),
        )
        for key, value in shown
    ]
    return Panel(name, unit, bars=bars, left_out=len(keys) - len(shown))


def _lines(name: str, unit: str, points: Mapping[str, Sequence[Point]], span: tuple[float, float]) -> Panel:
    drawn = dict(list(points.items())[:MAX_LINES])
    ticks = _value_ticks([value for line in drawn.values() for _, value in line if value is not None])
    low, high = ticks[0], ticks[-1]
    since, length = span[0], (span[1] - span[0]) or 1.0
    places = {
        key: [((at - since) / length, None if value is None else (high - value) / (high - low)) for at, value in line]
        for key, line in drawn.items()
    }
    return Panel(
        name,
        unit,
        lines=[Line(key, _path(_thinned(line))) for key, line in places.items()],
        values=[Tick(round((high - tick) / (high - low) * 100, 2), _plain(tick)) for tick in ticks],
        times=[Tick(round((at - since) / length * 100, 2), text) for at, text in _time_ticks(*span)],
        left_out=len(points) - len(drawn),
    )


def _by_key(
    keys: Sequence[str], moments: Sequence[int | None], values: Sequence[float | None]
) -> dict[str, list[Point]]:
    """Return the points of each line in the order of time."""
    points: defaultdict[str, list[Point]] = defaultdict(list)
    for key, moment, value in zip(keys, moments, values, strict=True):
        if moment is not None:
            points[key].append((moment / 1e6, value))
    return {key: sorted(line, key=lambda point: point[0]) for key, line in points.items()}


def _value_ticks(values: Iterable[float]) -> list[float]:
    """Return round values from below the least to above the greatest; from 0, unless all are far from it."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low == high or not (low > 0.8 * high > 0 or high < 0.8 * low < 0):
        low, high = min(low, 0.0), max(high, 0.0)
    step = _round_above(max((high - low) / 4 or max(abs(high), 1.0), _MIN_STEP))
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _round_above(value: float) -> float:
    """Return the least of 1, 2 and 5 times a power of ten that is not below a value."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(float(digit * power) for digit in (1, 2, 5, 10) if digit * power >= value * 0.999)


def _time_ticks(since: float, until: float) -> Sequence[tuple[float, str]]:
    step = next((step for step in _TIME_STEPS if (until - since) / step <= _TICKS), 365 * _DAY)
    if until == since:
        return [(since, _clock(since, 1))]
    first = math.ceil(since / step)
    return [(at * step, _clock(at * step, step)) for at in range(first, math.floor(until / step) + 1)][: 2 * _TICKS]


def _clock(seconds: float, step: int) -> str:
    moment = _moment(seconds)
    if moment is None:
        return ""
    if step >= _DAY or (step >= 60 and seconds % _DAY == 0):
        return f"{moment:%Y-%m-%d}"
    return f"{moment:{'%H:%M' if step >= 60 else '%H:%M:%S'}}"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.6g}"


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Return as many points as can be seen: the highest and the lowest of each run of points."""
    if len(points) <= 2 * _SLOTS:
        return points
    size = -(-len(points) // _SLOTS)
    slots = (points[at : at + size] for at in range(0, len(points), size))
    ends = ({min(slot, key=_height), max(slot, key=_height)} for slot in slots)
    return [point for slot in ends for point in sorted(slot, key=lambda point: point[0])]


def _height(point: Point) -> float:
    return -math.inf if point[1] is None else point[1]


def _path(points: Sequence[Point]) -> str:
    """Return a path on a square of 1000; unknown values leave gaps, and a point between two gaps is a dot."""
    path, is_drawing = "", False
    for x, y in points:
        if y is None:
            is_drawing = False
            continue
        # The stroke of no length that `h0` adds is drawn with its round ends.
        path += f"{'L' if is_drawing else 'M'}{x * 1000:.1f} {y * 1000:.1f}{'' if is_drawing else 'h0'}"
        is_drawing = True
    return path

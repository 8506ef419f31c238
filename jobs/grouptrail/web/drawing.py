"""Small pictures as SVG: geometry, classes and figures only, so that no name needs to be escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from markupsafe import Markup

from grouptrail.web.answers import LagPoint, PartitionPoint

_SPARK = (90.0, 20.0)
_CHART = (220.0, 24.0)
_MARGIN = 1.5

Value = int | float | None
Point = tuple[float, Value]


def sparkline(values: Sequence[Value]) -> Markup:
    """Return a line of values at equal distances, from 0 to the greatest; unknown values leave gaps."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup()
    last = max(len(values) - 1, 1)
    points = [(index / last, value) for index, value in enumerate(values)]
    return _picture("spark", _SPARK, _line(points, 0, max(*known, 1), _SPARK), _about("lag", known))


def lag_chart(points: Sequence[LagPoint], since: datetime, until: datetime) -> Markup:
    """Return lag between two times, from 0 to the greatest."""
    lag = [(_place(point.at, since, until), point.lag) for point in points]
    known = [value for _, value in lag if value is not None]
    if not known:
        return Markup()
    top = max(*known, 1)
    drawn = _area(lag, 0, top, _CHART) + _line(lag, 0, top, _CHART)
    return _picture("chart lag", _CHART, drawn, _about("lag", known))


def offsets_chart(points: Sequence[PartitionPoint], since: datetime, until: datetime) -> Markup:
    """Return a partition's committed offset and the end of its log between two times."""
    ends = [(_place(point.at, since, until), point.log_end_offset) for point in points]
    commits = [(_place(point.at, since, until), point.committed_offset) for point in points]
    known = [value for _, value in (*ends, *commits) if value is not None]
    if not known:
        return Markup()
    low, high = min(known), max(*known, min(known) + 1)
    drawn = f'<g class="end">{_line(ends, low, high, _CHART)}</g>{_line(commits, low, high, _CHART)}'
    committed = [value for _, value in commits if value is not None]
    return _picture("chart offsets", _CHART, drawn, _about("committed offset", committed) if committed else "")


def bar(start: Value, end: Value, *marks: Value) -> Markup:
    """Return a log from its start to its end as a bar, with marks at offsets."""
    if start is None or end is None or end <= start:
        return Markup()
    width, height = _CHART[0], 12.0
    lines = "".join(
        f'<path d="M{min(max((mark - start) / (end - start), 0), 1) * (width - 2) + 1:.1f} 0v{height:g}"/>'
        for mark in marks
        if mark is not None
    )
    about = f"log from {start:,} to {end:,}"
    return _picture(
        "bar", (width, height), f'<rect width="{width:g}" y="3" height="{height - 6:g}" rx="3"/>{lines}', about
    )


def _place(moment: datetime, since: datetime, until: datetime) -> float:
    return min(max((moment - since) / (until - since), 0.0), 1.0)


def _about(what: str, known: Sequence[int | float]) -> str:
    return f"{what} from {known[0]:,.0f} to {known[-1]:,.0f}, at most {max(known):,.0f}"


def _picture(kind: str, size: tuple[float, float], drawn: str, about: str) -> Markup:
    width, height = size
    return Markup(
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'role="img" aria-label="{about}">{drawn}</svg>'
    )


def _line(points: Sequence[Point], low: float, high: float, size: tuple[float, float]) -> str:
    return "".join(f'<path d="M{_joined(run)}"/>' for run in _runs(points, low, high, size))


def _area(points: Sequence[Point], low: float, high: float, size: tuple[float, float]) -> str:
    return "".join(
        f'<path class="area" d="M{run[0][0]:.1f} {size[1]:g}L{_joined(run)}L{run[-1][0]:.1f} {size[1]:g}Z"/>'
        for run in _runs(points, low, high, size)
    )


def _joined(run: Sequence[tuple[float, float]]) -> str:
    text = "L".join(f"{x:.1f} {y:.1f}" for x, y in run)
    return text if len(run) > 1 else f"{text}h1"


def _runs(
    points: Sequence[Point], low: float, high: float, size: tuple[float, float]
) -> Iterator[list[tuple[float, float]]]:
    """Yield the places of points that follow one another without an unknown value."""
    width, height = size
    run: list[tuple[float, float]] = []
    for x, value in [*points, (0.0, None)]:
        if value is not None:
            y = height - _MARGIN - (value - low) / (high - low) * (height - 2 * _MARGIN)
            run.append((x * width, y))
        elif run:
            yield run
            run = []

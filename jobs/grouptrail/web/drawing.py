"""Small pictures as SVG: geometry and classes only, no text of others, so that no name needs to be escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

_WIDTH, _HEIGHT = 90.0, 20.0


def sparkline(values: Sequence[int | float | None]) -> Markup:
    """Return a line of values at equal distances, from 0 to the greatest; unknown values leave gaps."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup()
    top = max(*known, 1)
    step = _WIDTH / max(len(values) - 1, 1)
    points = [
        None if value is None else (index * step, _HEIGHT - 1.5 - value / top * (_HEIGHT - 3))
        for index, value in enumerate(values)
    ]
    paths = "".join(f'<path d="{path}"/>' for path in _paths(points))
    return Markup(
        f'<svg class="spark" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" width="{_WIDTH:g}" height="{_HEIGHT:g}" '
        f'aria-hidden="true" focusable="false" preserveAspectRatio="none">{paths}</svg>'
    )


def _paths(points: Sequence[tuple[float, float] | None]) -> Iterator[str]:
    """Yield a path for each run of known points."""
    path = ""
    for point in [*points, None]:
        if point is None:
            if path:
                yield path + ("h1" if path.count("L") == 0 else "")
            path = ""
        else:
            path += f"{'L' if path else 'M'}{point[0]:.1f} {point[1]:.1f}"

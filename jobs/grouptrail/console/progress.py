"""Lines that say how far long work is."""

from __future__ import annotations


def print_now(line: str) -> None:
    """Print a line that a pipe or a log gets at once, too."""
    print(line, flush=True)

"""Progress output of long-running commands."""

from __future__ import annotations


def print_now(line: str) -> None:
    """Print a line and flush it, so that pipes and logs receive it at once."""
    print(line, flush=True)

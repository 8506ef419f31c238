"""Progress output of long-running commands."""

from __future__ import annotations

from grouptrail.console.text import harmless


def print_now(line: str) -> None:
    """Print a line, without control characters, and flush it, so that pipes and logs receive it at once."""
    print(harmless(line, keep_lines=True), flush=True)

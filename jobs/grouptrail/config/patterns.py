"""Shell patterns that select groups and topics."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def is_allowed(name: str, allow: Iterable[str], deny: Iterable[str]) -> bool:
    """Return whether a name matches a pattern of `allow` and none of `deny`."""
    return any(fnmatchcase(name, pattern) for pattern in allow) and not any(
        fnmatchcase(name, pattern) for pattern in deny
    )

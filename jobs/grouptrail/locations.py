"""Locations of the warehouse and of checkpoints: local folders and URIs."""

from __future__ import annotations

import re
from pathlib import Path

_URI = re.compile(r"[a-zA-Z][\w+.-]+:/")


def is_uri(location: str) -> bool:
    """Return whether a location is a URI (s3://…, abfss://…, file:/…), not a local folder."""
    return _URI.match(location) is not None


def normalized(location: str) -> str:
    """Return a URI without trailing slashes, or a local folder's absolute path.

    Raises ValueError for the home of a user that does not exist.
    """
    if is_uri(location):
        return location.rstrip("/")
    try:
        return str(Path(location).expanduser().absolute())
    except RuntimeError:
        raise ValueError("~ is followed by no user of this machine: write the path of the folder") from None

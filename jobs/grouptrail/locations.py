"""Locations of the warehouse and of checkpoints: local folders and URIs."""

from __future__ import annotations

import os
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


def leads_out(folder: str, path: str) -> bool:
    """Return whether a path in a local folder is outside it once all links are followed."""
    root = os.path.realpath(folder)
    return os.path.commonpath([root, os.path.realpath(os.path.join(folder, path))]) != root

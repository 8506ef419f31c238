"""Locations of the warehouse and of checkpoints: local folders and URIs, and what is shown of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

_URI = re.compile(r"[a-zA-Z][\w+.-]+:/")
# Begins where a word does: otherwise a long text would be searched again from each of its letters.
_URI_IN_TEXT = re.compile(r"(?<![\w+.-])[\w+.-]+:/\S*")
_USER = re.compile(r"[^/@?]*(?=@)")
_QUERY = re.compile(r"\?(?!\*\*\*).*", re.DOTALL)
# Of these URIs the user is the name of a container.
_WITH_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")
_STARS = "***"


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


def shown(location: str) -> str:
    """Return a location as it may be printed: of a URI, stars in place of user, password and query."""
    return _starred(location) if is_uri(location) else location


def with_locations_shown(text: str) -> str:
    """Return a text of any origin, such as an error of a library, with each URI in it as it may be printed."""
    return _URI_IN_TEXT.sub(lambda found: _starred_in_text(found[0]), text)


def _starred_in_text(uri: str) -> str:
    """Return what is shown of a URI that the end of a sentence, or what encloses it, may follow."""
    end = len(uri.rstrip("\"'`)]}>.,:;"))
    return _starred(uri[:end]) + uri[end:]


def _starred(uri: str) -> str:
    scheme, _, rest = uri.partition(":/")
    address = rest.lstrip("/")
    start = uri.removesuffix(address)
    if login := _login(scheme, address):
        address = _STARS + address.removeprefix(login)
    return start + _QUERY.sub(f"?{_STARS}", address)


def _login(scheme: str, address: str) -> str | None:
    """Return user and password of the address after a scheme's slashes.

    A password may contain slashes and @: what has a colon and an @ is a login up to the last @.
    """
    login = address.rpartition("@")[0]
    if ":" in login:
        return login
    user = _USER.match(address)
    return None if user is None or scheme.lower() in _WITH_CONTAINERS else user[0]

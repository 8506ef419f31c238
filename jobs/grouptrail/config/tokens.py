"""Tokens that clients of a server give, each in a file of its own."""

from __future__ import annotations

import re
from pathlib import Path

from grouptrail.errors import GrouptrailError

_MIN_LENGTH = 16
_TOKEN = re.compile(r"[!-~]+")


class TokenError(GrouptrailError):
    """A file that has no usable token."""


def read_token(path: Path, option: str) -> str:
    """Return the token in a file. Raises TokenError if it can be guessed, or read by every user.

    `option` is what names the file.
    """
    try:
        if path.stat().st_mode & 0o007:
            raise TokenError(f"every user of this machine may use {path}: chmod o= {path}")
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(f"cannot read {path} ({error}): check {option}") from error
    if len(token) < _MIN_LENGTH or not _TOKEN.fullmatch(token):
        raise TokenError(
            f"{path} has no token of {_MIN_LENGTH} or more ASCII characters without spaces: "
            "create one with `openssl rand -hex 32`"
        )
    return token

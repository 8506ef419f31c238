r"""Escaping of untrusted text for a terminal.

Clients choose group and topic names, client ids and commit metadata. Control characters in them can move the cursor
or forge lines, and bidirectional marks can reverse a line. They are shown as `\x1b` or `\u202e` instead.
"""

from __future__ import annotations

import re

_CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
_UNSAFE = re.compile(f"[{_CONTROL}]")
_UNSAFE_OR_NEW_LINE = re.compile(rf"[\n{_CONTROL}]")


def harmless(text: str, *, keep_lines: bool = False) -> str:
    r"""Return the text with these characters escaped, and also line breaks unless `keep_lines`."""
    return (_UNSAFE if keep_lines else _UNSAFE_OR_NEW_LINE).sub(lambda match: _escape(match[0]), text)


def harmless_json(text: str) -> str:
    """Return equivalent JSON in which these characters are escaped."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escape(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"

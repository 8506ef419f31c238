r"""Text of strangers for a terminal, which obeys some characters instead of showing them.

Group and topic names, client ids and commit metadata are whatever a client has sent: control characters move the
cursor or forge lines, marks of writing direction turn a line around. Here they are shown as `\x1b` or `\u202e`.
"""

from __future__ import annotations

import re

_CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
_OBEYED = re.compile(f"[{_CONTROL}]")
_OBEYED_OR_NEW_LINE = re.compile(rf"[\n{_CONTROL}]")


def harmless(text: str, *, keep_lines: bool = False) -> str:
    r"""The text with an escape in place of each such character; of a new line, too, unless lines are kept."""
    return (_OBEYED if keep_lines else _OBEYED_OR_NEW_LINE).sub(lambda found: _escape(found[0]), text)


def harmless_json(text: str) -> str:
    """JSON that means the same: it escapes fewer of them by itself."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"

"""One HTML file that opens offline, with its style, scripts and data.

Nothing in the data can become code: it is escaped inside its element, the scripts set text by `textContent` alone,
and the page's policy runs no script but its own, by hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from grouptrail.query.errors import QueryError

_ASSETS = files("grouptrail.report")
_IN_SCRIPT = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


def page(name: str, scripts: tuple[str, ...], *, title: str, data: dict[str, Any]) -> str:
    """Return the page `name`.html with these scripts in this order and this data."""
    style = _asset("page.css")
    script = "\n".join(['"use strict";', *(_asset(f"{part}.js") for part in scripts)])
    return Template(_asset(f"{name}.html")).substitute(
        title=escape(title),
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}",
        style=style,
        script=script,
        data=embedded(data),
    )


def embedded(data: dict[str, Any]) -> str:
    """Return JSON in which no string can end a script element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_IN_SCRIPT)


def write(text: str, path: Path) -> None:
    """Write the file. Raises QueryError if that fails."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise QueryError(f"{path} cannot be written ({error.strerror}): check --out") from error


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

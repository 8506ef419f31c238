"""One HTML file that opens offline, with its style, scripts and data.

Nothing in the data can become code: it is escaped inside its element, the scripts set text by `textContent` alone,
and the page's policy runs no script but its own, by hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import stat
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from grouptrail.query.errors import QueryError
from grouptrail.query.formats import whole_file

_ASSETS = files("grouptrail.report")
_POLICY = "default-src 'none'; style-src "
_IN_SCRIPT = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


def page(name: str, scripts: tuple[str, ...], *, title: str, data: dict[str, Any]) -> str:
    """Return the page whose body is `name`.html, with these scripts in this order and this data."""
    style = asset("page.css")
    script = joined_scripts(scripts)
    return Template(asset("page.html")).substitute(
        title=escape(title),
        policy=f"{_POLICY}{_hash(style)}; script-src {_hash(script)}",
        style=style,
        script=script,
        body=Template(asset(f"{name}.html")).substitute(picture=asset("picture.html")),
        data=embedded(data),
    )


def joined_scripts(scripts: tuple[str, ...]) -> str:
    """Return the text of scripts as one script."""
    return "\n".join(['"use strict";', *(asset(f"{part}.js") for part in scripts)])


def embedded(data: dict[str, Any]) -> str:
    """Return JSON in which no string can end a script element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_IN_SCRIPT)


def write(text: str, path: Path) -> None:
    """Write the file; an existing page is replaced. Raises QueryError for any other file, and if that fails."""
    _refuse_other_file(path)
    with whole_file(path) as partial:
        partial.write_text(text, "utf-8")


def _refuse_other_file(path: Path) -> None:
    """Raise QueryError if there is something at a path that is not a page that this module wrote."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            raise QueryError(f"{path} is a link: name the file itself with --out")
        head = _head()
        if stat.S_ISREG(mode):
            with path.open("rb") as file:
                if file.read(len(head)) == head:
                    return
    except FileNotFoundError:
        return
    except OSError as error:
        raise QueryError(f"{path} cannot be read ({error.strerror}): give another --out") from error
    raise QueryError(f"{path} exists and is no page of grouptrail: give another --out, or delete it")


def _head() -> bytes:
    """Return what each page begins with, up to the hash of its style."""
    return f"{asset('page.html').partition('$policy')[0]}{_POLICY}".encode()


def asset(name: str) -> str:
    """Return the text of a file of this package."""
    return (_ASSETS / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

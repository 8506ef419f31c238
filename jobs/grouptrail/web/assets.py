"""Style, scripts and icon under addresses that name their content, so that browsers may keep them for ever."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from grouptrail.report.page import asset, joined_scripts
from grouptrail.report.timeline import SCRIPTS

_OWN = files("grouptrail.web") / "static"


@dataclass(frozen=True)
class Asset:
    """A file and its address."""

    path: str
    content: bytes
    type: str


def assets() -> dict[str, Asset]:
    """Return all files by name. The style is that of the reports, and what the pages add to it."""
    files_ = {
        "grouptrail.css": (asset("page.css") + _own("web.css") + _own("sql.css"), "text/css"),
        "grouptrail.js": (_own("web.js"), "text/javascript"),
        "rollouts.js": (_own("rollouts.js"), "text/javascript"),
        "sql.js": (_own("sql.js"), "text/javascript"),
        "timeline.js": (joined_scripts(SCRIPTS), "text/javascript"),
        "icon.svg": (_own("icon.svg"), "image/svg+xml"),
    }
    assets = {}
    for name, (text, type_) in files_.items():
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        assets[name] = Asset(f"/static/{digest}/{name}", text.encode(), f"{type_}; charset=utf-8")
    return assets


def _own(name: str) -> str:
    return (_OWN / name).read_text("utf-8")

"""A configuration as TOML text."""

from __future__ import annotations

import json
from typing import Any


def to_toml(settings: dict[str, Any]) -> str:
    """Return settings as a TOML file: plain settings first, then one section for each non-empty dict."""
    plain = "".join(_line(name, value) for name, value in settings.items() if not isinstance(value, dict))
    sections = [
        f"\n[{name}]\n" + "".join(_line(key, value) for key, value in section.items())
        for name, section in settings.items()
        if isinstance(section, dict) and section
    ]
    return plain + "".join(sections)


def _line(key: str, value: Any) -> str:
    name = key if key.replace("_", "").isalnum() else json.dumps(key)
    return f"{name} = {json.dumps(value, ensure_ascii=False)}\n"

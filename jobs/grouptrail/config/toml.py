"""A configuration as TOML text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def to_toml(settings: dict[str, Any], comments: Mapping[tuple[str, ...], str] | None = None) -> str:
    """Return settings as a TOML file: plain settings first, then one section for each non-empty dict.

    `comments` are by section and name, or by name alone.
    """

    def line(*path: str, value: Any) -> str:
        comment = (comments or {}).get(path)
        return f"{_assignment(path[-1], value)}{f'  # {comment}' if comment else ''}\n"

    plain = "".join(line(name, value=value) for name, value in settings.items() if not isinstance(value, dict))
    sections = [
        f"\n[{name}]\n" + "".join(line(name, key, value=value) for key, value in section.items())
        for name, section in settings.items()
        if isinstance(section, dict) and section
    ]
    return plain + "".join(sections)


def _assignment(key: str, value: Any) -> str:
    name = key if key.replace("_", "").isalnum() else json.dumps(key)
    return f"{name} = {json.dumps(value, ensure_ascii=False)}"

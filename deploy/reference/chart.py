"""The settings in the Helm chart's schema, from the models, and the list of values in docs/kubernetes.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from grouptrail.config import Config
from grouptrail.config.model import CLIENT_SECTIONS, GROUPTRAIL_SECTIONS
from grouptrail.config.placement import SHARED
from reference import DOCS

CHART = Path(__file__).resolve().parents[1] / "helm" / "grouptrail"
SCHEMA = CHART / "values.schema.json"

_PAGE = "kubernetes.md"
_CONFIG = "#/properties/config/properties"


def pages() -> dict[str, str]:
    """Return the text of the page with the list of values, by file name."""
    text = (DOCS / _PAGE).read_text("utf-8")
    values = "\n".join(["| value | default | meaning |", "| --- | --- | --- |", *_values()])
    pattern = r"(<!-- values: made by make docs -->\n).*?(<!-- end -->)"
    return {_PAGE: re.sub(pattern, lambda match: f"{match[1]}\n{values}\n\n{match[2]}", text, flags=re.DOTALL)}


def schema() -> str:
    """Return the text of values.schema.json: as it is, with the settings of today's models as `config`."""
    values = json.loads(SCHEMA.read_text("utf-8"))
    values["properties"]["config"] = _config()
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _config() -> dict[str, Any]:
    model = Config.model_json_schema()
    settings = {name: _plain(setting, model["$defs"]) for name, setting in model["properties"].items()}
    for name in CLIENT_SECTIONS:
        settings[name]["description"] = f"Settings of `[{name}]`."
    cluster = {
        name: {"$ref": f"{_CONFIG}/{name}"}
        for name in settings
        if name in (*CLIENT_SECTIONS, *GROUPTRAIL_SECTIONS) and name not in SHARED
    }
    settings["clusters"] = {
        "description": "Settings of each of several clusters, by its name.",
        "type": "object",
        "additionalProperties": {"type": "object", "additionalProperties": False, "properties": cluster},
    }
    return {
        "description": "`grouptrail.toml` as a map; docs/settings.md lists the settings. Secrets do not belong here.",
        "type": "object",
        "additionalProperties": False,
        "properties": settings,
        "required": ["warehouse", "exporter"],
    }


def _plain(part: Any, sections: dict[str, Any]) -> Any:
    """Return a part of pydantic's schema without references, titles, defaults and the type null."""
    if isinstance(part, list):
        return [_plain(one, sections) for one in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _plain(sections[part["$ref"].rpartition("/")[2]], sections)
    merged = dict(part)
    for choice in merged.pop("anyOf", ()):
        if choice != {"type": "null"}:
            merged |= choice
    return {
        key: " ".join(value.split()) if key == "description" else _plain(value, sections)
        for key, value in merged.items()
        if key not in ("title", "default", "format", "writeOnly") or isinstance(value, dict)
    }


def _values() -> Iterator[str]:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    yield from _rows(json.loads(schema())["properties"], defaults, "")


def _rows(properties: dict[str, Any], defaults: dict[str, Any], prefix: str) -> Iterator[str]:
    for name, described in properties.items():
        if name not in defaults:
            continue
        if "properties" in described and "description" not in described:
            yield from _rows(described["properties"], defaults[name], f"{prefix}{name}.")
        elif "description" in described:
            yield f"| `{prefix}{name}` | {_shown(defaults[name])} | {described['description']} |"


def _shown(value: Any) -> str:
    if value in ("", [], {}):
        return "none"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"

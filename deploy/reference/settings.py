"""docs/settings.md: every setting with its variable, default and meaning, from the configuration's models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from grouptrail.config import Config

_HEAD = """\
# Settings

`make docs` generates this page from `jobs/grouptrail/config/model.py`: edit the settings there. Settings come from a
TOML file (`--config`, otherwise `GROUPTRAIL_CONFIG`, otherwise `grouptrail.toml`), then from the environment, then
from flags (`--cluster`, `--warehouse`, `--bootstrap-server`, and `--set SECTION.NAME=VALUE` for any other); later
sources override earlier ones. `grouptrail config` prints the settings in effect.

A list is a TOML list in the file, and separated by commas in variables and flags. Groups and topics are selected by
shell patterns such as `billing-*`.

`[kafka]` takes any setting of Kafka's Java client by its own name (`GROUPTRAIL_KAFKA__SASL_MECHANISM` is
`sasl.mechanism`), `[spark]` any of Spark's, `[storage]` any option of delta-rs
(`GROUPTRAIL_STORAGE__AWS_REGION` is `aws_region`). Settings in `[kafka]` may refer to
[secrets elsewhere](security.md#secrets). `kafka.preset` (`GROUPTRAIL_KAFKA__PRESET`: `msk-iam`, `confluent-cloud` or
`event-hubs`) fills in the login of a [managed service](managed-kafka.md#presets).

| setting | variable | default | meaning |
| --- | --- | --- | --- |
"""


def page() -> str:
    """Return the page's text."""
    return _HEAD + "".join(f"{line}\n" for line in _lines(Config(), ""))


def _lines(section: BaseModel, prefix: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _lines(value, f"{name}.")
        elif not isinstance(value, dict):
            variable = f"GROUPTRAIL_{(prefix + name).replace('.', '__').upper()}"
            shown = _shown("warehouse" if name == "warehouse" else section.model_dump(mode="json")[name])
            meaning = " ".join((field.description or "").split())
            yield f"| `{prefix}{name}` | `{variable}` | {shown} | {meaning} |"


def _shown(value: Any) -> str:
    if value is None or value in ("", []):
        return "none"
    if isinstance(value, list):
        return f"`{','.join(map(str, value))}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"

"""Settings that the options of a command override."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

_SETTINGS = {"cluster": "cluster", "warehouse": "warehouse", "bootstrap_server": "kafka.bootstrap.servers"}


def overrides(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings in the values of `ConfigOptions` by name. Raise BadParameter for a wrong `--set`."""
    pairs = [text.partition("=") for text in options.get("set") or ()]
    for key, equals, _ in pairs:
        if not equals or not key:
            raise typer.BadParameter(f"'{key}' is not KEY=VALUE", param_hint="--set")
    named = {setting: options.get(option) for option, setting in _SETTINGS.items()}
    return {key.strip(): value for key, _, value in pairs} | {
        setting: value for setting, value in named.items() if value is not None
    }

"""Values of settings of Kafka's client as Python's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grouptrail.kafka.errors import KafkaSettingError


def number(settings: Mapping[str, str], name: str, default: float, least: float, most: float = float("inf")) -> float:
    """Return a setting as a number. Raises KafkaSettingError if it is none, or outside the limits."""
    text: Any = settings.get(name, default)
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        limits = f"of at least {least:g}" if most == float("inf") else f"from {least:g} to {most:g}"
        raise KafkaSettingError(f'kafka."{name}" is {text}: give a number {limits}')
    return value


def is_true(settings: Mapping[str, str], name: str) -> bool:
    """Return whether a setting is `true`; by default it is not."""
    return settings.get(name, "false").lower() == "true"

"""Which settings are secrets, and how they are kept out of what is printed."""

from __future__ import annotations

import re

from pydantic import SecretStr

_SECRET = re.compile(
    r"passw|passphrase|jaas|secret|token|private.?key|access.?key|account.?key|master.?key|sas.?key|credential|"
    r"^ssl\.keystore\.key$",
    re.IGNORECASE,
)


def is_secret(setting: str) -> bool:
    """Return whether a Kafka, Spark or storage setting of that name holds a secret."""
    return _SECRET.search(setting) is not None and not setting.endswith((".url", ".class"))


def reveal(value: str | SecretStr) -> str:
    """Return a setting's value in clear text."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def revealed(settings: dict[str, str | SecretStr]) -> dict[str, str]:
    """Return settings with their secrets in clear text."""
    return {name: reveal(value) for name, value in settings.items()}


def hide_secrets(settings: dict[str, str | SecretStr]) -> dict[str, str | SecretStr]:
    """Return settings with each secret wrapped, so that neither repr nor JSON shows it."""
    return {name: SecretStr(reveal(value)) if is_secret(name) else value for name, value in settings.items()}

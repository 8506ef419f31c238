"""Logins to managed services of Kafka: `kafka.preset` and what it stands for, in settings of Kafka's client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grouptrail.config.jaas import escaped
from grouptrail.config.providers import SecretError

PRESET = "preset"

_JAAS, _MECHANISM = "sasl.jaas.config", "sasl.mechanism"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_MSK = "software.amazon.msk.auth.iam"
_GIVEN = re.compile(r"\$\{([\w.]+)\}")


@dataclass(frozen=True)
class Preset:
    """Settings of a service's login, whose JAAS line has `${NAME}` for what the user gives as `kafka."NAME"`.

    `source` is how groups are read where the service lets no client read the offsets topic.
    """

    settings: Mapping[str, str]
    source: str | None = None

    def filled(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings that are not given; with another mechanism, none of the login."""
        is_own_login = given.get(_MECHANISM, self.settings[_MECHANISM]) == self.settings[_MECHANISM]
        return {
            name: value
            for name, value in self.settings.items()
            if name not in given and (is_own_login or not name.startswith("sasl."))
        }


PRESETS = {
    "msk-iam": Preset(
        {
            "security.protocol": "SASL_SSL",
            _MECHANISM: "AWS_MSK_IAM",
            _JAAS: f"{_MSK}.IAMLoginModule required;",
            "sasl.client.callback.handler.class": f"{_MSK}.IAMClientCallbackHandler",
        }
    ),
    "confluent-cloud": Preset(
        {
            "security.protocol": "SASL_SSL",
            _MECHANISM: "PLAIN",
            _JAAS: f'{_PLAIN} required username="${{api.key}}" password="${{api.secret}}";',
        },
        source="admin",
    ),
    "event-hubs": Preset(
        {
            "security.protocol": "SASL_SSL",
            _MECHANISM: "PLAIN",
            _JAAS: f'{_PLAIN} required username="$ConnectionString" password="${{connection.string}}";',
        },
        source="admin",
    ),
}


def preset_of(settings: Any) -> Preset | None:
    """Return the preset that settings of Kafka's client name, if they do and there is one."""
    name = settings.get(PRESET) if isinstance(settings, Mapping) else None
    return PRESETS.get(name) if isinstance(name, str) else None


def completed(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings of Kafka's client without those that only a preset has, which are in its JAAS line instead.

    Raises SecretError if one is missing.
    """
    preset = preset_of(settings)
    if preset is None:
        return dict(settings)
    template = preset.settings[_JAAS]
    names = _GIVEN.findall(template)
    known = {name: value for name, value in settings.items() if name not in (PRESET, *names)}
    if settings.get(_JAAS) != template:
        return known
    if missing := [name for name in names if not settings.get(name)]:
        needed = " and ".join(f'kafka."{name}"' for name in missing)
        raise SecretError(f'kafka.preset = "{settings[PRESET]}" needs {needed}: set it, or kafka."{_JAAS}"')
    return known | {_JAAS: _GIVEN.sub(lambda found: escaped(settings[found[1]]), template)}

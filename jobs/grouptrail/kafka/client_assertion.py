"""JWTs by which a client proves to a token endpoint who it is, in place of a secret (RFC 7523).

The settings are those of Kafka's Java client since 4.1 (KIP-1139, KIP-1258): `sasl.oauthbearer.assertion.…`.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grouptrail.kafka.errors import KafkaLoginError, KafkaSettingError
from grouptrail.kafka.jwt import ALGORITHMS, KEY_FILE, signed_jwt
from grouptrail.kafka.values import is_true, number

_PREFIX = "sasl.oauthbearer.assertion."
_FILE = f"{_PREFIX}file"
_TEMPLATE = f"{_PREFIX}template.file"
_CLAIMS = ("iss", "sub", "aud")


@dataclass(frozen=True)
class ClientAssertion:
    """A JWT in a file, or what one is made of and signed with. Files are read for each token.

    Times are in seconds. `template` is a JSON file with further members of `header` and `payload`.
    """

    file: str | None = None
    key_file: str = ""
    passphrase: str | None = field(default=None, repr=False)
    algorithm: str = "RS256"
    claims: tuple[tuple[str, str], ...] = ()
    template: str | None = None
    lives_seconds: float = 300
    valid_before_seconds: float = 60
    has_id: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> ClientAssertion | None:
        """Return the assertion that the settings of Kafka's client describe; None if these have none.

        Raises KafkaSettingError.
        """
        if file := settings.get(_FILE):
            return cls(file)
        if not any(settings.get(name) for name in (KEY_FILE, _TEMPLATE, f"{_PREFIX}claim.iss")):
            return None
        algorithm = settings.get(f"{_PREFIX}algorithm", cls.algorithm)
        if algorithm not in ALGORITHMS:
            raise KafkaSettingError(f'kafka."{_PREFIX}algorithm" is {algorithm}: give {" or ".join(ALGORITHMS)}')
        if not settings.get(KEY_FILE):
            raise KafkaSettingError(f'kafka."{KEY_FILE}" is missing: give the PEM file of the client\'s private key')
        given = {name: settings.get(f"{_PREFIX}claim.{name}", "") for name in _CLAIMS}
        template = settings.get(_TEMPLATE)
        missing = [name for name, value in given.items() if not value]
        if missing and template is None:
            raise KafkaSettingError(
                f'kafka."{_PREFIX}claim.{missing[0]}" is missing: a client\'s JWT has iss and sub (mostly both the '
                "client's id) and aud (mostly the token endpoint)"
            )
        return cls(
            key_file=settings[KEY_FILE],
            passphrase=settings.get(f"{_PREFIX}private.key.passphrase"),
            algorithm=algorithm,
            claims=tuple((name, value) for name, value in given.items() if value),
            template=template,
            lives_seconds=number(settings, f"{_PREFIX}claim.exp.seconds", cls.lives_seconds, 1, 86_400),
            valid_before_seconds=number(settings, f"{_PREFIX}claim.nbf.seconds", cls.valid_before_seconds, 0, 3600),
            has_id=is_true(settings, f"{_PREFIX}claim.jti.include"),
        )

    def text(self) -> str:
        """Return a new assertion. Raises KafkaLoginError or KafkaSettingError."""
        if self.file is not None:
            return _read(_FILE, self.file).strip()
        now = int(time.time())
        times = {"iat": now, "exp": now + int(self.lives_seconds), "nbf": now - int(self.valid_before_seconds)}
        own_id = {"jti": str(uuid.uuid4())} if self.has_id else {}
        header, payload = self._of_template()
        claims = {**dict(self.claims), **payload, **times, **own_id}  # in the order in which Java's client overrides
        return signed_jwt(header, claims, self.algorithm, self.key_file, self.passphrase)

    def _of_template(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.template is None:
            return {}, {}
        try:
            members = json.loads(_read(_TEMPLATE, self.template))
            return dict(members.get("header", {})), dict(members.get("payload", {}))
        except (ValueError, AttributeError, TypeError, RecursionError):
            raise KafkaLoginError(
                f'kafka."{_TEMPLATE}": {self.template} is no JSON object with header and payload: correct it'
            ) from None


def _read(setting: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise KafkaLoginError(f'kafka."{setting}": {path} cannot be read ({reason}): mount the file there') from None

"""Login with SASL OAUTHBEARER: the settings of Kafka's Java client, and tokens that are renewed before they expire.

The settings are those of Kafka 4.x (KIP-768, KIP-1139). Spark brings a client of Kafka 3.9, which takes the client's
id and secret from `sasl.jaas.config` alone: `java_settings` translates.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from grouptrail.errors import GrouptrailError
from grouptrail.kafka.errors import KafkaSettingError
from grouptrail.kafka.jaas import jaas_line, jaas_options
from grouptrail.kafka.tls import tls_context
from grouptrail.kafka.token_endpoint import Endpoint, Token, request_token

MECHANISM = "OAUTHBEARER"

_URL = "sasl.oauthbearer.token.endpoint.url"
_HANDLER = "sasl.login.callback.handler.class"
_ID = "sasl.oauthbearer.client.credentials.client.id"
_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
_SCOPE = "sasl.oauthbearer.scope"
_CONNECT_MS, _READ_MS = "sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms"

_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
_LOGIN_MODULE = f"{_PACKAGE}.OAuthBearerLoginModule"
_LOGIN_HANDLER = f"{_PACKAGE}.OAuthBearerLoginCallbackHandler"
# The second is the name before Kafka 3.4, which later releases keep.
_LOGIN_HANDLERS = (_LOGIN_HANDLER, f"{_PACKAGE}.secured.OAuthBearerLoginCallbackHandler")

_EXTENSION = "extension_"
_EXTENSION_NAME = re.compile("[A-Za-z]+")  # RFC 7628
_EXTENSION_VALUE = re.compile(r"[\x20-\x7e\t\r\n]+")

_TIMEOUT_MS = 10_000
# After an error no token is requested for so long: while the last one can still be used, and when none can.
_RETRY_SECONDS = 10.0
_FAILED_SECONDS = 2.0


@dataclass(frozen=True)
class RefreshWindow:
    """When a token is renewed: after which part of its life, as Java's settings `sasl.login.refresh.…`."""

    factor: float = 0.8
    jitter: float = 0.05
    min_period_seconds: float = 60
    buffer_seconds: float = 300

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> RefreshWindow:
        """Return the window that the settings describe. Raises KafkaSettingError."""
        prefix = "sasl.login.refresh"
        return cls(
            _number(settings, f"{prefix}.window.factor", cls.factor, 0.5, 1),
            _number(settings, f"{prefix}.window.jitter", cls.jitter, 0, 0.25),
            _number(settings, f"{prefix}.min.period.seconds", cls.min_period_seconds, 0, 900),
            _number(settings, f"{prefix}.buffer.seconds", cls.buffer_seconds, 0, 3600),
        )

    def renewal(self, now: float, expires_at: float) -> float:
        """Return when to renew a token that was issued `now`: as Java's client does it."""
        share = (expires_at - now) * (self.factor + self.jitter * random.random())
        if expires_at - now <= self.buffer_seconds + self.min_period_seconds:
            return now + share
        return max(min(now + share, expires_at - self.buffer_seconds), now + self.min_period_seconds)


@dataclass(frozen=True)
class Login:
    """What a client logs in with: the endpoint, SASL extensions by name, TLS settings for the endpoint."""

    endpoint: Endpoint
    extensions: tuple[tuple[str, str], ...] = ()
    tls: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    window: RefreshWindow = field(default_factory=RefreshWindow)

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Login:
        """Return the login that the settings of Kafka's client describe. Raises KafkaSettingError."""
        options = jaas_options(settings.get("sasl.jaas.config", ""))
        handler = settings.get(_HANDLER, _LOGIN_HANDLER)
        if handler not in _LOGIN_HANDLERS:
            raise KafkaSettingError(f'kafka."{_HANDLER}" is {handler}: leave it out, or give {_LOGIN_HANDLER}')
        url = _checked_url(settings.get(_URL, ""))
        client_id = settings.get(_ID) or options.get("clientId")
        secret = settings.get(_SECRET) or options.get("clientSecret")
        if not client_id or not secret:
            raise KafkaSettingError(
                f'the client\'s id or secret is missing: set kafka."{_ID}" and kafka."{_SECRET}", or write '
                '...OAuthBearerLoginModule required clientId="..." clientSecret="..."; as kafka."sasl.jaas.config"'
            )
        tls = {name: value for name, value in options.items() if name.startswith("ssl.")}
        timeout_ms = max(_number(settings, name, _TIMEOUT_MS, 1) for name in (_CONNECT_MS, _READ_MS))
        endpoint = Endpoint(
            url,
            client_id,
            secret,
            settings.get(_SCOPE) or options.get("scope"),
            settings.get("sasl.oauthbearer.sub.claim.name", "sub"),
            settings.get("sasl.oauthbearer.scope.claim.name", "scope"),
            encodes=settings.get("sasl.oauthbearer.header.urlencode", "false").lower() == "true",
            timeout=timeout_ms / 1000,
            tls=tls_context(tls, _jaas_option) if url.startswith("https:") else None,
        )
        return cls(endpoint, _extensions(options), tuple(sorted(tls.items())), RefreshWindow.of(settings))

    def jaas_line(self) -> str:
        """Return the login as `sasl.jaas.config`, which has a secret."""
        of_client = {"clientId": self.endpoint.client_id, "clientSecret": self.endpoint.client_secret}
        of_client |= {"scope": self.endpoint.scope} if self.endpoint.scope else {}
        of_client |= {f"{_EXTENSION}{name}": value for name, value in self.extensions}
        return jaas_line(_LOGIN_MODULE, of_client | dict(self.tls))


class Tokens:
    """The token of a login, renewed when it is due. May be used by several threads."""

    def __init__(self, login: Login) -> None:
        self.endpoint = login.endpoint.shown
        self.extensions = dict(login.extensions)
        self._login = login
        self._token: Token | None = None
        self._renew_at = 0.0
        self._failure: GrouptrailError | None = None
        self._renewing = threading.Lock()

    def token(self) -> str:
        """Return a token that has not expired.

        A renewal that fails is tried again every ten seconds; its error is raised once the token has expired. The
        errors are those of `request_token`.
        """
        with self._renewing:
            now = time.time()
            if self._token is not None and now >= self._token.expires_at:
                self._token, self._renew_at = None, 0.0
            if now >= self._renew_at:
                self._renew(now)
            if self._token is None:
                failure = self._failure or GrouptrailError("")
                raise type(failure)(str(failure))
            return self._token.text

    def _renew(self, now: float) -> None:
        try:
            self._token = request_token(self._login.endpoint)
        except GrouptrailError as error:
            self._failure = error
            self._renew_at = time.time() + (_FAILED_SECONDS if self._token is None else _RETRY_SECONDS)
        else:
            self._renew_at = self._login.window.renewal(now, self._token.expires_at)

    def prepare(self) -> None:
        """Renew the token if that is due. Raises as `token`."""
        self.token()

    def refused_by(self, servers: str) -> str:
        """Return the error's text for a token that brokers refuse; get another one when one is needed."""
        with self._renewing:
            self._token, self._renew_at = None, 0.0
        return (
            f"{servers} refuses the token of {self.endpoint}: compare its issuer, audience, scope and "
            "times with what the brokers expect (sasl.oauthbearer.expected.…), and see their log"
        )


_tokens: dict[Login, Tokens] = {}
_finding = threading.Lock()


def tokens_of(settings: Mapping[str, str]) -> Tokens | None:
    """Return the tokens of the login in the settings of Kafka's client; None if these log in otherwise.

    All clients of a process that have the same login share a token. Raises KafkaSettingError.
    """
    if not uses_tokens(settings):
        return None
    login = Login.of(settings)
    with _finding:
        return _tokens.setdefault(login, Tokens(login))


def uses_tokens(settings: Mapping[str, str]) -> bool:
    """Return whether the settings of Kafka's client are those of a login with OAUTHBEARER."""
    is_sasl = settings.get("security.protocol", "").upper().startswith("SASL")
    return is_sasl and settings.get("sasl.mechanism") == MECHANISM


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for the Java client that Spark brings, which knows only the older ones.

    Raises KafkaSettingError.
    """
    if not uses_tokens(settings):
        return dict(settings)
    # By default Java would wait forever for an endpoint that is silent.
    defaults = {_CONNECT_MS: str(_TIMEOUT_MS), _READ_MS: str(_TIMEOUT_MS)}
    login = {_HANDLER: _LOGIN_HANDLER, "sasl.jaas.config": Login.of(settings).jaas_line()}
    all_settings = {**defaults, **settings, **login}
    return {name: value for name, value in all_settings.items() if name not in (_ID, _SECRET, _SCOPE)}


def token_endpoint(settings: Mapping[str, str]) -> str | None:
    """Return the token endpoint of the login in the settings of Kafka's client; None if these log in otherwise."""
    return settings.get(_URL) if uses_tokens(settings) else None


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise KafkaSettingError(
            f'kafka."{_URL}" is missing, or no address: give the URL that issues tokens, https://…'
        )
    if parts.username is not None:
        raise KafkaSettingError(f'kafka."{_URL}" has a user: give kafka."{_ID}" and kafka."{_SECRET}" instead')
    return url


def _extensions(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    found = {name.removeprefix(_EXTENSION): value for name, value in options.items() if name.startswith(_EXTENSION)}
    for name, value in found.items():
        if name == "auth" or not _EXTENSION_NAME.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value):
            raise KafkaSettingError(
                f'kafka."sasl.jaas.config": {_EXTENSION}{name} is no SASL extension: names have letters only'
            )
    return tuple(sorted(found.items()))


def _jaas_option(name: str) -> str:
    return f'{name} in kafka."sasl.jaas.config"'


def _number(
    settings: Mapping[str, str], name: str, default: float, least: float, most: float = float("inf")
) -> float:
    text: Any = settings.get(name, default)
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        limits = f"of at least {least:g}" if most == float("inf") else f"from {least:g} to {most:g}"
        raise KafkaSettingError(f'kafka."{name}" is {text}: give a number {limits}')
    return number

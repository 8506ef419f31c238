"""Login with SASL OAUTHBEARER: from the settings of Kafka's Java client to where tokens come from.

The settings are those of Kafka 4.3 (KIP-768, KIP-1139, KIP-1258).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from grouptrail.config.jaas import jaas_options
from grouptrail.kafka.client_assertion import ClientAssertion
from grouptrail.kafka.errors import KafkaSettingError
from grouptrail.kafka.jwt import ClaimNames
from grouptrail.kafka.msk_iam import MskIam, uses_msk_iam
from grouptrail.kafka.tls import tls_context
from grouptrail.kafka.token_endpoint import Endpoint
from grouptrail.kafka.token_file import TokenFile
from grouptrail.kafka.tokens import RefreshWindow, Tokens, TokenSource
from grouptrail.kafka.values import is_true, number

MECHANISM = "OAUTHBEARER"

URL = "sasl.oauthbearer.token.endpoint.url"
HANDLER = "sasl.login.callback.handler.class"
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE = "sasl.oauthbearer.scope"
TIMEOUTS_MS = ("sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms")
TIMEOUT_MS = 10_000
"""The default of both timeouts."""
_RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
LOGIN_HANDLER = f"{PACKAGE}.OAuthBearerLoginCallbackHandler"
# The second is the name before Kafka 3.4, which later releases keep.
_LOGIN_HANDLERS = (LOGIN_HANDLER, f"{PACKAGE}.secured.OAuthBearerLoginCallbackHandler")
_JWT_BEARER = f"{PACKAGE}.JwtBearerJwtRetriever"
_RETRIEVERS = (*(f"{PACKAGE}.{kind}JwtRetriever" for kind in ("Default", "ClientCredentials", "File")), _JWT_BEARER)

EXTENSION = "extension_"
_EXTENSION_NAME = re.compile("[A-Za-z]+")  # RFC 7628
_EXTENSION_VALUE = re.compile(r"[\x20-\x7e\t\r\n]+")


@dataclass(frozen=True)
class Login:
    """What a client logs in with: a source of tokens, SASL extensions by name, TLS settings for a token endpoint."""

    source: TokenSource
    extensions: tuple[tuple[str, str], ...] = ()
    tls: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    window: RefreshWindow = field(default_factory=RefreshWindow)

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Login:
        """Return the login that the settings of Kafka's client describe. Raises KafkaSettingError."""
        window = RefreshWindow.of(settings)
        timeout = max(number(settings, name, TIMEOUT_MS, 1) for name in TIMEOUTS_MS) / 1000
        if uses_msk_iam(settings):
            return cls(MskIam.of(settings, timeout), window=window)
        options = jaas_options(settings.get("sasl.jaas.config", ""))
        for name, known in ((HANDLER, _LOGIN_HANDLERS), (_RETRIEVER, _RETRIEVERS)):
            if settings.get(name, known[0]) not in known:
                raise KafkaSettingError(f'kafka."{name}" is {settings[name]}: leave it out, or give {known[0]}')
        url = _checked_url(settings.get(URL, ""))
        tls = {name: value for name, value in options.items() if name.startswith("ssl.")}
        source: TokenSource
        if url.startswith("file:"):
            source = TokenFile(unquote(urlsplit(url).path), ClaimNames.of(settings))
        else:
            source = _endpoint(url, settings, options, tls, timeout)
        return cls(source, _extensions(options), tuple(sorted(tls.items())), window)


def _endpoint(
    url: str, settings: Mapping[str, str], options: Mapping[str, str], tls: Mapping[str, str], timeout: float
) -> Endpoint:
    client_id = settings.get(CLIENT_ID) or options.get("clientId")
    secret = settings.get(CLIENT_SECRET) or options.get("clientSecret")
    assertion = ClientAssertion.of(settings)
    is_grant = settings.get(_RETRIEVER) == _JWT_BEARER
    if assertion is None and (is_grant or not client_id or not secret):
        raise KafkaSettingError(
            f'the client\'s id or secret is missing: set kafka."{CLIENT_ID}" and kafka."{CLIENT_SECRET}", or '
            'kafka."sasl.oauthbearer.assertion.…" for a JWT that the client signs'
        )
    return Endpoint(
        url,
        client_id,
        secret if assertion is None else None,
        assertion,
        is_grant,
        settings.get(SCOPE) or options.get("scope"),
        ClaimNames.of(settings),
        encodes=is_true(settings, "sasl.oauthbearer.header.urlencode"),
        timeout=timeout,
        tls=tls_context(tls, _jaas_option) if url.startswith("https:") else None,
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
        return _tokens.setdefault(login, Tokens(login.source, login.window, login.extensions))


def uses_tokens(settings: Mapping[str, str]) -> bool:
    """Return whether the settings of Kafka's client log in with tokens: OAUTHBEARER, or AWS IAM."""
    is_sasl = settings.get("security.protocol", "").upper().startswith("SASL")
    return is_sasl and (settings.get("sasl.mechanism") == MECHANISM or uses_msk_iam(settings))


def token_endpoint(settings: Mapping[str, str]) -> str | None:
    """Return the token endpoint of the login in the settings of Kafka's client; None if these log in otherwise."""
    return settings.get(URL) if uses_tokens(settings) else None


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_file = parts.scheme == "file" and not parts.netloc and parts.path.startswith("/")
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_file = is_usable = False
    if not is_file and not is_usable:
        raise KafkaSettingError(
            f'kafka."{URL}" is missing, or no address: give the URL that issues tokens, https://…, or a file that '
            "has one, file:///…"
        )
    if parts.username is not None:
        raise KafkaSettingError(
            f'kafka."{URL}" has a user: give kafka."{CLIENT_ID}" and kafka."{CLIENT_SECRET}" instead'
        )
    return url


def _extensions(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    found = {name.removeprefix(EXTENSION): value for name, value in options.items() if name.startswith(EXTENSION)}
    for name, value in found.items():
        if name == "auth" or not _EXTENSION_NAME.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value):
            raise KafkaSettingError(
                f'kafka."sasl.jaas.config": {EXTENSION}{name} is no SASL extension: names have letters only'
            )
    return tuple(sorted(found.items()))


def _jaas_option(name: str) -> str:
    return f'{name} in kafka."sasl.jaas.config"'

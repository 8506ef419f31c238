"""Requests to an OAuth token endpoint by client credentials (RFC 6749, section 4.4), and what its tokens say.

As Kafka's Java client does it (KIP-768): by POST without following redirects, with the client's id and secret in the
header Authorization. No message contains what the endpoint was sent or has answered, except its status and the
standard's error codes.
"""

from __future__ import annotations

import base64
import json
import math
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any, NoReturn

from grouptrail.kafka.errors import KafkaLoginError, TokenEndpointError
from grouptrail.locations import shown

_MOST_BYTES = 1_000_000
_PART_BYTES = 65_536

# RFC 6749, section 5.2.
_ERRORS = re.compile(
    '"error"\\s*:\\s*"(invalid_request|invalid_client|invalid_grant|unauthorized_client|unsupported_grant_type|'
    'invalid_scope)"'
)
_REFUSED = (400, 401, 403)

_ENDPOINT = 'kafka."sasl.oauthbearer.token.endpoint.url"'
_CREDENTIALS = "the client's id, secret and scope"


@dataclass(frozen=True)
class Endpoint:
    """A token endpoint, and the client that it gives tokens to.

    `sub_claim` and `scope_claim` are the claims with the token's principal and its scopes. With `encodes` id and
    secret are percent-encoded, as RFC 6749 demands and few servers expect. Times are in seconds.
    """

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    sub_claim: str = "sub"
    scope_claim: str = "scope"
    encodes: bool = False
    timeout: float = 10.0
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)

    @property
    def shown(self) -> str:
        """The endpoint as it may be printed."""
        return shown(self.url)


@dataclass(frozen=True)
class Token:
    """A token in the form of the header that it is sent in, and when it expires, in seconds since 1970."""

    text: str = field(repr=False)
    expires_at: float


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: the request's header has the secret."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def request_token(endpoint: Endpoint) -> Token:
    """Return a new token.

    Raises TokenEndpointError if the endpoint does not answer as one, KafkaLoginError if it refuses the client, is
    not trusted, or gives a token that Kafka's clients do not accept.
    """
    deadline = time.monotonic() + endpoint.timeout
    handlers: list[Any] = [urllib.request.ProxyHandler({}), _NoRedirects()]  # Java's client uses no proxy either
    if endpoint.tls is not None:
        handlers.append(urllib.request.HTTPSHandler(context=endpoint.tls))
    try:
        with urllib.request.build_opener(*handlers).open(_request(endpoint), timeout=endpoint.timeout) as response:
            content = _content(response, deadline)
            kind = response.headers.get_content_type()
    except urllib.error.HTTPError as error:
        _raise_status(endpoint, error)
    except (OSError, HTTPException) as error:
        _raise_unreachable(endpoint, error)
    return _token_in(endpoint, content, kind)


def _request(endpoint: Endpoint) -> urllib.request.Request:
    login = [endpoint.client_id, endpoint.client_secret]
    if endpoint.encodes:
        login = [urllib.parse.quote_plus(part) for part in login]
    form = {"grant_type": "client_credentials"} | ({"scope": endpoint.scope} if endpoint.scope else {})
    headers = {
        "Authorization": f"Basic {base64.b64encode(':'.join(login).encode()).decode()}",
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
        "Cache-Control": "no-cache",
        "User-Agent": "grouptrail",
    }
    body = urllib.parse.urlencode(form).encode()
    return urllib.request.Request(endpoint.url, data=body, headers=headers, method="POST")


def _content(response: HTTPResponse, deadline: float) -> bytes:
    """Read a response: a server that sends a byte now and then would never reach the timeout of the socket."""
    parts, size = [], 0
    while part := response.read1(_PART_BYTES):
        parts.append(part)
        size += len(part)
        if size > _MOST_BYTES:
            raise HTTPException("the answer is too long")
        if time.monotonic() > deadline:
            raise TimeoutError
    return b"".join(parts)


def _raise_status(endpoint: Endpoint, error: urllib.error.HTTPError) -> NoReturn:
    with error:
        try:
            text = error.read(_PART_BYTES).decode("utf-8", "replace")
        except (OSError, HTTPException):
            text = ""
    found = _ERRORS.search(text)
    if error.code in _REFUSED:
        code = f"{error.code} {found[1]}" if found else str(error.code)
        raise KafkaLoginError(
            f"the token endpoint {endpoint.shown} refuses the client ({code}): check {_CREDENTIALS} "
            '(kafka."sasl.jaas.config", or kafka."sasl.oauthbearer.client.credentials.…")'
        ) from None
    raise TokenEndpointError(
        f"the token endpoint {endpoint.shown} answers with status {error.code}: check {_ENDPOINT}, or see its log"
    ) from None


def _raise_unreachable(endpoint: Endpoint, error: Exception) -> NoReturn:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        raise KafkaLoginError(
            f"the certificate of the token endpoint {endpoint.shown} is not trusted ({cause.verify_message}): give "
            'its CA in kafka."sasl.jaas.config", as ssl.truststore.type="PEM" ssl.truststore.location="…"'
        ) from None
    if isinstance(cause, TimeoutError):
        reason = f"no answer within {endpoint.timeout:g} s"
    elif isinstance(cause, ssl.SSLError):
        reason = cause.reason or "TLS failed"
    elif isinstance(cause, OSError):
        reason = (cause.strerror or "connection lost").lower()
    else:
        reason = "not HTTP, or cut off"
    raise TokenEndpointError(
        f"the token endpoint {endpoint.shown} does not answer ({reason}): start it, or check {_ENDPOINT}"
    ) from None


def _token_in(endpoint: Endpoint, content: bytes, kind: str) -> Token:
    try:
        answer = json.loads(content)
        text = answer["access_token"]
    except (ValueError, KeyError, TypeError, RecursionError):
        text = None
    if not isinstance(text, str) or not text.strip():
        raise TokenEndpointError(
            f"the token endpoint {endpoint.shown} answers without a token ({kind}): check {_ENDPOINT}"
        )
    claims = _claims(text.strip())
    if claims is None:
        _raise_unusable(endpoint, "that is no JWT", "let it issue JWTs, which Kafka's clients need")
    expires_at = claims.get("exp")
    if isinstance(expires_at, bool) or not isinstance(expires_at, int | float) or not math.isfinite(expires_at):
        _raise_unusable(endpoint, "without exp", "let it issue tokens that expire, as Kafka's clients demand")
    if expires_at <= time.time():
        _raise_unusable(endpoint, "that has already expired", "compare the clocks of both machines")
    subject = claims.get(endpoint.sub_claim)
    if not isinstance(subject, str) or not subject.strip():
        _raise_unusable(
            endpoint, f"without {endpoint.sub_claim}", 'check kafka."sasl.oauthbearer.sub.claim.name", the principal'
        )
    if not isinstance(claims.get(endpoint.scope_claim, ""), str | list):
        _raise_unusable(
            endpoint, f"whose {endpoint.scope_claim} is no text", 'check kafka."sasl.oauthbearer.scope.claim.name"'
        )
    return Token(text.strip(), float(expires_at))


def _raise_unusable(endpoint: Endpoint, what: str, remedy: str) -> NoReturn:
    raise KafkaLoginError(f"the token endpoint {endpoint.shown} gives a token {what}: {remedy}")


def _claims(text: str) -> Mapping[str, Any] | None:
    """Return a JWT's claims, which only the brokers verify; None if it is none."""
    parts = text.split(".")
    if len(parts) != 3 or not all(re.fullmatch(r"[\w-]+=*", part, re.ASCII) for part in parts):
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None

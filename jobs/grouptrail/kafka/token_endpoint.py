"""Requests to an OAuth token endpoint, by client credentials (RFC 6749, section 4.4) or by a JWT (RFC 7523).

As Kafka's Java client does it (KIP-768, KIP-1139, KIP-1258): by POST without following redirects, with the client's
id and secret in the header Authorization, or with an assertion in the form. No message contains what the endpoint was
sent or has answered, except its status and the standard's error codes.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any, NoReturn

from grouptrail.kafka.client_assertion import ClientAssertion
from grouptrail.kafka.errors import KafkaLoginError, TokenEndpointError
from grouptrail.kafka.jwt import REMEDY, ClaimNames, access_token
from grouptrail.kafka.tokens import Token
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
_SECRET_REMEDY = (
    'check the client\'s id, secret and scope (kafka."sasl.jaas.config", or '
    'kafka."sasl.oauthbearer.client.credentials.…")'
)
_ASSERTION_REMEDY = (
    'check the client\'s key, its claims iss, sub, aud and jti (kafka."sasl.oauthbearer.assertion.…"), its scope and '
    "the clocks"
)

_CLIENT_CREDENTIALS = "client_credentials"
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


@dataclass(frozen=True)
class Endpoint:
    """A token endpoint, and the client that it gives tokens to.

    The client shows a secret, or an assertion, which is itself the grant where `is_grant`. With `encodes` id and
    secret are percent-encoded, as RFC 6749 demands and few servers expect. Times are in seconds.
    """

    url: str
    client_id: str | None
    client_secret: str | None = field(default=None, repr=False)
    assertion: ClientAssertion | None = None
    is_grant: bool = False
    scope: str | None = None
    names: ClaimNames = field(default_factory=ClaimNames)
    encodes: bool = False
    timeout: float = 10.0
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)

    @property
    def shown(self) -> str:
        """The endpoint as it may be printed."""
        return shown(self.url)

    @property
    def proxy(self) -> str | None:
        """The proxy for an endpoint with TLS: HTTPS_PROXY, unless NO_PROXY has the endpoint's host."""
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme != "https" or urllib.request.proxy_bypass(parts.netloc):
            return None
        return urllib.request.getproxies().get("https")

    @property
    def remedy(self) -> str:
        """What to do if a broker refuses its token."""
        return REMEDY

    def request(self) -> Token:
        """Return a new token.

        Raises TokenEndpointError if the endpoint does not answer as one, KafkaLoginError if it refuses the client, is
        not trusted, or gives a token that Kafka's clients do not accept, or if the assertion cannot be made.
        """
        return _requested(self)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: the request's header has the secret."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _requested(endpoint: Endpoint) -> Token:
    request = _request(endpoint)
    deadline = time.monotonic() + endpoint.timeout
    proxies = {"https": endpoint.proxy} if endpoint.proxy else {}
    handlers: list[Any] = [urllib.request.ProxyHandler(proxies), _NoRedirects()]
    if endpoint.tls is not None:
        handlers.append(urllib.request.HTTPSHandler(context=endpoint.tls))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=endpoint.timeout) as response:
            content = _content(response, deadline)
            kind = response.headers.get_content_type()
    except urllib.error.HTTPError as error:
        _raise_status(endpoint, error)
    except (OSError, HTTPException) as error:
        _raise_unreachable(endpoint, error)
    return _token_in(endpoint, content, kind)


def _request(endpoint: Endpoint) -> urllib.request.Request:
    headers = {
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
        "Cache-Control": "no-cache",
        "User-Agent": "grouptrail",
    }
    if endpoint.assertion is None:
        login = [endpoint.client_id or "", endpoint.client_secret or ""]
        if endpoint.encodes:
            login = [urllib.parse.quote_plus(part) for part in login]
        headers["Authorization"] = f"Basic {base64.b64encode(':'.join(login).encode()).decode()}"
    body = urllib.parse.urlencode(_form(endpoint)).encode()
    return urllib.request.Request(endpoint.url, data=body, headers=headers, method="POST")


def _form(endpoint: Endpoint) -> dict[str, str]:
    scope = {"scope": endpoint.scope} if endpoint.scope else {}
    if endpoint.assertion is None:
        return {"grant_type": _CLIENT_CREDENTIALS, **scope}
    if endpoint.is_grant:
        return {"grant_type": _JWT_BEARER, "assertion": endpoint.assertion.text(), **scope}
    client = {"client_id": endpoint.client_id} if endpoint.client_id else {}
    proof = {"client_assertion_type": _ASSERTION_TYPE, "client_assertion": endpoint.assertion.text()}
    return {"grant_type": _CLIENT_CREDENTIALS, **proof, **client, **scope}


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
        remedy = _SECRET_REMEDY if endpoint.assertion is None else _ASSERTION_REMEDY
        raise KafkaLoginError(f"the token endpoint {endpoint.shown} refuses the client ({code}): {remedy}") from None
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
    by_proxy = " by the proxy of HTTPS_PROXY" if endpoint.proxy else ""
    raise TokenEndpointError(
        f"the token endpoint {endpoint.shown} does not answer{by_proxy} ({reason}): start it, or check {_ENDPOINT}"
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
    return access_token(text.strip(), f"the token endpoint {endpoint.shown} gives", endpoint.names)

"""What is answered at /metrics, /ready and /healthz, and who gets the web pages at all other paths."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS

from grouptrail.exporter.page import Page
from grouptrail.http.access import Authenticator
from grouptrail.http.encoding import accepts_gzip, quality
from grouptrail.http.hosts import is_loopback, is_own_host
from grouptrail.http.logins import Login, Logins
from grouptrail.http.server import CERTIFICATE, LISTENS_ON, WsgiApplication
from grouptrail.http.tls import names_of
from grouptrail.http.web_config import ServerSettings

_INDEX = b"grouptrail: /metrics for Prometheus, /ready, /healthz\n"
CLOSED = (
    "anyone who can connect would see all groups; set web.token_file, exporter.basic_auth_user, "
    "exporter.tls_client_ca or users in exporter.web_config_file, or web.allow_anonymous = true"
)
_OTHER_HOST = (
    "this server answers on this machine only, as localhost: use that name, or set web.hosts to the other one"
)
_NO_LOGIN = "user and password are missing or wrong"
_TOO_MANY = "too many wrong passwords or tokens came from this address: correct yours, and try again in a second"
_OTHER_NAME = "no subject alternative name of the client's certificate is in client_allowed_sans"
_TOO_FAST = "more requests than rate_limit of the web configuration file allows"
_NO_TOKEN = "the token is missing or wrong: give it as password, with any user, or as bearer token"
_PLAIN = "text/plain; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text"

_Start = Callable[..., object]


class Endpoints:
    """A WSGI application that serves the current page, `page()`; `problem()` returns why it is not ready, or None.

    `pages` answers all other paths, if it is not None and the settings let pages be served. `settings()` returns
    those as of now. On a loopback address, requests for other host names than localhost and `hosts` are refused.
    """

    def __init__(
        self,
        page: Callable[[], Page | None],
        problem: Callable[[], str | None],
        settings: Callable[[], ServerSettings],
        logins: Logins,
        hosts: Collection[str] = (),
    ) -> None:
        self.pages: WsgiApplication | None = None
        self._page = page
        self._problem = problem
        self._settings = settings
        self._logins = logins
        self._hosts = hosts
        self._own = {"/metrics": self._metrics, "/ready": self._ready, "/healthz": self._alive}

    def __call__(self, environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        """Answer a request (PEP 3333)."""
        settings = self._settings()
        if settings.headers:
            start = _with_headers(start, settings.headers)
        if settings.rate_limit is not None and not settings.rate_limit.allows():
            return _answer(environ, start, 429, f"{_TOO_FAST}\n".encode())
        if not settings.access.admits_names(names_of(environ[CERTIFICATE])):
            return _answer(environ, start, 403, f"{_OTHER_NAME}\n".encode())
        own = self._own.get(environ["PATH_INFO"])
        shows_page = own is None and self.serves_pages(settings, environ[LISTENS_ON])
        # Metrics of a server on a network are scraped under any name, also one that has the address 127.0.1.1 here.
        address = environ["SERVER_NAME"] if shows_page else environ[LISTENS_ON]
        if not is_own_host(environ.get("HTTP_HOST"), address, self._hosts):
            return _answer(environ, start, 421, f"{_OTHER_HOST}\n".encode())
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD") and (own or self.pages is None):
            return _answer(environ, start, 405, b"only GET is answered here\n", Allow="GET, HEAD")
        return (own or self._web_page)(environ, start, settings)

    def serves_pages(self, settings: ServerSettings, listens_on: str) -> bool:
        """Return whether clients of a server with these settings, at this address, get web pages."""
        return self.pages is not None and settings.access.serves_pages(is_loopback=is_loopback(listens_on))

    def _metrics(self, environ: dict[str, Any], start: _Start, settings: ServerSettings) -> Iterable[bytes]:
        refusal = self._refusal(environ, settings.access.users)
        if refusal is not None:
            return _refuse(environ, start, refusal, _NO_LOGIN)
        page = self._page()
        if page is None:
            return _answer(environ, start, 503, f"{self._problem()}\n".encode())
        accepted = environ.get("HTTP_ACCEPT", "")
        openmetrics = quality(accepted, _OPENMETRICS) >= max(quality(accepted, "text/plain"), 0.001)
        headers = {
            "Content-Type": OPENMETRICS if openmetrics else CONTENT_TYPE_PLAIN_0_0_4,
            "Vary": "Accept, Accept-Encoding",
        }
        if accepts_gzip(environ.get("HTTP_ACCEPT_ENCODING", "")):
            headers["Content-Encoding"] = "gzip"
            return _answer(environ, start, 200, *page.gzipped(openmetrics=openmetrics), **headers)
        return _answer(environ, start, 200, *page.text(openmetrics=openmetrics), **headers)

    def _ready(self, environ: dict[str, Any], start: _Start, _: ServerSettings) -> Iterable[bytes]:
        problem = self._problem()
        return _answer(environ, start, 200 if problem is None else 503, f"{problem or 'ready'}\n".encode())

    def _alive(self, environ: dict[str, Any], start: _Start, _: ServerSettings) -> Iterable[bytes]:
        return _answer(environ, start, 200, b"alive\n")

    def _web_page(self, environ: dict[str, Any], start: _Start, settings: ServerSettings) -> Iterable[bytes]:
        if self.pages is None:
            return _answer(environ, start, 200 if environ["PATH_INFO"] == "/" else 404, _INDEX)
        if not self.serves_pages(settings, environ[LISTENS_ON]):
            return _answer(environ, start, 403, f"web pages are not served here: {CLOSED}\n".encode())
        access = settings.access
        refusal = self._refusal(environ, access.for_pages)
        if refusal is not None:
            return _refuse(environ, start, refusal, _NO_TOKEN if access.token else _NO_LOGIN)
        return self.pages(environ, start)

    def _refusal(self, environ: dict[str, Any], required: Authenticator | None) -> Login | None:
        """Return why a request is refused; None if it may see what it asks for."""
        given = environ.get("HTTP_AUTHORIZATION")
        if required is None:
            return None
        # Browsers ask without a password first: nothing is guessed.
        if given is None:
            return Login.WRONG
        login = self._logins.check(
            environ["REMOTE_ADDR"], partial(required.knows, given), partial(required.admits, given)
        )
        return None if login is Login.RIGHT else login


def _with_headers(start: _Start, headers: Mapping[str, str]) -> _Start:
    """Return a start of responses that adds these headers, except those that a response has itself."""

    def started(status: str, given: list[tuple[str, str]], *rest: Any) -> object:
        named = {name.lower() for name, _ in given}
        return start(status, [*given, *(one for one in headers.items() if one[0].lower() not in named)], *rest)

    return started


def _refuse(environ: dict[str, Any], start: _Start, login: Login, problem: str) -> Iterable[bytes]:
    if login is Login.UNCHECKED:
        return _answer(environ, start, 429, f"{_TOO_MANY}\n".encode(), **{"Retry-After": "1"})
    challenge = {"WWW-Authenticate": 'Basic realm="grouptrail", charset="UTF-8"'}
    return _answer(environ, start, 401, f"{problem}\n".encode(), **challenge)


def _answer(environ: dict[str, Any], start: _Start, status: int, *body: bytes, **headers: str) -> Iterable[bytes]:
    """Start a response with these headers, and return its body in pieces; a long one is not copied."""
    sent = {"Content-Type": _PLAIN, **headers, "Content-Length": str(sum(map(len, body)))}
    start(f"{status} {HTTPStatus(status).phrase}", list(sent.items()))
    return body if environ["REQUEST_METHOD"] != "HEAD" else ()

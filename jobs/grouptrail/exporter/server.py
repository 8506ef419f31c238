"""The HTTP server of /metrics, /ready and /healthz, and of the web pages."""

from __future__ import annotations

import contextlib
import http.client
import io
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, cast

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS

from grouptrail.exporter.access import Access, basic_credentials
from grouptrail.exporter.connections import REQUEST_SECONDS, Connection, LimitedServer
from grouptrail.exporter.encoding import accepts_gzip, quality
from grouptrail.exporter.errors import ExporterError
from grouptrail.exporter.page import Page
from grouptrail.exporter.wsgi import WsgiApplication, answer

if TYPE_CHECKING:
    from grouptrail.config import ExporterConfig

# The first line and the headers of a request.
_MAX_REQUEST_BYTES = 1 << 16
# The longest query of the page of SQL, in UTF-8, percent-encoded, and its other parameters.
MAX_BODY_BYTES = 700_000
_RESTART_SECONDS = 1.0
_PATHS = ("/metrics", "/ready", "/healthz")
_INDEX = b"grouptrail: /metrics for Prometheus, /ready, /healthz\n"
CLOSED = (
    "anyone who can connect would see all groups; set web.token_file, exporter.basic_auth_user or "
    "exporter.tls_client_ca, or web.allow_anonymous = true"
)
_NO_LOGIN = "user and password are missing or wrong"
_NO_TOKEN = "the token is missing or wrong: give it as password, with any user, or as bearer token"
_PLAIN = "text/plain; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text"


class Server:
    """Serves the current page, `page()`; `problem()` returns why it is not ready, or None.

    All other paths are answered by the WSGI application `pages()`, if it is not None.
    If the thread that accepts connections fails, it continues after a second, and `on_fault` gets the error.
    `access`: what clients need, by default the credentials of `config`.
    `exposes_secret`: whether a password or token crosses a network in clear. `serves_pages`: see `Access`.
    """

    def __init__(
        self,
        config: ExporterConfig,
        page: Callable[[], Page | None],
        problem: Callable[[], str | None],
        on_fault: Callable[[BaseException], None],
        pages: Callable[[], WsgiApplication | None] = lambda: None,
        *,
        access: Access | None = None,
    ) -> None:
        """Start listening. Raises ExporterError if that fails."""
        host, _, port = config.listen.rpartition(":")
        tls = _tls(config)
        access = access or Access(basic_credentials(config))
        attributes = {
            "page": staticmethod(page),
            "problem": staticmethod(problem),
            "pages": staticmethod(pages),
            "access": access,
            "serves_pages": staticmethod(lambda: self.serves_pages),
            "is_encrypted": tls is not None,
        }
        handler = type("Handler", (_Handler,), attributes)
        try:
            self._http = _listening(host.strip("[]"), int(port), handler)
        except OSError as error:
            raise ExporterError(
                f"cannot listen on {config.listen} ({error.strerror or error}): choose another with --listen"
            ) from error
        if tls is not None:
            # The handshake is done in the connection's thread, so that a silent client blocks no other.
            self._http.socket = tls.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
            )
        shown = f"[{host.strip('[]')}]" if ":" in host.strip("[]") else host
        self.url = f"{'http' if tls is None else 'https'}://{shown}:{self._http.server_address[1]}"
        address = ipaddress.ip_address(str(self._http.server_address[0]).partition("%")[0])
        has_secret = access.credentials is not None or access.token is not None
        self.exposes_secret = has_secret and tls is None and not address.is_loopback
        self.serves_pages = access.serves_pages(is_loopback=address.is_loopback)
        self._on_fault = on_fault
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="exporter", daemon=True)

    def start(self) -> None:
        """Answer requests, in threads of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; responses in progress are completed."""
        self._stopping.set()
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()

    def _serve(self) -> None:
        keep_running(self._http.serve_forever, self._stopping, self._on_fault)


def keep_running(
    work: Callable[[], None], stopping: threading.Event, on_fault: Callable[[BaseException], None]
) -> None:
    """Call `work` again a second after it has failed, until it returns or `stopping` is set.

    Also after errors that are no Exception: delta-rs raises such where its Rust code panics.
    """
    while not stopping.is_set():
        try:
            work()
            return
        except BaseException as fault:
            on_fault(fault)
        stopping.wait(_RESTART_SECONDS)


def _listening(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> LimitedServer:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]

    class Listener(LimitedServer):
        address_family = family

    return Listener((host, port), handler)


def _tls(config: ExporterConfig) -> ssl.SSLContext | None:
    if config.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key)
        if config.tls_client_ca is not None:
            context.load_verify_locations(config.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise ExporterError(
            f"exporter.tls_certificate, tls_key or tls_client_ca cannot be used: {error}: give PEM files"
        ) from error
    return context


class _Handler(BaseHTTPRequestHandler):
    page: Callable[[], Page | None]
    problem: Callable[[], str | None]
    pages: Callable[[], WsgiApplication | None]
    access: Access
    serves_pages: Callable[[], bool]
    is_encrypted: bool
    timeout = REQUEST_SECONDS
    server_version = "grouptrail"
    sys_version = ""

    def setup(self) -> None:
        """Limit the request's size, and record the response's progress."""
        super().setup()
        self._client = cast("LimitedServer", self.server).connection(self.request)
        self.rfile = _LimitedReader(self.rfile)
        self.wfile = _Writer(self._client)

    def do_GET(self) -> None:
        """Answer the three paths of the exporter, and pages."""
        self._client.prepare()
        answers = dict(zip(_PATHS, (self._metrics, self._ready, self._alive), strict=True))
        with contextlib.suppress(ConnectionError, TimeoutError):
            answers.get(self.path.partition("?")[0], self._web_page)()

    def do_POST(self) -> None:
        """Answer pages that take a form."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            pages = self.pages()
            if pages is None or self.path.partition("?")[0] in _PATHS:
                self._send(405, b"only GET is answered here\n", headers={"Allow": "GET, HEAD"})
                return
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or "Transfer-Encoding" in self.headers:
                self._send(411, b"send the body with its Content-Length\n")
            elif int(length) > MAX_BODY_BYTES:
                self._send(413, f"the body has more than {MAX_BODY_BYTES:,} bytes\n".encode())
            else:
                if self.headers.get("Expect", "").lower() == "100-continue":
                    self.send_response_only(100)
                    self.end_headers()
                body = self.rfile.read(int(length))
                self._client.prepare()
                self._web_page(body)

    def do_HEAD(self) -> None:
        """Answer like GET, without the body."""
        self.do_GET()

    def _metrics(self) -> None:
        if not self.access.may_see_metrics(self.headers.get("Authorization", "")):
            self._challenge(_NO_LOGIN)
            return
        page = self.page()
        if page is None:
            self._send(503, f"{self.problem()}\n".encode())
            return
        accepted = self.headers.get("Accept", "")
        openmetrics = quality(accepted, _OPENMETRICS) >= max(quality(accepted, "text/plain"), 0.001)
        kind = OPENMETRICS if openmetrics else CONTENT_TYPE_PLAIN_0_0_4
        headers = {"Content-Type": kind, "Vary": "Accept, Accept-Encoding"}
        if accepts_gzip(self.headers.get("Accept-Encoding", "")):
            self._send(200, *page.gzipped(openmetrics=openmetrics), headers={**headers, "Content-Encoding": "gzip"})
        else:
            self._send(200, *page.text(openmetrics=openmetrics), headers=headers)

    def _challenge(self, problem: str) -> None:
        challenge = {"WWW-Authenticate": 'Basic realm="grouptrail", charset="UTF-8"'}
        self._send(401, f"{problem}\n".encode(), headers=challenge)

    def _web_page(self, body: bytes = b"") -> None:
        pages = self.pages()
        if pages is None:
            self._send(200 if self.path.partition("?")[0] == "/" else 404, _INDEX)
        elif not self.serves_pages():
            self._send(403, f"web pages are not served here: {CLOSED}\n".encode())
        elif not self.access.may_see_pages(self.headers.get("Authorization", "")):
            self._challenge(_NO_TOKEN if self.access.token else _NO_LOGIN)
        else:
            answer(self, pages, body, is_encrypted=self.is_encrypted)

    def _ready(self) -> None:
        problem = self.problem()
        self._send(200 if problem is None else 503, f"{problem or 'ready'}\n".encode())

    def _alive(self) -> None:
        self._send(200, b"alive\n")

    def _send(self, status: int, *body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": _PLAIN, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(sum(map(len, body))))
        self.end_headers()
        for piece in body if self.command != "HEAD" else ():
            self.wfile.write(piece)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: scrapes come every few seconds."""


class _LimitedReader(io.BufferedIOBase):
    """Reads the lines of a request up to a number of bytes in all; http.server answers the error with 431.

    The caller limits the size of a body.
    """

    def __init__(self, reader: io.BufferedIOBase) -> None:
        self._reader = reader
        self._left = _MAX_REQUEST_BYTES

    def readline(self, _size: int | None = -1, /) -> bytes:
        """Return the next line. Raises LineTooLong once the limit is exceeded."""
        line = self._reader.readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise http.client.LineTooLong("request")
        return line

    def read(self, size: int | None = -1, /) -> bytes:
        """Return this many bytes, or fewer if the client ends its request."""
        return self._reader.read(size)

    def close(self) -> None:
        """Close the reader of the socket."""
        self._reader.close()
        super().close()


class _Writer(io.BufferedIOBase):
    """Writes to a connection, without a buffer."""

    def __init__(self, client: Connection) -> None:
        self._client = client

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any, /) -> int:
        """Send all of `data`."""
        self._client.send(data)
        return len(data)

"""The HTTP server: it listens, and passes each request to a WSGI application."""

from __future__ import annotations

import io
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote_to_bytes

from cheroot.ssl import Adapter
from cheroot.wsgi import Gateway_10
from cheroot.wsgi import Server as WsgiServer

from grouptrail.http.connections import Connection, Connections

if TYPE_CHECKING:
    import socket

WsgiApplication = Callable[..., Iterable[bytes]]
_Contexts = Callable[[], ssl.SSLContext]

# In the WSGI environment: the address on which the server listens; SERVER_NAME is the one that this client reached.
LISTENS_ON = "grouptrail.listens_on"
# A function that returns whether the client is gone.
IS_GONE = "grouptrail.is_gone"
# The client's certificate, as ssl.SSLSocket.getpeercert returns it; None without one.
CERTIFICATE = "grouptrail.certificate"
# Of every response with status 503.
_RETRY_AFTER = ("Retry-After", "5")
# The first line and the headers of a request.
_MAX_REQUEST_BYTES = 1 << 16
# The longest query of the page of SQL, in UTF-8, percent-encoded, and its other parameters.
MAX_BODY_BYTES = 700_000
# The kernel holds further clients; an overflow would make them retry after a second.
_BACKLOG = 1024
_THREAD = "http"
_RESTART_SECONDS = 1.0
_RETRY_SECONDS = 0.1


class Server:
    """Answers requests with a WSGI application, in threads.

    If the thread that accepts connections fails, it continues after a second, and `on_fault` gets the error.
    """

    def __init__(
        self,
        listen: str,
        application: WsgiApplication,
        on_fault: Callable[[BaseException], None],
        tls: _Contexts | None = None,
    ) -> None:
        """Start listening at an address such as `127.0.0.1:9308`. Raises OSError if that fails.

        `tls` returns the context of the next connection.
        """
        host, _, port = listen.rpartition(":")
        self._http = _Http((host.strip("[]"), int(port)), application, tls)
        try:
            self._http.prepare()
        except OSError as error:
            raise self._http.refusal or error from None
        bound = self._http.bind_addr
        shown = f"[{host.strip('[]')}]" if ":" in host.strip("[]") else host
        self.url = f"{'http' if tls is None else 'https'}://{shown}:{bound[1]}"
        self.address = str(bound[0])
        self._on_fault = on_fault
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=_THREAD, daemon=True)

    def start(self) -> None:
        """Answer requests, in threads of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; responses in progress are completed, but not waited for longer than five seconds."""
        self._stopping.set()
        self._http.stop()
        if self._thread.is_alive():
            self._thread.join()

    def _serve(self) -> None:
        keep_running(self._http.serve, self._stopping, self._on_fault)


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


class _Http(WsgiServer):
    ConnectionClass = Connection
    max_request_header_size = _MAX_REQUEST_BYTES
    max_request_body_size = MAX_BODY_BYTES

    def __init__(self, address: tuple[str, int], application: WsgiApplication, tls: _Contexts | None) -> None:
        super().__init__(address, application, server_name="grouptrail", request_queue_size=_BACKLOG)
        self.gateway = _Gateway
        self.requests = Connections(self)
        self.ssl_adapter = None if tls is None else _Tls(tls)
        self.refusal: OSError | None = None

    def bind(self, family: int, type: int, proto: int = 0) -> socket.socket:
        """Bind the socket; keep the error, whose number cheroot drops."""
        try:
            return cast("socket.socket", super().bind(family, type, proto))
        except OSError as error:
            self.refusal = error
            raise

    def error_log(self, msg: str = "", level: int = 20, traceback: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Raise the error of the thread that accepts connections; ignore those of clients."""
        if threading.current_thread().name != _THREAD:
            return
        if isinstance(sys.exc_info()[1], OSError):
            # Out of file descriptors: the client still waits, so the loop would spin.
            time.sleep(_RETRY_SECONDS)
        elif traceback:
            raise  # noqa: PLE0704 - cheroot calls this where it handles the error


class _Gateway(Gateway_10):
    def get_environ(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the WSGI environment of a request, once its body is read."""
        content = self.req.rfile.read()
        self.req.conn.prepare()
        return {
            **super().get_environ(),  # type: ignore[no-untyped-call]
            "PATH_INFO": unquote_to_bytes(self.req.uri.partition(b"?")[0]).decode("latin-1"),  # also %2F
            "SERVER_NAME": str(self.req.conn.socket.getsockname()[0]),
            LISTENS_ON: str(self.req.server.bind_addr[0]),
            IS_GONE: self.req.conn.is_gone,
            CERTIFICATE: _certificate(self.req.conn.socket),
            "wsgi.errors": io.StringIO(),
            "wsgi.input": io.BytesIO(content),
        }

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], object]:
        """Start a response; of a busy server, with the time after which to try again."""
        if status.startswith("503"):
            headers = [*headers, _RETRY_AFTER]
        return cast("Callable[[bytes], object]", super().start_response(status, headers, exc_info))


def _certificate(sock: socket.socket) -> dict[str, Any] | None:
    return sock.getpeercert() if isinstance(sock, ssl.SSLSocket) else None


class _Tls(Adapter):
    """TLS whose handshake is done in the connection's thread, so that a silent client blocks no other."""

    def __init__(self, contexts: _Contexts) -> None:
        self._contexts = contexts

    def bind(self, sock: socket.socket) -> socket.socket:
        """Return the socket that listens as it is."""
        return sock

    def wrap(self, sock: socket.socket) -> tuple[socket.socket, dict[str, str]]:
        """Return a socket with TLS, and what it adds to the WSGI environment."""
        wrapped = self._contexts().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return wrapped, self.get_environ()

    def get_environ(self) -> dict[str, str]:
        """Return what TLS adds to the WSGI environment."""
        return {"wsgi.url_scheme": "https", "HTTPS": "on"}

    def makefile(self, *_: object) -> None:
        """Do nothing: a connection has streams of its own."""

"""The server's connections, with limits: their number, and a deadline for each request."""

from __future__ import annotations

import contextlib
import io
import math
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from cheroot.errors import MaxSizeExceeded
from cheroot.server import HTTPConnection, HTTPRequest

if TYPE_CHECKING:
    from cheroot.server import HTTPServer

# 64 slow clients use 64 file descriptors and threads; one Prometheus uses one.
MAX_CONNECTIONS = 64
# From accepting the connection until the last byte of the response.
REQUEST_SECONDS = 30.0
# While more clients wait than there are connections, one that stalls this long is closed.
STALL_SECONDS = 0.25
# How long, and how many bytes, a refused client may still send: one that cannot send sees no response.
_LINGER_SECONDS = 2.0
_LINGER_BYTES = 4 << 20
_CHUNK_BYTES = 1 << 16
# Linux has no other sign that the client is gone while bytes of it are unread.
_GONE = getattr(select, "POLLRDHUP", 0)


class _Headers(dict[bytes, bytes]):
    """The headers of a request. ValueError if Host is given twice: who checks one may get the other."""

    def __setitem__(self, name: bytes, value: bytes) -> None:
        if name == b"Host" and name in self:
            raise ValueError("more than one Host header\n")
        super().__setitem__(name, value)


class Request(HTTPRequest):
    """A request that is refused if its head is too long or ambiguous, or the length of its body unknown."""

    def read_request_line(self) -> bool:
        """Read the first line; return whether the headers are to be read."""
        try:
            return bool(super().read_request_line())  # type: ignore[no-untyped-call]
        except MaxSizeExceeded:
            limit = self.server.max_request_header_size
            self.simple_response(
                "414 URI Too Long", f"the URI has more than {limit:,} bytes: send a long query as a form, by POST\n"
            )
            return False

    def read_request_headers(self) -> bool:
        """Read the headers; return whether the request is to be answered."""
        self.inheaders = _Headers()
        try:
            is_read = bool(super().read_request_headers())  # type: ignore[no-untyped-call]
        except MaxSizeExceeded:
            limit = self.server.max_request_header_size
            self.simple_response(
                "431 Request Header Fields Too Large",
                f"the first line and the headers have more than {limit:,} bytes: send fewer or shorter headers\n",
            )
            return False
        self.close_connection = True
        # A name with an underscore would pass for the one with a hyphen.
        self.inheaders = headers = {name: value for name, value in self.inheaders.items() if b"_" not in name}
        has_length = headers.get(b"Content-Length", b"").isdigit() and b"Transfer-Encoding" not in headers
        if is_read and self.method == b"POST" and not has_length:
            self.simple_response("411 Length Required", "send the body with its Content-Length\n")
            return False
        return is_read


class Connection(HTTPConnection):
    """An accepted connection. It serves one request, and raises TimeoutError at its deadline."""

    RequestHandlerClass = Request

    def __init__(self, server: HTTPServer, sock: socket.socket, makefile: object = None) -> None:  # noqa: ARG002
        """`makefile` is cheroot's, which copies all that is left of a response for each part that it sends."""
        self.has_request = False
        self.stalled_since = time.monotonic()
        """Since when the server waits for the client; infinity if it does not."""
        self._has_sent = False
        self._deadline = self.stalled_since + REQUEST_SECONDS
        stream = _Stream(self)
        super().__init__(server, sock, lambda _, mode, __: io.BufferedReader(stream) if mode == "rb" else stream)

    def prepare(self) -> None:
        """Note that the request is complete: the client waits for the server now and cannot stall."""
        self.has_request = True
        self.stalled_since = math.inf

    def receive(self, buffer: Any) -> int:
        """Read into a buffer; return the number of bytes."""
        self._set_timeout()
        return int(self.socket.recv_into(buffer))

    def send(self, data: Any) -> None:
        """Send all of `data`."""
        view = memoryview(data)
        for start in range(0, len(view), _CHUNK_BYTES):
            self.stalled_since = time.monotonic()
            self._set_timeout()
            self.socket.sendall(view[start : start + _CHUNK_BYTES])
            self._has_sent = True

    def communicate(self) -> bool:
        """Serve the request; return False, because no other one follows."""
        with contextlib.suppress(OSError):
            super().communicate()  # type: ignore[no-untyped-call]
            if self._has_sent and not self.has_request:
                self._linger()
        return False

    def is_gone(self) -> bool:
        """Return whether the client has closed the connection, or its half of it. May be called by any thread."""
        try:
            poll = select.poll()
            poll.register(self.socket, _GONE)
            return bool(poll.poll(0))
        except (OSError, ValueError):  # it is closed here
            return True

    def interrupt(self) -> None:
        """End the connection: its thread gets an error from the next read or write, or from the one in progress."""
        with contextlib.suppress(OSError):
            # Not SSLSocket.shutdown, which takes the encryption away from the thread that uses the socket.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def _linger(self) -> None:
        """Read what the client still sends: closing would reset the connection, and the response could be lost."""
        # Of the socket below TLS, too: what is read is not looked at.
        socket.socket.shutdown(self.socket, socket.SHUT_WR)
        buffer = bytearray(_CHUNK_BYTES)
        self._deadline = min(self._deadline, time.monotonic() + _LINGER_SECONDS)
        received, count = 0, 1
        while count and received < _LINGER_BYTES:
            self._set_timeout()
            count = socket.socket.recv_into(self.socket, buffer)
            received += count

    def _set_timeout(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.socket.settimeout(left)


class _Stream(io.RawIOBase):
    """Reads and writes a connection, without a buffer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read into a buffer; return the number of bytes."""
        return self._connection.receive(buffer)

    def write(self, data: Any, /) -> int:
        """Send all of `data`."""
        self._connection.send(data)
        return len(data)


class Connections:
    """Serves at most `MAX_CONNECTIONS` clients at a time, each in a thread; it replaces cheroot's pool of threads.

    If all connections are in use, those that have stalled longest are closed for new clients, so that clients that
    send or receive slowly do not keep others from being served.
    """

    def __init__(self, server: HTTPServer) -> None:
        self._server = server
        self._changed = threading.Condition()
        self._open: set[Connection] = set()

    def start(self) -> None:
        """Do nothing: a thread starts with its connection."""

    def put(self, connection: Connection) -> None:
        """Serve a connection as soon as there is room."""
        with self._changed:
            while len(self._open) >= MAX_CONNECTIONS and self._server.ready:
                longest = min(self._open, key=lambda one: one.stalled_since)
                if time.monotonic() - longest.stalled_since >= STALL_SECONDS:
                    longest.interrupt()
                self._changed.wait(STALL_SECONDS / 10)
            self._open.add(connection)
        try:
            threading.Thread(target=self._serve, args=[connection], name="http-request", daemon=True).start()
        except RuntimeError:  # there are too many threads
            self._close(connection)
            raise

    def stop(self, timeout: float) -> None:
        """Complete the responses in progress, as far as they are sent within `timeout` seconds; close all others."""
        with self._changed:
            for connection in self._open:
                if not connection.has_request:
                    connection.interrupt()
            self._changed.wait_for(lambda: not self._open, timeout)
            for connection in self._open:
                connection.interrupt()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.communicate()
        finally:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        try:
            with contextlib.suppress(OSError):
                connection.close()
        finally:
            with self._changed:
                self._open.discard(connection)
                self._changed.notify_all()

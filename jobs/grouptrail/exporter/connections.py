"""A threading HTTP server with limits: a number of connections, and a deadline for each request."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from http.server import ThreadingHTTPServer
from typing import Any

# 64 slow clients use 64 file descriptors and threads; one Prometheus uses one.
MAX_CONNECTIONS = 64
# From accepting the connection until the last byte of the response.
REQUEST_SECONDS = 30.0
# While more clients wait than there are connections, one that stalls this long is closed.
STALL_SECONDS = 0.25
# The kernel holds further clients; an overflow would make them retry after a second.
_BACKLOG = 1024
_CHUNK_BYTES = 1 << 16
_RETRY_SECONDS = 0.1


class Connection:
    """An accepted connection, and when its client last sent or received something that advanced the request."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.accepted_at = time.monotonic()
        self._advanced_at: float | None = self.accepted_at

    def prepare(self) -> None:
        """Note that the request is complete: the client waits for the server now and cannot stall."""
        self._advanced_at = None

    def send(self, data: bytes | memoryview) -> None:
        """Send all of `data`."""
        view = memoryview(data)
        for start in range(0, len(view), _CHUNK_BYTES):
            self._advanced_at = time.monotonic()
            self._sock.sendall(view[start : start + _CHUNK_BYTES])

    def stalled_since(self) -> float:
        """Return since when the server waits for the client; infinity if it does not."""
        return float("inf") if self._advanced_at is None else self._advanced_at

    def close(self) -> None:
        """End the connection: its thread gets an error from the next read or write, or from the one in progress."""
        with contextlib.suppress(OSError):
            # Not SSLSocket.shutdown, which takes the encryption away from the thread that uses the socket.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)


class LimitedServer(ThreadingHTTPServer):
    """Serves at most `MAX_CONNECTIONS` clients at a time, each in a thread, and closes what exceeds its deadline.

    If all connections are in use, those that have stalled longest are closed for new clients, so that clients that
    send or receive slowly do not keep others from being served.
    """

    daemon_threads = True
    request_queue_size = _BACKLOG

    def __init__(self, *args: Any, **options: Any) -> None:
        self._changed = threading.Condition()
        self._connections: dict[socket.socket, Connection] = {}
        super().__init__(*args, **options)

    def connection(self, sock: socket.socket) -> Connection:
        """Return the connection of an accepted socket."""
        return self._connections[sock]

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; raise OSError, after which the server's loop continues, if there is none to spare."""
        if not self._make_room():
            raise BlockingIOError("all connections are in use")
        try:
            sock, address = super().get_request()
        except OSError:
            # Out of file descriptors: the client still waits, so the loop would spin.
            time.sleep(_RETRY_SECONDS)
            raise
        with self._changed:
            self._connections[sock] = Connection(sock)
        return sock, address

    def _make_room(self) -> bool:
        """Wait for a free connection, for a short time only, because the server may be stopping."""
        until = time.monotonic() + 2 * STALL_SECONDS
        with self._changed:
            while len(self._connections) >= MAX_CONNECTIONS:
                now = time.monotonic()
                if now >= until:
                    return False
                longest = min(self._connections.values(), key=Connection.stalled_since)
                if now - longest.stalled_since() >= STALL_SECONDS:
                    longest.close()
                self._changed.wait(STALL_SECONDS / 10)
        return True

    def service_actions(self) -> None:
        """Close connections that exceed their deadline; called twice a second and after each accepted one."""
        oldest = time.monotonic() - REQUEST_SECONDS
        with self._changed:
            late = [connection for connection in self._connections.values() if connection.accepted_at <= oldest]
        for connection in late:
            connection.close()

    def close_request(self, request: Any) -> None:
        """Close an accepted socket; called once for each, whatever happened to its request."""
        super().close_request(request)
        with self._changed:
            self._connections.pop(request, None)
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up or do not speak TLS."""

"""A way to a broker that can hang (connections stay open, and nothing comes through) or answer garbage."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 1 << 16
# The size of a Kafka response and its correlation id, by which a client finds the request.
_HEAD_BYTES = 8

Garbage = Callable[[bytes], bytes]
GARBAGE: dict[str, Garbage] = {
    "random bytes": lambda answer: random.randbytes(len(answer)),
    "responses with a random body": lambda answer: (
        answer[:_HEAD_BYTES] + random.randbytes(max(0, len(answer) - _HEAD_BYTES))
    ),
    "a web server": lambda _answer: b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
}


class Proxy:
    """Forwards TCP connections from `port` to `target` on loopback, in threads that end with the process."""

    def __init__(self, target: int, port: int = 0) -> None:
        self._target = target
        self._flows = threading.Event()
        self._flows.set()
        self._garbage: Garbage | None = None
        self._spoiled: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stall(self) -> None:
        """Stop forwarding in both directions."""
        self._flows.clear()

    def resume(self) -> None:
        """Forward what has been held back, and everything after it."""
        self._flows.set()

    def garble(self, garbage: Garbage) -> None:
        """From now on replace what the broker answers, such as by one of `GARBAGE`."""
        self._garbage = garbage

    def answer(self) -> int:
        """Answer as the broker does; end the connections that got garbage, as a repaired broker does, and return
        their number."""
        self._garbage = None
        spoiled, self._spoiled = self._spoiled, set()
        for client in spoiled:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        return len(spoiled)

    def close(self) -> None:
        """Accept no more connections; open ones continue."""
        self.resume()
        # A close alone does not wake the thread that waits in accept.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._flows.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self._target), timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        for source, sink, is_answer in ((client, server, False), (server, client, True)):
            threading.Thread(target=self._forward, args=(source, sink, is_answer), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:  # noqa: FBT001
        with contextlib.suppress(OSError):
            while content := source.recv(_CHUNK_BYTES):
                self._flows.wait()
                garbage = self._garbage
                if garbage is not None and is_answer:
                    self._spoiled.add(sink)
                    content = garbage(content)
                sink.sendall(content)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

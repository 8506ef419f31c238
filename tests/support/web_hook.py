"""A web server that receives messages as a webhook does, and sends the answer that the test chose."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Webhook:
    """A running server: what it received, and what it answers. `silent`: it accepts requests and never answers."""

    url: str = ""
    status: int = 200
    location: str | None = None
    silent: bool = False
    received: list[tuple[str, str, bytes]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def webhook(**answers: Any) -> Iterator[Webhook]:
    """Run a server on a free port of this machine; `answers` are fields of `Webhook`."""
    hook = Webhook(**answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.received.append((self.path, self.headers["Content-Type"], body))
            if hook.silent:
                hook.ended.wait(60)
                return
            self.send_response(hook.status)
            if hook.location is not None:
                self.send_header("Location", hook.location)
            self.end_headers()
            self.wfile.write(b"ok")

        def do_GET(self) -> None:
            hook.received.append((self.path, "", b""))
            self.send_error(405)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook.url = f"http://127.0.0.1:{server.server_port}/services/T000/B000/hunter2"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hook
    finally:
        hook.ended.set()
        server.shutdown()
        server.server_close()

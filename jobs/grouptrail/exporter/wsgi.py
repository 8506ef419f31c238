"""Answers a request of the exporter's server with a WSGI application, in the connection's thread."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler
from typing import IO, cast
from urllib.parse import unquote
from wsgiref.handlers import SimpleHandler

WsgiApplication = Callable[..., Iterable[bytes]]


def answer(handler: BaseHTTPRequestHandler, application: WsgiApplication, body: bytes, *, is_encrypted: bool) -> None:
    """Write the application's response to a request with this body."""
    environ = _environ(handler, is_encrypted=is_encrypted)
    environ |= {"CONTENT_LENGTH": str(len(body)), "CONTENT_TYPE": handler.headers.get("Content-Type", "")}
    _Response(io.BytesIO(body), cast("IO[bytes]", handler.wfile), io.StringIO(), environ).run(application)


def _environ(handler: BaseHTTPRequestHandler, *, is_encrypted: bool) -> dict[str, str]:
    path, _, query = handler.path.partition("?")
    host, port = handler.connection.getsockname()[:2]
    headers = {
        # A name with an underscore would pass for the one with a hyphen.
        f"HTTP_{name.upper().replace('-', '_')}": value
        for name, value in handler.headers.items()
        if "_" not in name
    }
    return headers | {
        "REQUEST_METHOD": handler.command,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote(path, "latin-1"),  # bytes, as PEP 3333 has them in a str
        "QUERY_STRING": query,
        "SERVER_NAME": str(host),
        "SERVER_PORT": str(port),
        "SERVER_PROTOCOL": handler.request_version,
        "REMOTE_ADDR": str(handler.client_address[0]),
        "HTTPS": "on" if is_encrypted else "off",
    }


class _Response(SimpleHandler):
    os_environ: dict[str, str] = {}  # noqa: RUF012 - not the process's variables, which may hold secrets
    server_software = "grouptrail"
    wsgi_file_wrapper = None

    def log_exception(self, exc_info: object) -> None:
        """Log nothing: the client has hung up, or gets status 500."""

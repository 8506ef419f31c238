"""The HTTP server alone: refused requests, and clients that are gone."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grouptrail.http import connections
from grouptrail.http.server import IS_GONE, MAX_BODY_BYTES, Server
from grouptrail.http.tls import tls_context
from support.certificates import self_signed
from support.deadlines import until
from support.exporter_tables import DEADLINE_SECONDS

# More than the limits, so that the server answers without the rest.
_FIRST_BYTES = 70_000
_PIECE_BYTES = 30_000

Start = Callable[[str, list[tuple[str, str]]], object]


def answer(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Answer `/busy` with 503, all others with their Host header."""
    start("503 Service Unavailable" if environ["PATH_INFO"] == "/busy" else "200 OK", [])
    return [str(environ.get("HTTP_HOST")).encode()]


@contextlib.contextmanager
def serving(application: Callable[..., Iterable[bytes]], tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    faults: list[BaseException] = []
    server = Server("127.0.0.1:0", application, faults.append, None if tls is None else lambda: tls)
    server.start()
    try:
        yield server
    finally:
        server.stop()
    assert faults == []


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(answer) as running:
        yield running


def connected(server: Server) -> socket.socket:
    host, port = server.url.partition("://")[2].split(":")
    return socket.create_connection((host, int(port)), DEADLINE_SECONDS)


def sent(server: Server, request: bytes) -> tuple[int, str, str]:
    """Send a whole request, the end of a long one after its response; return status, text and Retry-After."""
    with connected(server) as client:
        client.sendall(request[:_FIRST_BYTES])
        for start in range(_FIRST_BYTES, len(request), _PIECE_BYTES):
            assert select.select([client], [], [], DEADLINE_SECONDS)[0]
            client.sendall(request[start : start + _PIECE_BYTES])
        response = http.client.HTTPResponse(client)
        response.begin()
        return response.status, response.read().decode(), response.headers.get("Retry-After", "")


@pytest.mark.parametrize("size", [65_600, 200_000, 2_000_000])
def test_request_line_longer_than_the_limit_is_answered_with_414(server: Server, size: int) -> None:
    """The client can send all of it: before, it does not read, and a reset would take the response from it."""
    status, text, _ = sent(server, b"GET /?q=" + b"x" * size + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status == 414
    assert text == "the URI has more than 65,536 bytes: send a long query as a form, by POST\n"


@pytest.mark.parametrize("count", [2, 30])
def test_headers_longer_than_the_limit_are_answered_with_431(server: Server, count: int) -> None:
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 60_000) for number in range(count))
    status, text, _ = sent(server, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n")
    assert status == 431
    assert text.endswith("more than 65,536 bytes: send fewer or shorter headers\n")


def test_body_longer_than_the_limit_is_answered_with_413(server: Server) -> None:
    body = b"x" * (MAX_BODY_BYTES + 1)
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    assert sent(server, head.encode() + body)[0] == 413


def test_refused_client_that_keeps_sending_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LINGER_BYTES", 1 << 20)
    with connected(server) as client, pytest.raises(ConnectionError):
        client.sendall(b"x" * (64 << 20))


@pytest.mark.parametrize(
    "hosts", [b"Host: localhost\r\nHost: evil\r\n", b"Host: evil\r\nhost : localhost\r\n", b"Host: a\r\n b\r\n"]
)
def test_request_with_more_than_one_host_is_refused(server: Server, hosts: bytes) -> None:
    assert sent(server, b"GET / HTTP/1.1\r\n" + hosts + b"\r\n")[:2] == (400, "more than one Host header\n")


@pytest.mark.parametrize("target", [b"http://localhost/", b"http://evil/metrics", b"//evil/metrics", b"metrics"])
def test_request_whose_target_names_a_host_is_refused(server: Server, target: bytes) -> None:
    assert sent(server, b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 400


def test_request_without_a_host_is_passed_on_without_one(server: Server) -> None:
    assert sent(server, b"GET / HTTP/1.0\r\n\r\n")[:2] == (200, "None")
    assert sent(server, b"GET / HTTP/1.0\r\nHost:\r\n\r\n")[:2] == (200, "")


def test_response_with_status_503_says_when_to_try_again(server: Server) -> None:
    assert sent(server, b"GET /busy HTTP/1.1\r\nHost: localhost\r\n\r\n")[::2] == (503, "5")
    assert sent(server, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")[::2] == (200, "")


# --- clients that are gone ----------------------------------------------------------------------------------


class _Waiting:
    """An application that waits until its client is gone."""

    def __init__(self) -> None:
        self.received, self.was_gone = threading.Event(), threading.Event()

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        """Answer a request (PEP 3333)."""
        assert not environ[IS_GONE]()
        self.received.set()
        until(environ[IS_GONE])
        self.was_gone.set()
        start("200 OK", [])
        return []


@pytest.mark.parametrize("more", [b"", b"unread"])
def test_client_that_closes_its_connection_is_gone(more: bytes) -> None:
    """Also if it has sent something that nobody reads."""
    waiting = _Waiting()
    with serving(waiting) as server:
        with connected(server) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + more)
            assert waiting.received.wait(DEADLINE_SECONDS)
        assert waiting.was_gone.wait(DEADLINE_SECONDS)


def test_client_that_closes_its_connection_is_gone_with_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    waiting = _Waiting()
    trusting = ssl.create_default_context(cafile=str(certificate))
    with serving(waiting, tls_context(certificate, key, None)) as server:
        with trusting.wrap_socket(connected(server), server_hostname="127.0.0.1") as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert waiting.received.wait(DEADLINE_SECONDS)
        assert waiting.was_gone.wait(DEADLINE_SECONDS)

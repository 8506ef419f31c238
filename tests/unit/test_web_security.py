"""What protects the web pages: the server's limits and password, headers, host names, and hostile names."""

from __future__ import annotations

import base64
import contextlib
import html
import http.client
import json
import re
import select
import shlex
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from grouptrail.config import Config
from grouptrail.exporter.service import Exporter
from grouptrail.http import connections
from grouptrail.http.server import MAX_BODY_BYTES
from grouptrail.runtime.serving import exporter_with_pages
from grouptrail.web import pages
from grouptrail.web.pages import Pages
from grouptrail.web.security import HEADERS
from grouptrail.web.texts import page_of
from support.certificates import self_signed
from support.deadlines import scaled, until
from support.exporter_tables import configured, lag_row, lay_everything
from support.from_config import served_cluster
from support.small_tables import lay
from support.web_client import Site, fetched, state_of

HOSTILE = (
    "a/b//c",
    "/leading",
    "..",
    ".",
    "",
    "a?b=c&d#e",
    "100%25",
    "<script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "{{ 7 * 7 }}",
    "line\nbreak\x00\x1b[31m",
    "\u202eevil",
    "Grüße 😀",
    "x" * 30_000,
)


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    """A server of metrics and pages."""
    config = configured(tmp_path_factory.mktemp("lake"))
    lay_everything(config)
    with exporter_with_pages([config], lambda _: None) as running:
        until(lambda: running.page)
        yield running


def with_password(config: Config) -> Config:
    secured = {"basic_auth_user": "prometheus", "basic_auth_password": SecretStr("s3cret")}
    return config.model_copy(update={"exporter": config.exporter.model_copy(update=secured)})


@pytest.mark.parametrize(
    "path", ["/", "/groups/billing", "/topics/orders", "/brokers/3", "/api/v1/groups", "/nothing"]
)
def test_every_page_has_the_security_headers(exporter: Exporter, path: str) -> None:
    _, headers, _ = fetched(exporter.url, path)
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"


def test_assets_are_kept_by_browsers_and_named_for_their_content(exporter: Exporter) -> None:
    _, _, text = fetched(exporter.url, "/")
    path = text.partition('rel="stylesheet" href="')[2].partition('"')[0]
    status, headers, _ = fetched(exporter.url, path)
    assert (status, headers["Cache-Control"]) == (200, "public, max-age=31536000, immutable")
    assert fetched(exporter.url, path.replace("/static/", "/static/0"))[0] == 404


@pytest.mark.parametrize("path", ["/", "/groups/billing", "/api/v1/groups", "/api/v1/openapi.json"])
def test_pages_need_the_password_of_the_metrics(tmp_path: Path, path: str) -> None:
    config = with_password(configured(tmp_path))
    with exporter_with_pages([config], lambda _: None) as running:
        status, headers, _ = fetched(running.url, path)
        assert (status, headers["WWW-Authenticate"][:5]) == (401, "Basic")
        given = base64.b64encode(b"prometheus:s3cret").decode()
        assert fetched(running.url, path, Authorization=f"Basic {given}")[0] != 401


def sent(url: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    """Return status and content of the answer to a form for /sql, sent with these headers alone."""
    host, port = url.removeprefix("http://").split(":")
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in {"Host": "localhost", **headers}.items()]
    with socket.create_connection((host, int(port)), timeout=scaled(30)) as client:
        client.sendall(f"POST /api/v1/sql HTTP/1.1\r\n{''.join(lines)}\r\n".encode() + body)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        return answer.status, answer.read()


FORM = "application/x-www-form-urlencoded"


def test_form_is_answered_by_the_server_also_after_100_continue(exporter: Exporter) -> None:
    body = b"q=SELECT+6+*+7+AS+answer"
    for expected in ({}, {"Expect": "100-continue"}):
        status, content = sent(exporter.url, body, Content_Type=FORM, Content_Length=str(len(body)), **expected)
        assert (status, json.loads(content)["rows"]) == (200, [{"answer": 42}])


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_documented_curl_sends_a_query_from_a_file(exporter: Exporter, tmp_path: Path) -> None:
    document = (Path(__file__).parents[2] / "docs" / "web.md").read_text("utf-8")
    [line] = re.findall(r"^\$ (curl --data-urlencode .*)$", document, re.MULTILINE)
    (tmp_path / "query.sql").write_text(f"SELECT 42 AS answer -- {'x' * 40_000}")
    command = shlex.split(line.replace("http://127.0.0.1:9308", exporter.url))
    ran = subprocess.run(
        [*command, "--silent"], capture_output=True, text=True, check=True, cwd=tmp_path, timeout=scaled(60)
    )
    assert ran.stdout.splitlines() == ["answer", "42"]


def test_form_without_a_usable_length_is_refused(exporter: Exporter) -> None:
    assert sent(exporter.url, b"", Content_Type=FORM)[0] == 411
    assert sent(exporter.url, b"", Content_Type=FORM, Content_Length="-1")[0] == 411
    assert sent(exporter.url, b"", Content_Type=FORM, Content_Length="8", Transfer_Encoding="chunked")[0] == 411
    assert sent(exporter.url, b"", Content_Type=FORM, Content_Length=str(MAX_BODY_BYTES + 1))[0] == 413


def test_form_needs_the_password_of_the_metrics(tmp_path: Path) -> None:
    with exporter_with_pages([with_password(configured(tmp_path))], lambda _: None) as running:
        assert sent(running.url, b"q=SELECT+1", Content_Type=FORM, Content_Length="10")[0] == 401


@pytest.mark.parametrize("host", ["evil.example.com", "127.0.0.1.evil.example.com:9308", "10.0.0.5", ""])
@pytest.mark.parametrize(
    "path", ["/", "/api/v1/groups", "/groups/billing", "/nothing", "/metrics", "/ready", "/healthz"]
)
def test_any_path_on_loopback_under_another_host_name_is_refused_with_one_line(
    exporter: Exporter, path: str, host: str
) -> None:
    status, _, text = fetched(exporter.url, path, Host=host)
    assert status == 421
    assert "set web.hosts" in text
    assert text.count("\n") == 1
    assert "billing" not in text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.:1", "127.0.0.1", "127.0.0.2:9308", "[::1]:9308"])
def test_any_path_on_loopback_under_a_name_of_this_machine_is_answered(exporter: Exporter, host: str) -> None:
    assert {fetched(exporter.url, path, Host=host)[0] for path in ("/", "/metrics", "/ready", "/healthz")} == {200}


def test_web_hosts_names_a_proxy_on_this_machine(tmp_path: Path) -> None:
    config = configured(tmp_path)
    config = config.model_copy(update={"web": config.web.model_copy(update={"hosts": ("kafka.example.org",)})})
    with exporter_with_pages([config], lambda _: None) as running:
        for path in ("/", "/healthz"):
            assert fetched(running.url, path, Host="kafka.example.org")[0] == 200


def test_disabled_pages_are_not_served(tmp_path: Path) -> None:
    config = configured(tmp_path)
    config = config.model_copy(update={"web": config.web.model_copy(update={"enabled": False})})
    with exporter_with_pages([config], lambda _: None) as running:
        assert fetched(running.url, "/")[2] == "grouptrail: /metrics for Prometheus, /ready, /healthz\n"
        assert fetched(running.url, "/api/v1/groups")[0] == 404


def test_hostile_names_are_links_that_lead_to_their_page(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay(config, "consumer_lag", *(lag_row(group_id=name, topic=name or "t") for name in HOSTILE))
    site = Site(config)
    text = site.get("/?per_page=500")
    for marker in ("<script>alert", '" onmouseover', "\x1b", "\u202e", ">49<"):
        assert marker not in text.partition("<tbody>")[2]
    for name in HOSTILE:
        answer = json.loads(site.get("/api/v1" + page_of("groups", name)))
        assert answer["group_id"] == name
        shown = site.get(page_of("groups", name))
        as_json = html.unescape(shown.partition("<footer")[2].partition('href="')[2].partition('"')[0])
        assert json.loads(site.get(as_json))["group_id"] == name
        assert "<script>alert" not in shown
        assert '" onmouseover="alert' not in shown
        if name:
            assert json.loads(site.get("/api/v1" + page_of("topics", name)))["topic"] == name
            assert "<script>alert" not in site.get(page_of("topics", name))


@pytest.mark.parametrize("value", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}"])
def test_hostile_parameters_are_shown_as_text(exporter: Exporter, value: str) -> None:
    quoted = "".join(f"%{byte:02x}" for byte in value.encode())
    for path in (f"/?group={quoted}", f"/?{quoted}=1", f"/groups/{quoted}", f"/groups/billing?at={quoted}"):
        text = fetched(exporter.url, path)[2]
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert ">49<" not in text
        assert 'value="49"' not in text


def test_broken_encoding_of_a_path_is_answered(exporter: Exporter) -> None:
    for path in ("/groups/%ff%fe", "/groups/%", "//evil.example.com/", "/static/../../etc/passwd", "/%00"):
        assert fetched(exporter.url, path)[0] in (400, 404)


def test_unexpected_error_is_reported_and_shows_no_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(tmp_path)
    lay_everything(config)
    site = Site(config)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("grouptrail.web.routes.topic_page", fail)
    answer = site.client.get("/topics/orders")
    assert answer.status_code == 500
    assert "ZeroDivisionError: by zero" in answer.text
    assert "Traceback" not in answer.text
    assert site.faults == ["web: /topics/orders: ZeroDivisionError: by zero; report it"]


def test_pages_under_way_do_not_keep_metrics_from_being_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A further page gets 503 after a wait; connections for scrapes are left."""
    monkeypatch.setattr(pages, "_WAIT_SECONDS", 0.05)
    config = configured(tmp_path)
    lay_everything(config)
    site = Pages([served_cluster(config)], config.web, lambda _: state_of(config), lambda _: None)
    with contextlib.ExitStack() as taken:
        for _ in range(pages._AT_A_TIME):
            taken.enter_context(site._pages.taken())
        statuses: list[str] = []
        body = site({}, lambda status, _: statuses.append(status))
    assert statuses == ["503 Service Unavailable"]
    assert b"try again" in b"".join(body)
    assert pages._AT_A_TIME + pages._WAITING + pages._QUERIES < connections.MAX_CONNECTIONS


QUERIES = [
    b"POST /sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nq=SELECT+1",
    b"POST /api/v1/sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nq=SELECT+1",
    b"GET /sql?view=table&q=SELECT+1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /api/v1/%73ql?q=SELECT+1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
]


@pytest.mark.parametrize("query", QUERIES, ids=["form", "api form", "link", "api link"])
def test_pages_while_a_hundred_queries_do_not_end_are_served(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch, query: bytes
) -> None:
    """Queries that are too many get 503 at once, so that connections are left."""
    end, answer, running = threading.Event(), Pages._made, exporter._endpoints.pages

    def wait_for_the_end(self: Pages) -> Callable[..., list[bytes]]:
        made = answer(self)

        def application(environ: dict[str, str], start_response: Callable[..., object]) -> list[bytes]:
            if environ["REQUEST_METHOD"] == "POST" or "SELECT" in environ["QUERY_STRING"]:
                end.wait(60)
                start_response("200 OK", [])
                return [b"rows"]
            return list(made(environ, start_response))

        return application

    assert isinstance(running, Pages)
    monkeypatch.setattr(Pages, "_made", wait_for_the_end)
    host, port = exporter.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as clients:
        clients.callback(end.set)
        sockets = [clients.enter_context(socket.create_connection((host, int(port)), 30)) for _ in range(100)]
        for client in sockets:
            client.sendall(query)
        for path in ("/groups/billing", "/sql?q", "/sql", "/metrics"):
            assert fetched(exporter.url, path)[0] == 200
        until(lambda: len(select.select(sockets, [], [], 0)[0]) == 100 - pages._QUERIES)
        head = select.select(sockets, [], [], 0)[0][0].recv(1000).partition(b"\r\n\r\n")[0]
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 5" in head


def test_page_that_is_not_read_is_closed_at_the_deadline(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 1.0)

    def long_page(_: Pages, __: object, start_response: Callable[..., object]) -> list[bytes]:
        start_response("200 OK", [])
        return [b"x" * (64 << 20)]

    monkeypatch.setattr(Pages, "__call__", long_page)
    host, port = exporter.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=scaled(30)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        threading.Event().wait(1.5)
        received = 0
        with contextlib.suppress(ConnectionError):
            while part := client.recv(1 << 20):
                received += len(part)
    assert received < 64 << 20


def test_clients_that_hang_up_leave_no_trace(exporter: Exporter, capsys: pytest.CaptureFixture[str]) -> None:
    host, port = exporter.url.removeprefix("http://").split(":")
    for _ in range(5):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"GET /groups/billing HTTP/1.1\r\nHost: localhost\r\n\r\n")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert fetched(exporter.url, "/")[0] == 200
    assert capsys.readouterr() == ("", "")


def test_pages_are_served_over_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    config = configured(tmp_path / "lake", tls_certificate=certificate, tls_key=key)
    with exporter_with_pages([config], lambda _: None) as running:
        trusted = ssl.create_default_context(cafile=str(certificate))
        with urllib.request.urlopen(f"{running.url}/", context=trusted, timeout=scaled(30)) as answer:
            assert answer.status == 200
            assert b"grouptrail" in answer.read()


def test_flask_is_imported_with_the_first_page(tmp_path: Path) -> None:
    """Neither the start of `grouptrail run` nor of `serve` waits for it."""
    config = configured(tmp_path)
    code = (
        "import sys, urllib.request\n"
        "from grouptrail.config import load_config\n"
        "from grouptrail.runtime.serving import exporter_with_pages\n"
        f"config = load_config(None, {{'warehouse': {config.warehouse!r}, 'exporter.listen': '127.0.0.1:0'}}, {{}})\n"
        "with exporter_with_pages([config], print) as exporter:\n"
        "    assert not {'flask', 'jinja2', 'werkzeug'} & set(sys.modules)\n"
        "    urllib.request.urlopen(exporter.url + '/').close()\n"
        "    assert 'flask' in sys.modules\n"
        "    assert 'pyspark' not in sys.modules\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=scaled(60)
    )
    assert ran.returncode == 0, ran.stderr

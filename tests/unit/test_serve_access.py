"""Who may connect to `grouptrail serve-sql`, and where it refuses to listen; without a JVM."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grouptrail import cli
from grouptrail.config.tokens import TokenError, read_token
from grouptrail.query.spark import access as module
from grouptrail.query.spark import server
from grouptrail.query.spark.access import Access, ServeError, Tls
from support.certificates import self_signed

TOKEN = "0123456789abcdef"


def token_file(folder: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_read_token_private_file_returns_its_line(tmp_path: Path) -> None:
    assert read_token(token_file(tmp_path, f"{TOKEN}\n"), "--token-file") == TOKEN


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [(TOKEN, 0o644, "chmod o="), ("short", 0o600, "16 or more"), (f"{TOKEN} {TOKEN}", 0o600, "without spaces")],
)
def test_read_token_that_others_may_know_is_an_error(tmp_path: Path, text: str, mode: int, message: str) -> None:
    with pytest.raises(TokenError, match=message):
        read_token(token_file(tmp_path, text, mode), "--token-file")


def test_read_token_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TokenError, match="check --token-file"):
        read_token(tmp_path / "none", "--token-file")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_access_other_machines_without_token_and_tls_is_an_error(tmp_path: Path, host: str) -> None:
    """Neither a token in clear nor TLS without a token is enough."""
    tls = Tls(*self_signed(tmp_path))
    for access in (Access(host), Access(host, token=TOKEN), Access(host, tls=tls)):
        with pytest.raises(ServeError, match="other machines can reach"):
            access.check()
    assert Access(host, TOKEN, tls).check() == host


def test_access_loopback_needs_neither() -> None:
    assert Access("127.0.0.1").check() == "127.0.0.1"
    assert Access("localhost").check() in ("127.0.0.1", "::1")


def test_access_loopback_where_users_cannot_be_told_apart_requires_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SOCKETS", (str(tmp_path / "none"),))
    with pytest.raises(ServeError, match="require a token with --token-file"):
        Access("127.0.0.1").check()
    assert Access("127.0.0.1", TOKEN).check() == "127.0.0.1"


def test_access_unusable_certificate_or_host_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="give PEM files"):
        Access("127.0.0.1", tls=Tls(token_file(tmp_path), token_file(tmp_path))).check()
    with pytest.raises(ServeError, match="give an address"):
        Access("no host").check()


@pytest.mark.parametrize("token", ["", "wrong", f"{TOKEN}0", "é"])
def test_refusal_with_a_token_asks_for_it(token: str) -> None:
    access = Access("127.0.0.1", TOKEN)
    assert access.refusal(TOKEN, 1, 2) is None
    assert "give the server's token" in str(access.refusal(token, 1, 2))


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def connection(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, int, int]]:
    """A connection on loopback: the client's socket, its port and the server's."""
    host = "127.0.0.1" if request.param == socket.AF_INET else "::1"
    try:
        server = socket.create_server((host, 0), family=request.param)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with server, socket.create_connection(server.getsockname()[:2]) as client, server.accept()[0]:
        yield client, client.getsockname()[1], server.getsockname()[1]


def test_refusal_without_a_token_admits_only_this_user(
    connection: tuple[socket.socket, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client, port = connection
    access = Access("127.0.0.1")
    assert access.refusal("", client, port) is None
    monkeypatch.setattr(module, "_ROOT", -1)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert "only the user who runs this server" in str(access.refusal("", client, port))


def test_refusal_of_a_connection_that_is_gone(connection: tuple[socket.socket, int, int]) -> None:
    """The kernel lists a connection that is being closed as root's."""
    client, client_port, port = connection
    client.close()
    assert Access("127.0.0.1").refusal("", client_port, port) is not None
    assert Access("127.0.0.1").refusal("", port, client_port + 1) is not None


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--host", "0.0.0.0"], 1, "require a token there with --token-file"),
        (["--host", "0.0.0.0", "--allow-writes"], 1, "require a token there with --token-file"),
        (["--token-file", "none"], 1, "check --token-file"),
        (["--tls-key", "key.pem"], 2, "belong together"),
    ],
)
def test_serve_sql_command_refuses_to_listen_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(server, "session", lambda *_: pytest.fail("Spark was started"))
    result = CliRunner().invoke(cli.app, ["serve-sql", "--warehouse", str(tmp_path), *arguments])
    assert result.exit_code == status
    assert message in result.output.replace("\n", " ").replace("│ ", "")

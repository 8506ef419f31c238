"""Tokens of files, and how Spark's Java client gets tokens of logins that it does not know."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from grouptrail.config.jaas import jaas_options
from grouptrail.kafka.errors import KafkaLoginError, KafkaSettingError
from grouptrail.kafka.java_client import java_settings
from grouptrail.kafka.oauthbearer import tokens_of
from support.token_server import TokenServer, token_server

URL = "sasl.oauthbearer.token.endpoint.url"


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with token_server() as served:
        yield served


@pytest.fixture
def login(server: TokenServer, tmp_path: Path) -> dict[str, str]:
    """A login with the token in a file."""
    (tmp_path / "token").write_text(f"{server.token()}\n")
    return server.settings_with_file(tmp_path / "token")


def asked(settings: dict[str, str], secret: str | None = None) -> tuple[int, str]:
    """Return status and token of the relay's answer to the client that Java's settings describe."""
    options = jaas_options(settings["sasl.jaas.config"])
    client = f"{options['clientId']}:{secret or options['clientSecret']}"
    headers = {"Authorization": f"Basic {base64.b64encode(client.encode()).decode()}"}
    request = urllib.request.Request(settings[URL], data=b"grant_type=client_credentials", headers=headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.loads(response.read())["access_token"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def token_in(settings: dict[str, str]) -> str:
    tokens = tokens_of(settings)
    assert tokens is not None
    return tokens.token()


def test_java_settings_token_of_a_file_is_relayed(login: dict[str, str], tmp_path: Path) -> None:
    java = java_settings(login | {"sasl.jaas.config": 'Module required extension_logicalCluster="lkc";'})
    assert java[URL].startswith("http://127.0.0.1:")
    assert jaas_options(java["sasl.jaas.config"])["extension_logicalCluster"] == "lkc"
    assert asked(java) == (200, (tmp_path / "token").read_text().strip())
    assert token_in(login) not in str(java)
    assert java_settings(login) == java_settings(login), "one relay for all queries of a login"


def test_java_settings_private_key_is_relayed_and_not_shown(server: TokenServer, tmp_path: Path) -> None:
    settings = server.settings_with_key(tmp_path / "key.pem", "RS256")
    java = java_settings(settings | {"sasl.oauthbearer.assertion.private.key.passphrase": "Geheim"})
    assert java[URL].startswith("http://127.0.0.1:")
    assert not [name for name in java if ".assertion." in name or ".jwt." in name]
    assert "Geheim" not in str(java)


def test_relay_refuses_who_does_not_know_its_secret(login: dict[str, str]) -> None:
    java = java_settings(login)
    assert asked(java, "guess") == (401, "")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(java[URL], data=b"")
    with pytest.raises(urllib.error.HTTPError, match="501"):
        urllib.request.urlopen(java[URL])


def test_relay_without_a_token_answers_as_an_endpoint(server: TokenServer, login: dict[str, str]) -> None:
    """Java's client tries again if the endpoint is down, and gives up if it refuses the client."""
    Path(login[URL].removeprefix("file://")).unlink()
    assert asked(java_settings(login)) == (401, "")
    down = server.settings_with_key(Path("/no/such"), "RS256")
    server.client_key = server.key.public_key()
    assert asked(java_settings(down))[0] == 401
    file = Path(login[URL].removeprefix("file://")).with_name("assertion")
    file.write_text("a.b.c")
    server.answer = lambda: (503, "text/html", b"")
    by_file = {name: value for name, value in down.items() if ".assertion." not in name}
    assert asked(java_settings(by_file | {"sasl.oauthbearer.assertion.file": str(file)}))[0] == 503


def test_java_settings_of_executors_in_other_processes_raise_one_line(login: dict[str, str]) -> None:
    with pytest.raises(KafkaSettingError, match="need Spark in grouptrail's own process") as caught:
        java_settings(login, is_local=False)
    assert "\n" not in str(caught.value)


def test_token_file_is_read_again_for_each_renewal(server: TokenServer, tmp_path: Path) -> None:
    server.lives_seconds = 1
    file = tmp_path / "token"
    file.write_text(server.token())
    login = server.settings_with_file(file)
    first = token_in(login)
    server.lives_seconds = 300
    file.write_text(server.token())
    deadline = time.monotonic() + 10
    while token_in(login) == first:
        assert time.monotonic() < deadline
    assert token_in(login) == file.read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (No such file or directory): mount the token there"),
        (b"\xff", "cannot be read (not UTF-8)"),
        (b"opaque", "has a token that is no JWT: use JWTs"),
        (b"", "has a token that is no JWT: use JWTs"),
        (b"e30.eyJleHAiOiAxfQ.c2ln", "has a token that has already expired"),
    ],
)
def test_token_file_that_cannot_be_used_raises_one_line(
    login: dict[str, str], tmp_path: Path, content: bytes | None, message: str
) -> None:
    (tmp_path / "token").unlink() if content is None else (tmp_path / "token").write_bytes(content)
    with pytest.raises(KafkaLoginError) as caught:
        token_in(login)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)

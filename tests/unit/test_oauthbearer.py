"""Login with OAUTHBEARER: settings, requests for tokens and their renewal, and errors of one line without secrets."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.config.jaas import jaas_line, jaas_options
from grouptrail.kafka import oauthbearer
from grouptrail.kafka.errors import KafkaLoginError, KafkaSettingError, KafkaUnreachableError
from grouptrail.kafka.java_client import java_settings
from grouptrail.kafka.oauthbearer import Login, token_endpoint
from grouptrail.kafka.settings import client_arguments
from grouptrail.kafka.token_endpoint import Endpoint
from grouptrail.kafka.tokens import RefreshWindow, Token, Tokens
from support.certificates import Authority
from support.deadlines import scaled
from support.token_server import CLIENT, SECRET, TokenServer, token_server

URL = "https://idp.example/token"
SETTINGS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": URL,
    "sasl.oauthbearer.client.credentials.client.id": CLIENT,
    "sasl.oauthbearer.client.credentials.client.secret": SECRET,
}
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
OPTIONS = f'clientId="{CLIENT}" clientSecret="{SECRET}" scope="kafka.read" extension_logicalCluster="lkc"'
JAAS = f"{MODULE} required {OPTIONS};"
OLD = {name: value for name, value in SETTINGS.items() if ".credentials." not in name} | {"sasl.jaas.config": JAAS}


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with token_server() as served:
        yield served


def error_of(served: TokenServer, **changes: str) -> Exception:
    """Return the error of a request for a token: one line, without secrets."""
    with pytest.raises((KafkaLoginError, KafkaUnreachableError)) as caught:
        Login.of({**served.settings(), **changes}).source.request()
    text = str(caught.value)
    assert "\n" not in text
    assert not [secret for secret in (SECRET, *served.issued) if secret in text]
    return caught.value


def jwt(**claims: Any) -> bytes:
    """Return an answer with a token of which nobody checks the signature."""
    parts = [json.dumps({"alg": "RS256"}), json.dumps(claims), "signature"]
    text = ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)
    return json.dumps({"access_token": text}).encode()


@pytest.mark.parametrize("settings", [SETTINGS | {"sasl.oauthbearer.scope": "kafka.read"}, OLD])
def test_login_older_and_newer_settings_give_the_same_client(settings: dict[str, str]) -> None:
    login = Login.of(settings)
    assert isinstance(login.source, Endpoint)
    assert (login.source.url, login.source.client_id, login.source.client_secret) == (URL, CLIENT, SECRET)
    assert login.source.scope == "kafka.read"
    assert SECRET not in repr(login)


def test_login_extensions_of_jaas_are_sent_to_the_broker() -> None:
    provider = client_arguments(OLD)["sasl_oauth_token_provider"]
    assert provider.extensions() == {"logicalCluster": "lkc"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sasl.oauthbearer.token.endpoint.url": ""}, "token.endpoint.url"),
        ({"sasl.oauthbearer.token.endpoint.url": "file://host/token"}, "token.endpoint.url"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://host:port/"}, "token.endpoint.url"),
        ({"sasl.oauthbearer.token.endpoint.url": f"https://a:{SECRET}@host/"}, "has a user"),
        ({"sasl.oauthbearer.client.credentials.client.id": ""}, "id or secret is missing"),
        ({"sasl.oauthbearer.client.credentials.client.secret": ""}, "id or secret is missing"),
        ({"sasl.login.callback.handler.class": "com.example.Handler"}, "leave it out"),
        ({"sasl.client.callback.handler.class": "X"}, "cannot be followed outside Java"),
        ({"sasl.oauthbearer.jwt.retriever.class": "X"}, "leave it out, or give"),
        ({"sasl.oauthbearer.jwt.validator.class": "X"}, "cannot be followed outside Java"),
        ({"sasl.oauthbearer.expected.audience": "x"}, "cannot be followed outside Java"),
        ({"sasl.login.refresh.window.factor": "2"}, "from 0.5 to 1"),
        ({"sasl.login.read.timeout.ms": "soon"}, "at least 1"),
        ({"sasl.jaas.config": f'{MODULE} required extension_a1="x";'}, "extension_a1"),
        (
            {"sasl.jaas.config": f'{MODULE} required ssl.truststore.location="/x.jks";'},
            'ssl.truststore.type in kafka."sasl.jaas.config" is JKS',
        ),
    ],
)
def test_login_wrong_setting_raises_one_line_without_secret(changes: dict[str, str], message: str) -> None:
    with pytest.raises(KafkaSettingError) as caught:
        client_arguments({**SETTINGS, **changes})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


def test_java_settings_translates_to_those_of_spark_s_client() -> None:
    java = java_settings(SETTINGS | {"sasl.oauthbearer.scope": "a b", "sasl.login.read.timeout.ms": "7"})
    assert jaas_options(java["sasl.jaas.config"]) == {"clientId": CLIENT, "clientSecret": SECRET, "scope": "a b"}
    assert java["sasl.login.callback.handler.class"].endswith(".OAuthBearerLoginCallbackHandler")
    assert not [name for name in java if "client.credentials" in name or name == "sasl.oauthbearer.scope"]
    assert (java["sasl.login.connect.timeout.ms"], java["sasl.login.read.timeout.ms"]) == ("10000", "7")


def test_java_settings_of_other_logins_are_unchanged() -> None:
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.oauthbearer.scope": "x"}
    assert java_settings(settings) == settings
    assert token_endpoint(settings) is None
    assert token_endpoint(SETTINGS) == URL


@given(st.dictionaries(st.from_regex(r"[A-Za-z]\w{0,8}", fullmatch=True), st.text(min_size=1), max_size=4))
def test_jaas_line_options_are_read_back(options: dict[str, str]) -> None:
    assert jaas_options(jaas_line("Module", options)) == options


def test_request_token_sends_client_and_scope_and_returns_when_the_token_expires(server: TokenServer) -> None:
    token = Login.of(server.settings()).source.request()
    assert token.text == server.issued[0]
    assert token.expires_at == pytest.approx(time.time() + server.lives_seconds, abs=scaled(5))
    [request] = server.requests
    login = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
    assert request == {"grant_type": "client_credentials", "scope": "kafka.read", "Authorization": f"Basic {login}"}
    assert token.text not in repr(token)


def test_request_token_encodes_id_and_secret_on_demand(server: TokenServer) -> None:
    server.answer = lambda: (200, "application/json", jwt(sub="a", exp=time.time() + 9))
    settings = server.settings("a b:c") | {"sasl.oauthbearer.header.urlencode": "true"}
    Login.of(settings).source.request()
    [request] = server.requests
    assert base64.b64decode(request["Authorization"].removeprefix("Basic ")) == f"{CLIENT}:a+b%3Ac".encode()


def test_request_token_wrong_secret_names_the_settings(server: TokenServer) -> None:
    """The endpoint of the test repeats the secret in its description of the error."""
    server.secret = "other"
    error = error_of(server)
    assert isinstance(error, KafkaLoginError)
    assert "refuses the client (401 invalid_client): check the client's id, secret and scope" in str(error)


@pytest.mark.parametrize(
    ("status", "kind", "content", "message"),
    [
        (503, "text/html", b"<html>", "answers with status 503"),
        (404, "text/html", b"<html>", "answers with status 404"),
        (302, "text/html", b"http://127.0.0.1:1/", "answers with status 302"),
        (400, "application/json", b'{"error": "invalid_scope"}', "(400 invalid_scope)"),
        (403, "text/html", SECRET.encode(), "(403)"),
        (200, "text/html", b"<html>sign in</html>", "without a token (text/html): check"),
        (200, "application/json", b"[]", "without a token"),
        (200, "application/json", b'{"access_token": 7}', "without a token"),
        (200, "application/json", b"[" * 100_000, "without a token"),
        (200, "application/json", b" " * 2_000_000, "does not answer"),
        (200, "application/json", b'{"access_token": "opaque"}', "that is no JWT"),
        (200, "application/json", b'{"access_token": "a.b.c"}', "that is no JWT"),
        (200, "application/json", jwt(sub="a"), "without exp"),
        (200, "application/json", jwt(sub="a", exp="soon"), "without exp"),
        (200, "application/json", jwt(sub="a", exp=float("inf")), "without exp"),
        (200, "application/json", jwt(sub="a", exp=1), "already expired: compare the clocks"),
        (200, "application/json", jwt(exp=1 << 40), "without sub"),
        (200, "application/json", jwt(sub="a", exp=1 << 40, scope=7), "whose scope is no text"),
    ],
)
def test_request_token_unusable_answer_raises_one_line(
    server: TokenServer, status: int, kind: str, content: bytes, message: str
) -> None:
    server.answer = lambda: (status, kind, content)
    assert message in str(error_of(server))


@pytest.mark.parametrize("claim", [{"sub": "a"}, {"azp": "a", "roles": ["x"]}])
def test_request_token_claims_are_those_of_the_settings(server: TokenServer, claim: dict[str, Any]) -> None:
    server.answer = lambda: (200, "application/json", jwt(exp=1 << 40, **claim))
    names = {} if "sub" in claim else {"sub": "azp", "scope": "roles"}
    changes = {f"sasl.oauthbearer.{of}.claim.name": name for of, name in names.items()}
    assert Login.of(server.settings() | changes).source.request().expires_at == 1 << 40


def test_request_token_endpoint_that_is_down_or_silent_is_an_outage(server: TokenServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/token?key={SECRET}"
        changes = {"sasl.oauthbearer.token.endpoint.url": url, "sasl.login.connect.timeout.ms": "100"}
        error = error_of(server, **changes, **{"sasl.login.read.timeout.ms": "200"})
    assert isinstance(error, KafkaUnreachableError)
    assert "/token?*** does not answer (no answer within 0.2 s)" in str(error)
    assert "(connection refused): start it" in str(error_of(server, **changes))


def test_request_token_endpoint_that_sends_byte_by_byte_is_given_up(server: TokenServer) -> None:
    ended = threading.Event()

    def drip(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not ended.wait(0.02):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        timeouts = dict.fromkeys(("sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms"), "300")
        error = error_of(server, **{"sasl.oauthbearer.token.endpoint.url": url}, **timeouts)
        ended.set()
        thread.join()
    assert "no answer within 0.3 s" in str(error)


def test_request_token_trusts_the_ca_of_the_jaas_line_alone(tmp_path: Path) -> None:
    """As Java does: the trust store of the brokers is another."""
    authority = Authority(tmp_path, "authority")
    with token_server(authority.signed("idp")) as served:
        assert "is not trusted" in str(error_of(served))
        trust = f'ssl.truststore.type="PEM" ssl.truststore.location="{authority.certificate}"'
        settings = served.settings() | {"sasl.jaas.config": f"{MODULE} required {trust};"}
        assert Login.of(settings).source.request().text == served.issued[0]
        assert jaas_options(java_settings(settings)["sasl.jaas.config"])["ssl.truststore.type"] == "PEM"


def tunnel(listening: socket.socket, asked: list[bytes]) -> None:
    """Be a proxy for one connection."""
    connection, _ = listening.accept()
    asked.append(connection.recv(4096))
    host, port = asked[0].split()[1].decode().split(":")
    with connection, socket.create_connection((host, int(port))) as upstream:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        back = threading.Thread(target=pump, args=(upstream, connection))
        back.start()
        pump(connection, upstream)
        back.join()


def pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(65_536):
            target.sendall(content)
        target.shutdown(socket.SHUT_WR)


def test_request_token_https_proxy_is_used_unless_no_proxy_names_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's Java client then gets its tokens from grouptrail, where its executors are in the same process."""
    authority = Authority(tmp_path, "authority")
    asked: list[bytes] = []
    with token_server(authority.signed("idp")) as served, socket.create_server(("127.0.0.1", 0)) as listening:
        trust = f'ssl.truststore.type="PEM" ssl.truststore.location="{authority.certificate}"'
        settings = served.settings() | {"sasl.jaas.config": f"{MODULE} required {trust};"}
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:{SECRET}@127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setenv("NO_PROXY", "localhost")
        thread = threading.Thread(target=tunnel, args=(listening, asked))
        thread.start()
        assert Login.of(settings).source.request().text == served.issued[0]
        thread.join()
        address = served.url.removeprefix("https://").removesuffix("/token")
        assert asked[0].startswith(f"CONNECT {address} ".encode())
        assert java_settings(settings)["sasl.oauthbearer.token.endpoint.url"].startswith("http://127.0.0.1:")
        assert java_settings(settings, is_local=False)["sasl.oauthbearer.token.endpoint.url"] == served.url
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
        error = error_of(served, **{"sasl.jaas.config": settings["sasl.jaas.config"]})
        assert "does not answer by the proxy of HTTPS_PROXY (connection refused)" in str(error)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert Login.of(settings).source.request().text == served.issued[1]
        assert java_settings(settings)["sasl.oauthbearer.token.endpoint.url"] == served.url


class Clock:
    """The time, and tokens that are issued at it or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        self.failure: Exception | None = None
        self.issued = 0
        monkeypatch.setattr(time, "time", lambda: self.now)

    shown, remedy = "a clock", "wind it"

    def request(self) -> Token:
        if self.failure is not None:
            raise self.failure
        self.issued += 1
        return Token(f"token-{self.issued}", self.now + 100)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_tokens_token_is_renewed_once_when_most_of_its_life_is_over(clock: Clock) -> None:
    tokens = Tokens(clock, RefreshWindow())
    assert {tokens.token(), tokens.token()} == {"token-1"}
    clock.now += 79
    assert tokens.token() == "token-1"
    clock.now += 7
    assert {tokens.token(), tokens.token()} == {"token-2"}


def test_tokens_renewal_that_fails_is_tried_again_and_raised_once_the_token_has_expired(clock: Clock) -> None:
    tokens = Tokens(clock, RefreshWindow())
    tokens.token()
    clock.now, clock.failure = clock.now + 86, KafkaUnreachableError("down")
    assert tokens.token() == "token-1"
    clock.failure = None
    assert tokens.token() == "token-1", "tried again only after ten seconds"
    clock.now += 10
    assert tokens.token() == "token-2"
    clock.now, clock.failure = clock.now + 101, KafkaUnreachableError("down")
    with pytest.raises(KafkaUnreachableError, match="down"):
        tokens.token()
    clock.failure = None
    with pytest.raises(KafkaUnreachableError, match="down"):
        tokens.token()
    clock.now += 2
    assert tokens.token() == "token-3"


def test_tokens_that_a_broker_refused_are_requested_again(clock: Clock) -> None:
    tokens = Tokens(clock, RefreshWindow())
    tokens.token()
    assert "refuses the token of" in tokens.refused_by("kafka:9092")
    assert tokens.token() == "token-2"


def test_tokens_of_the_same_login_are_shared_and_of_a_new_secret_are_not() -> None:
    first = oauthbearer.tokens_of(SETTINGS)
    assert oauthbearer.tokens_of(dict(SETTINGS)) is first
    assert oauthbearer.tokens_of(SETTINGS | {"sasl.oauthbearer.client.credentials.client.secret": "x"}) is not first


@given(st.floats(1, 1e7), st.floats(0.5, 1), st.floats(0, 0.25), st.floats(0, 900), st.floats(0, 3600))
def test_refresh_window_renewal_is_after_now(
    life: float, factor: float, jitter: float, min_period: float, buffer: float
) -> None:
    """And before the token expires, unless a jitter behind a factor near 1 puts it there: as in Java."""
    renewal = RefreshWindow(factor, jitter, min_period, buffer).renewal(0.0, life)
    assert 0 < renewal <= max(life * (factor + jitter), min_period)


def test_refresh_window_long_lives_end_with_the_buffer() -> None:
    assert RefreshWindow(jitter=0).renewal(0, 3600) == 2880
    assert RefreshWindow(jitter=0, buffer_seconds=1000).renewal(0, 3600) == 2600
    assert RefreshWindow(jitter=0).renewal(0, 20) == 16


def test_cluster_error_of_the_token_endpoint_is_raised_as_it_is(server: TokenServer) -> None:
    """Also where kafka-python's loop is the first to need a token."""
    provider = client_arguments(server.settings("wrong"))["sasl_oauth_token_provider"]
    get: Callable[[], str] = provider.token
    with pytest.raises(Exception, match="refuses the client") as caught:
        get()
    assert isinstance(getattr(caught.value, "reason", None), KafkaLoginError)

"""Who gets web pages: on loopback, on a network address, with a token, a password or a certificate."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from grouptrail.config import Config, load_config
from grouptrail.config.tokens import TokenError
from grouptrail.errors import GrouptrailError
from grouptrail.exporter.service import Exporter
from grouptrail.http import logins
from grouptrail.http.access import Access
from grouptrail.runtime.serving import exporter_with_pages
from support.certificates import self_signed
from support.deadlines import until
from support.exporter_tables import configured, lay_everything
from support.web_client import fetched

TOKEN = "0123456789abcdef-token"
PAGES = (
    "/",
    "/groups/billing",
    "/sql",
    "/api/v1/groups",
    "/api/v1/sql?q=SELECT+1",
    "/api/v1/openapi.json",
    "/nothing",
)
EVERYWHERE = "0.0.0.0:0"


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def token_file(folder: Path, mode: int = 0o600) -> Path:
    path = folder / "web-token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(mode)
    return path


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = configured(tmp_path_factory.mktemp("lake"))
    lay_everything(config)
    return config


def listening(simulated: Config, **settings: object) -> Config:
    named = {name.replace("__", "."): str(value) for name, value in settings.items()}
    # Secrets are not taken from flags.
    secrets = {
        f"GROUPTRAIL_{name.upper().replace('.', '__')}": named.pop(name)
        for name in [*named]
        if name.endswith("password")
    }
    return load_config(None, {"warehouse": simulated.warehouse, **named}, secrets)


def local(url: str) -> str:
    """Return the URL of a server that listens everywhere, on this machine."""
    return url.replace("0.0.0.0", "127.0.0.1")


@pytest.fixture(scope="module")
def with_token(simulated: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    """A server on all addresses that requires a token for pages."""
    path = token_file(tmp_path_factory.mktemp("secrets"))
    config = listening(simulated, exporter__listen=EVERYWHERE, web__token_file=path)
    with exporter_with_pages([config], lambda _: None) as running:
        until(lambda: running.page is not None)
        # After a right token, any number of wrong ones from here is checked.
        assert fetched(local(running.url), "/", Authorization=f"Bearer {TOKEN}")[0] == 200
        yield running


@pytest.mark.parametrize("listen", [EVERYWHERE, "[::]:0"])
def test_pages_on_a_network_address_without_login_are_closed_and_metrics_are_served(
    simulated: Config, listen: str
) -> None:
    said: list[str] = []
    try:
        running = exporter_with_pages([listening(simulated, exporter__listen=listen)], said.append)
    except GrouptrailError as error:
        pytest.skip(f"this machine cannot listen there: {error}")
    with running:
        until(lambda: running.page is not None)
        url = local(running.url).replace("[::]", "127.0.0.1")
        for path in PAGES:
            status, _, text = fetched(url, path)
            assert status == 403
            assert "set web.token_file" in text
            assert "billing" not in text
        assert fetched(url, "/api/v1/sql", method="POST", body=b"q=SELECT+1")[0] == 403
        assert "kafka_consumer_group_lag{" in fetched(url, "/metrics")[2]
        assert [fetched(url, path)[0] for path in ("/ready", "/healthz")] == [200, 200]
    assert any(line.startswith("web pages are not served at") for line in said)


def test_pages_on_a_network_address_are_open_if_the_settings_say_so(simulated: Config) -> None:
    config = listening(simulated, exporter__listen=EVERYWHERE, web__allow_anonymous=True)
    said: list[str] = []
    with exporter_with_pages([config], said.append) as running:
        assert running.serves_pages
        assert fetched(local(running.url), "/")[0] == 200
    assert said == []


def test_pages_on_loopback_need_no_login(simulated: Config) -> None:
    with exporter_with_pages([listening(simulated, exporter__listen="127.0.0.1:0")], lambda _: None) as running:
        assert fetched(running.url, "/")[0] == 200


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize(
    "authorization",
    [
        *("", "Bearer", "Bearer wrong", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Token {TOKEN}", TOKEN),
        *("Basic", "Basic !!!", basic("any", "wrong"), basic(TOKEN, ""), basic("any", ""), f"Basic {TOKEN}"),
    ],
)
def test_page_without_the_token_is_refused(with_token: Exporter, path: str, authorization: str) -> None:
    status, headers, text = fetched(local(with_token.url), path, Authorization=authorization)
    assert (status, headers["WWW-Authenticate"][:5]) == (401, "Basic")
    assert "the token is missing or wrong" in text
    assert TOKEN not in text


@pytest.mark.parametrize(
    "authorization", [f"Bearer {TOKEN}", f"bearer  {TOKEN}", basic("", TOKEN), basic("me", TOKEN)]
)
def test_page_with_the_token_is_served(with_token: Exporter, authorization: str) -> None:
    for path in ("/", "/api/v1/groups"):
        status, _, text = fetched(local(with_token.url), path, Authorization=authorization)
        assert status == 200
        assert "billing" in text


def test_wrong_tokens_beyond_the_limit_are_refused_unchecked_and_logged_in_one_line(
    simulated: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "SECONDS_EACH", 1_000.0)
    config = listening(simulated, exporter__listen="127.0.0.1:0", web__token_file=token_file(tmp_path))
    said: list[str] = []
    with exporter_with_pages([config], said.append) as running:
        until(lambda: running.page is not None)
        for _ in range(2 * logins.AT_ONCE):
            assert fetched(running.url, "/")[0] == 401, "a browser asks without a token first"
        tried = [fetched(running.url, "/", Authorization=f"Bearer {n:016}") for n in range(50)]
        assert [status for status, _, _ in tried] == [401] * logins.AT_ONCE + [429] * (50 - logins.AT_ONCE)
        assert tried[-1][1]["Retry-After"] == "1"
        assert tried[-1][2].startswith("too many wrong passwords or tokens came from this address: correct yours")
        assert fetched(running.url, "/", Authorization=f"Bearer {TOKEN}")[0] == 429, "or it could be guessed"
        assert [fetched(running.url, path)[0] for path in ("/metrics", "/ready")] == [200, 200]
        assert fetched(running.url, "/metrics", Authorization="Bearer unasked")[0] == 200
    assert said == [
        "login: 51 requests with a wrong password or token from localhost, 41 of them refused unchecked: "
        "correct what this client sends, or keep it away from the port"
    ]


def test_metrics_do_not_need_the_token_of_pages(with_token: Exporter) -> None:
    assert fetched(local(with_token.url), "/metrics")[0] == 200


@pytest.mark.parametrize("host", ["grouptrail.monitoring.svc:9308", "10.1.2.3:9308", "evil.example.com", ""])
def test_metrics_on_a_network_address_are_scraped_under_any_name(with_token: Exporter, host: str) -> None:
    """Also through a loopback address: on Debian, a machine's own name has one. Pages are refused there."""
    statuses = [fetched(local(with_token.url), path, Host=host)[0] for path in ("/metrics", "/ready", "/healthz")]
    assert statuses == [200, 200, 200]
    assert fetched(local(with_token.url), "/", Host=host, Authorization=f"Bearer {TOKEN}")[0] == 421


def test_token_takes_the_place_of_the_password_for_pages_alone(simulated: Config, tmp_path: Path) -> None:
    password = {"exporter__basic_auth_user": "prometheus", "exporter__basic_auth_password": "s3cret"}
    config = listening(simulated, exporter__listen="127.0.0.1:0", web__token_file=token_file(tmp_path), **password)
    with exporter_with_pages([config], lambda _: None) as running:
        until(lambda: running.page is not None)
        answers = {
            (path, given): fetched(running.url, path, Authorization=given)[0]
            for path in ("/", "/metrics")
            for given in (basic("prometheus", "s3cret"), f"Bearer {TOKEN}")
        }
    assert answers == {
        ("/", basic("prometheus", "s3cret")): 401,
        ("/", f"Bearer {TOKEN}"): 200,
        ("/metrics", basic("prometheus", "s3cret")): 200,
        ("/metrics", f"Bearer {TOKEN}"): 401,
    }


def test_password_of_the_metrics_opens_pages_on_a_network_address(simulated: Config) -> None:
    password = {"exporter__basic_auth_user": "prometheus", "exporter__basic_auth_password": "s3cret"}
    with exporter_with_pages(
        [listening(simulated, exporter__listen=EVERYWHERE, **password)], lambda _: None
    ) as running:
        assert fetched(local(running.url), "/")[0] == 401
        assert fetched(local(running.url), "/", Authorization=basic("prometheus", "s3cret"))[0] == 200


def test_client_certificates_open_pages_on_a_network_address() -> None:
    assert Access(has_certificates=True).serves_pages(is_loopback=False)
    assert not Access().serves_pages(is_loopback=False)
    assert Access().serves_pages(is_loopback=True)


def test_token_without_tls_on_a_network_address_is_warned_about(simulated: Config, tmp_path: Path) -> None:
    said: list[str] = []
    config = listening(simulated, exporter__listen=EVERYWHERE, web__token_file=token_file(tmp_path))
    with exporter_with_pages([config], said.append):
        pass
    assert [line for line in said if "password or token" in line and "unencrypted" in line]
    said.clear()
    certificate, key = self_signed(tmp_path)
    tls = {"exporter__tls_certificate": certificate, "exporter__tls_key": key}
    config = listening(simulated, exporter__listen=EVERYWHERE, web__token_file=token_file(tmp_path), **tls)
    with exporter_with_pages([config], said.append):
        pass
    assert said == []


def test_token_file_that_others_can_read_ends_the_start(simulated: Config, tmp_path: Path) -> None:
    config = listening(simulated, exporter__listen="127.0.0.1:0", web__token_file=token_file(tmp_path, 0o644))
    with pytest.raises(TokenError, match="chmod o="):
        exporter_with_pages([config], lambda _: None)


def test_missing_token_file_names_its_setting(simulated: Config, tmp_path: Path) -> None:
    config = listening(simulated, exporter__listen="127.0.0.1:0", web__token_file=tmp_path / "none")
    with pytest.raises(TokenError, match=r"check web\.token_file"):
        exporter_with_pages([config], lambda _: None)

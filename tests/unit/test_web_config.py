"""Web configuration files of Prometheus' exporters: TLS, client certificates, users, headers, and their changes."""

from __future__ import annotations

import base64
import contextlib
import re
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from pydantic import ValidationError

from grouptrail.config import ConfigError, load_config
from grouptrail.config.model import ExporterConfig
from grouptrail.exporter.service import Exporter
from grouptrail.http import logins
from grouptrail.http.access import Access, Users
from grouptrail.http.logins import MAX_SLOW, Login, Logins
from grouptrail.http.rates import RateLimit
from grouptrail.http.web_config import WebConfigError, WebConfigFile
from grouptrail.runtime.serving import exporter_with_pages
from support.certificates import Authority, self_signed
from support.deadlines import until
from support.exporter_tables import DEADLINE_SECONDS, configured, lay_everything
from support.from_config import exporter_of
from support.prometheus_server import running, tool

DOCS = Path(__file__).resolve().parents[2] / "docs"
PASSWORD = "se'cret: \N{SNOWMAN}"
# The lowest cost: tests check many.
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
TLS = {"cert_file": "certificate.pem", "key_file": "key.pem"}
MUTUAL = {**TLS, "client_ca_file": "clients.pem", "client_auth_type": "RequireAndVerifyClientCert"}
USERS = {"basic_auth_users": {"prometheus": HASH}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a certificate, its key, and an authority of clients' certificates."""
    self_signed(tmp_path)
    Authority(tmp_path, "clients")
    return tmp_path


def written(folder: Path, content: object) -> Path:
    """Write a web configuration file; it takes the place of the one before at once, as a mounted secret does."""
    path, new = folder / "web.yml", folder / "web.yml.new"
    new.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    new.replace(path)
    return path


@contextlib.contextmanager
def serving(folder: Path, content: object, log: Callable[[str], None] = lambda _: None) -> Iterator[Exporter]:
    config = configured(folder / "lake", web_config_file=written(folder, content))
    lay_everything(config)
    with exporter_of([config], log) as exporter:
        until(lambda: exporter.page)
        yield exporter


def login(user: str = "prometheus", password: str = PASSWORD) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


def get(url: str, tls: ssl.SSLContext | None = None, **headers: str) -> tuple[int, dict[str, str], str]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS, context=tls) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, dict(answer.headers), answer.read().decode()


def trusting(folder: Path, client: Path | None = None) -> ssl.SSLContext:
    """Return a client's TLS, with a certificate of its own if there is one."""
    context = ssl.create_default_context(cafile=str(folder / "certificate.pem"))
    if client is not None:
        context.load_cert_chain(client)
    return context


# --- files that cannot be used ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty: write {}"),
        ("# nothing\n", "is empty: write {}"),
        ("- a list", "valid dictionary"),
        ("basic_auth_users: {x: [", "no valid YAML, line 1"),
        ("basic_auth_users:\n  x: a: b", "no valid YAML, line 2"),
        (f"basic_auth_users: {{x: {HASH}, x: {HASH}}}", "a key stands twice"),
        ({"users": {}}, "users: unknown setting"),
        ({"tls_server_config": {**TLS, "ca_file": "x"}}, "tls_server_config.ca_file: unknown setting"),
        ({"basic_auth_users": {"x": "geheim"}}, r"basic_auth_users\.x: is no hash of bcrypt: make one"),
        ({"basic_auth_users": {"x": None}}, r"basic_auth_users\.x: .* valid string"),
        ({"basic_auth_users": {"x": HASH.replace("$04$", "$18$")}}, "has the cost 18"),
        ({"basic_auth_users": {"a:b": HASH}}, r"basic_auth_users\.a:b"),
        ({"tls_server_config": {"cert_file": "certificate.pem"}}, "set one of key and key_file"),
        ({"tls_server_config": {**TLS, "key": "x"}}, "set one of key and key_file"),
        ({"tls_server_config": {**TLS, "cert_file": "gone.pem"}}, "No such file or directory: .*gone.pem"),
        ({"tls_server_config": {**TLS, "key_file": "web.yml"}}, "certificate, key or CA cannot be used"),
        ({"tls_server_config": {**MUTUAL, "client_ca_file": "key.pem"}}, "certificate, key or CA cannot be used"),
        ({"tls_server_config": {**TLS, "client_ca_file": "clients.pem"}}, "set client_auth_type: RequireAndVerify"),
        ({"tls_server_config": {**TLS, "client_allowed_sans": ["a"]}}, "client_allowed_sans needs client_auth_type"),
        ({"tls_server_config": {**MUTUAL, "client_auth_type": "RequireAnyClientCert"}}, "that nobody has verified"),
        ({"tls_server_config": {**TLS, "min_version": "TLS10"}}, "must be TLS12 or TLS13"),
        ({"tls_server_config": {**TLS, "min_version": "TLS13", "max_version": "TLS12"}}, "newer than max_version"),
        ({"tls_server_config": {**TLS, "cipher_suites": ["RC4"]}}, "unknown cipher suite 'RC4'"),
        ({"tls_server_config": {**TLS, "curve_preferences": ["X25519", "CurveP256"]}}, "give one of CurveP256"),
        ({"http_server_config": {"headers": {"Server": "x"}}}, "headers.Server: unknown setting"),
        ({"http_server_config": {"headers": {"X-Frame-Options": "allow"}}}, "'deny' or 'sameorigin'"),
        ({"http_server_config": {"headers": {"X-XSS-Protection": "1\nA: b"}}}, "ASCII text of one line"),
        ({"rate_limit": {"interval": "often", "burst": 1}}, "must be a duration"),
    ],
)
def test_file_that_cannot_be_used_is_one_line_without_its_secrets(
    folder: Path, content: object, problem: str
) -> None:
    with pytest.raises(WebConfigError, match=problem) as caught:
        WebConfigFile(written(folder, content), Access(), lambda _: None)
    assert "\n" not in str(caught.value)
    assert "web.yml" in str(caught.value)
    assert "geheim" not in str(caught.value)
    assert HASH[8:] not in str(caught.value)


def test_missing_file_names_its_setting(tmp_path: Path) -> None:
    with pytest.raises(WebConfigError, match=r"No such file.*: check exporter.web_config_file"):
        exporter_of([configured(tmp_path, web_config_file=tmp_path / "none.yml")])


def test_encrypted_key_is_refused_without_a_question(folder: Path) -> None:
    key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), None)
    how = serialization.BestAvailableEncryption(b"password")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)
    (folder / "key.pem").write_bytes(pem)
    with pytest.raises(WebConfigError, match="the private key is encrypted"):
        WebConfigFile(written(folder, {"tls_server_config": TLS}), Access(), lambda _: None)


def test_file_takes_the_place_of_the_other_settings(tmp_path: Path) -> None:
    """Two sources of one rule would leave open which one applies."""
    with pytest.raises(
        ValidationError, match="web_config_file takes the place of basic_auth_user, basic_auth_password"
    ):
        ExporterConfig(web_config_file=tmp_path, basic_auth_user="a", basic_auth_password="b")  # type: ignore[arg-type]
    settings = {"exporter.web_config_file": "web.yml", "exporter.tls_certificate": "a", "exporter.tls_key": "b"}
    with pytest.raises(ConfigError, match="takes the place of tls_certificate, tls_key: set one or the other"):
        load_config(None, settings, {})


# --- what a file does ---------------------------------------------------------------------------------------


def test_users_of_the_file_alone_see_metrics_and_probes_stay_open(folder: Path) -> None:
    users = {"prometheus": HASH, "2y": HASH.replace("$2b$", "$2y$")}
    with serving(folder, {"tls_server_config": TLS, "basic_auth_users": users}) as exporter:
        tls = trusting(folder)
        metrics = f"{exporter.url}/metrics"
        assert exporter.url.startswith("https://")
        for user in users:
            assert get(metrics, tls, **login(user))[0] == 200
        for wrong in (login(password=""), login("nobody"), login(password="x" * 100), login("", ""), {}):
            status, headers, body = get(metrics, tls, **wrong)
            assert (status, body) == (401, "user and password are missing or wrong\n"), wrong
            assert headers["WWW-Authenticate"].startswith("Basic ")
        assert get(f"{exporter.url}/healthz", tls)[0] == 200


def test_password_longer_than_bcrypt_takes_is_compared_as_other_implementations_do(folder: Path) -> None:
    long = "p" * 100
    hashed = bcrypt.hashpw(long.encode()[:72], bcrypt.gensalt(4)).decode()
    with serving(folder, {"basic_auth_users": {"a": hashed}}) as exporter:
        assert get(f"{exporter.url}/metrics", **login("a", long))[0] == 200
        assert get(f"{exporter.url}/metrics", **login("a", "p" * 71))[0] == 401


def test_client_certificate_needs_the_authority_and_an_allowed_name(folder: Path) -> None:
    authority = Authority(folder, "clients")
    stranger = Authority(folder, "others").signed("127.0.0.1")
    client = authority.signed("scraper")  # its names are localhost and 127.0.0.1
    with serving(folder, {"tls_server_config": {**MUTUAL, "client_allowed_sans": ["127.0.0.1"]}}) as exporter:
        metrics = f"{exporter.url}/metrics"
        assert get(metrics, trusting(folder, client))[0] == 200
        for refused in (None, stranger):
            with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
                get(metrics, trusting(folder, refused))
        written(folder, {"tls_server_config": {**MUTUAL, "client_allowed_sans": ["prometheus.example"]}})
        for path in ("/metrics", "/healthz", "/"):
            status, _, body = get(exporter.url + path, trusting(folder, client))
            assert (status, "client_allowed_sans" in body) == (403, True)


def test_optional_client_certificate_is_verified_if_given(folder: Path) -> None:
    optional = {**MUTUAL, "client_auth_type": "VerifyClientCertIfGiven"}
    with serving(folder, {"tls_server_config": optional}) as exporter:
        assert get(f"{exporter.url}/healthz", trusting(folder))[0] == 200
        with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
            get(f"{exporter.url}/healthz", trusting(folder, Authority(folder, "others").signed("x")))


def test_certificate_and_key_may_stand_in_the_file(folder: Path) -> None:
    texts = {name: (folder / f"{file}.pem").read_text() for name, file in (("cert", "certificate"), ("key", "key"))}
    with serving(folder, {"tls_server_config": texts}) as exporter:
        assert get(f"{exporter.url}/healthz", trusting(folder))[0] == 200


@pytest.mark.parametrize(
    ("settings", "version", "cipher"),
    [
        ({}, "TLSv1.3", None),
        ({"max_version": "TLS12"}, "TLSv1.2", None),
        (
            {"max_version": "TLS12", "cipher_suites": ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]},
            "TLSv1.2",
            "ECDHE-ECDSA-AES128-GCM-SHA256",
        ),
        ({"curve_preferences": ["CurveP256"], "prefer_server_cipher_suites": False}, "TLSv1.3", None),
    ],
)
def test_tls_version_and_cipher_are_those_of_the_file(
    folder: Path, settings: dict[str, Any], version: str, cipher: str | None
) -> None:
    with serving(folder, {"tls_server_config": TLS | settings}) as exporter:
        host, port = exporter.url.removeprefix("https://").split(":")
        with contextlib.closing(_handshake(folder, host, int(port))) as client:
            agreed = client.cipher()
            assert client.version() == version
            assert agreed is not None
            assert cipher in (None, agreed[0])


@pytest.mark.parametrize("settings", [{"min_version": "TLS13"}, {"cipher_suites": ["TLS_AES_128_GCM_SHA256"]}])
def test_older_tls_is_refused_where_the_file_says_so(folder: Path, settings: dict[str, Any]) -> None:
    with serving(folder, {"tls_server_config": TLS | settings}) as exporter:
        host, port = exporter.url.removeprefix("https://").split(":")
        with pytest.raises(ssl.SSLError):
            _handshake(folder, host, int(port), at_most=ssl.TLSVersion.TLSv1_2)


def _handshake(folder: Path, host: str, port: int, at_most: ssl.TLSVersion | None = None) -> ssl.SSLSocket:
    context = trusting(folder)
    if at_most is not None:
        context.maximum_version = at_most
    return context.wrap_socket(socket.create_connection((host, port), DEADLINE_SECONDS), server_hostname=host)


def test_headers_of_the_file_are_in_every_response_and_change_none_of_a_page(folder: Path) -> None:
    headers = {"Strict-Transport-Security": "max-age=9", "X-XSS-Protection": "", "Content-Security-Policy": "a"}
    path = written(folder, {"http_server_config": {"http2": False, "headers": headers}})
    config = configured(folder / "lake", web_config_file=path)
    lay_everything(config)
    with exporter_with_pages([config], lambda _: None) as exporter:
        until(lambda: exporter.page)
        for page in ("/metrics", "/healthz", "/nothing"):
            given = get(exporter.url + page)[1]
            assert given["Strict-Transport-Security"] == "max-age=9"
            assert "X-XSS-Protection" not in given
        assert get(f"{exporter.url}/metrics")[1]["Content-Security-Policy"] == "a"
        assert "script-src" in get(f"{exporter.url}/")[1]["Content-Security-Policy"]


def test_requests_beyond_the_rate_are_refused(folder: Path) -> None:
    with serving(folder, {"rate_limit": {"interval": "1h", "burst": 3}}) as exporter:
        assert [get(f"{exporter.url}/healthz")[0] for _ in range(5)] == [200, 200, 200, 429, 429]


def test_rate_limit_allows_one_more_after_each_interval() -> None:
    now = [0.0]
    limit = RateLimit(2.0, 3, lambda: now[0])
    assert [limit.allows() for _ in range(4)] == [True, True, True, False]
    now[0] = 2.0
    assert [limit.allows() for _ in range(2)] == [True, False]
    now[0] = 1000.0
    assert [limit.allows() for _ in range(4)] == [True, True, True, False]


def test_pages_on_a_network_address_follow_the_users_of_the_file(folder: Path) -> None:
    path = written(folder, USERS)
    config = configured(folder / "lake", web_config_file=path, listen="0.0.0.0:0")
    lay_everything(config)
    with exporter_with_pages([config], lambda _: None) as exporter:
        until(lambda: exporter.page)
        url = exporter.url.replace("0.0.0.0", "127.0.0.1")
        assert exporter.serves_pages
        assert (get(url)[0], get(url, **login())[0]) == (401, 200)
        written(folder, {})
        assert get(url)[0] == 403, "without users anyone could see all groups"
        assert get(f"{url}/metrics")[0] == 200
        assert not exporter.serves_pages


# --- changes ------------------------------------------------------------------------------------------------


def test_changed_users_and_certificates_are_used_by_the_next_request(folder: Path) -> None:
    said: list[str] = []
    with serving(folder, {"tls_server_config": TLS, **USERS}, said.append) as exporter:
        metrics = f"{exporter.url}/metrics"
        before = trusting(folder)
        assert get(metrics, before, **login())[0] == 200
        other = bcrypt.hashpw(b"other", bcrypt.gensalt(4)).decode()
        written(folder, {"tls_server_config": TLS, "basic_auth_users": {"prometheus": other}})
        assert get(metrics, before, **login())[0] == 401
        assert get(metrics, before, **login(password="other"))[0] == 200
        (folder / "new").mkdir()
        # The key first: for a moment, the two files do not belong together.
        certificate, key = self_signed(folder / "new", "renewed")
        key.replace(folder / "key.pem")
        assert get(metrics, before, **login(password="other"))[0] == 200
        certificate.replace(folder / "certificate.pem")
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            get(metrics, before)
        assert get(metrics, trusting(folder), **login(password="other"))[0] == 200
    kinds = [re.sub(r"^.*web\.yml:? ", "", line) for line in said if "web.yml" in line]
    assert [kind.partition(" ")[0] for kind in kinds] == ["has", "the", "has"], said


@pytest.mark.parametrize("broken", ["", "a: [", "unknown: 1", {"tls_server_config": TLS}, None])
def test_broken_file_leaves_the_last_one_in_use_and_says_so_once(folder: Path, broken: object) -> None:
    """Nobody gets in who could not before, and no scrape fails."""
    said: list[str] = []
    with serving(folder, USERS, said.append) as exporter:
        metrics = f"{exporter.url}/metrics"
        if broken is None:
            (folder / "web.yml").unlink()
        else:
            written(folder, broken)
        for _ in range(3):
            assert (get(metrics, **login())[0], get(metrics)[0]) == (200, 401)
        (line,) = said
        assert line.endswith("; what it said before stays in use")
        written(folder, {})
        assert get(metrics)[0] == 200
    assert len(said) == 2


def test_closed_output_of_the_log_ends_no_request(folder: Path) -> None:
    def closed(_: str) -> None:
        raise ValueError("I/O operation on closed file")

    file = WebConfigFile(written(folder, USERS), Access(), closed)
    for content in ("", {}):
        written(folder, content)
        assert (file.current().access.users is None) is (content == {})


# --- bcrypt is slow -----------------------------------------------------------------------------------------


class _SlowBcrypt:
    """bcrypt whose checks wait until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.go = threading.Event()
        self._checkpw = bcrypt.checkpw
        monkeypatch.setattr(bcrypt, "checkpw", self)

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.calls += 1
        assert self.go.wait(DEADLINE_SECONDS)
        return self._checkpw(password, hashed)


def test_right_password_is_checked_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = _SlowBcrypt(monkeypatch)
    slow.go.set()
    with serving(folder, USERS) as exporter:
        assert [get(f"{exporter.url}/metrics", **login())[0] for _ in range(5)] == [200] * 5
        assert slow.calls == 1
        get(f"{exporter.url}/metrics", **login("nobody"))
        assert slow.calls == 2, "an unknown user takes as long as a known one"


def test_simultaneous_first_requests_share_one_check(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = _SlowBcrypt(monkeypatch)
    users = Users({}, {"prometheus": HASH})
    header = login()["Authorization"]
    with ThreadPoolExecutor(5) as pool:
        answers = [pool.submit(users.admits, header) for _ in range(5)]
        until(lambda: slow.calls == 1)
        slow.go.set()
        assert [answer.result() for answer in answers] == [True] * 5
    assert slow.calls == 1


def test_wrong_passwords_in_check_do_not_delay_scrapes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape whose password is known is served while any number of wrong ones are checked."""
    slow = _SlowBcrypt(monkeypatch)
    slow.go.set()
    with serving(folder, USERS) as exporter:
        metrics = f"{exporter.url}/metrics"
        assert get(metrics, **login())[0] == 200
        slow.go.clear()
        with ThreadPoolExecutor(40) as pool:
            wrong = [pool.submit(get, metrics, **login(password=f"no {number}")) for number in range(40)]
            until(lambda: sum(one.done() for one in wrong) == 40 - MAX_SLOW)
            started = time.monotonic()
            assert get(metrics, **login())[0] == 200
            assert time.monotonic() - started < 5
            slow.go.set()
            statuses = sorted(one.result()[0] for one in wrong)
        assert statuses == [401] * MAX_SLOW + [429] * (40 - MAX_SLOW)


def test_logins_that_are_checked_slowly_count_until_they_are_found_right() -> None:
    clock = [1_000.0]
    known = Logins(lambda _: None, lambda: clock[0])
    inner: list[Login] = []

    def is_right_after_others() -> bool:
        inner.extend(known.check("10.0.0.1", lambda: False) for _ in range(logins.AT_ONCE))
        return True

    assert known.check("10.0.0.1", lambda: False, is_right_after_others) is Login.RIGHT
    assert inner == [Login.WRONG] * (logins.AT_ONCE - 1) + [Login.UNCHECKED]


# --- Prometheus ---------------------------------------------------------------------------------------------


def documented(name: str) -> str:
    """Return the one block of docs/metrics.md in YAML that begins with this key."""
    blocks = re.findall(r"```yaml\n(.*?)```", (DOCS / "metrics.md").read_text("utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if re.search(rf"^{name}:", block, re.MULTILINE)]
    return str(block)


def test_documented_file_is_valid_for_promtool_and_for_grouptrail(folder: Path) -> None:
    path = written(folder, documented("tls_server_config"))
    for name, source in (("tls.crt", "certificate"), ("tls.key", "key"), ("clients-ca.pem", "clients")):
        (folder / name).write_bytes((folder / f"{source}.pem").read_bytes())
    older = folder / "older.yml"  # Debian's promtool, 2.42, does not know the names in certificates
    older.write_text(re.sub(r"  client_allowed_sans: .*\n", "", path.read_text()))
    checked = subprocess.run([tool("promtool"), "check", "web-config", older], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    settings = WebConfigFile(path, Access(), lambda _: None).current()
    assert settings.tls is not None
    assert settings.access.has_certificates
    assert settings.access.allowed_names == {"prometheus.example"}
    assert settings.access.users is not None


def test_prometheus_scrapes_with_a_certificate_and_a_password_that_both_change(folder: Path) -> None:
    """A real Prometheus, with one file for both directions of TLS and its password in another."""
    authority = Authority(folder, "clients")
    client = authority.signed("localhost")
    (folder / "password").write_text(PASSWORD)
    content: dict[str, Any] = {"tls_server_config": {**MUTUAL, "client_allowed_sans": ["localhost"]}, **USERS}
    with serving(folder, content) as exporter:
        scrape = {
            "job_name": "grouptrail",
            "scheme": "https",
            "tls_config": {
                "ca_file": str(folder / "certificate.pem"),
                "cert_file": str(client),
                "key_file": str(client),
            },
            "basic_auth": {"username": "prometheus", "password_file": str(folder / "password")},
            "static_configs": [{"targets": [exporter.url.removeprefix("https://")]}],
        }
        settings = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [scrape]}
        with running(folder, settings) as prometheus:
            prometheus.wait_for("up == 1")
            prometheus.wait_for('kafka_consumer_group_sum_lag{group="billing"}')
            other = bcrypt.hashpw(b"other", bcrypt.gensalt(4)).decode()
            written(folder, content | {"basic_auth_users": {"prometheus": other}})
            prometheus.wait_for("up == 0")
            (folder / "password").write_text("other")
            prometheus.wait_for("up == 1")

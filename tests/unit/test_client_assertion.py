"""Login with JWTs that the client signs (RFC 7523), with Kafka 4.3's settings, at an endpoint that verifies them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from grouptrail.kafka.client_assertion import ClientAssertion
from grouptrail.kafka.errors import KafkaLoginError, KafkaSettingError
from grouptrail.kafka.oauthbearer import Login
from grouptrail.kafka.settings import client_arguments
from support.token_server import CLIENT, TokenServer, token_server

PREFIX = "sasl.oauthbearer.assertion"
JWT_BEARER = "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"
PASSPHRASE = "Geheim-4718"
KEYS = {"RS256": rsa.generate_private_key(65537, 2048), "ES256": ec.generate_private_key(ec.SECP256R1())}


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with token_server() as served:
        yield served


def write_key(file: Path, algorithm: str, encryption: KeySerializationEncryption | None = None) -> Path:
    content = KEYS[algorithm].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())
    file.write_bytes(content)
    return file


@pytest.fixture
def settings(server: TokenServer, tmp_path: Path) -> dict[str, str]:
    """A login with an RSA key, which the endpoint knows."""
    server.client_key = KEYS["RS256"].public_key()
    return server.settings_with_key(write_key(tmp_path / "key.pem", "RS256"), "RS256")


def decoded(part: str) -> dict[str, str]:
    content: dict[str, str] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return content


def requested(settings: dict[str, str]) -> str:
    return Login.of(settings).source.request().text


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
@pytest.mark.parametrize("more", [{}, {"sasl.oauthbearer.jwt.retriever.class": JWT_BEARER}], ids=["client", "grant"])
def test_assertion_of_each_kind_is_taken_once(
    server: TokenServer, tmp_path: Path, algorithm: str, more: dict[str, str]
) -> None:
    """As the client's proof (section 2.2) and as a grant of its own (section 2.1); each request has a new one."""
    server.client_key = KEYS[algorithm].public_key()
    key = write_key(tmp_path / "key.pem", algorithm, BestAvailableEncryption(PASSPHRASE.encode()))
    login = server.settings_with_key(key, algorithm) | {f"{PREFIX}.private.key.passphrase": PASSPHRASE} | more
    assert [requested(login), requested(login)] == server.issued
    assert not server.refusals
    assert {request["scope"] for request in server.requests} == {"kafka.read"}
    assert PASSPHRASE not in repr(Login.of(login))


def test_assertion_client_id_is_sent_with_it(server: TokenServer, settings: dict[str, str]) -> None:
    requested(settings | {"sasl.oauthbearer.client.credentials.client.id": CLIENT})
    assert server.requests[0]["client_id"] == CLIENT


def test_assertion_template_adds_headers_and_claims(
    server: TokenServer, settings: dict[str, str], tmp_path: Path
) -> None:
    """As in Java, they override the settings, and what is made for each JWT overrides them."""
    template = tmp_path / "template.json"
    payload = {"iss": CLIENT, "aud": server.url, "exp": 1, "tenant": "a"}
    template.write_text(json.dumps({"header": {"kid": "key-1", "alg": "none"}, "payload": payload}))
    login = settings | {f"{PREFIX}.template.file": str(template), f"{PREFIX}.claim.iss": "another"}
    del login[f"{PREFIX}.claim.aud"]
    requested(login)
    header, claims, _ = server.requests[0]["client_assertion"].split(".")
    assert decoded(header) == {"typ": "JWT", "kid": "key-1", "alg": "RS256"}
    assert decoded(claims)["tenant"] == "a"


def test_assertion_of_a_file_is_read_for_each_token(
    server: TokenServer, settings: dict[str, str], tmp_path: Path
) -> None:
    """As platforms that sign for their workloads mount it."""
    signer = ClientAssertion.of(settings)
    assert signer is not None
    file = tmp_path / "assertion"
    login = {name: value for name, value in settings.items() if not name.startswith(PREFIX)} | {
        f"{PREFIX}.file": str(file)
    }
    for _ in range(2):
        file.write_text(f"{signer.text()}\n")
        requested(login)
    assert len(server.issued) == 2
    with pytest.raises(KafkaLoginError, match="refuses the client"):
        requested(login)
    assert server.refusals == ["used before"]


def test_assertion_key_that_was_replaced_is_read(
    server: TokenServer, settings: dict[str, str], tmp_path: Path
) -> None:
    login = settings | {f"{PREFIX}.algorithm": "ES256"}
    server.client_key = KEYS["ES256"].public_key()
    with pytest.raises(KafkaLoginError, match="is no EC"):
        requested(login)
    write_key(tmp_path / "key.pem", "ES256")
    assert requested(login) == server.issued[0]


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({f"{PREFIX}.claim.iss": "another"}, "client"),
        ({f"{PREFIX}.claim.aud": "https://other.example"}, "audience"),
        ({f"{PREFIX}.claim.exp.seconds": "3600"}, "times"),
    ],
)
def test_assertion_that_is_refused_names_the_settings(
    server: TokenServer, settings: dict[str, str], changes: dict[str, str], refusal: str
) -> None:
    with pytest.raises(KafkaLoginError) as caught:
        requested(settings | changes)
    assert 'its claims iss, sub, aud and jti (kafka."sasl.oauthbearer.assertion.…")' in str(caught.value)
    assert "\n" not in str(caught.value)
    assert server.refusals == [refusal]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{PREFIX}.algorithm": "HS256"}, "give RS256 or ES256"),
        ({f"{PREFIX}.private.key.file": "", f"{PREFIX}.claim.iss": ""}, "the client's id or secret is missing"),
        ({f"{PREFIX}.private.key.file": ""}, 'private.key.file" is missing'),
        ({f"{PREFIX}.claim.sub": ""}, 'claim.sub" is missing'),
        ({f"{PREFIX}.claim.exp.seconds": "0"}, "from 1 to 86400"),
        ({f"{PREFIX}.claim.colour": "x"}, "cannot be followed outside Java"),
        ({"sasl.oauthbearer.jwt.retriever.class": "com.example.Vault"}, "leave it out, or give"),
    ],
)
def test_assertion_wrong_setting_raises_one_line(
    settings: dict[str, str], changes: dict[str, str], message: str
) -> None:
    with pytest.raises(KafkaSettingError) as caught:
        client_arguments(settings | changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read (No such file or directory): mount the key there"), (b"junk", "is no RSA key in PEM")],
)
def test_assertion_key_that_cannot_be_used_raises_one_line(
    settings: dict[str, str], tmp_path: Path, content: bytes | None, message: str
) -> None:
    (tmp_path / "key.pem").unlink() if content is None else (tmp_path / "key.pem").write_bytes(content)
    with pytest.raises(KafkaLoginError) as caught:
        requested(settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_assertion_wrong_passphrase_is_not_repeated(settings: dict[str, str], tmp_path: Path) -> None:
    write_key(tmp_path / "key.pem", "RS256", BestAvailableEncryption(b"right"))
    with pytest.raises(KafkaLoginError, match="or its passphrase is wrong") as caught:
        requested(settings | {f"{PREFIX}.private.key.passphrase": PASSPHRASE})
    assert PASSPHRASE not in str(caught.value)


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"header": 7}'])
def test_assertion_template_that_is_none_raises_one_line(
    settings: dict[str, str], tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "template.json").write_bytes(content)
    with pytest.raises(KafkaLoginError, match="is no JSON object with header and payload"):
        requested(settings | {f"{PREFIX}.template.file": str(tmp_path / "template.json")})

"""An OAuth token endpoint on this machine, which signs JWTs and serves the keys that brokers verify them with."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from servers.kafka import Broker

CLIENT, SECRET, AUDIENCE, ISSUER = "watcher", "oauth-Geheim-4715", "kafka", "https://idp.example"
_KEY_ID = "test"
_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@dataclass
class TokenServer:
    """The endpoint: what it demands and answers may be changed while it runs.

    `answer` replaces the answer to a request for a token by status, content type and content. `claims` override those
    of its tokens; a claim that is None is left out. `requests` are the forms of all requests for tokens, with the
    header Authorization. With `client_key` a client shows a JWT signed with its private key (RFC 7523), not a secret;
    `refusals` are the reasons for which such JWTs were not taken.
    """

    url: str
    secret: str = SECRET
    lives_seconds: float = 300
    claims: dict[str, Any] = field(default_factory=dict)
    answer: Callable[[], tuple[int, str, bytes]] | None = None
    requests: list[dict[str, str]] = field(default_factory=list)
    issued: list[str] = field(default_factory=list)
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))
    client_key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey | None = None
    refusals: list[str] = field(default_factory=list)
    used_ids: set[str] = field(default_factory=set)

    @property
    def keys_url(self) -> str:
        """Where the brokers get the keys."""
        return self.url.replace("/token", "/keys")

    def settings(self, secret: str = SECRET) -> dict[str, str]:
        """Return the login of its client as settings of Kafka's client."""
        return {
            **self._login,
            "sasl.oauthbearer.client.credentials.client.id": CLIENT,
            "sasl.oauthbearer.client.credentials.client.secret": secret,
        }

    def settings_with_key(self, key_file: Path, algorithm: str) -> dict[str, str]:
        """Return the login of its client with a JWT that it signs."""
        prefix = "sasl.oauthbearer.assertion"
        return {
            **self._login,
            f"{prefix}.private.key.file": str(key_file),
            f"{prefix}.algorithm": algorithm,
            f"{prefix}.claim.iss": CLIENT,
            f"{prefix}.claim.sub": CLIENT,
            f"{prefix}.claim.aud": self.url,
            f"{prefix}.claim.jti.include": "true",
        }

    def settings_with_file(self, file: Path) -> dict[str, str]:
        """Return a login with the token in a file."""
        return {**self._login, "sasl.oauthbearer.token.endpoint.url": file.as_uri()}

    @property
    def _login(self) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": self.url,
            "sasl.oauthbearer.scope": "kafka.read",
        }

    def token(self) -> str:
        """Return a new token."""
        now = int(time.time())  # as identity providers do
        claims = {"sub": CLIENT, "aud": AUDIENCE, "iss": ISSUER, "scope": "kafka.read", "iat": now}
        claims |= {"exp": now + self.lives_seconds, **self.claims}
        header = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        signed = f"{_encoded(header)}.{_encoded({name: it for name, it in claims.items() if it is not None})}"
        signature = self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64(signature)}"

    def respond(self, form: dict[str, str], authorization: str) -> tuple[int, str, bytes]:
        """Return status, content type and content of the answer to a request for a token."""
        self.requests.append({**form, "Authorization": authorization})
        if self.answer is not None:
            return self.answer()
        if not self._knows(form, authorization):
            refusal = {"error": "invalid_client", "error_description": f"not {self.secret}: {authorization}"}
            return 401, "application/json", json.dumps(refusal).encode()
        self.issued.append(self.token())
        return 200, "application/json", json.dumps({"access_token": self.issued[-1], "token_type": "Bearer"}).encode()

    def _knows(self, form: dict[str, str], authorization: str) -> bool:
        """Return whether a request shows that its client is `CLIENT`."""
        if self.client_key is None:
            login = base64.b64encode(f"{CLIENT}:{self.secret}".encode()).decode()
            return authorization == f"Basic {login}"
        is_grant = form["grant_type"] == _JWT_BEARER
        assertion = form.get("assertion" if is_grant else "client_assertion", "")
        if not is_grant and (form["grant_type"], form.get("client_assertion_type")) != (
            "client_credentials",
            _ASSERTION_TYPE,
        ):
            self.refusals.append("another form")
        elif authorization:
            self.refusals.append("two proofs")
        elif reason := self._fault(assertion):
            self.refusals.append(reason)
        else:
            return True
        return False

    def _fault(self, assertion: str) -> str | None:
        """Return what is wrong with a JWT of the client (RFC 7523, section 3)."""
        signed, _, signature = assertion.rpartition(".")
        header, claims = (json.loads(_decoded(part)) for part in signed.split("."))
        try:
            self._verify(header["alg"], signed.encode(), _decoded(signature))
        except InvalidSignature:
            return "signature"
        now = time.time()
        if claims["iss"] != CLIENT or claims["sub"] != CLIENT:
            return "client"
        if claims["aud"] != self.url:
            return "audience"
        if not claims["nbf"] <= claims["iat"] <= now + 1 < claims["exp"] <= now + 600:
            return "times"
        if claims["jti"] in self.used_ids:
            return "used before"
        self.used_ids.add(claims["jti"])
        return None

    def _verify(self, algorithm: str, signed: bytes, signature: bytes) -> None:
        if algorithm == "RS256" and isinstance(self.client_key, rsa.RSAPublicKey):
            self.client_key.verify(signature, signed, padding.PKCS1v15(), hashes.SHA256())
        elif algorithm == "ES256" and isinstance(self.client_key, ec.EllipticCurvePublicKey) and len(signature) == 64:
            pair = encode_dss_signature(int.from_bytes(signature[:32]), int.from_bytes(signature[32:]))
            self.client_key.verify(pair, signed, ec.ECDSA(hashes.SHA256()))
        else:
            raise InvalidSignature

    def keys(self) -> bytes:
        """Return the public keys as a JWKS."""
        numbers = self.key.public_key().public_numbers()
        parts = {"n": numbers.n, "e": numbers.e}
        encoded = {name: _base64(it.to_bytes((it.bit_length() + 7) // 8)) for name, it in parts.items()}
        return json.dumps(
            {"keys": [{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": _KEY_ID, **encoded}]}
        ).encode()


def _encoded(part: dict[str, Any]) -> str:
    return _base64(json.dumps(part).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@contextmanager
def token_server(keystore: Path | None = None, port: int = 0) -> Iterator[TokenServer]:
    """Serve tokens on loopback, with TLS if there is a file with a key and a certificate."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, "application/json", served.keys())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self._send(*served.respond(form, self.headers.get("Authorization", "")))

        def _send(self, status: int, kind: str, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if status in (301, 302, 307):
                self.send_header("Location", content.decode())
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    if keystore is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keystore)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "http" if keystore is None else "https"
    served = TokenServer(f"{scheme}://127.0.0.1:{server.server_port}/token")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def oauth_broker(folder: Path, tokens: TokenServer, *, session_seconds: float = 0) -> Broker:
    """Return a broker whose SASL listener demands the server's tokens; ACLs are those of `Broker`.

    It closes a connection that has not logged in again within `session_seconds` (KIP-368), or once its token has
    expired; 0: neither.
    """
    of_listener = "listener.name.sasl.oauthbearer"
    package = "org.apache.kafka.common.security.oauthbearer"
    properties = {
        "offsets.topic.num.partitions": "4",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{of_listener}.sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
        f"{of_listener}.sasl.server.callback.handler.class": f"{package}.OAuthBearerValidatorCallbackHandler",
        f"{of_listener}.connections.max.reauth.ms": str(round(session_seconds * 1000)),
        "sasl.oauthbearer.jwks.endpoint.url": tokens.keys_url,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,  # brokers of 4.4 demand it
    }
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.keys_url}"
    return Broker(folder, properties=properties, security="sasl", java_options=allowed)

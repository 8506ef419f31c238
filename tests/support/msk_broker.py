"""A broker that takes logins with AWS IAM as one of Amazon MSK does, by both of AWS's mechanisms.

No part of it is AWS's: what AWS's libraries send is verified here, by the rules of Signature Version 4, with secret
keys that are known. MSK itself asks IAM for the rights of the credentials, and has more checks.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, urlsplit

import pyspark

from grouptrail.spark.java import find_java
from servers.kafka import Broker, fetch

ACCESS_KEY, SECRET_KEY, REGION = "AKIAWATCHER0000000", "aws-Geheim-4716/with+signs", "eu-central-1"
PRINCIPAL = "watcher"

_SOURCE = Path(__file__).with_name("MskLogin.java")
_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"  # Janino's, in pyspark: a JRE has no compiler
_EMPTY = hashlib.sha256(b"").hexdigest()
_MOST_SECONDS = 900
# Of the payload of AWS_MSK_IAM, whose names are in lower case.
_SIGNED = (
    *("Action", "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-Security-Token"),
    "X-Amz-SignedHeaders",
)


class RefusedError(Exception):
    """What a client has sent is no login."""


@dataclass
class Verifier:
    """Knows the secret keys of clients, by access key; `logins` are the kinds of those that it has accepted.

    `region` is where the cluster is. A login ends after `session_seconds` at the latest.
    """

    url: str = ""
    keys: dict[str, str] = field(default_factory=lambda: {ACCESS_KEY: SECRET_KEY})
    region: str = REGION
    session_seconds: float = _MOST_SECONDS
    logins: list[Literal["token", "payload"]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    signatures: list[str] = field(default_factory=list)
    session_tokens: list[str] = field(default_factory=list)

    def verify(self, kind: Literal["token", "payload"], sent: bytes) -> str:
        """Return the principal and when its login ends, as the broker's part reads them. Raises RefusedError."""
        if kind == "token":
            url = urlsplit(base64.urlsafe_b64decode(sent + b"=" * (-len(sent) % 4)).decode())
            host, query = url.netloc, dict(parse_qsl(url.query, keep_blank_values=True))
            if host != f"kafka.{self.region}.amazonaws.com":
                raise RefusedError(f"host {host}")
            query.pop("User-Agent")
        else:
            payload = json.loads(sent)
            host = payload["host"]
            query = {name: payload[name.lower()] for name in (*_SIGNED, "X-Amz-Signature") if name.lower() in payload}
        ends_at = self._verify(host, query)
        self.logins.append(kind)
        self.signatures.append(query["X-Amz-Signature"])
        self.session_tokens += [query["X-Amz-Security-Token"]] if "X-Amz-Security-Token" in query else []
        return f"{PRINCIPAL} {round(min(ends_at, time.time() + self.session_seconds) * 1000)}"

    def _verify(self, host: str, query: dict[str, str]) -> float:
        """Return when a presigned request ends, in seconds since 1970."""
        access_key, *scope = query["X-Amz-Credential"].split("/")
        day, region, service, end = scope
        stamp = query["X-Amz-Date"]
        signed_at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        lives = int(query["X-Amz-Expires"])
        expected = (self.region, "kafka-cluster", "aws4_request", "kafka-cluster:Connect", "AWS4-HMAC-SHA256", "host")
        found = (region, service, end, query["Action"], query["X-Amz-Algorithm"], query["X-Amz-SignedHeaders"])
        if found != expected or not stamp.startswith(day):
            raise RefusedError(f"scope {found}")
        if not (signed_at - 60 <= time.time() < signed_at + lives and lives <= _MOST_SECONDS):
            raise RefusedError("times")
        if access_key not in self.keys:
            raise RefusedError("access key")
        signed = sorted((name, value) for name, value in query.items() if name != "X-Amz-Signature")
        parameters = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in signed)
        request = f"GET\n/\n{parameters}\nhost:{host}\n\nhost\n{_EMPTY}"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{'/'.join(scope)}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{self.keys[access_key]}".encode()
        for part in (*scope, text):
            key = hmac.digest(key, part.encode(), "sha256")
        if not hmac.compare_digest(key.hex(), query["X-Amz-Signature"]):
            raise RefusedError("signature")
        return signed_at + lives


@contextmanager
def verifier() -> Iterator[Verifier]:
    """Serve verifications on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                status, answer = 200, served.verify("token" if self.path == "/token" else "payload", sent)
            except (RefusedError, KeyError, ValueError) as error:
                served.refusals.append(str(error))
                status, answer = 403, "refused"
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served = Verifier(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def msk_broker(folder: Path, verifying: Verifier) -> Broker:
    """Return a broker whose SASL listener takes what the verifier accepts, and closes what has ended."""
    of_listener = "listener.name.sasl"
    handler = "sasl.server.callback.handler.class"
    package = "org.apache.kafka.common.security"
    properties = {
        "offsets.topic.num.partitions": "4",
        "sasl.enabled.mechanisms": "OAUTHBEARER,AWS_MSK_IAM",
        f"{of_listener}.oauthbearer.sasl.jaas.config": f"{package}.oauthbearer.OAuthBearerLoginModule required;",
        f"{of_listener}.oauthbearer.{handler}": "MskLogin",
        f"{of_listener}.oauthbearer.connections.max.reauth.ms": "900000",
        f"{of_listener}.aws_msk_iam.sasl.jaas.config": f"{package}.scram.ScramLoginModule required;",
        f"{of_listener}.aws_msk_iam.connections.max.reauth.ms": "900000",
    }
    options = f"-Dmsk.verifier={verifying.url}"
    classes = _compiled(folder / "classes")
    return Broker(folder, properties=properties, security="sasl", java_options=options, classes=classes)


def _compiled(target: Path) -> Path:
    target.mkdir(parents=True)
    jars = Path(pyspark.__file__).parent / "jars"
    compiler = ":".join(str(next(jars.glob(f"{name}-[0-9]*.jar"))) for name in ("janino", "commons-compiler"))
    kafka = ":".join(map(str, fetch().glob("kafka-clients-*.jar")))
    command = [
        str(find_java().command),
        "-cp",
        compiler,
        _COMPILER,
        "-d",
        str(target),
        "-classpath",
        kafka,
        str(_SOURCE),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target

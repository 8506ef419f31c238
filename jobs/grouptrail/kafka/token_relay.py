"""A token endpoint on loopback, by which Kafka's Java client in this process's JVM gets the tokens of kafka-python.

For logins that the Java client does not know.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import threading
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from grouptrail.errors import GrouptrailError
from grouptrail.kafka.errors import KafkaUnreachableError
from grouptrail.kafka.tokens import Tokens

CLIENT = "grouptrail"

_SECONDS = 10.0


class TokenRelay:
    """Serves one login's tokens, from its first use to the end of the process.

    Who asks must know `secret`, which is made for each relay. The reason of a failure is in no answer: whoever uses
    the tokens directly reports it.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.secret = secrets.token_urlsafe(32)
        self._tokens = tokens

    @cached_property
    def url(self) -> str:
        """The endpoint's address, at which it answers."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, name="token-relay", daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/token"

    def answer(self, authorization: str) -> tuple[int, dict[str, str]]:
        """Return status and content of the answer to a request with this header."""
        login = base64.b64encode(f"{CLIENT}:{self.secret}".encode()).decode()
        if not hmac.compare_digest(authorization.encode(), f"Basic {login}".encode()):
            return 401, {"error": "invalid_client"}
        try:
            return 200, {"access_token": self._tokens.token(), "token_type": "Bearer"}
        except KafkaUnreachableError:
            return 503, {}  # Java's client tries again
        except GrouptrailError:
            return 401, {"error": "invalid_client"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            timeout = _SECONDS

            def do_POST(self) -> None:
                status, content = answer(self.headers.get("Authorization", ""))
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        return Handler

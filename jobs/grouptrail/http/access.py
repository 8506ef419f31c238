"""Who may see metrics and who may see pages, by the Authorization header of a request."""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass


def basic_credentials(user: str, password: str) -> bytes:
    """Return what a client sends after `Basic` (RFC 7617)."""
    return base64.b64encode(f"{user}:{password}".encode())


@dataclass(frozen=True)
class Access:
    """Required credentials: for metrics `credentials`, for pages `token`, or the credentials if there is no token.

    None: nothing. `has_certificates`: whoever connects has a client certificate. `is_open`: pages are also served
    where anyone could see them.
    """

    credentials: bytes | None
    token: bytes | None = None
    has_certificates: bool = False
    is_open: bool = False

    def may_see_metrics(self, authorization: str) -> bool:
        """Return whether a request with this header may see metrics."""
        scheme, _, given = authorization.partition(" ")
        return self.credentials is None or (
            scheme.lower() == "basic" and hmac.compare_digest(given.strip().encode(), self.credentials)
        )

    def may_see_pages(self, authorization: str) -> bool:
        """Return whether a request with this header may see pages: with the token, or as for metrics without one."""
        if self.token is None:
            return self.may_see_metrics(authorization)
        return hmac.compare_digest(_token_in(authorization), self.token)

    def serves_pages(self, *, is_loopback: bool) -> bool:
        """Return whether pages are served: not on a network, where anyone could see them, unless that is wanted."""
        is_protected = self.has_certificates or self.credentials is not None or self.token is not None
        return is_loopback or is_protected or self.is_open


def _token_in(authorization: str) -> bytes:
    """Return the token in a header: of `Bearer`, or the password of `Basic`, which browsers ask for; b"" without."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return given.strip().encode()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(given.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""

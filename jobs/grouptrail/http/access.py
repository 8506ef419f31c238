"""Who may see metrics and who may see pages, by the Authorization header and the certificate of a client."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

# Of a password, bcrypt takes no more.
_BCRYPT_BYTES = 72


class Authenticator(Protocol):
    """What clients log in with."""

    def knows(self, authorization: str) -> bool:
        """Return whether a header is right, as far as that can be found at once."""

    def admits(self, authorization: str) -> bool:
        """Return whether a header is right; this may take a second."""


class Users:
    """Users with passwords, as `passwords` in clear text or as `hashes` of bcrypt.

    bcrypt is slow by design: the last right password of each user is kept, as a digest, and one is checked at a time.
    """

    def __init__(self, passwords: Mapping[str, str], hashes: Mapping[str, str]) -> None:
        self._key = secrets.token_bytes(32)
        self._right = {user: self._digest(password.encode()) for user, password in passwords.items()}
        self._hashes = {user: hashed.encode() for user, hashed in hashes.items()}
        self._checking = threading.Lock()

    def knows(self, authorization: str) -> bool:
        """Return whether a header has the password that is known of its user."""
        user, password = _basic(authorization)
        return hmac.compare_digest(self._right.get(user, b""), self._digest(password))

    def admits(self, authorization: str) -> bool:
        """Return whether a header has the password of its user; a check takes as long as the hash's cost says."""
        user, password = _basic(authorization)
        if not self._hashes or not user:
            return self.knows(authorization)
        from bcrypt import checkpw

        # An unknown user takes as long as a known one: nobody finds out names.
        hashed = self._hashes.get(user, next(iter(self._hashes.values())))
        with self._checking:
            # Another request may have been checked meanwhile.
            if self.knows(authorization):
                return True
            if not checkpw(password[:_BCRYPT_BYTES], hashed) or user not in self._hashes:
                return False
            self._right[user] = self._digest(password)
            return True

    def _digest(self, password: bytes) -> bytes:
        return hmac.digest(self._key, password, hashlib.sha256)


class Token:
    """A token that any user gives."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def knows(self, authorization: str) -> bool:
        """Return whether a header has the token: of `Bearer`, or the password of `Basic`, which browsers ask for."""
        scheme, _, given = authorization.partition(" ")
        token = given.strip().encode() if scheme.lower() == "bearer" else _basic(authorization)[1]
        return hmac.compare_digest(token, self._token)

    def admits(self, authorization: str) -> bool:
        """Return whether a header has the token."""
        return self.knows(authorization)


@dataclass(frozen=True)
class Access:
    """What clients need: for metrics to be one of `users`, for pages the `token`, or as for metrics without a token.

    None: nothing. `has_certificates`: whoever connects has a client certificate, with one of `allowed_names` among
    its subject alternative names if there are any. `is_open`: pages are also served where anyone could see them.
    """

    users: Users | None = None
    token: Token | None = None
    has_certificates: bool = False
    allowed_names: frozenset[str] = frozenset()
    is_open: bool = False

    @property
    def for_pages(self) -> Authenticator | None:
        """What pages require."""
        return self.token or self.users

    def admits_names(self, names: Collection[str]) -> bool:
        """Return whether a client whose certificate has these subject alternative names may connect."""
        return not self.allowed_names or not self.allowed_names.isdisjoint(names)

    def serves_pages(self, *, is_loopback: bool) -> bool:
        """Return whether pages are served: not on a network, where anyone could see them, unless that is wanted."""
        return is_loopback or self.has_certificates or self.for_pages is not None or self.is_open


def _basic(authorization: str) -> tuple[str, bytes]:
    """Return user and password of `Basic` (RFC 7617); two empty ones if there are none."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "basic":
        return "", b""
    try:
        user, _, password = base64.b64decode(given.strip(), validate=True).partition(b":")
        return user.decode(), password
    except (binascii.Error, ValueError):
        return "", b""

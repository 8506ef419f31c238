"""Tokens to log in with, renewed before they expire."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from grouptrail.errors import GrouptrailError
from grouptrail.kafka.values import number

# After an error no token is requested for so long: while the last one can still be used, and when none can.
_RETRY_SECONDS = 10.0
_FAILED_SECONDS = 2.0


@dataclass(frozen=True)
class Token:
    """A token in the form in which it is sent to brokers, and when it expires, in seconds since 1970."""

    text: str = field(repr=False)
    expires_at: float


class TokenSource(Protocol):
    """Where tokens come from."""

    @property
    def shown(self) -> str:
        """The source as it may be printed."""

    @property
    def remedy(self) -> str:
        """What to do if a broker refuses a token of this source."""

    def request(self) -> Token:
        """Return a new token. Raises TokenEndpointError, KafkaLoginError or KafkaSettingError, in one line."""


@dataclass(frozen=True)
class RefreshWindow:
    """When a token is renewed: after which part of its life, as Java's settings `sasl.login.refresh.…`."""

    factor: float = 0.8
    jitter: float = 0.05
    min_period_seconds: float = 60
    buffer_seconds: float = 300

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> RefreshWindow:
        """Return the window that the settings describe. Raises KafkaSettingError."""
        prefix = "sasl.login.refresh"
        return cls(
            number(settings, f"{prefix}.window.factor", cls.factor, 0.5, 1),
            number(settings, f"{prefix}.window.jitter", cls.jitter, 0, 0.25),
            number(settings, f"{prefix}.min.period.seconds", cls.min_period_seconds, 0, 900),
            number(settings, f"{prefix}.buffer.seconds", cls.buffer_seconds, 0, 3600),
        )

    def renewal(self, now: float, expires_at: float) -> float:
        """Return when to renew a token that was issued `now`: as Java's client does it."""
        share = (expires_at - now) * (self.factor + self.jitter * random.random())
        if expires_at - now <= self.buffer_seconds + self.min_period_seconds:
            return now + share
        return max(min(now + share, expires_at - self.buffer_seconds), now + self.min_period_seconds)


class Tokens:
    """The token of a source, renewed when it is due, and the SASL extensions to send with it.

    May be used by several threads.
    """

    def __init__(
        self, source: TokenSource, window: RefreshWindow, extensions: Iterable[tuple[str, str]] = ()
    ) -> None:
        self.source = source
        self.extensions = dict(extensions)
        self._window = window
        self._token: Token | None = None
        self._renew_at = 0.0
        self._failure: GrouptrailError | None = None
        self._renewing = threading.Lock()

    def token(self) -> str:
        """Return a token that has not expired.

        A renewal that fails is tried again every ten seconds; its error is raised once the token has expired. The
        errors are those of `TokenSource.request`.
        """
        with self._renewing:
            now = time.time()
            if self._token is not None and now >= self._token.expires_at:
                self._token, self._renew_at = None, 0.0
            if now >= self._renew_at:
                self._renew(now)
            if self._token is None:
                failure = self._failure or GrouptrailError("")
                raise type(failure)(str(failure))
            return self._token.text

    def _renew(self, now: float) -> None:
        try:
            self._token = self.source.request()
        except GrouptrailError as error:
            self._failure = error
            self._renew_at = time.time() + (_FAILED_SECONDS if self._token is None else _RETRY_SECONDS)
        else:
            self._renew_at = self._window.renewal(now, self._token.expires_at)

    def prepare(self) -> None:
        """Renew the token if that is due. Raises as `token`."""
        self.token()

    def refused_by(self, servers: str) -> str:
        """Return the error's text for a token that brokers refuse; get another one when one is needed."""
        with self._renewing:
            self._token, self._renew_at = None, 0.0
        return f"{servers} refuses the token of {self.source.shown}: {self.source.remedy}"

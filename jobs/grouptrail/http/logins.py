"""Passwords and tokens are checked at a limited rate for each address, and wrong ones are reported."""

from __future__ import annotations

import contextlib
import ipaddress
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum, auto

from grouptrail.console.progress import Log
from grouptrail.http.hosts import is_loopback

# So many wrong ones of an address are checked at once, further ones at this distance.
AT_ONCE = 10
SECONDS_EACH = 0.5
# So many slow checks run or wait at a time: each of them occupies a connection.
MAX_SLOW = 8
# How long after a right one its address is not limited: there may be a proxy with many clients.
_TRUSTED_SECONDS = 3600.0
# So many addresses have a limit of their own; all others share one.
MAX_ADDRESSES = 1_000
# After the first wrong one, the time until the line in the log; it doubles for the next line.
LOG_SECONDS = 10.0
_MOST_LOG_SECONDS = 600.0
_SHOWN = 3
_OTHERS = "further addresses"


class Login(Enum):
    """What is known of a request's password or token."""

    RIGHT = auto()
    WRONG = auto()
    UNCHECKED = auto()
    """Too many before it were wrong, or too many are being checked."""


class Logins:
    """Checks passwords and tokens, and counts wrong ones by the address of their client.

    If an address has sent too many wrong ones, no more are checked for a moment, so that nobody can guess quickly. An
    address that has sent a right one within the last hour is not limited.
    """

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._limited_until: dict[str, float] = {}
        self._trusted_until: dict[str, float] = {}
        self._counts: Counter[str] = Counter()
        self._unchecked = 0
        self._slow = 0
        self._pause = LOG_SECONDS
        self._timer: threading.Timer | None = None

    def check(
        self, address: str, is_right: Callable[[], bool], is_right_slowly: Callable[[], bool] | None = None
    ) -> Login:
        """Return whether what a client at this address sends is right; both are called for it, or not.

        If `is_right`, which is fast, does not know, `is_right_slowly` is asked. Others do not wait for it.
        """
        source = _source(address)
        # Also `is_right`: of a hundred requests at once, ten are checked.
        with self._lock:
            now = self._clock()
            limited = self._limit_of(source, now)
            until = max(self._limited_until.get(limited, now), now)
            is_limited = until - now > (AT_ONCE - 1) * SECONDS_EACH
            if is_limited and self._trusted_until.get(source, now) <= now:
                self._unchecked += 1
                self._count(source)
                return Login.UNCHECKED
            if is_right():
                self._trust(source, now)
                return Login.RIGHT
            if is_right_slowly is not None and self._slow >= MAX_SLOW:
                return Login.UNCHECKED
            # It is wrong until it is found right.
            charged = 0.0 if is_limited else SECONDS_EACH
            if charged:
                self._limited_until[limited] = until + charged
            if is_right_slowly is None:
                self._count(source)
                return Login.WRONG
            self._slow += 1
        found = False
        try:
            found = is_right_slowly()
        finally:
            with self._lock:
                self._slow -= 1
                if found:
                    self._trust(source, self._clock())
                    self._limited_until[limited] = self._limited_until.get(limited, 0.0) - charged
                else:
                    self._count(source)
        return Login.RIGHT if found else Login.WRONG

    def stop(self) -> None:
        """Report what is not reported yet."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
        self._report()

    def _limit_of(self, source: str, now: float) -> str:
        """Return the name under which an address is limited: its own, unless there are too many others."""
        known = self._limited_until
        if source not in known and len(known) >= MAX_ADDRESSES:
            self._limited_until = known = {name: until for name, until in known.items() if until > now}
        return source if source in known or len(known) < MAX_ADDRESSES else _OTHERS

    def _trust(self, source: str, now: float) -> None:
        self._trusted_until.pop(source, None)
        if len(self._trusted_until) >= MAX_ADDRESSES:
            del self._trusted_until[next(iter(self._trusted_until))]  # of the longest ago
        self._trusted_until[source] = now + _TRUSTED_SECONDS

    def _count(self, source: str) -> None:
        self._counts[source if source in self._counts or len(self._counts) < MAX_ADDRESSES else _OTHERS] += 1
        if self._timer is None:
            self._pause = LOG_SECONDS
            self._start_timer()

    def _start_timer(self) -> None:
        timer = threading.Timer(self._pause, self._report_later)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:  # there are too many threads: the next wrong one tries again
            self._timer = None
        else:
            self._timer = timer

    def _report_later(self) -> None:
        with self._lock:
            if not self._counts:
                self._timer = None
                return
            self._pause = min(2 * self._pause, _MOST_LOG_SECONDS)
            self._start_timer()
        self._report()

    def _report(self) -> None:
        with self._lock:
            counts, self._counts = self._counts, Counter()
            unchecked, self._unchecked = self._unchecked, 0
        if not counts:
            return
        total = counts.total()
        are_unchecked = f", {unchecked:,} of them refused unchecked" if unchecked else ""
        # The output may be closed.
        with contextlib.suppress(OSError, ValueError):
            self._log(
                f"login: {total:,} request{'s' if total > 1 else ''} with a wrong password or token from "
                f"{_named(counts)}{are_unchecked}: correct what this client sends, or keep it away from the port"
            )


def _source(address: str) -> str:
    """Return what one client has: this machine, an IPv4 address, or a network of 64 bits of IPv6."""
    if is_loopback(address):
        return "localhost"
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return _OTHERS
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def _named(counts: Counter[str]) -> str:
    """Return the addresses with most requests, with their numbers if there are several."""
    if len(counts) == 1:
        return next(iter(counts))
    shown = ", ".join(f"{source} ({count:,})" for source, count in counts.most_common(_SHOWN))
    others = len(counts) - _SHOWN
    return shown if others <= 0 else f"{shown} and {others:,} other{'s' if others > 1 else ''}"

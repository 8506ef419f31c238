"""Which Host headers a server answers on a loopback address."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@/\s]+))(?::\d{1,5})?")


def is_own_host(header: str | None, address: str, names: Collection[str]) -> bool:
    """Return whether a request with this Host header, received at this address, was meant for this server.

    A page of another site can give its own name the address 127.0.0.1 (DNS rebinding) and then read what a server on
    the reader's machine answers. A server that listens on a network is reachable under names it does not know.

    Without a header (None) the request is no browser's: probes that speak HTTP/1.0 send none.
    """
    if header is None or not is_loopback(address):
        return True
    match = _HOST.fullmatch(header)
    if match is None:
        return False
    host = _plain(match["v6"] or match["name"])
    return host == "localhost" or is_loopback(host) or host in map(_plain, names)


def is_loopback(address: str) -> bool:
    """Return whether this is an IP address that only its own machine reaches."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return parsed.is_loopback or (mapped is not None and mapped.is_loopback)


def _plain(host: str) -> str:
    return host.strip("[]").lower().rstrip(".")

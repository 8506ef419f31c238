"""Protection of the pages: headers, and requests that are refused."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from werkzeug.datastructures import Headers
from werkzeug.exceptions import Forbidden, MisdirectedRequest

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@/\s]+))(?::\d{1,5})?")


def check_request(method: str, headers: Headers, address: str, hosts: Collection[str]) -> None:
    """Raise HTTPException for a request, received at this address, that another site makes or redirects here."""
    if not is_own_host(headers.get("Host", ""), address, hosts):
        raise MisdirectedRequest("this server has another name: open it as localhost, or set web.hosts")
    if is_foreign_form(headers) if method == "POST" else is_foreign(headers):
        raise Forbidden("pages of other sites get no answer: open the link itself")


def is_own_host(header: str, address: str, hosts: Collection[str]) -> bool:
    """Return whether a request with this Host header, received at this address, was meant for this server.

    A page of another site can give its own name the address 127.0.0.1 (DNS rebinding) and then read what a server on
    the reader's machine answers. A server that listens on a network is reachable under names it does not know.
    """
    if not _is_loopback(address):
        return True
    match = _HOST.fullmatch(header)
    if match is None:
        return False
    host = (match["v6"] or match["name"]).lower().rstrip(".")
    return host == "localhost" or _is_loopback(host) or host in {name.lower() for name in hosts}


def is_foreign(headers: Headers) -> bool:
    """Return whether a page of another site makes this request, rather than a person who opens a link.

    Answering it would cost resources, although the other site could not read the answer. Ports are no sites of their
    own: to the browser, whatever listens on this machine is of the same site.
    """
    is_opened = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
    return headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none") and not is_opened


def is_foreign_form(headers: Headers) -> bool:
    """Return whether a page of another site sends this form: unlike a link, none of it is answered.

    Browsers that do not send Sec-Fetch-Site name the page's site as Origin; clients without pages send neither.
    """
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("Origin")
    return origin is not None and origin.partition("://")[2] != headers.get("Host", "")


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)

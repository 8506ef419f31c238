"""Protection of the pages: headers, and requests that are refused."""

from __future__ import annotations

from werkzeug.datastructures import Headers
from werkzeug.exceptions import Forbidden

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def check_request(method: str, headers: Headers) -> None:
    """Raise HTTPException for a request that a page of another site makes."""
    if is_foreign_form(headers) if method == "POST" else is_foreign(headers):
        raise Forbidden("pages of other sites get no answer: open the link itself")


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

"""Messages to a Slack-compatible webhook. Its URL is a secret: it is in no message, error or log."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from grouptrail.errors import GrouptrailError

_TIMEOUT_SECONDS = 10.0
_CHECK = "check the URL given with --post"


class WebhookError(GrouptrailError):
    """The message was not delivered."""


def post(url: str, text: str, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
    """Post a message. Raises WebhookError if it was not accepted; redirects are not followed."""
    if not _is_web_address(url):
        raise WebhookError("the webhook is not an http:// or https:// URL with a host: " + _CHECK)
    request = urllib.request.Request(
        url, json.dumps({"text": text}).encode(), {"Content-Type": "application/json; charset=utf-8"}, method="POST"
    )
    opener = urllib.request.build_opener(_NoRedirects)
    problem = None
    try:
        with opener.open(request, timeout=timeout_seconds) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        problem = _refused(error.code)
        error.close()
    except TimeoutError:
        problem = f"the webhook did not answer within {timeout_seconds:g} s: try again later, or {_CHECK}"
    except urllib.error.URLError as error:
        problem = _unreachable(error.reason, timeout_seconds)
    except (OSError, http.client.HTTPException, ValueError) as error:
        problem = f"the webhook did not answer as a web server does ({type(error).__name__}): {_CHECK}"
    # Outside of the handlers: a stack trace with --debug shows no error that may contain the URL.
    if problem is not None:
        raise WebhookError(problem)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes an error of a redirect: the message would go to another place than was asked for."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _refused(code: int) -> str:
    try:
        phrase = HTTPStatus(code).phrase
    except ValueError:
        phrase = "unknown status"
    why = "it redirects, which is not followed" if 300 <= code < 400 else "the message was not delivered"
    return f"the webhook answered {code} ({phrase}): {why}; {_CHECK}"


def _unreachable(reason: object, timeout_seconds: float) -> str:
    if isinstance(reason, TimeoutError):
        return f"the webhook cannot be reached within {timeout_seconds:g} s: {_CHECK}, and the network"
    said = getattr(reason, "verify_message", None) or getattr(reason, "strerror", None) or type(reason).__name__
    return f"the webhook cannot be reached ({said}): {_CHECK}, and the network"

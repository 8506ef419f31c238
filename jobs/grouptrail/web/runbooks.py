"""The runbooks of the alerts as a page, to which each verdict links that an alert is about."""

from __future__ import annotations

import importlib.resources
import re
from functools import cache
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from grouptrail.lag.verdict import DELIVERED_OFTEN

OF_STATUS = {
    "WARN": "ConsumerGroupBehind",
    "STOP": "ConsumerGroupStopped",
    "STALL": "ConsumerGroupStalled",
    "REWIND": "ConsumerGroupRewound",
    "UNKNOWN": "ConsumerGroupLagUnknown",
}
"""By verdict: the alert about it."""
OF_REDELIVERED = "ConsumerGroupPoisonRecord"
"""The alert about the verdict WARN where a record of a share group comes back again and again."""

_OTHER_DOCUMENT = re.compile(r"(?!https?://|#)")


def runbook_of(status: str | None, most_deliveries: int | None = None) -> str | None:
    """Return the address of the runbook of a verdict; None for one without an alert.

    `most_deliveries`, as in `consumer_lag`, shows which of the two rules gave WARN.
    """
    is_redelivered = status == "WARN" and (most_deliveries or 0) >= DELIVERED_OFTEN
    alert = OF_REDELIVERED if is_redelivered else OF_STATUS.get(status or "")
    return f"/runbooks#{alert.lower()}" if alert else None


@cache
def runbooks() -> Markup:
    """Return the runbooks, with an anchor for each alert. What they say of other documents stays without links."""
    text = (importlib.resources.files("grouptrail.dashboards") / "alerts" / "runbooks.md").read_text("utf-8")
    parser = MarkdownIt("commonmark").enable("table")
    tokens = parser.parse(text)
    for heading, title in pairwise(tokens):
        if heading.type == "heading_open":
            heading.attrSet("id", title.content.lower().replace(" ", "-"))
        if title.children:
            title.children = _without_links(title.children)
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def _without_links(tokens: list[Token]) -> list[Token]:
    kept, is_open = [], True
    for token in tokens:
        if token.type == "link_open":
            is_open = not _OTHER_DOCUMENT.match(str(token.attrGet("href")))
        if is_open or token.type not in ("link_open", "link_close"):
            kept.append(token)
        if token.type == "link_close":
            is_open = True
    return kept

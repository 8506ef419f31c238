"""Data Docs that open without network access.

The pages of Great Expectations load Bootstrap, jQuery, Vega and a logo from the web; their index needs JavaScript.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A second line of defence: with this policy the browser loads and runs nothing, even if markup slips through.
_POLICY = (
    """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; """
    """form-action 'none'; base-uri 'none'">"""
)
_STYLE = """<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 76rem; padding: 0 1rem; color: #1d2430 }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem }
th, td { border-bottom: 1px solid #d8dde6; padding: .4rem .6rem; text-align: left; vertical-align: top }
code, pre { font-size: .85em; white-space: pre-wrap; overflow-wrap: anywhere }
.badge { background: #e6eaf1; border-radius: .3rem; padding: 0 .3rem }
.fa-check-circle::before { content: "\\2713"; color: #157a3c } .fa-times::before { content: "\\2717"; color: #b3261e }
.failed { color: #b3261e; font-weight: 600 }
.modal, .collapse:not(.show):not(.navbar-collapse), footer, #ge-cta-footer { display: none }
ul, ol { padding-left: 1.2rem } a { color: #1f5fbf }
</style>"""

_STRIPPED = re.compile(
    r"<script\b.*?</script>|<noscript\b.*?</noscript>|<link\b[^>]*>|<(?:img|source|iframe)\b[^>]*>"
    r"|<style\b.*?</style>|<footer\b.*?</footer>",
    re.DOTALL | re.IGNORECASE,
)
# The suite, which has the table's name, stands above it; Great Expectations knows no name of rows in memory.
_NO_ASSET = re.compile(r"\s*Data asset: None<br>")
_ELSEWHERE = re.compile(r"""\s(?:href|src|srcset|action|poster)\s*=\s*(["'])\s*(?:https?:)?//.*?\1""", re.IGNORECASE)
_UP = re.compile(r"""href=(["'])(?:\.\./)+index\.html\1""")
_SUITE = re.compile(r"""\shref=(["'])(?:\.\./)+expectations/.*?\1""")


@dataclass(frozen=True)
class Entry:
    """A row of the index: a table, its figures, the lines about its failures, and whether it has its own page."""

    table: str
    figures: Sequence[str]
    failures: Sequence[str]
    has_page: bool = True


def offline(text: str) -> str:
    """Return the page without external resources and scripts, linked to the index in the same folder."""
    text = _ELSEWHERE.sub("", _STRIPPED.sub("", text))
    text = _NO_ASSET.sub("", text)
    text = _SUITE.sub("", _UP.sub('href="index.html"', text))
    return re.sub(r"<head\b[^>]*>", lambda head: head[0] + _POLICY + _STYLE, text, count=1, flags=re.IGNORECASE)


def index(title: str, heads: Sequence[str], entries: Iterable[Entry]) -> str:
    """Return the index page, which links to the pages of the tables."""
    rows = "".join(f"<tr>{_cells(entry)}</tr>\n{_failures(entry, len(heads))}" for entry in entries)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"{_POLICY}{_STYLE}</head><body><h1>{html.escape(title)}</h1>\n"
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></body></html>\n"
    )


def _cells(entry: Entry) -> str:
    name = html.escape(entry.table)
    head = f'<a href="{name}.html">{name}</a>' if entry.has_page else name
    return f"<td>{head}</td>" + "".join(f"<td>{html.escape(figure)}</td>" for figure in entry.figures)


def _failures(entry: Entry, width: int) -> str:
    lines = "<br>".join(html.escape(line) for line in entry.failures)
    return f'<tr><td colspan="{width}" class="failed">{lines}</td></tr>\n' if lines else ""

"""`grouptrail digest`: what happened to a cluster's groups since a time, as Markdown, HTML or a chat message."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Literal

from grouptrail.query.fitted_table import shortened
from grouptrail.query.formats import duration, markdown_text
from grouptrail.query.freshness import as_of, stale_text
from grouptrail.report.digest_rows import LISTED, DigestRows
from grouptrail.report.group_rows import Row, moment
from grouptrail.report.layout import lane_name, visible

_LONGEST_NAME, _LONGEST_TEXT = 120, 300
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:1.5rem auto;max-width:60rem;padding:0 1rem}"
    ":root{color-scheme:light dark}"
    "code{font-size:.9em;overflow-wrap:anywhere}h2{margin-top:1.5rem;font-size:1.1rem}"
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Section:
    """A list of groups, each with a remark; `note` replaces or follows the list."""

    title: str
    items: Sequence[tuple[str, str]]
    note: str = ""


@dataclass(frozen=True)
class Digest:
    """The contents of a digest, independent of its format."""

    title: str
    period: str
    sections: Sequence[Section]


def digest_of(rows: DigestRows) -> Digest:
    """Return the digest of a cluster's rows."""
    stale = f"; {stale_text(rows.known_at)}" if rows.stale else ""
    return Digest(
        _title(rows.cluster),
        f"{_time(rows.since)} to {_time(rows.known_at)} UTC{stale}",
        [
            _worst_groups(rows),
            _section("Rebalance storms", rows.storms, _storm, "none: no more than three rebalances in ten minutes"),
            _section("Offset resets", rows.resets, _reset, "none"),
            _section("Vanished groups", rows.vanished, _vanished, "none"),
            _section("New groups", rows.new, _new, "none", _NOT_KNOWN_NEW),
        ],
    )


def nothing_recorded(cluster: str, reason: str) -> Digest:
    """Return the digest of a period in which nothing was recorded."""
    return Digest(_title(cluster), reason, [])


def _title(cluster: str) -> str:
    return f"Consumer groups of cluster {visible(cluster)}"


def _worst_groups(rows: DigestRows) -> Section:
    """Return what the newest samples of lag show, which need not be how it is now."""
    if rows.worst is None:
        return Section("Worst groups", (), _NO_TABLE)
    if rows.sampled_at is None:
        return Section("Worst groups", (), "not known: no lag has been sampled")
    if rows.sampled_at < rows.since:
        return Section("Worst groups", (), f"not known: the newest samples of lag are {as_of(rows.sampled_at)}")
    if rows.stale_lag:
        none = "no group was behind, stopped or unknown then"
        return _section(f"Worst groups {as_of(rows.sampled_at)}", rows.worst, _worst, none)
    return _section("Worst groups now", rows.worst, _worst, "no group is behind, stopped or unknown")


def render(digest: Digest, format: Literal["markdown", "html", "chat"]) -> str:
    """Return the digest in a form: `chat` is the markup of Slack's messages."""
    return {"markdown": _markdown, "html": _html, "chat": _chat}[format](digest)


_NO_TABLE = "nothing has landed in the tables that this is read from"
_NOT_KNOWN_NEW = (
    "not known: the topic has been read only since then, and it does not have the beginning of every group"
)


def _section(
    title: str, rows: list[Row] | None, said: Callable[[Row], str], none: str, unknown: str = _NO_TABLE
) -> Section:
    if rows is None:
        return Section(title, (), unknown)
    items = [
        (shortened(visible(row["group_id"]), _LONGEST_NAME), shortened(said(row), _LONGEST_TEXT))
        for row in rows[:LISTED]
    ]
    more = len(rows) - len(items)
    return Section(title, items, f"and {more:,} more" if more > 0 else "" if items else none)


def _worst(row: Row) -> str:
    lag = "lag unknown" if row["lag"] is None else f"lag {row['lag']:,}"
    behind = "" if row["max_lag_seconds"] is None else f", {duration(row['max_lag_seconds'])} behind"
    lane = shortened(lane_name(row["topic"], row["partition"]), _LONGEST_NAME)
    return f"{row['status']}, {lag}{behind}: {visible(row['status_reason'])} ({lane})"


def _storm(row: Row) -> str:
    began, ended = moment(row["began_us"]), moment(row["ended_us"])
    cause = f"{row['main_cause_rebalances']:,} because of {row['main_cause']}"
    return f"{row['rebalances']:,} rebalances from {_time(began)} to {_time(ended)} UTC, {cause}"


def _reset(row: Row) -> str:
    moved = "" if row["moved"] is None else f" by {abs(row['moved']):,}"
    partitions = f"{row['partitions']:,} partition{'' if row['partitions'] == 1 else 's'}"
    who = "by a member" if row["by_member"] else "by no member"
    topic = shortened(visible(row["topic"]), _LONGEST_NAME)
    return f"{row['kind']}{moved} offsets in {partitions} of {topic}, {who}, last at {_iso(row['last_at'])} UTC"


def _vanished(row: Row) -> str:
    note = f" ({visible(row['note'])})" if row["note"] else ""
    return f"gone since {_iso(row['vanished_at'])} UTC{note}"


def _new(row: Row) -> str:
    return f"first seen at {_iso(row['first_at'])} UTC"


def _iso(text: str) -> str:
    return text[:16].replace("T", " ")


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def _markdown(digest: Digest) -> str:
    lines = [f"# {markdown_text(digest.title)}", "", digest.period]
    for section in digest.sections:
        lines += ["", f"## {section.title}", ""]
        lines += [f"- {_code(name)}: {markdown_text(said)}" for name, said in section.items]
        lines += [*([""] if section.items else []), section.note] if section.note else []
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    """Return a code span, whose fence is longer than any run of backticks in it."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    room = " " if "`" in text else ""
    return f"{fence}{room}{text}{room}{fence}"


def _html(digest: Digest) -> str:
    title = escape(digest.title)
    head = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n<p>{escape(digest.period)}</p>"
    )
    return "\n".join([head, *map(_html_section, digest.sections), "</body></html>", ""])


def _html_section(section: Section) -> str:
    items = "".join(f"<li><code>{escape(name)}</code>: {escape(said)}</li>\n" for name, said in section.items)
    note = f"<p>{escape(section.note)}</p>" if section.note else ""
    return f"<h2>{escape(section.title)}</h2>\n" + (f"<ul>\n{items}</ul>\n" if items else "") + note


def _chat(digest: Digest) -> str:
    lines = [f"*{_chat_text(digest.title)}*, {digest.period}"]
    for section in digest.sections:
        lines.append(f"*{section.title}*")
        lines += [f"• `{_chat_text(name)}`: {_chat_text(said)}" for name, said in section.items]
        lines += [section.note] if section.note else []
    return "\n".join(lines)


def _chat_text(text: str) -> str:
    """Return text without markup: a name can neither mention people nor be a link."""
    return escape(text, quote=False).replace("`", "'").replace("*", "∗").replace("@", "@\u2060")

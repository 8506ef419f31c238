"""`grouptrail report`: a cluster's groups by verdict, its storms, worst lag and causes, as one HTML file."""

from __future__ import annotations

import re
import shlex
from typing import Any

from grouptrail import contracts
from grouptrail.query.views import utc_now
from grouptrail.report.cluster_rows import DAYS, ClusterRows, read_cluster
from grouptrail.report.group_rows import SECOND_US, Row, microseconds, utc_text
from grouptrail.report.layout import columnar, lane_name, shown, sort_of, visible
from grouptrail.report.page import page
from grouptrail.storage.warehouse import Warehouse

_SCRIPTS = ("shared", "report")
_DAY_MS = 86_400_000
_TIMES = ("state_since", "last_rebalance", "last_commit")
_OF_GROUP = (
    *("group_kind", "state", "state_since", "member_count", "rebalances", "rebalances_day", "last_rebalance"),
    *("last_commit", "committed_partitions", "status", "status_reason", "partitions", "lag", "partitions_with_lag"),
    *("seconds", "partitions_with_seconds", "is_bounded", "lost_records"),
)
_NEEDS_CODES = re.compile(r"[^ -~]")


def report_page(warehouse: Warehouse, *, sample_seconds: float) -> str:
    """Return the page of the warehouse's cluster. Raises QueryError if the tables have no rows of it."""
    rows = read_cluster(warehouse, sample_seconds=sample_seconds)
    return page("report", _SCRIPTS, title=f"{visible(rows.cluster)} – grouptrail", data=arrange_report(rows))


def arrange_report(rows: ClusterRows) -> dict[str, Any]:
    """Return the report as data for JSON; times are milliseconds since `start`, the time of the report."""
    start = rows.known_us // 1000
    return {
        "cluster": visible(rows.cluster),
        "start": start,
        "stale": rows.stale and f"written {utc_text(microseconds(utc_now()))}, {rows.stale}",
        "staleLag": rows.stale_lag,
        "sampled": None if rows.sampled_us is None else rows.sampled_us // 1000 - start,
        "statuses": contracts.statuses(),
        "groups": columnar(_group(name, row, start) for name, row in rows.groups.items()),
        "worst": columnar(
            {**shown(row, start), "seconds": row["seconds"], "command": command(row["group_id"])}
            for row in rows.worst
        ),
        "storms": columnar(
            {
                **shown(row, start, "began_us", "ended_us"),
                "sort": sort_of(row["main_cause"]),
                "command": command(row["group_id"], *_around(row)),
            }
            for row in rows.storms
        ),
        "days": [start // _DAY_MS * _DAY_MS - day * _DAY_MS - start for day in reversed(range(DAYS))],
        "causes": columnar({**shown(row, start, "day"), "sort": sort_of(row["cause"])} for row in rows.causes),
    }


def command(group_id: str, *options: str) -> str:
    """Return the shell command that draws the timeline of a group, quoted for any name."""
    return " ".join(
        ["grouptrail timeline", *options, *(["--"] if group_id.startswith("-") else []), _quoted(group_id)]
    )


def _quoted(text: str) -> str:
    if not _NEEDS_CODES.search(text):
        return shlex.quote(text)
    return "$'" + "".join(_code(char) for char in text) + "'"


def _code(char: str) -> str:
    if char in "'\\":
        return f"\\{char}"
    return char if " " <= char <= "~" else "".join(f"\\x{byte:02x}" for byte in char.encode())


def _around(storm: Row) -> tuple[str, ...]:
    """Return options for the interval of a storm with some minutes on both sides."""
    room = 600 * SECOND_US
    return ("--from", utc_text(storm["began_us"] - room), "--to", utc_text(storm["ended_us"] + room))


def _group(name: str, row: Row, start: int) -> Row:
    known = {column: row.get(column) for column in _OF_GROUP}
    worst = lane_name(row["worst_topic"], row["worst_partition"]) if row.get("status") else None
    return {
        "group_id": visible(name),
        **shown(known, start, *_TIMES),
        "worst": worst,
        "command": command(name) if row.get("group_kind") else None,
    }

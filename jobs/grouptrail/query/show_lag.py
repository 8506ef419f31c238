"""`grouptrail show lag`: the current lag and verdict of every group, worst first."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, TextIO

from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from grouptrail import contracts
from grouptrail.console.text import harmless_json
from grouptrail.query.errors import QueryError
from grouptrail.query.formats import console_on, displayed
from grouptrail.query.views import view_query
from grouptrail.query.warehouse import Warehouse

if TYPE_CHECKING:
    from grouptrail.config import Config

Row = dict[str, Any]

_TABLE = "consumer_lag"
_STYLES = {"REWIND": "bold red", "STALL": "bold red", "STOP": "bold red", "WARN": "yellow", "UNKNOWN": "magenta"}
_METHODS = {"bounded": "≥ ", "exact": "= "}
_GROUPS_SHOWN = 40
_NUMBERS = ("partitions", "lag", "behind", "consumes", "produces", "catches up", "committed", "end")


def show_lag(
    config: Config,
    *,
    groups: Sequence[str],
    topics: Sequence[str],
    format: Literal["table", "json"],
    out: TextIO,
) -> None:
    """Print one line per group, or per partition if groups or topics are named (shell patterns).

    Raises QueryError if there are no samples of lag, or none that match."""
    rows = _found(config, groups, topics)
    if format == "json":
        out.writelines(harmless_json(json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)
        return
    console_on(out).print(_shown(rows, by_partition=bool(groups or topics)))


def watch_lag(
    config: Config, *, groups: Sequence[str], topics: Sequence[str], every_seconds: float, out: TextIO
) -> None:
    """Print `show_lag` repeatedly until Ctrl-C."""

    def drawn() -> RenderableType:
        try:
            return _shown(_found(config, groups, topics), by_partition=bool(groups or topics))
        except QueryError as error:
            return Text(str(error))

    with Live(drawn(), console=console_on(out), auto_refresh=False, screen=out.isatty()) as live:
        while True:
            time.sleep(every_seconds)
            live.update(drawn(), refresh=True)


def _found(config: Config, groups: Sequence[str], topics: Sequence[str]) -> list[Row]:
    """Return the rows of `current_lag`, worst first."""
    query = view_query(contracts.views()["current_lag"], config.cluster, {})
    rows = Warehouse(config, [_TABLE]).rows(f"SELECT * FROM ({query}) ORDER BY group_id, topic, partition")
    rows.sort(key=lambda row: (contracts.statuses().index(row["status"]), -(row["lag"] or 0)))
    fitting = [row for row in rows if _fits(row["group_id"], groups) and _fits(row["topic"], topics)]
    if rows and not fitting:
        asked = " and ".join([*(f"group {name}" for name in groups), *(f"topic {name}" for name in topics)])
        raise QueryError(f"there is no lag of {asked} in cluster {config.cluster}: `grouptrail show lag` lists all")
    if not rows:
        raise QueryError(
            f"no lag of cluster {config.cluster} has landed yet: run `grouptrail run`, or check --cluster"
        )
    return fitting


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _shown(rows: list[Row], *, by_partition: bool) -> RenderableType:
    lines = (
        [_partition_line(row) for row in rows] if by_partition else [_group_line(found) for found in _groups(rows)]
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in lines[0]:
        table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=name != "why")
    shown = lines if by_partition else lines[:_GROUPS_SHOWN]
    for line in shown:
        table.add_row(*(Text(cell, style=_STYLES.get(line["status"], "")) for cell in line.values()))
    newest = max(datetime.fromisoformat(row["sampled_at"]) for row in rows)
    age = (datetime.now(UTC) - newest).total_seconds()
    left_out = f"; {len(lines) - len(shown)} more groups (--group PATTERN)" if len(lines) > len(shown) else ""
    return Group(table, Text(f"sampled {_duration(age)} ago, {newest:%Y-%m-%d %H:%M:%S} UTC{left_out}", style="dim"))


def _groups(rows: list[Row]) -> Iterable[list[Row]]:
    """Return the rows by group: the worst groups first, each with its worst partition first."""
    by_group: dict[str, list[Row]] = {}
    for row in rows:
        by_group.setdefault(row["group_id"], []).append(row)
    return by_group.values()


def _group_line(rows: list[Row]) -> dict[str, str]:
    """Return the line of a group: the verdict of its worst partition, which is first, sums and the longest time."""
    worst = rows[0]
    oldest = max(rows, key=lambda row: row["lag_seconds"] if row["lag_seconds"] is not None else -1)
    known = [row["lag"] for row in rows if row["lag"] is not None]
    return {
        "group": displayed(worst["group_id"]),
        "status": worst["status"],
        "partitions": f"{len(rows):,}",
        "lag": f"{sum(known):,}" if known else "-",
        "behind": _behind(oldest),
        **_rates(rows),
        "state": worst["group_state"] or "-",
        "why": _why(worst) if worst["status"] != "OK" else "",
    }


def _partition_line(row: Row) -> dict[str, str]:
    return {
        "group": displayed(row["group_id"]),
        "topic": displayed(row["topic"]),
        "partition": str(row["partition"]),
        "status": row["status"],
        "committed": _count(row["committed_offset"]),
        "end": _count(row["log_end_offset"]),
        "lag": _count(row["lag"]),
        "behind": _behind(row),
        **_rates([row]),
        "why": _why(row),
    }


def _why(row: Row) -> str:
    return displayed(row["problem"] or row["status_reason"])


def _rates(rows: list[Row]) -> dict[str, str]:
    consumed, produced = (_sum(rows, name) for name in ("consume_rate", "produce_rate"))
    waits = [row["catch_up_seconds"] for row in rows if row["lag"]]
    ends = None if None in waits else max(waits, default=0)
    return {
        "consumes": "-" if consumed is None else f"{consumed:,.1f}/s",
        "produces": "-" if produced is None else f"{produced:,.1f}/s",
        "catches up": ("-" if ends is None else f"in {_duration(ends)}") if waits else "",
    }


def _sum(rows: list[Row], name: str) -> float | None:
    known = [row[name] for row in rows if row[name] is not None]
    return sum(known) if known else None


def _behind(row: Row) -> str:
    if row["lag_seconds"] is None:
        return "-"
    return _METHODS.get(row["lag_seconds_method"], "") * bool(row["lag"]) + _duration(row["lag_seconds"])


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min {int(seconds) % 60} s"

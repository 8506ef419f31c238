"""`grouptrail show lag`: the current lag and verdict of every group, worst first."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NoReturn, TextIO

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from grouptrail import contracts
from grouptrail.console.progress import print_note
from grouptrail.query.errors import QueryError
from grouptrail.query.fitted_table import FittedTable
from grouptrail.query.formats import RowsFormat, console_on, displayed, duration, markdown_text, write_rows
from grouptrail.query.freshness import as_of, is_stale, stale_text
from grouptrail.query.views import view_query
from grouptrail.storage.sql import datafusion_literal
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.warehouse import Warehouse

Row = dict[str, Any]

_TABLES = ("consumer_lag", "group_states")
_LOST_RECENTLY = timedelta(days=1)
# A group that does not read for a minute would lose data in a week: no news among all groups.
_LOSS_SOON_SECONDS = 86_400
_LOSSES_SHOWN = 10
_STYLES = {"REWIND": "bold red", "STALL": "bold red", "STOP": "bold red", "WARN": "yellow", "UNKNOWN": "magenta"}
_METHODS = {"bounded": "≥ ", "exact": "= "}
_GROUPS_SHOWN = 40
_NUMBERS = ("partitions", "partition", "lag", "behind", "consumes", "produces", "catches up", "committed", "end")
_NAMES = ("group", "topic")
_MOVABLE = ("why", "state", "catches up", "produces", "consumes", "end", "committed")


def show_lag(
    warehouse: Warehouse,
    *,
    groups: Sequence[str],
    topics: Sequence[str],
    sample_seconds: float,
    format: RowsFormat,
    out: TextIO,
) -> None:
    """Print one line per group, or per partition if groups or topics are named (shell patterns).

    Below are the partitions whose unread records retention will delete, and those where it has within a day. JSON and
    CSV have a row per partition, as `current_lag` has. Raises QueryError if there are no samples of lag, or
    none that match."""
    rows = _current_lag(warehouse, groups, topics)
    by_partition = bool(groups or topics)
    note = _note(sample_seconds, rows)
    if format == "table":
        losses = _losses(warehouse, rows, by_partition=by_partition)
        console_on(out).print(_shown(rows, note, losses, by_partition=by_partition))
    elif format == "markdown":
        lines = _lines(rows, by_partition=by_partition)
        write_rows(list(lines[0]), [[*line.values()] for line in lines], out, format=format)
        for line in (*_losses(warehouse, rows, by_partition=by_partition), *([note] if note else [])):
            out.write(f"\n{markdown_text(line)}\n")
    else:
        write_rows(list(rows[0]), [[*row.values()] for row in rows], out, format=format)
        print_note(note)


def watch_lag(
    warehouse: Warehouse,
    *,
    groups: Sequence[str],
    topics: Sequence[str],
    sample_seconds: float,
    every_seconds: float,
    format: RowsFormat,
    out: TextIO,
) -> None:
    """Print `show_lag` repeatedly until Ctrl-C.

    A table on a terminal is replaced in place; everything else is printed one after the other and flushed each time.
    """
    if format == "table" and out.isatty():
        _watch_on_terminal(warehouse, groups, topics, sample_seconds, every_seconds=every_seconds, out=out)
    show = partial(
        show_lag, warehouse, groups=groups, topics=topics, sample_seconds=sample_seconds, format=format, out=out
    )
    show()
    while True:
        out.flush()
        time.sleep(every_seconds)
        with suppress(QueryError):  # the next round may succeed
            show()


def _watch_on_terminal(
    warehouse: Warehouse,
    groups: Sequence[str],
    topics: Sequence[str],
    sample_seconds: float,
    *,
    every_seconds: float,
    out: TextIO,
) -> NoReturn:
    def drawn() -> RenderableType:
        try:
            rows = _current_lag(warehouse, groups, topics)
            by_partition = bool(groups or topics)
            losses = _losses(warehouse, rows, by_partition=by_partition)
            return _shown(rows, _note(sample_seconds, rows), losses, by_partition=by_partition)
        except QueryError as error:
            return Text(str(error))

    with Live(drawn(), console=console_on(out), auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(every_seconds)
            live.update(drawn(), refresh=True)


def _current_lag(warehouse: Warehouse, groups: Sequence[str], topics: Sequence[str]) -> list[Row]:
    """Return the rows of `current_lag`, worst first."""
    query = view_query(contracts.views()["current_lag"], warehouse.cluster, {})
    rows = SqlSnapshot(warehouse, _TABLES).rows(f"SELECT * FROM ({query}) ORDER BY group_id, topic, partition")
    rows.sort(key=lambda row: (contracts.statuses().index(row["status"]), -(row["lag"] or 0)))
    fitting = [row for row in rows if _fits(row["group_id"], groups) and _fits(row["topic"], topics)]
    if rows and not fitting:
        asked = " and ".join([*(f"group {name}" for name in groups), *(f"topic {name}" for name in topics)])
        raise QueryError(
            f"there is no lag of {asked} in cluster {warehouse.cluster}: `grouptrail show lag` lists all"
        )
    if not rows:
        raise QueryError(
            f"no lag of cluster {warehouse.cluster} has landed yet: run `grouptrail run`, or check --cluster"
        )
    return fitting


def _losses(warehouse: Warehouse, rows: list[Row], *, by_partition: bool) -> list[str]:
    """Return a line for each partition, or each group, whose unread records retention will delete or has deleted."""
    ahead = sorted(
        (row for row in rows if row["time_to_loss_seconds"] is not None), key=lambda row: row["time_to_loss_seconds"]
    )
    if not by_partition:
        first = {row["group_id"]: row for row in reversed(ahead) if row["time_to_loss_seconds"] < _LOSS_SOON_SECONDS}
        ahead = sorted(first.values(), key=lambda row: row["time_to_loss_seconds"])
    lines = [f"{_position(row)} {_loss_ahead(row)}" for row in ahead]
    if by_partition and (losing := sorted({row["group_id"] for row in rows if row["lost_records"]})):
        wanted = {(row["group_id"], row["topic"], row["partition"]) for row in rows if row["lost_records"]}
        lost = [
            row
            for row in _lost_recently(warehouse, losing)
            if (row["group_id"], row["topic"], row["partition"]) in wanted
        ]
        lines += [f"{_position(row)} {_loss_behind(row)}" for row in lost]
    left_out = [f"and {len(lines) - _LOSSES_SHOWN} more"] if len(lines) > _LOSSES_SHOWN else []
    return lines[:_LOSSES_SHOWN] + left_out


def _lost_recently(warehouse: Warehouse, groups: Sequence[str]) -> list[Row]:
    """Return the rows of `data_losses` of some groups, the newest first."""
    query = view_query(contracts.views()["data_losses"], warehouse.cluster, {"window": _LOST_RECENTLY})
    names = ", ".join(map(datafusion_literal, groups))
    of_groups = f"SELECT * FROM ({query}) WHERE group_id IN ({names}) ORDER BY lost_by DESC, topic, partition"
    return SqlSnapshot(warehouse, _TABLES).rows(of_groups)


def _position(row: Row) -> str:
    return f"{displayed(row['group_id'])} {displayed(row['topic'])}-{row['partition']}:"


def _loss_ahead(row: Row) -> str:
    """Return what is foreseen of a partition with a time to loss."""
    least, most = row["time_to_loss_seconds"], row["time_to_loss_most_seconds"]
    setting, _, value = row["time_to_loss_reason"].partition("=")
    limit = f"{setting} {_length(int(value) / 1000) if setting == 'retention.ms' else f'{int(value):,}'}"
    age = "" if row["lag_seconds"] is None else f"; oldest unread record {_without_zero(_behind(row))} old"
    if not least:
        latest = "" if most is None else f", in {_length(most)} at the latest"
        return f"may lose data at any time{latest} ({limit}{age})"
    ahead = f"{_length(least)} at the earliest" if most is None else f"{_length(least)} to {_length(most)}"
    return f"will lose data in {ahead} ({limit}{age})"


def _length(seconds: float) -> str:
    return _without_zero(duration(seconds))


def _without_zero(length: str) -> str:
    """Return `2 h` for `2 h 0 min`."""
    return re.sub(r"(?<=[a-z]) 0 \w+$", "", length)


def _loss_behind(row: Row) -> str:
    after, by = (datetime.fromisoformat(row[name]) for name in ("lost_after", "lost_by"))
    until = f"{by:%H:%M:%S}" if after.date() == by.date() else f"{by:%Y-%m-%d %H:%M:%S}"
    return f"lost {row['lost_records']:,} records between {after:%Y-%m-%d %H:%M:%S} and {until} UTC"


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _lines(rows: list[Row], *, by_partition: bool) -> list[dict[str, str]]:
    return [_partition_line(row) for row in rows] if by_partition else [_group_line(group) for group in _groups(rows)]


def _sampled_at(rows: list[Row]) -> datetime:
    return max(datetime.fromisoformat(row["sampled_at"]) for row in rows)


def _note(sample_seconds: float, rows: list[Row]) -> str | None:
    """Return how old the samples are if they do not show the present."""
    return stale_text(newest) if is_stale(sample_seconds, newest := _sampled_at(rows)) else None


def _shown(rows: list[Row], note: str | None, losses: Sequence[str], *, by_partition: bool) -> RenderableType:
    lines = _lines(rows, by_partition=by_partition)
    shown = lines if by_partition else lines[:_GROUPS_SHOWN]
    styled = [(line, _STYLES.get(line["status"], "")) for line in shown]
    table = FittedTable(styled, names=_NAMES, numbers=_NUMBERS, movable=_MOVABLE)
    left_out = f"; {len(lines) - len(shown)} more groups (--group PATTERN)" if len(lines) > len(shown) else ""
    style = "bold yellow" if note else "dim"
    lost = [Text(line, style="bold red") for line in losses]
    return Group(table, *lost, Text(f"{note or as_of(_sampled_at(rows))}{left_out}", style=style))


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
        "lag": _at_most(rows) + f"{sum(known):,}" if known else "-",
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
        "lag": _at_most([row]) + _count(row["lag"]),
        "behind": _behind(row),
        **_rates([row]),
        "why": _why(row),
    }


def _at_most(rows: list[Row]) -> str:
    return "≤ " if any(row["lag_error"] for row in rows) else ""


def _why(row: Row) -> str:
    return displayed(row["problem"] or row["status_reason"])


def _rates(rows: list[Row]) -> dict[str, str]:
    consumed, produced = (_sum(rows, name) for name in ("consume_rate", "produce_rate"))
    waits = [row["catch_up_seconds"] for row in rows if row["lag"]]
    ends = None if None in waits else max(waits, default=0)
    return {
        "consumes": "-" if consumed is None else f"{consumed:,.1f}/s",
        "produces": "-" if produced is None else f"{produced:,.1f}/s",
        "catches up": ("-" if ends is None else f"in {duration(ends)}") if waits else "",
    }


def _sum(rows: list[Row], name: str) -> float | None:
    known = [row[name] for row in rows if row[name] is not None]
    return sum(known) if known else None


def _behind(row: Row) -> str:
    if row["lag_seconds"] is None:
        return "-"
    is_least = row["lag_seconds_method"] == "dated" and row["lag_seconds_error"] is None
    sign = "≥ " if is_least else _METHODS.get(row["lag_seconds_method"], "")
    return sign * bool(row["lag"]) + duration(row["lag_seconds"])


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"

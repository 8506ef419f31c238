"""`grouptrail what-if broker`: what would happen to partitions and groups if brokers stopped."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any, TextIO

from grouptrail import contracts
from grouptrail.console.progress import print_note
from grouptrail.console.text import harmless_json
from grouptrail.query.broker_loss import (
    BELOW_MIN_ISR,
    BELOW_MIN_ISR_ALREADY,
    OFFLINE,
    OFFLINE_ALREADY,
    UNKNOWN,
)
from grouptrail.query.document import Block, Grid, Heading, Line, footer, write_document
from grouptrail.query.formats import RowsFormat, counted, to_the_second, write_rows
from grouptrail.query.freshness import stale_note
from grouptrail.query.show_group import ranges
from grouptrail.query.what_if import describe_loss
from grouptrail.storage.warehouse import Warehouse

Row = dict[str, Any]

_EFFECT_TEXTS = {
    OFFLINE: "would be offline",
    BELOW_MIN_ISR: "would refuse acks=all",
    UNKNOWN: "may refuse acks=all",
    OFFLINE_ALREADY: "already offline",
    BELOW_MIN_ISR_ALREADY: "already refuse acks=all",
}
_LINES_SHOWN = 40
_NUMBERS = ("partitions", "leads", "min ISR", "members", "lag")


def show_loss(
    warehouse: Warehouse,
    broker_ids: Collection[int],
    *,
    racks: Collection[str],
    at: datetime | None,
    sample_seconds: float,
    format: RowsFormat,
    out: TextIO,
) -> None:
    """Print what would happen if brokers stopped; JSON is one object, CSV has the partitions, the worst first.

    Raises as `describe_loss` does."""
    loss = describe_loss(warehouse, broker_ids, racks=racks, at=at, sample_seconds=sample_seconds)
    note = stale_note(warehouse, sample_seconds, at)
    if format in ("table", "markdown"):
        write_document((*_described(loss), *footer(note)), out, format=format)
        return
    if format == "json":
        out.write(harmless_json(json.dumps(loss, ensure_ascii=False)) + "\n")
    else:
        names = [column.name for column in contracts.views()["what_if_broker"].columns]
        write_rows(names, ([row[name] for name in names] for row in loss["partitions"]), out, format="csv")
    print_note(note)


def consequence_texts(group: Row) -> Iterator[str]:
    """Yield what a stop means for a group, a phrase each, the worst first."""
    place = f"__consumer_offsets-{group['coordinator_partition']}"
    offline = group["coordinator_effect"] in (OFFLINE, OFFLINE_ALREADY)
    reason = f"{place} {'has no replica in sync' if offline else 'is below min.insync.replicas'}"
    read, lost = f"{group['partitions']:,}", f"{group['partitions_offline_already']:,}"
    led = f"{group['partitions_led']:,}"
    texts = {
        "cannot_commit": f"cannot commit or rebalance: {reason} then",
        "cannot_read": f"cannot read {group['partitions_offline']:,} of its {read} partitions: offline then",
        "may_not_commit": f"may be unable to commit: min.insync.replicas of {place} is unknown",
        "cannot_commit_already": f"cannot commit or rebalance already: {reason}",
        "cannot_read_already": f"cannot read {lost} of its {read} partitions already",
        "coordinator_moves": "commits and heartbeats pause while its coordinator moves; it may rebalance",
        "leaders_move": f"reading pauses on {led} of {read} partitions while their leaders move",
    }
    return (texts[name] for name in group["consequences"])


def trouble_texts(partitions: Mapping[str, Collection[int]]) -> Iterator[str]:
    """Yield what is, or would be, wrong with partitions of a topic, given by effect."""
    for effect, numbers in partitions.items():
        if effect in _EFFECT_TEXTS:
            yield f"partition{'s' if len(numbers) > 1 else ''} {ranges(numbers)}: {_EFFECT_TEXTS[effect]}"


def _internal_text(one: Row) -> str:
    """Return what is, or would be, wrong with one of Kafka's own topics, and what that means."""
    [trouble] = trouble_texts({one["effect"]: one["partitions"]})
    return f"{one['topic']}, {trouble}; {one['meaning']}"


def _described(loss: Row) -> Iterator[Block]:
    yield Heading(_title(loss))
    yield Line(loss["summary"])
    yield Line()
    yield Line(_extent(loss))
    yield from map(Line, _troubles_now(loss))
    yield from map(Line, loss["notes"])
    for one in loss["internal"]:
        yield Line(_internal_text(one))
    if loss["topics"]:
        yield Line()
        yield from _topics(loss["topics"])
    if loss["groups"]:
        yield Line()
        yield from _groups(loss["groups"])
    yield Line()
    sampled, changed = (to_the_second(loss[name]) for name in ("sampled_at", "changed_at"))
    yield Line(f"the cluster as sampled at {sampled} UTC, last changed {changed} UTC")


def _title(loss: Row) -> str:
    named = [_broker(broker) for broker in loss["brokers"]]
    verb = "stops" if len(named) == 1 else "stop"
    then = f" at {to_the_second(loss['at'])} UTC" if loss["at"] else ""
    return f"if {' and '.join(named)} of cluster {loss['cluster']} {verb}{then}"


def _broker(broker: Row) -> str:
    known = [broker["host"], f"rack {broker['rack']}" if broker["rack"] else None]
    details = ", ".join(filter(None, known))
    return f"broker {broker['broker_id']}" + (f" ({details})" if details else "")


def _extent(loss: Row) -> str:
    subject = "it" if len(loss["brokers"]) == 1 else "they"
    leads, has, coordinates = ("leads", "has", "coordinates") if subject == "it" else ("lead", "have", "coordinate")
    replicas = counted(sum(loss["counts"].values()), "partition")
    groups = loss["groups_coordinated"]
    shown = "" if groups is None else f", and {coordinates} {counted(groups, 'group')}"
    return f"{subject} {leads} {loss['partitions_led']:,} of {replicas} that {subject} {has} a replica of{shown}"


def _troubles_now(loss: Row) -> Iterator[str]:
    for where, counts in (("among these", loss["counts"]), ("on other brokers", loss["elsewhere"])):
        offline, below = counts[OFFLINE_ALREADY], counts[BELOW_MIN_ISR_ALREADY]
        parts = [f"{offline:,} offline"] * bool(offline) + [f"{below:,} below min.insync.replicas"] * bool(below)
        if parts:
            yield f"already now, {where}: {', '.join(parts)}"


def _topics(topics: list[Row]) -> Iterator[Block]:
    rows = [
        (
            topic["topic"],
            f"{sum(map(len, topic['partitions'].values())):,}",
            f"{topic['partitions_led']:,}",
            "; ".join(trouble_texts(topic["partitions"])) or "-",
            "unknown" if topic["min_insync_replicas"] is None else str(topic["min_insync_replicas"]),
        )
        for topic in topics[:_LINES_SHOWN]
    ]
    yield Grid(("topic", "partitions", "leads", "in trouble", "min ISR"), rows, _NUMBERS, ("topic", "in trouble"))
    yield from _left_out(len(topics), "topic")


def _groups(groups: list[Row]) -> Iterator[Block]:
    rows = [
        (
            group["group_id"],
            group["state"] or "-",
            "-" if group["member_count"] is None else f"{group['member_count']:,}",
            "-" if group["lag"] is None else f"{group['lag']:,}",
            "; ".join(consequence_texts(group)),
        )
        for group in groups[:_LINES_SHOWN]
    ]
    yield Grid(("group", "state", "members", "lag", "consequence"), rows, _NUMBERS, ("group", "consequence"))
    yield from _left_out(len(groups), "group")


def _left_out(many: int, noun: str) -> Iterator[Block]:
    if many > _LINES_SHOWN:
        yield Line(f"{counted(many - _LINES_SHOWN, f'more {noun}')}: --format json has all")

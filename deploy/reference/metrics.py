"""The list of docs/metrics.md, from the registry, and those of docs/migrate.md, from the exporter's aliases."""

from __future__ import annotations

import re
from collections.abc import Iterator

from grouptrail import contracts
from grouptrail.contracts import Metric
from grouptrail.exporter.alias import ALIASES, NOT_SERVED, Alias
from grouptrail.exporter.alias_sources import SOURCES
from reference import DOCS

_PARTS = (
    ("Groups", "kafka_consumer_group_"),
    ("Topics", "kafka_topic_"),
    ("The cluster", "kafka_cluster_"),
    ("The pipeline", "grouptrail_"),
)


def pages() -> dict[str, str]:
    """Return the text of the two pages, by file name."""
    return {
        name: re.sub(
            r"(<!-- (\S+): made by make docs -->\n).*?(<!-- end -->)",
            lambda match: f"{match[1]}\n{_part(match[2])}\n{match[3]}",
            (DOCS / name).read_text("utf-8"),
            flags=re.DOTALL,
        )
        for name in ("metrics.md", "migrate.md")
    }


def _part(name: str) -> str:
    return "\n".join(_metrics() if name == "metrics" else _exporter(name)) + "\n"


def _metrics() -> Iterator[str]:
    for title, prefix in _PARTS:
        yield from [
            f"## {title}",
            "",
            "| metric | type | labels | from | description |",
            "| --- | --- | --- | --- | --- |",
        ]
        for metric in contracts.metrics().values():
            if metric.name.startswith(prefix):
                yield _metric(metric)
        yield ""


def _metric(metric: Metric) -> str:
    source = "the exporter" if metric.table == "exporter" else f"`{metric.table}`"
    buckets = f" Buckets: {', '.join(map(str, metric.buckets))}." if metric.buckets else ""
    labels = ", ".join(metric.labels)
    return f"| `{metric.name}` | {metric.type} | {labels} | {source} | {_cell(metric.help)}{buckets} |"


def _exporter(name: str) -> Iterator[str]:
    yield from ["| their metric | labels | grouptrail's metric | differences |", "| --- | --- | --- | --- |"]
    yield from map(_alias, ALIASES[name])
    if NOT_SERVED[name]:
        yield from ["", "Not served:", ""]
        yield from (f"- `{metric}`: {reason}" for metric, reason in NOT_SERVED[name].items())


def _alias(alias: Alias) -> str:
    labels = ", ".join(alias.labels)
    return f"| `{alias.name}` | {labels} | `{alias.source}`{_change(alias)} | {_cell(alias.differs)} |"


def _change(alias: Alias) -> str:
    """Return how grouptrail's values are converted."""
    labels = set(SOURCES.get(alias.source) or contracts.metrics()[alias.source].labels) - {"cluster"}
    if alias.codes is not None:
        return ", " + ", ".join(f"{status} {code}" for status, code in alias.codes.items())
    if alias.factor != 1:
        return f" × {alias.factor}"
    return ", summed" if labels - set(alias.labels.values()) else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")

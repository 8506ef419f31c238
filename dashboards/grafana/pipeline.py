"""The pipeline's own health: does it keep up, is anything lost, undecodable or left out."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from grafana.board import Section, alerts, board, choice
from grafana.house import Panel, Query, figure, lines
from grafana.promql import CLUSTER, of, over
from grafana.words import ANY_IS_BAD, OUTCOME_COLORS, READY, STALE

_LAG, _BATCHES, _HISTORY = 'table="consumer_lag"', 'table="ingest_progress"', 'table="history_positions"'
_BAD = 'outcome=~"undecodable|lost"'


def dashboard() -> models.Dashboard:
    """Of the clusters chosen."""
    return board(
        "pipeline",
        "Pipeline health",
        "Whether grouptrail keeps up with __consumer_offsets, and whether its figures can be trusted.",
        [choice("cluster", "Cluster", "grouptrail_ready")],
        [
            Section("Now", _now()),
            Section("Reading __consumer_offsets", _reading()),
            Section("Exporter and checks", _exporter()),
        ],
        marks=[alerts(CLUSTER, of="Grouptrail")],
    )


def _now() -> list[Panel]:
    return [
        figure(
            "Backlog",
            "Ready once the backlog of __consumer_offsets has been read; until then figures rest on old commits.",
            Query(f"min({of('grouptrail_ready', CLUSTER)})"),
            unit="none",
            names=READY,
        ),
        figure(
            "Age of lag",
            "How old the newest sample of lag is. Where it grows, the lag job does not run.",
            Query(f"max({of('grouptrail_freshness_seconds', CLUSTER, _LAG)})"),
            unit="s",
            thresholds=STALE,
        ),
        figure(
            "Last batch",
            "How long ago the decode job landed a batch. It stands still while no group commits.",
            Query(f"max({of('grouptrail_freshness_seconds', CLUSTER, _BATCHES)})"),
            unit="s",
            thresholds=((300, "yellow"), (900, "red")),
        ),
        figure(
            "History waits",
            "For how long the oldest batch with records of groups has waited to be told. Where it grows, the history "
            "job does not run.",
            Query(f"max({of('grouptrail_freshness_seconds', CLUSTER, _HISTORY)})"),
            unit="s",
            thresholds=STALE,
        ),
        figure(
            "Undecodable or lost",
            "Records that could not be decoded (see undecodable_records) or that retention deleted before they were "
            "read, since the tables began.",
            Query(f"sum({of('grouptrail_records_total', CLUSTER, _BAD)}) or vector(0)"),
            unit="short",
            thresholds=ANY_IS_BAD,
        ),
        figure(
            "Series left out",
            "Series that are not served: over the budget, or of groups and topics that the configuration leaves out.",
            Query(f"sum({of('grouptrail_series_dropped', CLUSTER)}) or vector(0)"),
            unit="short",
            thresholds=((1, "yellow"),),
        ),
        figure(
            "Version",
            "How many exporters run each version of grouptrail.",
            Query(f"count by (version) (grouptrail_build_info{{{CLUSTER}}})", "{{version}}"),
            unit="none",
        ),
    ]


def _reading() -> list[Panel]:
    return [
        lines(
            "Offsets read",
            "Offsets of __consumer_offsets a second, by what became of them. hole: no record to read there, as "
            "compaction leaves them.",
            Query(
                f"sum by (outcome, type) ({over('rate', 'grouptrail_records_total', CLUSTER)})",
                "{{outcome}} {{type}}",
            ),
            unit="cps",
            stacked=True,
            colors=OUTCOME_COLORS,
        ),
        lines(
            "Backlog",
            "Records that could be read and were not, when the last batch landed; the ten worst partitions.",
            Query(f"topk(10, {of('grouptrail_source_backlog_records', CLUSTER)})", "partition {{partition}}"),
            unit="short",
        ),
        lines(
            "Freshness",
            "Age of the newest rows; of history_positions, how long a batch has waited to be told. ingest_progress "
            "stands still while no group commits.",
            Query(of("grouptrail_freshness_seconds", CLUSTER), "{{cluster}} {{table}}"),
            unit="s",
            thresholds=STALE,
        ),
        lines(
            "Held back by open transactions",
            "Records behind the last stable offset. A hanging transaction stops its partition there.",
            Query(f"topk(10, {of('grouptrail_last_stable_offset_lag', CLUSTER)})", "partition {{partition}}"),
            unit="short",
        ),
    ]


def _exporter() -> list[Panel]:
    return [
        lines(
            "Time to make a snapshot",
            "How long the exporter takes to read the tables. Scrapes do not wait for it.",
            Query(of("grouptrail_refresh_duration_seconds", CLUSTER), "{{cluster}}"),
            unit="s",
        ),
        lines(
            "Snapshots that failed",
            "In the ten minutes before; meanwhile the snapshot before is served, and its age grows.",
            Query(over("increase", "grouptrail_refresh_errors_total", CLUSTER, window="10m"), "{{cluster}} failed"),
            Query(f"time() - {of('grouptrail_snapshot_timestamp_seconds', CLUSTER)}", "{{cluster}} age, seconds"),
            unit="short",
        ),
        lines(
            "Series left out",
            "By reason: over the budget (put together as group other), or left out by pattern.",
            Query(f"sum by (cluster, reason) ({of('grouptrail_series_dropped', CLUSTER)})", "{{cluster}} {{reason}}"),
            unit="short",
            nothing="none left out",
        ),
        lines(
            "Expectations broken",
            "By table, at its last check.",
            Query(of("grouptrail_expectation_failures", CLUSTER), "{{cluster}} {{table}}"),
            unit="short",
            nothing="no check has run",
            thresholds=ANY_IS_BAD,
        ),
    ]

"""The pipeline's own health: whether it keeps up, and what is lost, undecodable or dropped."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from grafana.dashboard import Section, firing_alerts, grouptrail_dashboard, query_variable
from grafana.descriptions import AGE_THRESHOLDS, OUTCOME_COLORS, READY, RED_IF_ANY
from grafana.panels import Panel, Query, stat_panel, time_series
from grafana.promql import CLUSTER, latest, over_window

_LAG, _BATCHES, _HISTORY = 'table="consumer_lag"', 'table="ingest_progress"', 'table="history_positions"'
_BAD = 'outcome=~"undecodable|lost"'


def dashboard() -> models.Dashboard:
    """Build the dashboard of the selected clusters."""
    return grouptrail_dashboard(
        "pipeline",
        "Pipeline health",
        "Whether grouptrail keeps up with __consumer_offsets and its metrics are reliable.",
        [query_variable("cluster", "Cluster", "grouptrail_ready")],
        [
            Section("Now", _now()),
            Section("Reading __consumer_offsets", _reading()),
            Section("Exporter and checks", _exporter()),
        ],
        annotations=[firing_alerts(CLUSTER, prefix="Grouptrail")],
    )


def _now() -> list[Panel]:
    return [
        stat_panel(
            "Backlog",
            "Ready once the backlog of __consumer_offsets has been read; until then metrics are based on old "
            "commits.",
            Query(f"min({latest('grouptrail_ready', CLUSTER)})"),
            unit="none",
            names=READY,
        ),
        stat_panel(
            "Age of lag",
            "Age of the newest lag sample. If it grows, the lag job is not running.",
            Query(f"max({latest('grouptrail_freshness_seconds', CLUSTER, _LAG)})"),
            unit="s",
            thresholds=AGE_THRESHOLDS,
        ),
        stat_panel(
            "Last batch",
            "Time since the decode job wrote a batch. It grows while no group commits.",
            Query(f"max({latest('grouptrail_freshness_seconds', CLUSTER, _BATCHES)})"),
            unit="s",
            thresholds=((300, "yellow"), (900, "red")),
        ),
        stat_panel(
            "History waits",
            "How long the oldest batch with group records has waited for the history job. If it grows, the "
            "history job is not running.",
            Query(f"max({latest('grouptrail_freshness_seconds', CLUSTER, _HISTORY)})"),
            unit="s",
            thresholds=AGE_THRESHOLDS,
        ),
        stat_panel(
            "Undecodable or lost",
            "Records that could not be decoded (see undecodable_records) or that retention deleted before they were "
            "read, since the tables were created.",
            Query(f"sum({latest('grouptrail_records_total', CLUSTER, _BAD)}) or vector(0)"),
            unit="short",
            thresholds=RED_IF_ANY,
        ),
        stat_panel(
            "Series dropped",
            "Series that are not served: over the budget, or of groups and topics that the configuration excludes.",
            Query(f"sum({latest('grouptrail_series_dropped', CLUSTER)}) or vector(0)"),
            unit="short",
            thresholds=((1, "yellow"),),
        ),
        stat_panel(
            "Version",
            "Number of exporters per version of grouptrail.",
            Query(f"count by (version) (grouptrail_build_info{{{CLUSTER}}})", "{{version}}"),
            unit="none",
        ),
    ]


def _reading() -> list[Panel]:
    return [
        time_series(
            "Offsets read",
            "Offsets of __consumer_offsets read per second, by outcome. hole: an offset without a record, for "
            "example after compaction.",
            Query(
                f"sum by (outcome, type) ({over_window('rate', 'grouptrail_records_total', CLUSTER)})",
                "{{outcome}} {{type}}",
            ),
            unit="cps",
            stacked=True,
            colors=OUTCOME_COLORS,
        ),
        time_series(
            "Backlog",
            "Readable records that had not been read when the last batch was written; the ten worst partitions.",
            Query(f"topk(10, {latest('grouptrail_source_backlog_records', CLUSTER)})", "partition {{partition}}"),
            unit="short",
        ),
        time_series(
            "Freshness",
            "Age of the newest rows; for history_positions, how long a batch has waited for the history job. "
            "ingest_progress grows older while no group commits.",
            Query(latest("grouptrail_freshness_seconds", CLUSTER), "{{cluster}} {{table}}"),
            unit="s",
            thresholds=AGE_THRESHOLDS,
        ),
        time_series(
            "Held back by open transactions",
            "Records after the last stable offset. A hanging transaction blocks its partition there.",
            Query(f"topk(10, {latest('grouptrail_last_stable_offset_lag', CLUSTER)})", "partition {{partition}}"),
            unit="short",
        ),
    ]


def _exporter() -> list[Panel]:
    return [
        time_series(
            "Time to build a snapshot",
            "Time that the exporter takes to read the tables. Scrapes do not wait for it.",
            Query(latest("grouptrail_refresh_duration_seconds", CLUSTER), "{{cluster}}"),
            unit="s",
        ),
        time_series(
            "Failed snapshots",
            "Failures in the last ten minutes. The exporter then serves the previous snapshot, whose age grows.",
            Query(
                over_window("increase", "grouptrail_refresh_errors_total", CLUSTER, window="10m"),
                "{{cluster}} failed",
            ),
            Query(f"time() - {latest('grouptrail_snapshot_timestamp_seconds', CLUSTER)}", "{{cluster}} age, seconds"),
            unit="short",
        ),
        time_series(
            "Job restarts",
            "Failures in the last ten minutes. A failed job is restarted while others continue; the log says why.",
            Query(
                over_window("increase", "grouptrail_job_restarts_total", CLUSTER, window="10m"),
                "{{cluster}} {{job_name}}",
            ),
            unit="short",
        ),
        time_series(
            "Jobs that do not run",
            "1 while a job waits to be started or restarted.",
            Query(f"1 - {latest('grouptrail_job_running', CLUSTER)}", "{{cluster}} {{job_name}}"),
            unit="short",
        ),
        time_series(
            "Series dropped",
            "By reason: over the budget (aggregated as group other), or excluded by pattern.",
            Query(
                f"sum by (cluster, reason) ({latest('grouptrail_series_dropped', CLUSTER)})",
                "{{cluster}} {{reason}}",
            ),
            unit="short",
            no_value="none dropped",
        ),
        time_series(
            "Failed expectations",
            "Failed expectations per table in its last check.",
            Query(latest("grouptrail_expectation_failures", CLUSTER), "{{cluster}} {{table}}"),
            unit="short",
            no_value="no check has run",
            thresholds=RED_IF_ANY,
        ),
        time_series(
            "Damaged files",
            "Files that cannot be read, per table: their rows are missing.",
            Query(f"{latest('grouptrail_damaged_files', CLUSTER)} > 0", "{{cluster}} {{table}}"),
            unit="short",
            no_value="none",
            thresholds=RED_IF_ANY,
        ),
        time_series(
            "Brokers' log files that cannot be read",
            "1 for each file of `broker_log.files` that does not exist or may not be read.",
            Query(f"1 - {latest('grouptrail_broker_log_readable', CLUSTER)} > 0", "{{cluster}} {{file}}"),
            unit="short",
            no_value="none",
            thresholds=RED_IF_ANY,
        ),
    ]

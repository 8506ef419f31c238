"""The demo's summary: key figures, and four questions answered with `grouptrail sql`."""

from __future__ import annotations

import sys
from pathlib import Path

from grouptrail.config import Config
from grouptrail.query.show_lag import show_lag
from grouptrail.query.sql import run_sql
from grouptrail.runtime.warehouses import query_context, warehouse_of
from servers.pipeline import query

_KINDS = """\
WITH kinds AS (
  SELECT group_id, 'share group (KIP-932)' AS kind FROM group_records WHERE record_type LIKE 'ShareGroup%'
  UNION SELECT group_id, 'consumer group (KIP-848)' FROM group_records WHERE record_type LIKE 'ConsumerGroup%'
  UNION SELECT group_id, 'classic group, ' || protocol FROM group_metadata WHERE protocol IS NOT NULL)
SELECT kind, count(*) AS groups, string_agg(group_id, ', ' ORDER BY group_id) AS names FROM (
  SELECT * FROM kinds
  UNION SELECT group_id, 'offsets only, no members' FROM offset_commits
    WHERE group_id NOT IN (SELECT group_id FROM kinds))
GROUP BY kind ORDER BY kind"""

_TYPES = """\
SELECT record_type, count(*) AS records, sum(CAST(is_tombstone AS INT)) AS tombstones FROM (
  SELECT 'OffsetCommit' AS record_type, is_tombstone FROM offset_commits
  UNION ALL SELECT 'GroupMetadata', is_tombstone FROM group_metadata
  UNION ALL SELECT record_type, is_tombstone FROM group_records)
GROUP BY record_type ORDER BY records DESC, record_type"""

_TOTALS = """\
SELECT sum(offset_commits) AS commits, sum(group_metadata) AS generations, sum(group_records) AS others,
  sum(undecodable_records) AS undecodable, sum(holes) AS holes, sum(lost) AS lost,
  count(DISTINCT batch_id) AS batches FROM ingest_progress"""

QUESTIONS = (
    (
        "Which groups commit how much, and when last?",
        """\
SELECT group_id, count(*) AS commits, count(DISTINCT topic || partition) AS partitions, max(commit_at) AS last_commit
FROM offset_commits WHERE NOT is_tombstone GROUP BY group_id ORDER BY commits DESC""",
    ),
    (
        "What made billing rebalance? Member 3 crashes, is missed after its session timeout, and comes back.",
        """\
SELECT at, to_generation AS generation, cause, certainty, array_length(members_joined) AS joined,
  array_length(members_left) AS left, partitions_moved AS moved, partitions_kept AS kept
FROM rebalances WHERE group_id = 'billing' ORDER BY at LIMIT 12""",
    ),
    (
        "Which records could nobody in notifications process? Kafka gives them up after the fifth delivery.",
        """\
SELECT archived_at, topic, partition, first_offset, deliveries FROM poison_records(3)
ORDER BY archived_at LIMIT 6""",
    ),
    (
        "When were the offsets of replay set back, and how far?",
        """\
SELECT record_at, topic, partition, committed_offset, moved_by, metadata AS said FROM (
  SELECT *, committed_offset - lag(committed_offset)
    OVER (PARTITION BY topic, partition ORDER BY record_offset) AS moved_by
  FROM offset_commits WHERE group_id = 'replay')
WHERE moved_by < 0 ORDER BY record_at, partition LIMIT 6""",
    ),
)


_SHOWN_METRICS = ("topic_lag", "lag_seconds", "members", "rebalances_total", "status")
_SERIES_A_METRIC = 2


def totals(config: Config) -> str:
    """Return one line with what has landed so far."""
    [row] = query(config, _TOTALS)
    if not row["batches"]:
        return ""
    parts = [
        f"{row['commits']:,} offset commits",
        f"{row['generations']:,} group metadata",
        f"{row['others']:,} other group records",
        f"{row['undecodable']:,} undecodable",
        f"{row['holes']:,} holes",
    ]
    return ", ".join(parts)


def print_findings(config: Config, seconds: float) -> None:
    """Print groups by kind and records by type; `seconds` is the time the pipeline had."""
    print("\nGroups by kind")
    _answer(config, _KINDS)
    print("\nRecords by type")
    _answer(config, _TYPES)
    [row] = query(config, _TOTALS)
    records = sum(row[name] for name in ("commits", "generations", "others", "undecodable"))
    print(
        f"\n{records:,} records in {row['batches']} batches, {records / seconds:.0f} a second (the pace of these "
        f"groups; `make bench` measures the pipeline's).\n{row['undecodable']} undecodable, {row['lost']} lost; "
        f"{row['holes']} holes: offsets of transaction markers and aborted commits."
    )


def print_answers(config: Config, config_file: Path) -> None:
    """Print four questions, each with a command that can be pasted and its output."""
    for title, text in QUESTIONS:
        print(f'\n# {title}\n$ {command(config_file, "sql")} "\n{text}"\n')
        _answer(config, text)


def print_lag(config: Config, config_file: Path) -> None:
    """Print the output of `grouptrail show lag` at the end."""
    print(f"\n# How far behind are the groups?\n$ {command(config_file, 'show', 'lag')}\n")
    seconds = config.log_offsets.interval_seconds
    show_lag(warehouse_of(config), groups=(), topics=(), sample_seconds=seconds, format="table", out=sys.stdout)


def print_metrics(page: str) -> None:
    """Print some of the metrics of the last scrape."""
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    print(f"\n# What Prometheus would have scraped last: {len(lines):,} series, such as")
    for name in _SHOWN_METRICS:
        ours = (line for line in lines if line.startswith(f"kafka_consumer_group_{name}{{"))
        print("\n".join([line for line in ours if 'group="billing"' in line][:_SERIES_A_METRIC]))


def command(config_file: Path, *arguments: str) -> str:
    """Return a grouptrail command line that works in the folder where the demo was started."""
    program = _here(Path(sys.executable).with_name("grouptrail"))
    return " ".join([f"GROUPTRAIL_CONFIG={config_file}", program, *arguments])


def _here(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _answer(config: Config, text: str) -> None:
    with query_context(config) as context:
        run_sql(context, text, format="table", out=sys.stdout)

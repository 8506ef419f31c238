"""`grouptrail show lag`: a line a group, the worst first, and a line a partition where some are named."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from grouptrail.config import Config
from grouptrail.query.errors import QueryError
from grouptrail.query.show_lag import show_lag
from support import small_tables

NEVER = {"lag": None, "lag_seconds": None, "lag_seconds_method": None, "lag_seconds_error": None}


def row(group: str, partition: int, lag: int, seconds: float, status: str = "OK", **more: Any) -> dict[str, Any]:
    """Return a lag row, sampled a minute after the earlier ones."""
    where = {"group_id": group, "topic": "orders", "partition": partition, "sampled_at": small_tables.at(1)}
    offsets = {"committed_offset": 1000, "log_start_offset": 0, "log_end_offset": 1000 + lag, "lag": lag}
    verdict = {
        "lag_seconds": seconds,
        "lag_seconds_method": "observed",
        "status": status,
        "status_reason": "a reason",
    }
    rates = {"consume_rate": 10.0, "produce_rate": 5.0, "catch_up_seconds": lag / 5, "group_state": "Stable"}
    return where | offsets | verdict | rates | more


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = Config(warehouse=str(tmp_path))
    small_tables.lay(
        config,
        "consumer_lag",
        row("gone", 0, 9, 9) | {"sampled_at": small_tables.at(0)},
        row("billing", 0, 0, 0) | {"sampled_at": small_tables.at(0)},
        row("billing", 0, 1200, 95, "STOP", status_reason="no commit for 300 s"),
        row("billing", 1, 30, 7322, "WARN", lag_seconds_method="bounded", catch_up_seconds=None),
        row("shipping", 0, 0, 0),
        row("shipping", 1, 5, 0.4, lag_seconds_method="exact"),
        row("fraud", 0, 0, 0, "UNKNOWN", problem="topic deleted", consume_rate=None, produce_rate=None) | NEVER,
        row("nightly", 0, 5_000, 200_000, "EMPTY", group_state="Empty"),
        row("hostile\x1b[2J", 0, 1, 1),
    )
    return config


def shown(config: Config, *groups: str, topics: tuple[str, ...] = ()) -> list[list[str]]:
    """Return the cells of each line: first the header, last the time of the sample."""
    out = StringIO()
    show_lag(config, groups=groups, topics=topics, format="table", out=out)
    return [
        [word for word in line.strip().split("  ") if word] for line in out.getvalue().splitlines() if "─" not in line
    ]


def test_show_lag_prints_one_line_per_group_worst_first(config: Config) -> None:
    """Sums of known lag, the longest age, and the worst status with its reason; deleted groups are omitted."""
    head, *lines, last = shown(config)
    assert [word.strip() for word in head[:5]] == ["group", "status", "partitions", "lag", "behind"]
    assert [[word.strip() for word in line[:5]] for line in lines] == [
        ["billing", "STOP", "2", "1,230", "≥ 2 h 2 min"],
        ["fraud", "UNKNOWN", "1", "-", "-"],
        ["nightly", "EMPTY", "1", "5,000", "2 d 7 h"],
        ["shipping", "OK", "2", "5", "= 0.4 s"],
        ["hostile\\x1b[2J", "OK", "1", "1", "1 s"],
    ]
    assert lines[0][-1].strip() == "no commit for 300 s"
    assert "20.0/s" in " ".join(lines[0])
    assert lines[1][-1].strip() == "topic deleted"
    assert "in 1 s" in " ".join(lines[3])
    assert "2026-03-04 12:01:00 UTC" in " ".join(last)


def test_show_lag_named_groups_or_topics_prints_one_line_per_partition(config: Config) -> None:
    """Each line has the method of its lag."""
    head, *lines, _ = shown(config, "bill*")
    assert [word.strip() for word in head[:8]] == [
        *("group", "topic", "partition", "status", "committed", "end", "lag", "behind")
    ]
    assert [[word.strip() for word in line[:8]] for line in lines] == [
        ["billing", "orders", "0", "STOP", "1,000", "2,200", "1,200", "1 min 35 s"],
        ["billing", "orders", "1", "WARN", "1,000", "1,030", "30", "≥ 2 h 2 min"],
    ]
    assert len(shown(config, topics=("ord*",))) == 2 + 7


def test_show_lag_json_prints_one_object_per_partition(config: Config) -> None:
    """One line per partition, with the values of the table."""
    out = StringIO()
    show_lag(config, groups=("billing",), topics=(), format="json", out=out)
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["status"], first["lag"], first["lag_seconds"]) == ("STOP", 1200, 95.0)
    assert (second["partition"], second["catch_up_seconds"]) == (1, None)


def test_show_lag_unknown_group_cluster_or_missing_table_raises(config: Config, tmp_path: Path) -> None:
    """A group that does not exist, a cluster without lag, a warehouse without the table."""
    with pytest.raises(
        QueryError, match="there is no lag of group bilinng in cluster default: `grouptrail show lag`"
    ):
        shown(config, "bilinng")
    with pytest.raises(QueryError, match="no lag of cluster other has landed yet: run `grouptrail run`"):
        shown(config.model_copy(update={"cluster": "other"}))
    with pytest.raises(QueryError, match="nothing has landed in consumer_lag under"):
        shown(Config(warehouse=str(tmp_path / "none")))

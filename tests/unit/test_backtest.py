"""`grouptrail backtest`: stored lag judged again by other thresholds."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest

from grouptrail.config import Config, job_settings
from grouptrail.lag.backtest import Alert, backtest
from grouptrail.query.errors import QueryError
from grouptrail.runtime.warehouses import warehouse_of
from support import small_tables


def row(minute: float, committed: int, lag: int, commit_minute: float, **more: Any) -> dict[str, Any]:
    """Return a lag row whose first unread record has waited since noon."""
    where = {"group_id": "billing", "topic": "orders", "partition": 0, "sampled_at": small_tables.at(minute)}
    position = {"committed_offset": committed, "commit_at": small_tables.at(commit_minute), "lag": lag}
    return where | position | {"lag_seconds": minute * 60 if lag else 0.0, "status": "OK"} | more


@pytest.fixture
def config(config: Config) -> Config:
    """Billing commits until 12:05, then not for ten minutes, then it catches up; shipping is well throughout."""
    rows = [row(minute / 6, 100 + minute, 10, minute / 6) for minute in range(30)]
    rows += [row(5 + minute / 6, 130, 20, 5) for minute in range(60)]
    rows += [row(15 + minute / 6, 400, 0, 15) for minute in range(30)]
    small_tables.lay(
        config,
        "consumer_lag",
        *rows,
        *({**one, "group_id": "shipping", "lag": 0, "lag_seconds": 0.0} for one in rows),
    )
    return config


def fired(config: Config, alert: Alert | None = None, *groups: str, **lag: float) -> list[dict[str, Any]]:
    out = StringIO()
    config = config.model_copy(update={"lag": config.lag.model_copy(update=lag)})
    backtest(
        warehouse_of(config),
        job_settings.lag(config),
        alert or Alert(),
        groups=groups,
        since=small_tables.at(0),
        until=small_tables.at(60),
        format="json",
        out=out,
    )
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_backtest_stopped_group_fires_when_stop_seconds_is_reached(config: Config) -> None:
    """From the first sample with the status to the first without it."""
    [alert] = fired(config, Alert(frozenset({"STOP"})))
    assert (alert["group_id"], alert["topic"], alert["partition"], alert["status"]) == (
        "billing",
        "orders",
        0,
        "STOP",
    )
    assert (alert["fired_at"], alert["ended_at"]) == ("2026-03-04T12:10:00Z", "2026-03-04T12:15:00Z")
    assert (alert["lasted_seconds"], alert["lag"]) == (300, 20)
    assert alert["reason"] == "no commit for 300 s, 20 unread, the first of them for 600 s"
    [sooner] = fired(config, Alert(frozenset({"STOP"})), stop_seconds=120)
    assert sooner["fired_at"] == "2026-03-04T12:07:00Z"
    assert fired(config, Alert(frozenset({"STOP"})), stop_seconds=900) == []


def test_backtest_for_seconds_fires_only_after_holding_that_long(config: Config) -> None:
    """As in Prometheus, a condition that ends earlier does not fire."""
    [alert] = fired(config, Alert(frozenset({"STOP"}), for_seconds=120))
    assert (alert["fired_at"], alert["lasted_seconds"]) == ("2026-03-04T12:12:00Z", 180)
    assert fired(config, Alert(frozenset({"STOP"}), for_seconds=301)) == []


def test_backtest_above_seconds_without_statuses_fires_on_lag_seconds(config: Config) -> None:
    """The status does not matter; an alert that is still firing has no end."""
    [firing] = fired(config, Alert(frozenset(), above_seconds=480))
    assert (firing["fired_at"], firing["ended_at"]) == ("2026-03-04T12:08:10Z", "2026-03-04T12:15:00Z")
    out = StringIO()
    alert = Alert(frozenset(), above_seconds=480)
    backtest(
        warehouse_of(config),
        job_settings.lag(config),
        alert,
        groups=(),
        since=small_tables.at(0),
        until=small_tables.at(12),
        format="table",
        out=out,
    )
    assert "1 alerts on 1 partitions in 72 samples, 2026-03-04T12:00:00Z to 2026-03-04T12:11:50Z" in out.getvalue()
    assert "null" in out.getvalue()


def test_backtest_group_patterns_select_groups_and_no_match_raises(config: Config) -> None:
    """An interval without samples raises, too."""
    assert len(fired(config, None, "bill*")) == 1
    assert fired(config, None, "ship*") == []
    with pytest.raises(QueryError, match=r"no lag of x\* was stored from 2026-03-04T12:00:00Z"):
        fired(config, None, "x*")


def test_backtest_empty_group_does_not_fire(config: Config) -> None:
    """Nor if it was OK at first because its lag was within the allowed lag."""
    rows = [row(20 + minute / 6, 400, 5, 15, group_state="Empty", group_id="left") for minute in range(60)]
    small_tables.lay(
        config,
        "consumer_lag",
        *(
            {**one, "status": status, "status_reason": reason}
            for one, (status, reason) in zip(
                rows, [("OK", "lag is not above 20"), ("EMPTY", "the members left the group")] * 30, strict=True
            )
        ),
    )
    assert fired(config, None, "left") == []


def test_backtest_recreated_topic_is_no_rewind(config: Config) -> None:
    """As in the verdict at that time: offsets of the earlier log do not count."""
    before = [row(20 + n / 6, 1_000, 0, 20 + n / 6, group_id="moved", log_end_offset=1_000) for n in range(6)]
    after = [row(22 + n / 6, 20, 0, 22 + n / 6, group_id="moved", log_end_offset=20) for n in range(6)]
    small_tables.lay(config, "consumer_lag", *before, *after)
    assert fired(config, None, "moved") == []


def test_backtest_members_that_have_just_started_have_not_stopped(config: Config) -> None:
    """What they are silent for is stored."""
    rows = [row(30 + n / 6, 7, 5, 0, group_id="new", silent_seconds=10.0 * n) for n in range(6)]
    small_tables.lay(config, "consumer_lag", *rows)
    assert fired(config, None, "new") == []

"""`grouptrail show group --why TOPIC-PARTITION`: what the verdict of a partition rests on."""

from __future__ import annotations

import io
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from grouptrail.config import Config
from grouptrail.lag.verdict import VerdictRule
from grouptrail.query import show_verdict as shown
from grouptrail.query.errors import QueryError
from grouptrail.runtime.warehouses import warehouse_of
from support.small_tables import at, lay

POSITION = {"topic": "big-orders", "partition": 3}
SAMPLE = {
    **POSITION,
    "log_start_offset": 0,
    "log_end_offset": 120,
    "last_stable_offset": 120,
    "committed_offset": 70,
    "commit_at": at(1),
    "lag": 50,
    "lag_seconds": 540.0,
    "lag_seconds_method": "observed",
    "lag_seconds_error": 30.0,
    "silent_seconds": 540.0,
    "usual_wait_seconds": 40.0,
    "last_wait_seconds": 35.0,
}


def judged(rule: VerdictRule, minute: float, **more: Any) -> dict[str, Any]:
    said = {"status": rule.value.status, "status_reason": "…", "rule": rule.name, "ruled_out": rule.ruled_out}
    return {**SAMPLE, **said, "sampled_at": at(minute), **more}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A group that stopped, and before that had left on purpose."""
    config = Config(warehouse=str(tmp_path))
    earlier = {"rule": None, "ruled_out": None}
    lay(
        config,
        "consumer_lag",
        {**judged(VerdictRule.KEPT_UP, 2), **earlier},
        judged(VerdictRule.LEFT_ON_PURPOSE, 6, read_before_end="all"),
        judged(VerdictRule.NO_COMMIT, 10, status_reason="no commit for 540 s"),
        {
            **judged(VerdictRule.CAUGHT_UP, 10),
            "partition": 4,
            "commit_at": None,
            "committed_offset": None,
            "lag": None,
        },
    )
    commit = {**POSITION, "committed_offset": 70, "commit_at": at(1), "record_at": at(1)}
    lay(config, "offset_commits", {**commit, "committed_offset": 69}, {**commit, "record_offset": 812})
    lay(config, "group_states", {"state": "Empty", "started_at": at(5), "record_offset": 900})
    record = {"source": "record", "at": at(5), "record_partition": 9, "record_offset": 900, "shows": "gone"}
    commit_fact = {**record, "source": "commit", "record_offset": 812, "shows": "gone 1 ms after the last commit"}
    left = {"left_at": at(5), "ended": "left", "ended_because": "gone 1 ms after", "evidence": [record, commit_fact]}
    lay(
        config,
        "memberships",
        {"member_id": "a-1", "joined_at": at(0), **left},
        {"member_id": "b-1", "joined_at": at(7)},
    )
    lay(config, "ingest_progress", {"batch_id": 0})
    return config


def said(config: Config, minute: float | None = None, partition: int = 3, format: Any = "json") -> Any:
    out = io.StringIO()
    time = None if minute is None else at(minute)
    where = (warehouse_of(config), "billing", "big-orders", partition)
    shown.show_verdict(*where, at=time, format=format, out=out)
    return json.loads(out.getvalue()) if format == "json" else out.getvalue()


def test_verdict_rests_on_the_commit_with_its_place_and_on_the_sample(config: Config) -> None:
    answer = said(config)
    assert (answer["status"], answer["rule"]) == ("STOP", "NO_COMMIT")
    assert [
        (one["source"], one["record_partition"], one["record_offset"], one["shows"]) for one in answer["evidence"]
    ] == [
        ("commit", 9, 812, "committed offset 70"),
        ("sample", None, None, "log start 0, log end 120, lag 50"),
        ("sample", None, None, "the oldest unread record is 540 s old (observed, ± 30 s)"),
        ("sample", None, None, "no commit for 540 s while a record waited"),
        ("sample", None, None, "records here usually wait 40 s for a commit, the last time 35 s"),
    ]
    assert datetime.fromisoformat(answer["evidence"][0]["at"]) == at(1)


def test_verdict_names_what_it_is_not_and_why(config: Config) -> None:
    ruled_out = said(config)["ruled_out"]
    assert [one.split(":")[0] for one in ruled_out.split("; ")] == ["UNSUBSCRIBED", "EMPTY", "EMPTY"]
    assert "nothing shows that the partition's last owner left on purpose" in ruled_out


def test_verdict_of_a_group_that_left_rests_on_how_its_members_did(config: Config) -> None:
    answer = said(config, 7)
    assert answer["rule"] == "LEFT_ON_PURPOSE"
    facts = [(one["source"], one["record_offset"], one["shows"]) for one in answer["evidence"]]
    assert facts[-4:] == [
        ("sample", None, "read when the last member was gone: all"),
        ("record", 900, "the group has no members any more"),
        ("record", 900, "a-1: left: gone 1 ms after"),
        ("commit", 812, "gone 1 ms after the last commit"),
    ]


def test_verdict_of_a_share_group_rests_on_its_deliveries(config: Config) -> None:
    came_back = {"awaiting_redelivery": 2, "most_deliveries": 4, "most_delivered_offset": 75}
    row = judged(VerdictRule.REDELIVERED, 11, delivery_complete_count=30, lag=20, **came_back)
    lay(config, "consumer_lag", row)
    answer = said(config)
    assert (answer["status"], answer["rule"]) == ("WARN", "REDELIVERED")
    assert [(one["source"], one["shows"]) for one in answer["evidence"]][::3] == [
        ("record", "start offset 70, 30 after it complete, 2 came back, of which offset 75 was delivered 4 times"),
        ("sample", "nothing acknowledged or returned for 540 s while a record waited"),
    ]


def test_verdict_of_a_polled_share_group_says_within_which_bounds_its_figures_are(config: Config) -> None:
    for minute, error, least, most in ((11, 0, "", ""), (12, 4, "at least ", "at most ")):
        lay(
            config, "consumer_lag", judged(VerdictRule.NO_COMMIT, minute, delivery_complete_count=30, lag_error=error)
        )
        source, shows = next((one["source"], one["shows"]) for one in said(config)["evidence"])
        assert (source, shows) == ("poll", f"start offset 70, {least}30 after it complete")
        assert any(f", lag {most}" in one["shows"] for one in said(config)["evidence"])


def test_verdict_as_text_has_reason_rule_and_evidence(config: Config) -> None:
    lines = said(config, format="table").splitlines()
    assert lines[0] == "billing: big-orders-3, 2026-03-04 12:10:00 UTC"
    assert lines[1] == "STOP: no commit for 540 s"
    assert lines[2] == "rule: NO_COMMIT"
    assert lines[3].startswith("ruled out: UNSUBSCRIBED: ")
    assert sum("sample" in line for line in lines[4:]) == 4


def test_verdict_without_a_commit_has_the_sample_alone(config: Config) -> None:
    sources = {one["source"] for one in said(config, partition=4)["evidence"]}
    assert sources == {"sample"}


def test_verdict_of_an_earlier_version_says_that_its_rule_was_not_kept(config: Config) -> None:
    assert "its rule was not kept" in said(config, 3, format="table")


def test_verdict_of_an_unknown_partition_or_time_is_an_error(config: Config) -> None:
    with pytest.raises(QueryError, match="no sample of big-orders-9 for billing is known by then"):
        said(config, partition=9)
    with pytest.raises(QueryError, match="no sample of big-orders-3"):
        said(config, 1)


def test_rules_that_rest_on_the_last_members_are_rules() -> None:
    assert set(shown._WITHOUT_MEMBERS) < {rule.name for rule in VerdictRule}

"""`grouptrail show group --why`: what the cause of a rebalance rests on, in the terminal, as JSON and on the page."""

from __future__ import annotations

import io
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grouptrail import cli
from grouptrail.config import Config
from grouptrail.query.errors import QueryError
from grouptrail.query.show_why import show_why
from grouptrail.runtime.warehouses import warehouse_of
from support.small_tables import at, lay

COMMIT = {
    "source": "commit",
    "at": at(4),
    "record_partition": 9,
    "record_offset": 400,
    "shows": "a-1: its session of 45000 ms expired",
}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A group with one rebalance that has its evidence, and an older one of an earlier grouptrail without."""
    config = Config(warehouse=str(tmp_path))
    lay(config, "generations", {"generation": 7, "started_at": at(5)})
    record = {**COMMIT, "source": "record", "at": at(5), "record_offset": 1512, "shows": "a member is gone"}
    lay(
        config,
        "rebalances",
        {"to_generation": 6, "at": at(1), "cause": "member_joined", "certainty": "recorded", "evidence": None},
        {"from_generation": 6, "to_generation": 7, "at": at(5), "cause": "member_expired", "certainty": "likely"}
        | {"cause_note": "or it left", "rule": "GONE_SILENT", "ruled_out": "a close", "group_kind": "classic"}
        | {"evidence": [record, COMMIT], "incarnation": 1, "members_left": ["a-1", "b-1"]},
    )
    left = {"incarnation": 1, "client_id": "a", "client_host": "/10.0.0.1", "left_at": at(5), "left_generation": 7}
    ended = {"ended": "expired", "ended_because": "its session expired", "rule": "SILENT", "ruled_out": "a close"}
    lay(
        config,
        "memberships",
        {**left, **ended, "member_id": "a-1", "evidence": [record, COMMIT]},
        {**left, **ended, "member_id": "a-1", "left_generation": 5},
        {**left, "member_id": "c-1", "ended": "left"},
    )
    lay(config, "ingest_progress", {"batch_id": 0})
    return config


def said(config: Config, generation: int, format: Any = "table") -> str:
    out = io.StringIO()
    show_why(warehouse_of(config), "billing", generation, format=format, out=out)
    return out.getvalue()


def test_why_names_the_rule_the_evidence_and_what_is_ruled_out(config: Config) -> None:
    lines = [line.rstrip() for line in said(config, 7).splitlines()]
    assert lines[:4] == [
        "billing: generation 7 after 6, 2026-03-04 12:05:00 UTC",
        "member_expired (likely): or it left",
        "rule: GONE_SILENT",
        "ruled out: a close",
    ]
    assert [line.split() for line in lines[7:9]] == [
        ["record", "2026-03-04", "12:05:00", "9", "1,512", "a", "member", "is", "gone"],
        ["commit", "2026-03-04", "12:04:00", "9", "400", *COMMIT["shows"].split()],  # type: ignore[attr-defined]
    ]


def test_why_names_how_the_members_that_are_gone_left(config: Config) -> None:
    (line,) = (line for line in said(config, 7).splitlines() if "SILENT" in line and "rule:" not in line)
    assert line.split()[:5] == ["a-1", "a", "/10.0.0.1", "expired", "SILENT"]
    (ending,) = json.loads(said(config, 7, "json"))["endings"]
    assert (ending["member_id"], ending["ended"], ending["rule"]) == ("a-1", "expired", "SILENT")
    assert [one["source"] for one in ending["evidence"]] == ["record", "commit"]


def test_why_as_json_has_the_places_of_the_evidence(config: Config) -> None:
    answer = json.loads(said(config, 7, "json"))
    assert (answer["rule"], answer["ruled_out"]) == ("GONE_SILENT", "a close")
    assert [(one["source"], one["record_offset"]) for one in answer["evidence"]] == [
        ("record", 1512),
        ("commit", 400),
    ]
    assert datetime.fromisoformat(answer["evidence"][1]["at"]) == at(4)


def test_why_of_a_row_of_an_earlier_version_says_what_to_do(config: Config) -> None:
    assert "run grouptrail rebuild history" in said(config, 6)


def test_why_of_an_unknown_generation_is_an_error(config: Config) -> None:
    with pytest.raises(QueryError, match="no rebalance to generation 8 of billing"):
        said(config, 8)


@pytest.mark.parametrize("what", [["7", "--at", "1h"], ["orders"], ["orders-"], ["-1"], ["orders-x"], [""]])
def test_why_of_neither_a_generation_nor_a_partition_is_refused(what: list[str]) -> None:
    ran = CliRunner().invoke(cli.app, ["show", "group", "billing", f"--why={what[0]}", *what[1:]])
    assert ran.exit_code == 2
    assert "--why" in ran.output

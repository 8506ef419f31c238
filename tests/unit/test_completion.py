"""Completion of names in a shell, as bash calls it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from grouptrail.cli import completion
from grouptrail.config import Config
from support.deadlines import scaled
from support.small_tables import at, lay

# Names that a shell would run, split or take for an option, if they were put into a command line.
HOSTILE = ("$(touch owned)", "`touch owned`", "a b", "-rf", "x;reboot", "x\x1b[2J", "x\ny", "!!")


@pytest.fixture
def config(config: Config) -> Config:
    state = {"state": "Stable", "started_at": at(0)}
    groups = ("billing", "billing-eu", "audit", *HOSTILE)
    lay(config, "group_states", *({**state, "group_id": name} for name in groups))
    lay(config, "group_states", {**state, "cluster": "other", "group_id": "billing-other"})
    commit = {"topic": "orders", "partition": 0, "committed_offset": 1}
    lay(
        config, "committed_offsets", {**commit, "group_id": "bills"}, {**commit, "group_id": "x", "topic": "payments"}
    )
    lay(config, "ingest_progress", {"cluster": "default"}, {"cluster": "other"})
    return config


def completed(config: Config, line: str) -> list[str]:
    """Return what is offered for a command line that ends at the cursor; stderr must be empty."""
    words = line.format(warehouse=f"--warehouse {config.warehouse}")
    cursor = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    # On a busy machine it takes longer than a user would wait.
    patient = "from grouptrail.cli import completion, main; completion._PATIENCE_SECONDS = 50; main()"
    run = subprocess.run(
        [sys.executable, "-c", patient],
        env={**os.environ, "_GROUPTRAIL_COMPLETE": "complete_bash", **cursor},
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert run.stderr == ""
    return run.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("grouptrail show group {warehouse} bil", ["billing", "billing-eu", "bills"]),
        ("grouptrail timeline {warehouse} --cluster other b", ["billing-other"]),
        ("grouptrail show lag {warehouse} --group au", ["audit"]),
        ("grouptrail show lag {warehouse} --topic p", ["payments"]),
        ("grouptrail show lag {warehouse} --cluster o", ["other"]),
        ("grouptrail tables offset_", ["offset_commits"]),
    ],
)
def test_completion_offers_names_from_the_warehouse(config: Config, line: str, expected: list[str]) -> None:
    assert completed(config, line) == expected


def test_completion_offers_no_name_that_a_shell_gives_a_meaning_to(config: Config) -> None:
    assert completed(config, "grouptrail show group {warehouse} ") == ["audit", "billing", "billing-eu", "bills", "x"]


@pytest.mark.parametrize(
    "line",
    [
        "grouptrail show group --warehouse /none/such b",
        "grouptrail show group --config /none/such.toml b",
        "grouptrail show group --set nonsense b",
        "grouptrail show lag --cluster x --set warehouse=s3://none --group b",
    ],
)
def test_completion_that_fails_offers_nothing_and_is_silent(config: Config, line: str) -> None:
    assert completed(config, line) == []


def test_completion_of_a_slow_warehouse_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "_PATIENCE_SECONDS", 0.1)
    answers = threading.Event()

    def slow() -> list[str]:
        answers.wait(60)
        return ["x_of_a_slow_warehouse"]

    monkeypatch.setattr(completion, "_tables", slow)
    try:
        assert completion.complete_table("x") == []
    finally:
        answers.set()

"""Pages and commands read a warehouse of version 0.1 before any job of this version has written to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grouptrail import cli
from grouptrail.config import Config
from support.frozen_warehouse import CLUSTER, thaw
from support.web_client import Site


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = Config(warehouse=str(tmp_path_factory.mktemp("old") / "lake"), cluster=CLUSTER)
    thaw(config)
    return config


def test_old_warehouse_has_all_pages_of_its_groups(old: Config) -> None:
    site = Site(old)
    groups = [group["group_id"] for group in json.loads(site.get("/api/v1/groups"))["groups"]]
    assert len(groups) >= 3
    for path in ("/", "/topics", "/rebalances", *(f"/groups/{name}" for name in groups)):
        site.get(path)
    (rebalance, *_) = json.loads(site.get("/api/v1/groups/billing?from=2026-11-01&to=2026-11-02"))["rebalances"]
    assert (rebalance["rule"], rebalance["evidence"]) == (None, None)


@pytest.mark.parametrize(
    "command",
    [
        ["show", "group", "billing"],
        ["show", "group", "billing", "--why", "2"],
        ["show", "group", "billing", "--why", "orders-1"],
        ["show", "lag"],
        ["sql", "SELECT * FROM rebalances"],
        ["sql", "SELECT rule, evidence FROM memberships"],
        ["sql", "SELECT * FROM rollouts"],
        ["report"],
        ["digest", "--since", "2026-11-01"],
    ],
    ids=" ".join,
)
def test_old_warehouse_answers_commands(
    old: Config, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(cli.app, [*command, "--warehouse", old.warehouse])
    assert (ran.exit_code, ran.exception) == (0, None), ran.output

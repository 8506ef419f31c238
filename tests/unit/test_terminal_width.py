"""Commands on a terminal of 80 columns: whatever is shortened or wrapped, no number is lost."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from grouptrail.config import Config
from grouptrail.query.fitted_table import LONGEST_NAME
from support.sample_groups import billing
from support.small_tables import at, lay
from support.terminal import on_terminal

COMMANDS = (
    ("show", "lag"),
    ("show", "lag", "--group", "*"),
    ("show", "group", "billing"),
    ("tables",),
    ("diff", "billing", "2026-03-04 12:20", "2026-03-04 12:23"),
    ("backtest", "--from", "2026-03-04 12:00", "--to", "2026-03-04 14:00"),
    ("check", "rebalances", "memberships"),
    ("maintain", "--dry-run"),
)
# Ages and durations differ from one run to the next.
TIMED = re.compile(r"as of .* ago|(?<=\d) +\d+\.\d *$|… \d+ s|before \d{4}-\d\d-\d\d \d\d:\d\d", re.MULTILINE)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A warehouse of its own, because `check` writes to it."""
    config = Config(warehouse=str(tmp_path_factory.mktemp("lake")))
    billing(config)
    lay(config, "ingest_progress", {"landed_at": at(60)})
    return config


def numbers(printed: str) -> Counter[str]:
    return Counter(re.findall(r"\d(?:[\d,.:]*\d)?", TIMED.sub("", printed)))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_command_at_80_columns_prints_every_number_of_a_wide_terminal(
    simulated: Config, command: tuple[str, ...]
) -> None:
    widths = {}
    for columns in (80, 300):
        status, widths[columns] = on_terminal(*command, "--warehouse", simulated.warehouse, columns=columns)
        assert status == 0, widths[columns]
    assert numbers(widths[300])
    assert numbers(widths[80]) >= numbers(widths[300])


@pytest.mark.parametrize("command", [("show", "group", "billing"), ("tables",)], ids=" ".join)
def test_command_at_80_columns_breaks_no_name(simulated: Config, command: tuple[str, ...]) -> None:
    wide, narrow = (
        on_terminal(*command, "--warehouse", simulated.warehouse, columns=columns)[1].split() for columns in (300, 80)
    )
    named = {word for word in wide if "_" in word}
    assert len(named) > 1
    assert named <= {*narrow}


def test_help_at_80_columns_has_no_longer_line() -> None:
    for command in ([], ["show", "lag"], ["digest"], ["diff"]):
        status, printed = on_terminal(*command, "-h")
        assert status == 0
        assert max(map(len, printed.splitlines())) <= 80


def test_command_with_a_group_id_of_20_000_characters_has_no_line_of_that_length(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The tables fit; a line of text has the name shortened, as a topic's longest one would be."""
    config = Config(warehouse=str(tmp_path_factory.mktemp("long")))
    name = "g" * 19_995 + "-blue"
    billing(config, group_id=name, suffix="-" + "m" * 3_000)
    lay(config, "ingest_progress", {"landed_at": at(60)})
    for command in (("show", "lag"), ("show", "lag", "--group", "*")):
        status, printed = on_terminal(*command, "--warehouse", config.warehouse)
        assert status == 0
        assert max(map(len, printed.splitlines())) <= 80
        assert "…" in printed
    for command in (("show", "group", name), ("diff", name, "2026-03-04 12:20", "2026-03-04 12:23")):
        status, printed = on_terminal(*command, "--warehouse", config.warehouse)
        assert status == 0
        assert max(map(len, printed.splitlines())) <= 80 + LONGEST_NAME
        assert "-blue" in printed

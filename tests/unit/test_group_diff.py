"""`grouptrail diff`: a group at two moments."""

from __future__ import annotations

import csv
import io
import json

import pytest
from typer.testing import CliRunner

from grouptrail import cli
from grouptrail.config import Config
from grouptrail.query.errors import QueryError
from grouptrail.query.group_diff import Difference, differences
from grouptrail.runtime.warehouses import warehouse_of
from support.sample_groups import KNOWN_UNTIL
from support.small_tables import at
from support.terminal import on_terminal


def changes(config: Config, first: float, second: float, group: str = "billing") -> dict[tuple[str, str], Difference]:
    return {(one.what, one.name): one for one in differences(warehouse_of(config), group, at(first), at(second))}


def values(one: Difference) -> tuple[str | int | None, str | int | None]:
    return one.before, one.after


def test_diff_members_and_owners_before_and_after_a_crash(simulated: Config) -> None:
    """At minute 22 billing-boris is gone, and its partitions have other owners."""
    changed = changes(simulated, 20, 23)
    assert values(changed["member", "billing-boris"]) == ("billing-boris on 10.0.0.12", None)
    assert values(changed["owner", "orders-5"]) == ("billing-boris", "billing-anna")
    assert values(changed["members", ""]) == (3, 2)
    assert changed["generation", ""].before != changed["generation", ""].after
    assert ("assignor", "") not in changed
    assert ("member", "billing-anna") not in changed


def test_diff_lag_is_that_of_the_newest_samples_before_both(simulated: Config) -> None:
    changed = changes(simulated, 30, 45)
    lags = {name: values(one) for (what, name), one in changed.items() if what == "lag"}
    assert lags
    assert values(changed["total lag", ""])[1] > values(changed["total lag", ""])[0]  # type: ignore[operator]


def test_diff_of_a_partition_that_is_added_has_no_owner_before(simulated: Config) -> None:
    assert changes(simulated, 70, 80)["owner", "orders-7"].before is None


def test_diff_in_a_quiet_time_finds_no_member_or_owner(simulated: Config) -> None:
    assert {what for what, _ in changes(simulated, 30, 31)} <= {"lag", "total lag"}


def test_diff_before_the_history_or_of_an_unknown_group_raises(simulated: Config) -> None:
    with pytest.raises(QueryError, match=r"history of 'billing' begins at 2026-03-04T12:0.*Z: give a later time"):
        list(differences(warehouse_of(simulated), "billing", at(-60), at(5)))
    with pytest.raises(QueryError, match="did you mean billing"):
        list(differences(warehouse_of(simulated), "biling", at(1), at(5)))


COMMAND = ["diff", "billing", "2026-03-04T12:20:00Z", "2026-03-04T12:23:00Z"]


def test_diff_command_on_a_terminal_of_80_columns_prints_its_parts(simulated: Config) -> None:
    status, printed = on_terminal(*COMMAND, "--warehouse", simulated.warehouse)
    assert status == 0, printed
    lines = printed.splitlines()
    assert lines[0] == "billing of cluster default, from 2026-03-04 12:20:00 UTC to 2026-03-04 12:23:00 UTC"
    assert {"Members", "Owners", "Lag"} <= set(lines)
    assert max(map(len, lines[1:])) <= 80
    assert any(line.split() == ["orders-5", "billing-boris", "billing-anna"] for line in lines)


def test_diff_command_other_formats_have_a_row_for_each_difference(simulated: Config) -> None:
    command = [*COMMAND, "--warehouse", simulated.warehouse, "--format"]
    rows = [json.loads(line) for line in CliRunner().invoke(cli.app, [*command, "json"]).output.splitlines()]
    table = csv.DictReader(io.StringIO(CliRunner().invoke(cli.app, [*command, "csv"]).output))
    wanted = {"what": "owner", "name": "orders-5", "before": "billing-boris", "after": "billing-anna"}
    assert wanted in rows
    assert wanted in list(table)
    assert "| orders-5 | billing-boris | billing-anna |" in CliRunner().invoke(cli.app, [*command, "markdown"]).output


@pytest.mark.parametrize(
    ("moments", "message"),
    [(["soon"], "'soon' is not a time"), (["now", "2h ago"], "'2h ago' is not after T1"), ([], "T1")],
)
def test_diff_command_wrong_times_exit_with_usage_error(moments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli.app, ["diff", "billing", *moments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_diff_second_moment_is_now_by_default(simulated: Config) -> None:
    command = ["diff", "billing", f"{KNOWN_UNTIL:%Y-%m-%dT%H:%M:%SZ}", "--warehouse", simulated.warehouse]
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 0, result.output

"""Which cluster of a warehouse a command is about, and the error for one that the warehouse does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from grouptrail import cli
from grouptrail.config import Config, load_config
from grouptrail.query.clusters import UnknownClusterError, stored_cluster
from grouptrail.runtime.warehouses import warehouse_of
from support.small_tables import at, lay

NO_SUCH_CLUSTER = 'the warehouse has no cluster "x": it has "a", "b"; set --cluster'
COMMANDS = (
    *("show lag", "show group billing", "report", "digest --since 2026-03-01", "timeline billing"),
    *("diff billing 2026-03-04 2026-03-05", "backtest --from 2026-03-01", "check"),
)


def lay_cluster(folder: Path, *clusters: str) -> Config:
    config = Config(warehouse=str(folder))
    for table in ("ingest_progress", "consumer_lag", "generations", "group_states", "offset_commits"):
        lay(config, table, *({"cluster": name, "started_at": at(0), "status": "OK"} for name in clusters))
    return config


def stored(warehouse: Path, cluster: str | None = None) -> str:
    config = load_config(None, {"warehouse": str(warehouse)} | ({"cluster": cluster} if cluster else {}), {})
    return stored_cluster(warehouse_of(config), is_named=cluster is not None)


def test_stored_cluster_takes_the_only_one_if_none_is_configured(tmp_path: Path) -> None:
    lay_cluster(tmp_path, "a")
    assert stored(tmp_path) == "a"
    assert stored(tmp_path, "a") == "a"


@pytest.mark.parametrize("cluster", ["x", "default"])
def test_stored_cluster_named_one_that_is_not_there_raises(tmp_path: Path, cluster: str) -> None:
    lay_cluster(tmp_path, "a")
    with pytest.raises(UnknownClusterError, match=f'no cluster "{cluster}": it has "a"; set --cluster'):
        stored(tmp_path, cluster)


def test_stored_cluster_finds_one_between_others_in_a_file(tmp_path: Path) -> None:
    """The statistics of a file name only its first and its last cluster."""
    lay_cluster(tmp_path, "a", "b", "c")
    assert stored(tmp_path, "b") == "b"
    with pytest.raises(UnknownClusterError, match='no cluster "default": it has "a", "b", "c"'):
        stored(tmp_path)


def test_stored_cluster_without_any_changes_nothing(tmp_path: Path) -> None:
    for warehouse in (tmp_path, tmp_path / "none"):
        assert stored(warehouse, "x") == "x"
    lay_cluster(tmp_path)
    assert stored(tmp_path) == "default"


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_a_cluster_that_is_not_there_print_one_line_error(command: str, tmp_path: Path) -> None:
    lay_cluster(tmp_path, "a", "b")
    result = CliRunner().invoke(cli.app, [*command.split(), "--warehouse", str(tmp_path), "--cluster", "x"])
    assert (result.exit_code, result.output) == (1, f"grouptrail: {NO_SUCH_CLUSTER}\n")


def sql(warehouse: Path, query: str, *more: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, ["sql", query, "--format", "csv", "--warehouse", str(warehouse), *more])
    return result.exit_code, result.stderr if result.exit_code else result.stdout


def test_sql_with_a_view_of_a_cluster_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    lay_cluster(tmp_path, "a", "b")
    error = f"grouptrail: {NO_SUCH_CLUSTER}\n"
    assert sql(tmp_path, "SELECT * FROM current_lag", "--cluster", "x") == (1, error)
    assert sql(tmp_path, "SELECT * FROM owners_at('billing', now())", "--cluster", "x") == (1, error)


def test_sql_with_a_view_takes_the_only_cluster_and_tables_need_none(tmp_path: Path) -> None:
    lay_cluster(tmp_path, "a")
    assert sql(tmp_path, "SELECT count(*) AS n FROM current_lag") == (0, "n\n1\n")
    assert sql(tmp_path, "SELECT count(*) AS n FROM generations", "--cluster", "x") == (0, "n\n1\n")


def test_show_lag_takes_the_only_cluster(tmp_path: Path) -> None:
    lay_cluster(tmp_path, "a")
    result = CliRunner().invoke(cli.app, ["show", "lag", "--warehouse", str(tmp_path), "--format", "csv"])
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 2

"""Damaged files: they are named, and cost their own rows; nothing ends the process or waits for ever."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pytest

from grouptrail.config import Config
from grouptrail.errors import GrouptrailError
from grouptrail.history.rows import TABLES as HISTORY
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.buckets import bucket_of
from grouptrail.storage.damage import damage_of, notes
from grouptrail.storage.engines.delta_rs import DeltaRs
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.errors import DamagedFileError, TableError
from grouptrail.storage.rows import OpenTables
from grouptrail.storage.sql_snapshot import SqlSnapshot
from grouptrail.storage.table import Table
from support.cli_in_process import run_cli
from support.damaged_files import damage, repair
from support.exporter_tables import cluster_of, configured, figures, lag_row, lay_cluster, lay_everything, now
from support.from_config import snapshot_reader
from support.sample_groups import billing
from support.small_tables import lay

_TESTS = Path(__file__).parents[1]


@pytest.fixture
def stored(tmp_path: Path) -> Table:
    """`consumer_lag` in two files, the second with the partitions 3 and 4."""
    config = configured(tmp_path)
    lay(config, "consumer_lag", *(lag_row(number) for number in range(3)))
    lay(config, "consumer_lag", *(lag_row(number) for number in range(3, 5)))
    return warehouse_of(config).table("consumer_lag")


def newest_file(table: Table) -> Path:
    return max(Path(table.path).glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)


def flip(file: Path, position: int = -5) -> None:
    """Flip the top bit of a byte, by default of the highest one of the footer's length."""
    content = bytearray(file.read_bytes())
    content[position] ^= 0x80
    file.write_bytes(content)


def zero_pages(file: Path) -> None:
    """Overwrite all but the footer."""
    content = file.read_bytes()
    footer = int.from_bytes(content[-8:-4], "little") + 8
    file.write_bytes(bytes(len(content) - footer) + content[-footer:])


def shown(table: Table) -> list[int]:
    """Return the partitions that pages and metrics see."""
    tables = OpenTables([table.location], {table.name: ("partition",)})
    tables.refresh()
    return sorted(tables.rows(f"SELECT partition FROM {table.name}")["partition"].to_pylist())


# --- random damage --------------------------------------------------------------------------------------------------


def read_damaged(folder: Path, *, first: int, count: int) -> None:
    """Read damaged warehouses in a process; it must neither end early nor wait."""
    config = configured(folder)
    lay_everything(config, *(lag_row(number, group_id="billing") for number in range(3, 5)))
    lay(config, "consumer_lag", *(lag_row(number, group_id="billing") for number in range(5, 7)))
    billing(config)
    command = [sys.executable, "-m", "support.damaged_warehouses", str(folder), str(first), str(count)]
    paths = os.pathsep.join([str(_TESTS), str(_TESTS.parent / "deploy"), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": paths, "RUST_BACKTRACE": "0"},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert ran.returncode == 0, f"exit status {ran.returncode}: {ran.stderr[-3000:]}"
    assert sum(int(line.split()[0].replace(",", "")) for line in ran.stdout.splitlines()) == count


def test_server_damaged_warehouses_answers_without_their_rows(tmp_path: Path) -> None:
    read_damaged(tmp_path, first=0, count=20)


@pytest.mark.full
@pytest.mark.parametrize("first", range(1000, 11_000, 1000))
def test_server_ten_thousand_damaged_warehouses_answers_without_their_rows(tmp_path: Path, first: int) -> None:
    read_damaged(tmp_path, first=first, count=1000)


# --- one file -------------------------------------------------------------------------------------------------------

Breaks = Callable[[Path], object]
BREAKS: dict[str, Breaks] = {
    "footer's length": flip,
    "pages": zero_pages,
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:100]),
    "empty": lambda file: file.write_bytes(b""),
    "missing": lambda file: file.unlink(),
    "pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "device": lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
    "folder": lambda file: (file.unlink(), file.mkdir()),
    "text": lambda file: file.write_text("x" * file.stat().st_size),
}


@pytest.mark.parametrize("name", BREAKS)
def test_open_tables_damaged_file_costs_its_own_rows_and_is_named(stored: Table, name: str) -> None:
    file = newest_file(stored)
    BREAKS[name](file)
    assert shown(stored) == [0, 1, 2]
    [text] = damage_of(stored.path)
    assert text.startswith(f"{file} is damaged (")
    assert "\n" not in text


@pytest.mark.parametrize("folder", ["lake", "my lake", "a=b", "späth", "a#b?c+d"])
def test_open_tables_damaged_file_of_a_partitioned_table_costs_its_own_rows(tmp_path: Path, folder: str) -> None:
    """Its files are in folders such as `open_bucket=0`, and the warehouse may be in any."""
    config = configured(tmp_path / folder)
    lay_cluster(config, cluster_of())
    table = warehouse_of(config).table("topic_partitions")
    bucket = bucket_of("orders")
    assert bucket not in (bucket_of("audit"), bucket_of("__consumer_offsets"))
    [file] = Path(table.path).glob(f"*/open_bucket={bucket}/*.parquet")
    flip(file)
    tables = OpenTables([table.location], {table.name: ("topic",)})
    tables.refresh()
    topics = tables.rows("SELECT DISTINCT topic FROM topic_partitions ORDER BY topic")["topic"].to_pylist()
    assert topics == ["__consumer_offsets", "audit"]
    [text] = damage_of(table.path)
    assert text.startswith(f"{file} is damaged (")


@pytest.mark.parametrize("name", BREAKS)
def test_job_damaged_file_raises_one_line_that_names_it(stored: Table, name: str) -> None:
    """A job must not compute from some of the rows."""
    file = newest_file(stored)
    BREAKS[name](file)
    columns = pa.schema([stored.schema.field("group_id")])
    for read in (
        lambda: stored.select("*"),
        lambda: list(stored.read(columns)),
        lambda: list(stored.new_rows(columns).fresh()),
    ):
        with pytest.raises(DamagedFileError, match=f"{file.name} is damaged .*restore it from a backup") as caught:
            read()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["footer's length", "pages", "truncated", "text"])
def test_delta_rs_damaged_file_ends_an_upsert_by_one_line_that_names_it(tmp_path: Path, name: str) -> None:
    config = configured(tmp_path)
    table = warehouse_of(config).table("history_positions")
    row = {"record_partition": 1, "group_id": "billing", "processed_to": 1, "waits": False, "state": "{}"}
    rows = pa.Table.from_pylist([row | {"open_bucket": 0}])
    lay(config, "history_positions", row | {"open_bucket": 0})
    file = next(Path(table.path).glob("**/*.parquet"))
    BREAKS[name](file)
    with pytest.raises(DamagedFileError, match=f"{file.name} is damaged"):
        DeltaRs().upsert(table.location, rows, [0], Once("job", 1))


def test_open_tables_restored_file_has_its_rows_again(stored: Table) -> None:
    file = newest_file(stored)
    content = file.read_bytes()
    flip(file)
    assert shown(stored) == [0, 1, 2]
    repair(file, content)
    assert damage_of(stored.path) == []
    assert shown(stored) == [0, 1, 2, 3, 4]


def test_open_tables_file_damaged_after_it_was_read_costs_its_own_rows(stored: Table) -> None:
    tables = OpenTables([stored.location], {stored.name: ("partition",)})
    tables.refresh()
    query = f"SELECT partition FROM {stored.name}"
    assert len(tables.rows(query)) == 5
    zero_pages(newest_file(stored))
    assert len(tables.rows(query)) == 3


def test_open_tables_file_of_another_table_costs_its_own_rows(stored: Table, tmp_path: Path) -> None:
    """Arrow can read it, but it lacks the columns."""
    lay(configured(tmp_path), "topic_names", {"topic_id": "a", "topic": "orders", "learned_from": "commit"})
    other = next((tmp_path / "topic_names").glob("*.parquet")).read_bytes()
    newest_file(stored).write_bytes(other)
    assert shown(stored) == [0, 1, 2]


def test_open_tables_damaged_partitioned_table_has_the_other_partitions(tmp_path: Path) -> None:
    config = configured(tmp_path)
    billing(config)
    states = warehouse_of(config).table("group_states")
    files = sorted(Path(states.path).glob("**/*.parquet"))
    whole = len(states.select("*"))
    flip(files[0])
    tables = OpenTables([states.location], {"group_states": ("group_id",)})
    tables.refresh()
    rows = tables.rows("SELECT cluster, group_id, open_bucket FROM group_states")
    assert 0 < len(rows) < whole or len(files) == 1
    assert set(rows["cluster"].to_pylist()) <= {config.cluster}


def test_open_tables_column_added_later_is_null_beside_a_damaged_file(stored: Table) -> None:
    flip(newest_file(stored))
    log = Path(stored.path) / "_delta_log" / f"{0:020}.json"
    field = r"{\"name\":\"lost_records\",\"type\":\"long\",\"nullable\":true,\"metadata\":{}},"
    assert field in log.read_text()
    log.write_text(log.read_text().replace(field, ""))
    tables = OpenTables([stored.location], {stored.name: ("partition", "lost_records")})
    tables.refresh()
    rows = tables.rows("SELECT partition, lost_records FROM consumer_lag ORDER BY partition")
    assert rows.to_pylist() == [{"partition": number, "lost_records": None} for number in range(3)]


def test_sql_snapshot_column_of_a_damaged_log_is_a_name_and_no_sql(stored: Table) -> None:
    for log in (Path(stored.path) / "_delta_log").glob("*.json"):
        log.write_text(log.read_text().replace(r"\"lost_records\"", r"\"lost+records\""))
    tables = SqlSnapshot(warehouse_of(Config(warehouse=str(Path(stored.path).parent))), [stored.name])
    assert tables.rows("SELECT count(partition) AS n, max(lost_records) AS lost FROM consumer_lag") == [
        {"n": 5, "lost": None}
    ]


# --- paths ----------------------------------------------------------------------------------------------------------


def point_outside(table: Table, path: str) -> None:
    """Have the table's newest commit name a file by another path."""
    log = max((Path(table.path) / "_delta_log").glob("*.json"))
    log.write_text(log.read_text().replace(f'"path":"{newest_file(table).name}"', f'"path":"{path}"'))


@pytest.mark.parametrize(
    "form", ["../../{name}", "{folder}/{name}", "file://{folder}/{name}", "%2e%2e/%2e%2e/{name}"]
)
def test_table_path_in_the_log_that_leads_out_is_not_read(stored: Table, tmp_path: Path, form: str) -> None:
    """Somebody who may write to the warehouse must not have other Parquet files shown."""
    outside = tmp_path.parent
    file = newest_file(stored)
    shutil.copy(file, outside)
    point_outside(stored, form.format(name=file.name, folder=outside))
    assert shown(stored) == [0, 1, 2]
    assert "it is outside the table's folder" in damage_of(stored.path)[0]
    with pytest.raises(DamagedFileError, match="outside"):
        stored.select("*")
    (outside / file.name).unlink()


def test_table_file_whose_name_in_the_log_is_damaged_costs_its_own_rows(stored: Table) -> None:
    point_outside(stored, r"\u0000\u0000.parquet")
    assert shown(stored) == [0, 1, 2]
    assert "its name is damaged" in damage_of(stored.path)[0]
    with pytest.raises(DamagedFileError):
        stored.select("*")


def test_table_link_that_leads_out_is_not_read(stored: Table, tmp_path: Path) -> None:
    file = newest_file(stored)
    outside = tmp_path.parent / f"{file.name}.outside"
    shutil.move(file, outside)
    file.symlink_to(outside)
    assert shown(stored) == [0, 1, 2]
    outside.unlink()


def test_table_link_within_its_folder_is_read(stored: Table) -> None:
    file = newest_file(stored)
    inside = file.with_name("moved.parquet")
    shutil.move(file, inside)
    file.symlink_to(inside)
    assert shown(stored) == [0, 1, 2, 3, 4]


# --- logs -----------------------------------------------------------------------------------------------------------


def newest_log(table: Table) -> Path:
    return max((Path(table.path) / "_delta_log").glob("*.json"))


def test_open_tables_damaged_log_keeps_the_last_version_and_the_other_tables(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay_everything(config)
    reader = snapshot_reader(config)
    before = reader.read()
    lay(config, "rebalances", {"cause": "member_left", "at": now() + timedelta(minutes=1)})
    rebalances = warehouse_of(config).table("rebalances")
    newest_log(rebalances).write_bytes(b"\0\xff")
    after = reader.read()
    assert after.rebalances.equals(before.rebalances)
    assert after.lag.equals(before.lag)
    assert list(after.damage) == ["rebalances"]


def test_snapshot_table_whose_log_cannot_be_read_is_missing_after_a_start(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay_everything(config)
    newest_log(warehouse_of(config).table("rebalances")).write_bytes(b"\0\xff")
    snapshot = snapshot_reader(config).read()
    assert len(snapshot.rebalances) == 0
    assert len(snapshot.lag) > 0
    assert "cannot be read" in snapshot.damage["rebalances"][0]


@pytest.mark.parametrize("is_log", [True, False])
def test_snapshot_table_that_only_a_page_reads_is_no_longer_damaged_once_it_is_restored(
    tmp_path: Path, *, is_log: bool
) -> None:
    config = configured(tmp_path)
    lay_everything(config)
    billing(config)
    log = newest_log(warehouse_of(config).table("memberships"))
    whole = log.read_text()
    name = newest_file(warehouse_of(config).table("memberships")).name
    log.write_text("{" if is_log else whole.replace(name, f"other-{name}"))
    SqlSnapshot(warehouse_of(config), ["memberships"])
    reader = snapshot_reader(config)
    assert list(reader.read().damage) == ["memberships"]
    log.write_text(whole)
    assert reader.read().damage == {}


def test_snapshot_without_any_readable_table_raises(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay_everything(config)
    for log in tmp_path.glob("*/_delta_log/*.json"):
        log.write_bytes(b"\0\xff")
    with pytest.raises(TableError, match="cannot be read"):
        snapshot_reader(config).read()


def test_snapshot_table_without_a_column_that_it_needs_costs_its_own_rows(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay_everything(config)
    for log in (tmp_path / "generations" / "_delta_log").glob("*.json"):
        log.write_text(log.read_text().replace(r"\"generation\"", r"\"generatiom\""))
    snapshot = snapshot_reader(config).read()
    assert len(snapshot.lag) > 0
    assert "it has no column generation" in snapshot.damage["generations"][0]


def test_open_table_pipe_in_place_of_the_last_checkpoint_raises_at_once(stored: Table) -> None:
    os.mkfifo(Path(stored.path) / "_delta_log" / "_last_checkpoint")
    with pytest.raises(GrouptrailError, match="no regular file"):
        stored.open()


# --- what people see ------------------------------------------------------------------------------------------------


def test_metrics_damaged_files_are_counted_by_table(tmp_path: Path) -> None:
    from grouptrail.exporter.families import pipeline_families

    config = configured(tmp_path)
    lay_everything(config)
    for file in (tmp_path / "rebalances").glob("**/*.parquet"):
        flip(file)
    snapshot = snapshot_reader(config).read()
    counted = figures(pipeline_families(snapshot, dropped={}), "grouptrail_damaged_files")
    assert counted["rebalances",] == len(list((tmp_path / "rebalances").glob("**/*.parquet")))
    assert counted["consumer_lag",] == 0


@pytest.mark.parametrize("format", ["table", "csv"])
def test_sql_damaged_file_has_the_other_rows_and_a_note(stored: Table, format: str) -> None:
    file = newest_file(stored)
    flip(file)
    config = Config(warehouse=str(Path(stored.path).parent))
    finished = run_cli(config, "sql", "SELECT max(partition) AS n FROM consumer_lag", "--format", format)
    assert finished.returncode == 0
    assert "2" in [line.strip("│ ") for line in finished.printed.splitlines()]
    assert f"rows are missing: {file} is damaged" in finished.printed


def test_sql_table_whose_log_cannot_be_read_is_named(stored: Table) -> None:
    newest_log(stored).write_bytes(b"\0\xff")
    config = Config(warehouse=str(Path(stored.path).parent))
    finished = run_cli(config, "sql", "SELECT count(*) AS n FROM consumer_lag")
    assert finished.returncode == 1
    assert f"{stored.path} cannot be read" in finished.printed


def test_show_group_without_its_generations_does_not_say_that_it_never_had_members(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay(config, "ingest_progress", {"record_partition": 7, "batch_id": 0, "start_offset": 0, "end_offset": 50})
    billing(config)
    commit = {"topic": "orders", "partition": 0, "committed_offset": 5, "record_at": now()}
    lay(config, "offset_commits", {"group_id": "billing", **commit})
    for file in (tmp_path / "generations").glob("**/*.parquet"):
        flip(file)
    finished = run_cli(config, "show", "group", "billing")
    assert finished.returncode == 0
    assert "is damaged (it does not end as a Parquet file does)" in finished.printed.splitlines()[0]
    assert "no members" not in finished.printed


def test_check_damaged_file_is_named(stored: Table) -> None:
    file = newest_file(stored)
    flip(file)
    config = Config(warehouse=str(Path(stored.path).parent))
    finished = run_cli(config, "check")
    assert finished.returncode == 1
    assert file.name in finished.printed


def test_notes_many_damaged_files_are_a_few_lines() -> None:
    assert len(notes([f"{number} is damaged" for number in range(5)])) == 5
    lines = notes([f"{number:04} is damaged" for number in range(2000)])
    assert lines[0].startswith("rows are missing: 0000 is damaged: restore it from a backup")
    assert lines[5:] == ["and 1,995 more: `grouptrail repair` lists them"]


COMMANDS = (
    *(
        ("show", "group", "billing"),
        ("show", "group", "billing", "--format", "json"),
        ("show", "lag", "--group", "billing"),
    ),
    *(("timeline", "billing"), ("diff", "billing", "2d ago", "now"), ("report",), ("digest",)),
    *(("tables",), ("sql", "SELECT * FROM rebalances"), ("check",), ("maintain", "--dry-run"), ("repair",)),
)


@pytest.mark.full
def test_commands_whole_tables_damaged_end_without_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One table after the other, and each with each other one of the history."""
    monkeypatch.chdir(tmp_path)
    config = configured(tmp_path / "warehouse")
    lay_everything(config, *(lag_row(number, group_id="billing") for number in range(3, 5)))
    billing(config)
    tables = sorted(log.parent.name for log in Path(config.warehouse).glob("*/_delta_log"))
    for some in [*combinations(tables, 1), *combinations([*HISTORY, "history_positions", "consumer_lag"], 2)]:
        files = [file for table in some for file in (Path(config.warehouse) / table).glob("**/*.parquet")]
        for file in files:
            flip(file)
        for command in COMMANDS:
            finished = run_cli(config, *command)
            assert finished.returncode in (0, 1), f"{some}, {command}: {finished.printed}"
        for file in files:
            flip(file)


def test_damage_same_seed_same_damage(tmp_path: Path) -> None:
    contents = set()
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(bytes(range(256)) * 20)
        damage(random.Random(7), tmp_path / name, "anywhere", [tmp_path / name])
        contents.add((tmp_path / name).read_bytes())
    assert len(contents) == 1

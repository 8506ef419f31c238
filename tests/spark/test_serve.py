"""`grouptrail serve-sql` and `grouptrail views install`, each in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from grouptrail.config import Config
from grouptrail.contracts import tables, views
from grouptrail.spark.java import find_java, java_environment
from support.cli_process import Grouptrail

pytestmark = pytest.mark.spark
CLIENTS = Path(__file__).resolve().parents[2] / "docs" / "sql-clients.md"
BEELINE = Path(pyspark.__path__[0]) / "bin" / "beeline"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def served(shop: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int, str]]:
    """Return the ports of Spark Connect and of the Thrift server, and the output of the command."""
    connect, thrift = free_port(), free_port()
    own = tmp_path_factory.mktemp("serve")
    config = own / "grouptrail.toml"
    config.write_text('[spark]\n"spark.driver.memory" = "1g"\n')
    server = Grouptrail(
        shop, "serve-sql", "--config", str(config), "--connect-port", str(connect), "--thrift-port", str(thrift),
        environ={"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    said = ""
    for line in server.lines():
        said += line
        if line.startswith("the schema grouptrail has"):
            break
    yield connect, thrift, said
    server.process.send_signal(signal.SIGINT)
    server.finished()
    assert server.process.returncode == 0


def beeline(port: int, statement: str) -> subprocess.CompletedProcess[str]:
    """Return the output of beeline, as CSV."""
    command = [
        str(BEELINE),
        "-u",
        f"jdbc:hive2://127.0.0.1:{port}/grouptrail",
        "--outputformat=csv2",
        "--silent=true",
    ]
    return subprocess.run(
        [*command, "-e", statement],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **java_environment(find_java())},
    )  # fmt: skip


def test_serve_sql_reports_its_urls_and_counts_of_tables_views_and_functions(served: tuple[int, int, str]) -> None:
    connect, thrift, said = served
    laid = {table for table in tables() if table in {name for view in views().values() for name in view.tables}}
    assert f"sc://127.0.0.1:{connect}" in said
    assert f"jdbc:hive2://127.0.0.1:{thrift}/grouptrail" in said
    plain = [view.name for view in views().values() if not view.parameters]
    assert f"{len(laid)} tables, {len(plain)} views, {len(views()) - len(plain)} functions" in said


def test_serve_sql_documented_beeline_queries_return_their_rows(served: tuple[int, int, str]) -> None:
    """The queries of docs/sql-clients.md, run with pyspark's beeline: views, functions and their default
    arguments."""
    [block] = re.findall(r"^```sh\n(beeline .*?)^```$", CLIENTS.read_text(), re.MULTILINE | re.DOTALL)
    command = block.replace(":10000/", f":{served[1]}/").replace("beeline -u", f"{BEELINE} --outputformat=csv2 -u")
    environ = {**os.environ, **java_environment(find_java())}
    run = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False, env=environ)
    assert [line for line in run.stdout.splitlines() if line.strip()] == [
        "group_id,status", "replay,REWIND", "billing,STALL", "audit,UNKNOWN",
        "partition,member_id", "0,b", "1,d", "2,d",
        "rebalances,main_cause", "4,member_joined",
    ], run.stderr  # fmt: skip


def test_serve_sql_documented_spark_connect_query_returns_its_rows(served: tuple[int, int, str]) -> None:
    """The Spark Connect example of docs/sql-clients.md."""
    [block] = re.findall(r"^```python\n(from pyspark.sql .*?)^```$", CLIENTS.read_text(), re.MULTILINE | re.DOTALL)
    program = block.replace(":15002", f":{served[0]}")
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)
    cells = [line.strip("|").split("|") for line in run.stdout.splitlines() if line.startswith("|orders|")]
    owners = [(int(partition), member.strip()) for _, partition, member in cells]
    assert sorted(owners) == [(0, "b"), (1, "d"), (2, "d")], run.stderr


@pytest.mark.parametrize(
    "statement", ["DELETE FROM memberships", "INSERT INTO memberships SELECT * FROM memberships"]
)
def test_serve_sql_write_statement_fails_and_leaves_the_table_unchanged(
    served: tuple[int, int, str], shop: Config, statement: str
) -> None:
    """Clients see views, which cannot be written to."""
    from deltalake import DeltaTable

    before = DeltaTable(shop.table_path("memberships")).version()
    assert beeline(served[1], statement).returncode != 0
    assert DeltaTable(shop.table_path("memberships")).version() == before


def test_serve_sql_listens_on_loopback_only(served: tuple[int, int, str]) -> None:
    """The ports do not accept connections on the machine's other addresses."""
    listening = Path("/proc/net/tcp6").read_text() + Path("/proc/net/tcp").read_text()
    for port in served[:2]:
        lines = [line.split()[1] for line in listening.splitlines() if f":{port:04X} 00" in line]
        assert lines
        assert all("0100007F:" in address for address in lines), lines


def _toml(folder: Path, lasting: bool) -> Path:
    file = folder / "grouptrail.toml"
    settings = {"spark.sql.warehouse.dir": f"{folder}/managed", "spark.driver.memory": "1g"}
    if lasting:
        settings["spark.sql.catalogImplementation"] = "hive"
        settings["spark.hadoop.javax.jdo.option.ConnectionURL"] = f"jdbc:derby:;databaseName={folder}/db;create=true"
    file.write_text("[spark]\n" + "".join(f'"{name}" = "{value}"\n' for name, value in settings.items()))
    return file


@pytest.mark.full
def test_views_install_hive_catalog_is_visible_to_another_session(shop: Config, tmp_path: Path) -> None:
    """Another session finds them and may install them again."""
    config = str(_toml(tmp_path, lasting=True))
    printed = Grouptrail(shop, "views", "install", "--config", config, "--schema", "kafka").finished()
    assert "kafka has 9 tables, 6 views and 15 functions of cluster default" in printed
    program = (
        "import sys; from grouptrail.config import load_config; from grouptrail.spark.session import start_session\n"
        "from grouptrail.query.spark.catalog import install\n"
        "config = load_config(sys.argv[1], {'warehouse': sys.argv[2]})\n"
        "spark = start_session(config, 'other')\n"
        "print(len(install(spark, config, schema='kafka').functions), end=' ')\n"
        "for query in sys.argv[3:]: print(len(spark.sql(query).collect()), end=' ')\n"
    )
    queries = ["SELECT * FROM vanished_groups", "SELECT * FROM owners_at('billing', '2026-03-04 12:01:30')"]
    run = subprocess.run(
        [sys.executable, "-c", program, config, shop.warehouse, *queries],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert run.stdout == "15 1 3 ", run.stderr[-2000:]


def test_views_install_in_memory_catalog_exits_with_an_error(shop: Config, tmp_path: Path) -> None:
    """An in-memory catalog would be lost when the command ends."""
    command = Grouptrail(shop, "views", "install", "--config", str(_toml(tmp_path, lasting=False)))
    assert "this session's catalog is in memory" in command.finished()
    assert command.process.returncode == 1

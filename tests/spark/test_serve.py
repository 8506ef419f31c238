"""`grouptrail serve-sql` and `grouptrail views install`, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import grpc
import pytest
from deltalake import DeltaTable
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from grouptrail.config import Config
from grouptrail.contracts import views
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.spark.java import find_java, java_environment
from support import connect_requests
from support.cli_process import Grouptrail
from support.deadlines import scaled
from support.sample_history import LAID
from support.sql_server import BEELINE, SECRET, Server, beeline, listening_ports

CLIENTS = Path(__file__).resolve().parents[2] / "docs" / "sql-clients.md"

# What an attacker sends over JDBC; {folder} is where it tries to write.
JDBC_ATTACKS = {
    "transform": "SELECT TRANSFORM(1) USING 'touch {folder}/transform'",
    "file": "SELECT * FROM text.`/etc/passwd`",
    "file_in_subquery": "SELECT (SELECT max(value) FROM text.`/etc/passwd`)",
    "path": "SELECT * FROM delta.`{path}`",
    "reflect": "SELECT reflect('java.lang.System', 'getenv', 'PATH')",
    "java_method": "SELECT java_method('java.lang.System', 'getenv', 'PATH')",
    "insert_directory": "INSERT OVERWRITE DIRECTORY '{folder}/csv' USING csv SELECT 1",
    "insert": "INSERT INTO grouptrail_tables.memberships SELECT * FROM grouptrail.memberships",
    "delete": "DELETE FROM grouptrail_tables.memberships",
    "delete_path": "DELETE FROM delta.`{path}`",
    "vacuum": "VACUUM grouptrail_tables.memberships",
    "add_jar": "ADD JAR /etc/hostname",
    "set": "SET spark.sql.ansi.enabled=false",
    "show_settings": "SET",
    "create_function": "CREATE FUNCTION own AS 'java.lang.String'",
    "drop": "DROP TABLE grouptrail_tables.rebalances",
}


@pytest.fixture(scope="module")
def served(example: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with its defaults."""
    server = Server(example, tmp_path_factory.mktemp("serve"))
    yield server
    server.stop()


def test_serve_sql_reports_its_urls_and_counts_of_tables_views_and_functions(served: Server) -> None:
    said = served.said
    assert f"sc://127.0.0.1:{served.connect}" in said
    assert f"jdbc:hive2://127.0.0.1:{served.thrift}/grouptrail" in said
    assert "only this user may connect, and only to run queries" in said
    plain = [view.name for view in views().values() if not view.parameters]
    assert f"{len(LAID)} tables, {len(plain)} views, {len(views()) - len(plain)} functions" in said


def test_serve_sql_documented_beeline_queries_return_their_rows(served: Server) -> None:
    """The queries of docs/sql-clients.md, run with pyspark's beeline: views, functions and their default
    arguments."""
    [block] = re.findall(r"^```sh\n(beeline .*?)^```$", CLIENTS.read_text(), re.MULTILINE | re.DOTALL)
    command = block.replace(":10000/", f":{served.thrift}/").replace(
        "beeline -u", f"{BEELINE} --outputformat=csv2 -u"
    )
    environ = {**os.environ, **java_environment(find_java())}
    run = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=scaled(120), check=False, env=environ
    )
    assert [line for line in run.stdout.splitlines() if line.strip()] == [
        "group_id,status", "replay,REWIND", "billing,STALL", "audit,UNKNOWN",
        "partition,member_id", "0,b", "1,d", "2,d",
        "rebalances,main_cause", "4,member_joined",
    ], run.stderr  # fmt: skip


def test_serve_sql_documented_spark_connect_query_returns_its_rows(served: Server) -> None:
    """The Spark Connect example of docs/sql-clients.md."""
    [block] = re.findall(r"^```python\n(from pyspark.sql .*?)^```$", CLIENTS.read_text(), re.MULTILINE | re.DOTALL)
    program = block.replace(":15002", f":{served.connect}")
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=scaled(200), check=False
    )
    cells = [line.strip("|").split("|") for line in run.stdout.splitlines() if line.startswith("|orders|")]
    owners = [(int(partition), member.strip()) for _, partition, member in cells]
    assert sorted(owners) == [(0, "b"), (1, "d"), (2, "d")], run.stderr


@pytest.fixture(scope="module")
def jdbc(served: Server, example: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What a JDBC client got for each attack; nothing was written and nothing has changed."""
    folder = tmp_path_factory.mktemp("attacked")
    path = warehouse_of(example).table("memberships").path
    version = DeltaTable(path).version()
    script = folder / "attacks.sql"
    script.write_text(
        "".join(
            f"SELECT 'attack {name}' AS mark;\n{text.format(folder=folder, path=path)};\n"
            for name, text in JDBC_ATTACKS.items()
        )
        + "SELECT 'attack none' AS mark;\nSELECT count(*) AS n FROM rebalances;\n"
    )
    run = beeline(served.thrift, "--force=true", "--verbose=false", "-f", str(script))
    # Results and errors have pipes of their own: an attack was answered if a line follows its mark.
    # Where it has no terminal, beeline puts "null" and blanks in front of some lines.
    printed = re.sub(r"^(null\s*)+", "", run.stdout, flags=re.MULTILINE)
    answered = re.split(r"^attack (\w+)$\n", printed, flags=re.MULTILINE)
    yield dict(zip(answered[1::2], answered[2::2], strict=True)) | {"errors": run.stderr}
    assert [file.name for file in folder.iterdir()] == ["attacks.sql"]
    assert DeltaTable(path).version() == version


@pytest.mark.parametrize("attack", JDBC_ATTACKS)
def test_serve_sql_attack_over_jdbc_is_refused(jdbc: dict[str, str], attack: str) -> None:
    """Only the header of the next mark follows the mark of an attack."""
    assert [line for line in jdbc[attack].splitlines() if line not in ("", "mark")] == []
    assert "root:" not in jdbc[attack]


def test_serve_sql_jdbc_client_reads_on_after_attacks(jdbc: dict[str, str], example: Config) -> None:
    """The table that an attack tries to drop is still there, and every attack has an error."""
    assert jdbc["none"].split() == [
        "n",
        str(len(DeltaTable(warehouse_of(example).table("rebalances").path).to_pyarrow_table())),
    ]
    assert jdbc["errors"].count("Error: ") == len(JDBC_ATTACKS)


def test_serve_sql_jdbc_metadata_lists_tables_and_columns(served: Server, tmp_path: Path) -> None:
    """The calls with which BI tools list schemas, tables, columns and types."""
    script = tmp_path / "metadata.sql"
    calls = ("metadata getCatalogs", "metadata getSchemas", "metadata getTableTypes", "metadata getTypeInfo")
    script.write_text("".join(f"!{call}\n" for call in (*calls, "tables", "columns worst_groups")))
    said = beeline(served.thrift, "-f", str(script)).stdout
    for text in ("TABLE_CAT", "grouptrail_tables,", "VIEW", "TIMESTAMP,93", ",worst_groups,VIEW", ",severity,4,INT"):
        assert text in said, text


@pytest.mark.parametrize(
    "options", ["?spark.sql.variable.substitute=true", "?spark.sql.catalog.own=java.lang.String", "?system:own=1"]
)
def test_serve_sql_jdbc_settings_of_a_session_are_refused(served: Server, options: str) -> None:
    run = beeline(served.thrift, "-e", "SELECT 'connec' || 'ted'", options=options)
    assert "is refused, because this server only answers queries" in run.stderr
    assert "connected" not in run.stdout


@pytest.fixture(scope="module")
def connect(
    served: Server, example: Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, list[str]]]:
    """What a client of Spark Connect got for each request; nothing was written and nothing has changed."""
    folder = tmp_path_factory.mktemp("attacked")
    path = warehouse_of(example).table("memberships").path
    version = DeltaTable(path).version()
    url = f"sc://127.0.0.1:{served.connect}"
    run = subprocess.run(
        [sys.executable, connect_requests.__file__, url, str(folder), path],
        capture_output=True, text=True, timeout=scaled(280), check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    yield json.loads(run.stdout.splitlines()[-1])
    assert list(folder.iterdir()) == []
    assert DeltaTable(path).version() == version


@pytest.mark.parametrize("name", connect_requests.QUERIES)
def test_serve_sql_connect_client_may_query(connect: dict[str, list[str]], name: str) -> None:
    assert connect[name][0] == "answered", connect[name][1]


@pytest.mark.parametrize("name", connect_requests.ATTACKS)
def test_serve_sql_attack_over_connect_is_refused(connect: dict[str, list[str]], name: str) -> None:
    outcome, message = connect[name]
    assert outcome == "refused", message
    assert re.search(r"PERMISSION_DENIED|UNRESOLVED_ROUTINE", message), message
    assert "root:" not in message


def test_serve_sql_jvm_has_no_settings_of_grouptrail_in_its_environment(served: Server) -> None:
    environment = Path(f"/proc/{served.jvm}/environ").read_text()
    assert "PATH=" in environment
    assert SECRET not in environment
    assert "GROUPTRAIL_" not in environment


def test_serve_sql_ports_of_the_jvm_refuse_clients_that_go_around_the_gateway(served: Server) -> None:
    """Spark's own server of Spark Connect demands a token; no port speaks HiveServer2's protocol."""
    ports = listening_ports(served.jvm)
    assert not ports & {served.connect, served.thrift}
    request = base_pb2.AnalyzePlanRequest(session_id="00112233-4455-6677-8899-aabbccddeeff")
    request.spark_version.SetInParent()
    codes = []
    for port in ports:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as caught:
            base_pb2_grpc.SparkConnectServiceStub(channel).AnalyzePlan(request, timeout=scaled(5))
        codes.append(caught.value.code())
        with socket.create_connection(("127.0.0.1", port), timeout=scaled(5)) as client:
            client.settimeout(2)
            client.sendall(b"\x01\x00\x00\x00\x05PLAIN\x02\x00\x00\x00\x0b\x00user\x00secret")
            with contextlib.suppress(OSError):
                assert not client.recv(5).startswith(b"\x05")
    assert grpc.StatusCode.UNAUTHENTICATED in codes


def test_serve_sql_malformed_messages_end_only_their_connection(served: Server) -> None:
    """Random messages after a login: each gets an error or the end of its connection, and the server serves on."""
    random = Random(23)
    for number in range(60):
        name = (b"OpenSession", b"ExecuteStatement", b"GetDelegationToken", b"")[number % 4]
        message = b"\x80\x01\x00\x01" + struct.pack(">I", len(name)) + name + bytes(4) + random.randbytes(number)
        with socket.create_connection(("127.0.0.1", served.thrift), timeout=scaled(30)) as client:
            client.sendall(b"\x01\x00\x00\x00\x05PLAIN\x02\x00\x00\x00\x04\x00u\x00p")
            assert client.recv(5) == b"\x05\x00\x00\x00\x00"
            client.sendall(struct.pack(">I", len(message)) + message)
            answer = client.recv(4096)
            assert not answer or answer[7] == 3, answer  # an exception
    for garbage in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 40):
        with socket.create_connection(("127.0.0.1", served.thrift), timeout=scaled(30)) as client:
            client.sendall(garbage)
            with contextlib.suppress(ConnectionResetError):
                assert not client.recv(5).startswith(b"\x05")
    assert beeline(served.thrift, "-e", "SELECT 'serves ' || 'on'").stdout.strip().endswith("serves on")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a client as another user")
def test_serve_sql_other_user_of_the_machine_is_refused(served: Server) -> None:
    """Without a token only the user who runs the server may connect, here root."""
    program = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); " + (
        "s.sendall(b'\\1\\0\\0\\0\\5PLAIN\\2\\0\\0\\0\\4\\0u\\0p'); print(s.recv(200))"
    )
    command = ["/usr/bin/python3", "-I", "-c", program, str(served.thrift)]
    theirs = subprocess.run(command, capture_output=True, text=True, check=False, user="nobody", cwd="/")
    assert "only the user who runs this server may connect" in theirs.stdout, theirs.stderr
    ours = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ours.stdout.startswith("b'\\x05")


def test_serve_sql_listens_on_loopback_only(served: Server) -> None:
    """The ports do not accept connections on the machine's other addresses."""
    listening = Path("/proc/net/tcp6").read_text() + Path("/proc/net/tcp").read_text()
    for port in (served.connect, served.thrift):
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
def test_views_install_hive_catalog_is_visible_to_another_session(example: Config, tmp_path: Path) -> None:
    """Another session finds them and may install them again."""
    config = str(_toml(tmp_path, lasting=True))
    printed = Grouptrail(example, "views", "install", "--config", config, "--schema", "kafka").finished()
    assert "kafka has 9 tables, 6 views and 15 functions of cluster default" in printed
    program = (
        "import sys; from grouptrail.config import load_config; from grouptrail.spark.session import start_session\n"
        "from grouptrail.runtime.warehouses import session_settings, warehouse_of\n"
        "from grouptrail.query.spark.catalog import install\n"
        "config = load_config(sys.argv[1], {'warehouse': sys.argv[2]})\n"
        "spark = start_session(session_settings(config), 'other')\n"
        "print(len(install(warehouse_of(config, spark), schema='kafka').functions), end=' ')\n"
        "for query in sys.argv[3:]: print(len(spark.sql(query).collect()), end=' ')\n"
    )
    queries = ["SELECT * FROM vanished_groups", "SELECT * FROM owners_at('billing', '2026-03-04 12:01:30')"]
    run = subprocess.run(
        [sys.executable, "-c", program, config, example.warehouse, *queries],
        capture_output=True, text=True, timeout=scaled(280), check=False,
    )  # fmt: skip
    assert run.stdout == "15 1 3 ", run.stderr[-2000:]


def test_views_install_in_memory_catalog_exits_with_an_error(example: Config, tmp_path: Path) -> None:
    """An in-memory catalog would be lost when the command ends."""
    command = Grouptrail(example, "views", "install", "--config", str(_toml(tmp_path, lasting=False)))
    assert "this session's catalog is in memory" in command.finished()
    assert command.process.returncode == 1

"""`grouptrail serve-sql` with a token and TLS, and with --allow-writes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grouptrail.config import Config
from support.certificates import self_signed, trust_store
from support.deadlines import scaled
from support.sql_server import Server, beeline

TOKEN = "0123456789abcdef-of-the-clients"


@pytest.fixture(scope="module")
def protected(example: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server on all addresses, with a token and TLS, and a folder with its certificate."""
    folder = tmp_path_factory.mktemp("protected")
    certificate, key = self_signed(folder, "localhost")
    token = folder / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    server = Server(
        example, folder, "--host", "0.0.0.0", "--token-file", str(token), "--tls-certificate", str(certificate),
        "--tls-key", str(key),
    )  # fmt: skip
    yield server, folder
    server.stop()


@pytest.mark.parametrize(("password", "answer"), [(TOKEN, "20"), ("guessed", None), ("", None)])
def test_serve_sql_jdbc_token_is_the_password(
    protected: tuple[Server, Path], tmp_path: Path, password: str, answer: str | None
) -> None:
    server, folder = protected
    trusted = tmp_path / "trusted.p12"
    trust_store(folder / "certificate.pem", trusted, "changeit")
    run = beeline(
        server.thrift, "-n", "anyone", "-p", password, "-e", "SELECT count(*) FROM memberships",
        options=f";ssl=true;sslTrustStore={trusted};trustStorePassword=changeit",
    )  # fmt: skip
    if answer is None:
        assert "give the server's token as the password" in run.stderr
        assert run.returncode != 0
    else:
        assert run.stdout.split()[-1] == answer, run.stderr


@pytest.mark.parametrize(("token", "answer"), [(f";token={TOKEN}", "20"), (";token=guessed", None), ("", None)])
def test_serve_sql_connect_token_is_required(protected: tuple[Server, Path], token: str, answer: str | None) -> None:
    server, folder = protected
    program = (
        "import sys; from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()\n"
        "print(spark.table('grouptrail.memberships').count())"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, f"sc://localhost:{server.connect}/;use_ssl=true{token}"],
        capture_output=True, text=True, timeout=scaled(200), check=False,
        env={**os.environ, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(folder / "certificate.pem")},
    )  # fmt: skip
    if answer is None:
        assert "give the server's token" in run.stderr
    else:
        assert run.stdout.split() == [answer], run.stderr


def test_serve_sql_without_tls_other_end_gets_no_answer(protected: tuple[Server, Path]) -> None:
    """A client that does not encrypt cannot even try a password."""
    with socket.create_connection(("127.0.0.1", protected[0].thrift), timeout=scaled(10)) as client:
        client.sendall(b"\x01\x00\x00\x00\x05PLAIN")
        with contextlib.suppress(ConnectionResetError):
            assert not client.recv(5).startswith(b"\x03")


@pytest.mark.full
def test_serve_sql_allow_writes_lets_clients_write_and_says_so(example: Config, tmp_path: Path) -> None:
    """Secrets of grouptrail are not in the JVM's environment even then."""
    server = Server(example, tmp_path, "--allow-writes", "--no-connect")
    assert "--allow-writes: this user may also write, read any file and run programs" in server.said
    statements = (
        "CREATE TABLE own USING parquet AS SELECT 7 AS x; SELECT x FROM own; "
        "SELECT reflect('java.lang.System', 'getenv', 'GROUPTRAIL_KAFKA__SASL_JAAS_CONFIG') AS secret;"
    )
    printed = beeline(server.thrift, "-e", statements).stdout.split()
    server.stop()
    assert printed[-4:] == ["x", "7", "secret", "null"]

"""What Spark, Hadoop and their log say of an address shows none of its secrets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.canaries import CANARY, LOGIN, planted, write
from support.cli_in_process import Cli
from support.deadlines import scaled

CALLS = (
    ("run", "--once", "--job", "history"),
    ("recover",),
    ("rebuild", "history"),
    ("redecode",),
    ("maintain",),
    ("sql", "--engine", "spark", "SELECT * FROM group_states"),
    ("views", "install"),
)
LOGGED = f"""
from grouptrail.runtime.warehouses import session_settings
from grouptrail.config import Config
from grouptrail.spark.session import session
with session(session_settings(Config(warehouse="warehouse")), "log") as spark:
    java = spark._jvm
    fault = java.java.io.IOException("Wrong FS: s3a://{LOGIN}@lake/table?sig={CANARY}, expected: s3a://lake")
    logger = java.org.apache.logging.log4j.LogManager.getLogger("org.apache.hadoop.fs.Test")
    logger.error("cannot read [s3a://{CANARY}@lake/table] (hdfs://host:8020/path)", fault)
"""


@pytest.mark.parametrize(
    "address",
    [
        f"file://{CANARY}:{CANARY}@host/lake?sig={CANARY}",
        f"hdfs://{LOGIN}@127.0.0.1:1/lake",
        f"acme://{CANARY}:{CANARY}@host/lake",
    ],
)
def test_command_in_a_session_prints_no_secret_of_the_address(
    cli: Cli, address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {name: value for name, value in planted(address).items() if isinstance(value, str)}
    file = write(tmp_path / "canaries.toml", settings)
    leaks = {}
    for call in CALLS:
        text = cli(file, *call, "--debug").printed + "".join(capfd.readouterr())
        if CANARY in text:
            leaks[call] = text
    assert leaks == {}


def test_log_of_the_jvm_shows_no_secret_of_an_address(tmp_path: Path) -> None:
    """What Spark logs at the level ERROR goes to stderr, with the exception, once."""
    process = subprocess.run(
        [sys.executable, "-c", LOGGED], cwd=tmp_path, capture_output=True, text=True, timeout=scaled(120), check=True
    )
    assert CANARY not in process.stdout + process.stderr
    assert "ERROR Test: cannot read [s3a://***@lake/table] (hdfs://host:8020/path)\n" in process.stderr
    assert process.stderr.count("IOException: Wrong FS: s3a://***@lake/table?*** expected: s3a://lake\n") == 1

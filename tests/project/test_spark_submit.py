"""The spark-submit command in deploy/spark matches the one that the cluster tests submit."""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from grouptrail.config import Config
from grouptrail.runtime.warehouses import session_settings
from grouptrail.spark import session
from grouptrail.spark.session import connector_dependencies, driver_java_options
from servers.spark_cluster import SparkCluster
from spark.archive import archive_package

ROOT = Path(__file__).resolve().parents[2]


def submitted() -> list[str]:
    """Return the words of the documented command."""
    text = (ROOT / "deploy" / "spark" / "README.md").read_text("utf-8")
    shown = re.search(r"^\$ (PYTHONPATH=.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert shown
    return shlex.split(shown[1].replace("\\\n", " "))


def test_documented_submission_packages_match_the_installed_versions() -> None:
    words = submitted()
    assert words[words.index("--packages") + 1] == ",".join(connector_dependencies())


def test_documented_submission_matches_the_one_the_cluster_tests_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except for the master, sizes, and jars that are already present."""
    monkeypatch.setattr("servers.spark_cluster.connector_jars", lambda: tmp_path)
    words, tested = submitted(), SparkCluster(tmp_path).submission(Path("dist"))
    assert words[0] == "PYTHONPATH=grouptrail.zip:site-packages"
    for flag in ("--py-files", "--archives"):
        assert tested[tested.index(flag) + 1] == f"dist/{words[words.index(flag) + 1]}"
    assert words[words.index("--conf") + 1] in tested
    options = words[words.index("--driver-java-options") + 1]
    assert options.replace("file:..", ROOT.as_uri()) == driver_java_options()
    assert driver_java_options() in tested
    assert (ROOT / "dist" / words[-6]).resolve() == Path(tested[-1])


@pytest.mark.full  # pip builds the package with tools that it downloads; `make test` needs no network after set-up
def test_archive_package_is_reproducible_and_runs_from_the_archive(tmp_path: Path) -> None:
    """It contains the package's metadata and data files, but no tests and no dependencies."""
    first, second = (archive_package(tmp_path / name) for name in ("first", "second"))
    assert hashlib.sha256(first.read_bytes()).digest() == hashlib.sha256(second.read_bytes()).digest()
    with zipfile.ZipFile(first) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {re.sub(r"-.*", "", top) for top in tops} == {"grouptrail"}
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import grouptrail; assert sys.argv[1] in grouptrail.__file__;"
        "from grouptrail import contracts; from grouptrail.cli import app; import grouptrail.decode.job, "
        "grouptrail.report; assert contracts.tables() and contracts.views() and contracts.metrics();"
        "app(['--version'])"
    )
    command = [sys.executable, "-c", program, str(first)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("grouptrail ")


def test_session_settings_configuration_overrides_submitted_which_override_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "_is_submitted", lambda: True)
    given = {"spark.sql.shuffle.partitions": "64", "spark.sql.session.timeZone": "CET", "spark.master": "spark://m:1"}
    monkeypatch.setattr(session, "_submitted", lambda: given)
    settings = session.settings_of(session_settings(Config(spark={"spark.sql.session.timeZone": "UTC"})))
    assert settings["spark.sql.shuffle.partitions"] == "64"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.master"] == "spark://m:1"
    assert settings["spark.sql.adaptive.enabled"] == "false"
    assert "spark.driver.memory" not in settings

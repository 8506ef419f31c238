"""The versions that `pip install grouptrail` resolves without the pins."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full
def test_install_without_pins_resolves_to_the_spark_that_is_pinned(tmp_path: Path) -> None:
    """The newest release of everything that pyproject.toml allows; Spark and Delta must be the tested pair."""
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    run = subprocess.run(
        [*command, "--report", str(report), str(ROOT)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    if "Failed to establish a new connection" in run.stderr and "CI" not in os.environ:
        pytest.skip("no network to a package index")
    assert run.returncode == 0, run.stderr
    resolved = {
        re.sub(r"[-_.]+", "-", entry["metadata"]["name"]).lower(): entry["metadata"]["version"]
        for entry in json.loads(report.read_text("utf-8"))["install"]
    }
    pins = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "requirements.txt").read_text("utf-8"), re.MULTILINE))
    for package in ("pyspark", "delta-spark", "py4j"):
        assert resolved[package] == pins[package]
    assert resolved["pandas"].split(".")[0] == pins["pandas"].split(".")[0]
    assert {package for package in pins if package in resolved} >= {"deltalake", "kafka-python", "pyarrow"}


def test_wheel_has_the_committed_dashboards_alerts_and_schemas(tmp_path: Path) -> None:
    """Built from a copy of the tree, because builds leave files behind."""
    tree = tmp_path / "tree"
    names = ("jobs", "schemas", "dashboards", "pyproject.toml", "README.md", "LICENSE")
    for name in names:
        if (ROOT / name).is_dir():
            without = shutil.ignore_patterns("*.egg-info", "__pycache__")
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=without)
        else:
            shutil.copy(ROOT / name, tree)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(tree)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Failed to establish a new connection" in run.stderr and "CI" not in os.environ:
        pytest.skip("no network to a package index")
    assert run.returncode == 0, run.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {
            name.removeprefix("grouptrail/"): archive.read(name)
            for name in archive.namelist()
            if name.startswith(("grouptrail/dashboards/", "grouptrail/schemas/"))
        }
    patterns = ("dashboards/__init__.py", "dashboards/built/*.json", "dashboards/alerts/*.yaml", "schemas/**/*.*")
    files = [path for pattern in patterns for path in ROOT.glob(pattern) if path.suffix != ".md"]
    files.append(ROOT / "dashboards" / "alerts" / "runbooks.md")
    assert packed == {str(path.relative_to(ROOT)): path.read_bytes() for path in files}
    assert len(packed) > 50


PINS = {
    name: {
        match[1]: match[0]
        for match in re.finditer(
            r"^([\w.-]+)==.*?(?=^\w|\Z)", (ROOT / name).read_text("utf-8"), re.MULTILINE | re.DOTALL
        )
    }
    for name in ("requirements.txt", "requirements-dev.txt", "requirements-java.txt")
}


@pytest.mark.parametrize("name", PINS)
def test_every_pin_has_digests(name: str) -> None:
    """So that pip installs only what was tested, and nothing that replaced it in the registry."""
    assert len(PINS[name]) > 50
    assert [package for package, pin in PINS[name].items() if "--hash=sha256:" not in pin] == []


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-java.txt"])
def test_pins_of_production_are_those_of_the_tests(name: str) -> None:
    tested = {package: pin.partition(" ")[0] for package, pin in PINS["requirements-dev.txt"].items()}
    pinned = {package: pin.partition(" ")[0] for package, pin in PINS[name].items()}
    assert {package: tested.get(package, pin) for package, pin in pinned.items()} == pinned

"""What pip installs: the versions without the pins, the pins, and what works with those of requirements-ask.txt."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution, distributions, packages_distributions, version
from pathlib import Path

import pytest

from support.deadlines import until
from support.exporter_tables import OPEN, configured, lay_everything, now
from support.small_tables import lay
from support.web_client import fetched

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
    (tree / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "runbooks.md", tree / "docs")
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
    files = [path for pattern in patterns for path in ROOT.glob(pattern) if path.suffix not in (".md", ".pyc")]
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
    for name in ("requirements.txt", "requirements-ask.txt", "requirements-dev.txt", "requirements-java.txt")
}


@pytest.mark.parametrize("name", PINS)
def test_every_pin_has_digests(name: str) -> None:
    """So that pip installs only what was tested, and nothing that replaced it in the registry."""
    assert len(PINS[name]) > 30
    assert [package for package, pin in PINS[name].items() if "--hash=sha256:" not in pin] == []


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-java.txt"])
def test_pins_of_production_are_those_of_the_tests(name: str) -> None:
    tested = {package: pin.partition(" ")[0] for package, pin in PINS["requirements-dev.txt"].items()}
    pinned = {package: pin.partition(" ")[0] for package, pin in PINS[name].items()}
    assert {package: tested.get(package, pin) for package, pin in pinned.items()} == pinned


def test_pins_to_ask_are_those_of_production() -> None:
    """With the same digests and markers."""
    entries = {name: set(_entries(name)) for name in ("requirements-ask.txt", "requirements.txt")}
    assert entries["requirements-ask.txt"] < entries["requirements.txt"]
    left_out = {entry.partition("==")[0] for entry in entries["requirements.txt"] - entries["requirements-ask.txt"]}
    assert left_out >= {"delta-spark", "great-expectations", "pandas", "py4j", "pyspark", "scipy"}


def _entries(name: str) -> list[str]:
    text = (ROOT / name).read_text("utf-8")
    return [entry.strip() for entry in re.split(r"^(?=\w)", text, flags=re.MULTILINE) if "==" in entry]


def installed_megabytes(name: str) -> float:
    """Return the size of the files, without bytecode, of the installed packages that a list of pins has."""
    packages = (package for package in distributions() if _normal(package.name) in PINS[name])
    files = {Path(str(package.locate_file(file))) for package in packages for file in package.files or ()}
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file()) / 1_000_000


@pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="figures of another platform"
)
def test_documented_sizes_of_the_installs_are_those_of_the_packages() -> None:
    text = " ".join((ROOT / "deploy" / "README.md").read_text("utf-8").split())
    documented = re.search(r"their files take (\d+) MB instead of ([\d,]+), without bytecode", text)
    assert documented is not None
    sizes = [int(size.replace(",", "")) for size in documented.groups()]
    measured = [installed_megabytes(name) for name in ("requirements-ask.txt", "requirements.txt")]
    assert measured == pytest.approx(sizes, rel=0.02)


class SmallInstall:
    """An environment that has grouptrail and links to the installed packages of requirements-ask.txt alone."""

    def __init__(self, folder: Path) -> None:
        """Make it in a folder, with a warehouse."""
        self.warehouse = folder / "warehouse"
        config = configured(self.warehouse)
        lay_everything(config)
        for table in ("memberships", "partition_ownership"):
            lay(
                config, table, {**OPEN, "group_id": "billing", "topic": "orders", "partition": 0, "started_at": now()}
            )
        self.folder = folder
        venv.create(folder / "venv", symlinks=True)
        (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
        own = packages / "grouptrail"
        own.mkdir()
        for path in [*(ROOT / "jobs" / "grouptrail").iterdir(), ROOT / "dashboards", ROOT / "schemas"]:
            if not (own / path.name).exists():
                (own / path.name).symlink_to(path)
        for package in distributions():
            if _normal(package.name) in PINS["requirements-ask.txt"]:
                for entry in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
                    if not (packages / entry).exists():
                        (packages / entry).symlink_to(package.locate_file(entry))
        metadata = Path(str(distribution("grouptrail").locate_file(f"grouptrail-{version('grouptrail')}.dist-info")))
        (packages / metadata.name).symlink_to(metadata)

    def command(self, *arguments: str, options: tuple[str, ...] = ("-m", "grouptrail")) -> list[str]:
        return [str(self.folder / "venv" / "bin" / "python"), *options, *arguments]

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PATH": os.defpath, "HOME": str(self.folder),
            "GROUPTRAIL_WAREHOUSE": str(self.warehouse), "GROUPTRAIL_EXPORTER__LISTEN": "127.0.0.1:0",
        }  # fmt: skip

    def run(self, *arguments: str, **options: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments, **options)
        return subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallInstall:
    return SmallInstall(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("show lag", "billing"),
        ("show group billing", "group of cluster default"),
        ("sql SELECT+count(*)+AS+n+FROM+topics --format=csv", "\n3\n"),
        ("tables", "offset_commits"),
        ("timeline billing", "timeline.html: open it in a browser"),
        ("report", "report.html: open it in a browser"),
        ("digest --since 1h", "# Consumer groups"),
        ("diff billing 1m", "billing of cluster default"),
        ("backtest --from 1h", "0 alerts"),
        ("what-if broker 1", "if broker 1"),
        ("check topics", "topics"),
        ("config", "[kafka]"),
        ("decode 0001000762696c6c696e6700066f726465727300000004", '"billing"'),
    ],
)
def test_small_install_answers(line: str, expected: str, small: SmallInstall) -> None:
    run = small.run(*(word.replace("+", " ") for word in line.split()))
    assert (run.returncode, run.stderr) == (0, "")
    assert expected in run.stdout


def test_small_install_repairs(small: SmallInstall) -> None:
    run = small.run("repair")
    assert (run.returncode, run.stderr) == (0, "no file is damaged\n")


@pytest.fixture
def served(small: SmallInstall) -> Iterator[str]:
    """The address of `grouptrail serve`, which must end without an error."""
    with subprocess.Popen(
        small.command("serve"), env=small.environ, cwd=small.folder, text=True, stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout
        line = next(line for line in process.stdout if line.startswith("serving "))
        try:
            yield line.split()[1].removesuffix("/metrics")
        finally:
            process.send_signal(signal.SIGTERM)
        assert "Error" not in process.stdout.read()


def test_small_install_serves_metrics_pages_and_queries(served: str) -> None:
    until(lambda: fetched(served, "/metrics")[0] == 200)  # after the first snapshot
    for path, expected in (
        ("/metrics", "kafka_consumer_group_lag"),
        ("/", "billing"),
        ("/groups/billing", "billing"),
        ("/topics", "orders"),
        ("/changes", "billing"),
        ("/runbooks", "ConsumerWillLoseData"),
        ("/sql?q=SELECT+6*7+AS+answer", "42"),
    ):
        status, _, text = fetched(served, path)
        assert (status, expected in text) == (200, True), (path, text)


@pytest.mark.parametrize(
    "line",
    [
        "run",
        "recover",
        "sql SELECT+1 --engine=spark",
        "serve-sql",
        "views install",
        "check --docs=docs",
        "maintain",
        "redecode",
        "rebuild history",
        "ingest-segments log",
    ],
)
def test_small_install_names_the_package_that_a_command_lacks(line: str, small: SmallInstall) -> None:
    (small.folder / "log" / "__consumer_offsets-0").mkdir(parents=True, exist_ok=True)
    (small.folder / "log" / "__consumer_offsets-0" / f"{0:020}.log").touch()
    run = small.run(*(word.replace("+", " ") for word in line.split()))
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == (
        "grouptrail: this command needs pyspark, which is not installed: "
        "pip install grouptrail adds what is missing\n"
    )


def test_doctor_of_a_small_install_names_the_package_and_ends_its_examination(small: SmallInstall) -> None:
    run = small.run("doctor", "--bootstrap-server", "127.0.0.1:1")
    assert (run.returncode, run.stderr) == (1, "")
    assert (
        "FAIL  versions   pyspark, which `grouptrail run` needs, is not installed: pip install grouptrail"
        in run.stdout
    )
    assert re.search("^FAIL  broker ", run.stdout, re.MULTILINE)


def test_packages_to_ask_are_dependencies_that_grouptrail_imports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    asking = set(project["dependency-groups"]["ask"])
    assert asking < {re.split(r"[\[<>=]", one)[0] for one in project["project"]["dependencies"]}
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "jobs" / "grouptrail").rglob("*.py"))
    modules = set(re.findall(r"^ *(?:import|from) (\w+)", sources, re.MULTILINE))
    names = packages_distributions()
    assert asking <= {_normal(package) for module in modules for package in names.get(module, ())}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

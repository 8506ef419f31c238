"""`make archive`: what a cluster needs that has Spark and a Python, and nothing of grouptrail.

    python deploy/spark/archive.py [FOLDER] [EXTRA...]

Writes `grouptrail.zip`, the package, for `--py-files`, and `site-packages.zip`, all that the jobs import but Spark,
by the pins of requirements-dev.txt, for `--archives`, with those of extras such as `msk`; a driver that runs here has
the same in the folder `site-packages`. They fit the Python and the platform that make them. Made again, both are the
same byte for byte.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, REQUIREMENTS = "grouptrail.zip", "site-packages.zip"

_SOURCES = ("jobs", "schemas", "dashboards", "pyproject.toml", "README.md", "LICENSE")
# The first is the cluster's own; the second is for `grouptrail check`, and brings as much as all others together.
_LEFT_OUT = {"pyspark", "great-expectations"}
_NOT_TO_RUN = {"bin", "include", "tests"}
_OLDEST_TIME = (1980, 1, 1, 0, 0, 0)


def archive_package(folder: Path) -> Path:
    """Archive the package with its metadata, installed from a copy of the tree because builds leave files behind."""
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        tree.mkdir()
        for source in _SOURCES:
            if (ROOT / source).is_dir():
                shutil.copytree(
                    ROOT / source, tree / source, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
                )
            else:
                shutil.copy(ROOT / source, tree)
        return _zipped(_installed(Path(name) / "installed", str(tree)), folder / PACKAGE)


def archive_requirements(folder: Path, extras: Iterable[str] = ()) -> Path:
    """Archive the pinned packages that the jobs import; an unpacked copy is kept, too.

    Those of the package's `extras` must be installed here.
    """
    unpacked = folder / Path(REQUIREMENTS).stem
    shutil.rmtree(unpacked, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        package = Requirement(f"grouptrail[{','.join(extras)}]")
        pins, wanted = Path(name) / "pins.txt", _needed_by(package) - {"grouptrail", "py4j"}
        entries = re.split(r"^(?=\w)", (ROOT / "requirements-dev.txt").read_text("utf-8"), flags=re.MULTILINE)
        pins.write_text("".join(entry for entry in entries if entry.partition("==")[0] in wanted))
        return _zipped(_installed(unpacked, "--require-hashes", "-r", str(pins)), folder / REQUIREMENTS)


def _needed_by(package: Requirement) -> set[str]:
    """Return a distribution and all its installed requirements, by their metadata, with those of extras."""
    needed: set[str] = set()
    waiting, seen = [package], set[Requirement]()
    while waiting:
        one = waiting.pop()
        if one in seen or (name := canonicalize_name(one.name)) in _LEFT_OUT:
            continue
        seen.add(one)
        needed.add(name)
        chosen = [{"extra": extra} for extra in ("", *one.extras)]
        asked = map(Requirement, metadata.requires(name) or ())
        waiting += [it for it in asked if it.marker is None or any(map(it.marker.evaluate, chosen))]
    return needed


def _installed(folder: Path, *what: str) -> Path:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    subprocess.run([*command, "--no-deps", "--no-compile", "--target", str(folder), *what], check=True)
    for of_this_machine in ("RECORD", "direct_url.json"):
        for path in folder.glob(f"*.dist-info/{of_this_machine}"):
            path.unlink()
    return folder


def _zipped(folder: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file()):
            if _NOT_TO_RUN & set(path.parts):
                continue
            entry = zipfile.ZipInfo(str(path), _OLDEST_TIME)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            with (folder / path).open("rb") as content, archive.open(entry, "w") as stored:
                shutil.copyfileobj(content, stored, 1 << 20)
    return target


def main() -> int:
    """Write both archives into the folder, by default `dist`."""
    folder, *extras = sys.argv[1:] or ["dist"]
    known = metadata.metadata("grouptrail").get_all("Provides-Extra") or []
    if unknown := set(extras).difference(known):
        print(f"archive: no extra {', '.join(sorted(unknown))}: there are {', '.join(known)}", file=sys.stderr)
        return 2
    try:
        for made in (archive_package(Path(folder)), archive_requirements(Path(folder), extras)):
            print(f"{made}: {made.stat().st_size / 1e6:.1f} MB", flush=True)
    except subprocess.CalledProcessError:
        print("archive: pip failed, as it says above: check the network to the Python registry", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

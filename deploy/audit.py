"""`make audit`: look up known vulnerabilities of every pinned package, with pip-audit in a temporary folder.

Exit status: 0 if none is known, 1 if there are some, 2 with a one-line message if the lookup failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOL = "pip-audit==2.10.1"
PINS = ("requirements-java.txt", "requirements-dev.txt")

_PATIENCE_SECONDS = 600


def main() -> int:
    """Run the audit and return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", folder]
        installed = _run([*pip, TOOL], folder)
        if installed.returncode:
            return _unanswered(
                f"the advisory database was not asked: {TOOL} cannot be installed ({_last_line(installed)})"
            )
        audit = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--format", "json"]
        answers = []
        for name in PINS:  # one by one: pip-audit refuses two versions of a package
            # Each file is whole: nothing has to be resolved, and nothing of it is installed.
            asked = _run([*audit, "--disable-pip", "--no-deps", "--requirement", str(ROOT / name)], folder)
            if not asked.stdout.strip():
                return _unanswered(f"the advisory database was not asked: {_last_line(asked)}")
            answers.append(asked.stdout)
    return report(answers)


def report(answers: list[str]) -> int:
    """Print what pip-audit has found, as JSON for each file, and return the exit status.

    A package that the index lacks, such as one from a company's own index, is reported and changes nothing else.
    """
    audited, known = 0, 0
    skipped: list[str] = []
    packages = [package for answer in answers for package in json.loads(answer)["dependencies"]]
    for package in {(one["name"], one.get("version")): one for one in packages}.values():
        if "skip_reason" in package:
            skipped.append(package["name"])
            continue
        audited += 1
        for vulnerability in package["vulns"]:
            known += 1
            remedy = (
                f"upgrade to {', '.join(vulnerability['fix_versions'])}"
                if vulnerability["fix_versions"]
                else "no fix yet"
            )
            print(f"audit: {package['name']} {package['version']} has {vulnerability['id']}: {remedy}")
    if not audited:
        return _unanswered(f"the index has none of the {len(skipped)} packages")
    if skipped:
        print(f"audit: not audited, because the index lacks them: {', '.join(sorted(skipped))}")
    vulnerable = f"{known} known vulnerabilit{'y' if known == 1 else 'ies'}" if known else "no known vulnerability"
    left_out = f"; {len(skipped)} not audited" if skipped else ""
    print(f"audit: {audited} package{'' if audited == 1 else 's'} audited, {vulnerable}{left_out}")
    return 1 if known else 0


def _run(command: list[str], packages: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": packages}
    try:
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 2, "", f"no answer in {_PATIENCE_SECONDS} s")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return next((line.strip() for line in reversed((done.stderr or done.stdout).splitlines()) if line.strip()), "")


def _unanswered(reason: str) -> int:
    print(f"audit: not known, {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

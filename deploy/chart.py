"""`make chart`: pack the Helm chart into dist/ and make the plain manifests of deploy/kubernetes/ from it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from grouptrail.errors import GrouptrailError
from servers import helm

DEPLOY = Path(__file__).resolve().parent
CHART = DEPLOY / "helm" / "grouptrail"
PLAIN_VALUES = DEPLOY / "helm" / "plain.yaml"
MANIFESTS = DEPLOY / "kubernetes"

_MADE = "# Made by make chart, from deploy/helm: edit the templates there, or the values in plain.yaml.\n"
_POD = """\
# One pod that runs all jobs and serves metrics: kubectl apply -f deploy/kubernetes/grouptrail.yaml
# It needs a secret named grouptrail with the key sasl.jaas.config: see docs/kubernetes.md.
"""
# What has a meaning only in a release of Helm. The checksum would be wrong once the ConfigMap is edited.
_OF_RELEASE = re.compile(
    r"^# Source: .*\n|^ +(app\.kubernetes\.io/(instance|managed-by)|helm\.sh/chart): .*\n|"
    r"^ +annotations:\n +checksum/config: .*\n|[ \t]+$",
    re.MULTILINE,
)


def template(program: Path, *arguments: str | Path) -> str:
    """Return the manifests that the chart makes. Raises CalledProcessError with Helm's reason in `stderr`."""
    command = [program, "template", "grouptrail", CHART, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def plain_manifests(program: Path) -> dict[str, str]:
    """Return the text of the manifests in deploy/kubernetes that are made from the chart, by file name."""
    pod = template(program, "--values", PLAIN_VALUES)
    monitor = ("--set", "monitor.kind=PodMonitor", "--show-only", "templates/monitor.yaml")
    podmonitor = template(program, "--values", PLAIN_VALUES, *monitor)
    return {"grouptrail.yaml": f"{_MADE}{_POD}\n{_plain(pod)}", "podmonitor.yaml": f"{_MADE}\n{_plain(podmonitor)}"}


def _plain(text: str) -> str:
    return _OF_RELEASE.sub("", text).removeprefix("---\n")


def main() -> int:
    """Write the manifests and dist/grouptrail-VERSION.tgz; return the exit status."""
    try:
        program = helm.program()
        for name, text in plain_manifests(program).items():
            (MANIFESTS / name).write_text(text, "utf-8")
            print(f"deploy/kubernetes/{name} is up to date")
        packed = subprocess.run(
            [program, "package", CHART, "--destination", DEPLOY.parent / "dist"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        print(f"chart: {error.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return 1
    except GrouptrailError as error:
        print(f"chart: {error}", file=sys.stderr)
        return 1
    print(packed.stdout.strip().replace(f"{DEPLOY.parent}/", ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())

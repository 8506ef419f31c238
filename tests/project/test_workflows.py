"""GitHub workflows: they match their schemas, pin their actions, and call existing commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from grouptrail.spark.jars import known_digests

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yaml"))
ISSUE_FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")

Job = dict[str, Any]

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def workflow(name: str) -> dict[Any, Any]:
    """Return a workflow's content; YAML 1.1 reads the key `on` as True."""
    return cast("dict[Any, Any]", yaml.safe_load((GITHUB / "workflows" / name).read_text("utf-8")))


def jobs(path: Path) -> dict[str, Job]:
    """The jobs of a workflow that have steps; the others call a workflow of this repository."""
    all_jobs = cast("dict[str, Job]", workflow(path.name)["jobs"])
    return {name: job for name, job in all_jobs.items() if "steps" in job}


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def supported_pythons() -> list[str]:
    """The versions that pyproject's classifiers name."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return re.findall(r"Python :: (3\.\d+)", "\n".join(metadata["classifiers"]))


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("github-workflows", WORKFLOWS),
        ("dependabot", [GITHUB / "dependabot.yml"]),
        ("github-issue-forms", ISSUE_FORMS),
        ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
    ],
)
def test_github_files_fit_their_schema(schema: str, paths: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    checked = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_zizmor_finds_no_security_problem_in_workflows() -> None:
    zizmor = Path(sysconfig.get_path("scripts")) / "zizmor"
    checked = subprocess.run(
        [zizmor, "--offline", "--no-progress", GITHUB], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@each_workflow
def test_actions_are_pinned_by_commit_with_their_version(path: Path) -> None:
    used = re.findall(r"^\s*(?:- )?uses: (.*)$", path.read_text("utf-8"), re.MULTILINE)
    assert used
    loose = [
        use
        for use in used
        if not use.startswith("./") and not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)
    ]
    assert loose == []


def test_an_action_has_the_same_commit_in_all_workflows() -> None:
    used = re.findall(r"uses: ([\w./-]+)@(\w+ # \S+)", "".join(path.read_text("utf-8") for path in WORKFLOWS))
    assert len(set(used)) == len({action for action, _ in used})


@each_workflow
def test_make_targets_in_workflows_exist(path: Path) -> None:
    commands = "\n".join(step.get("run", "") for job in jobs(path).values() for step in job["steps"])
    called = set(re.findall(r"(?:^|\s)make ([a-z-]+)", commands))
    assert called - make_targets() == set()


@pytest.mark.parametrize(
    ("name", "targets"), [("ci.yaml", {"lint", "test"}), ("full.yaml", {"test-full"}), ("audit.yaml", {"audit"})]
)
def test_workflow_runs_its_make_targets(name: str, targets: set[str]) -> None:
    commands = [step.get("run", "") for job in jobs(GITHUB / "workflows" / name).values() for step in job["steps"]]
    last_words = {command.split()[-1] for command in commands if "make " in command}
    assert targets <= last_words


@each_workflow
def test_paths_in_workflow_commands_exist(path: Path) -> None:
    commands = "\n".join(step.get("run", "") for job in jobs(path).values() for step in job["steps"])
    named = re.findall(r"\bdeploy/[\w./-]+", commands)
    assert [name for name in named if not (ROOT / name).exists()] == []


@each_workflow
def test_jobs_have_a_timeout(path: Path) -> None:
    assert [name for name, job in jobs(path).items() if not 0 < job.get("timeout-minutes", 0) <= 120] == []


@each_workflow
def test_workflow_permissions_are_read_only_at_the_top(path: Path) -> None:
    assert workflow(path.name)["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", [path for path in WORKFLOWS if path.name != "release.yaml"], ids=lambda it: it.name)
def test_only_the_release_gets_more_permissions(path: Path) -> None:
    assert [name for name, job in jobs(path).items() if "permissions" in job] == []


@each_workflow
def test_checkout_keeps_no_credentials(path: Path) -> None:
    checkouts = [
        step
        for job in jobs(path).values()
        for step in job["steps"]
        if step.get("uses", "").startswith("actions/checkout@")
    ]
    assert checkouts
    assert [step for step in checkouts if step["with"].get("persist-credentials") is not False] == []


def test_ci_covers_the_supported_pythons_and_javas() -> None:
    rows = jobs(GITHUB / "workflows" / "ci.yaml")["test"]["strategy"]["matrix"]["include"]
    assert sorted({row["python"] for row in rows}) == supported_pythons()
    assert sorted(row["python"] for row in rows if row["java"] == "17") == supported_pythons()
    assert {row["java"] for row in rows} == {"17", "21", "none"}


def test_release_waits_for_the_tests_before_it_publishes() -> None:
    release = workflow("release.yaml")
    assert release["jobs"]["test"]["uses"] == "./.github/workflows/ci.yaml"
    assert "workflow_call" in workflow("ci.yaml")[True]
    assert release[True] == {"push": {"tags": ["v*"]}}
    for name in ("image", "publish"):
        assert {"test", "build"} <= set(release["jobs"][name]["needs"])
    assert release["jobs"]["github-release"]["needs"] == ["publish"]


def test_release_has_a_bill_of_materials_with_every_pin_and_jar_of_the_image() -> None:
    release = workflow("release.yaml")
    name = "grouptrail-sbom.cdx.json"
    assert f'deploy/sbom.py "$GITHUB_REF_NAME" > {name}' in str(release["jobs"]["build"]["steps"])
    assert name in release["jobs"]["github-release"]["steps"][-1]["run"]
    printed = subprocess.run(
        [sys.executable, ROOT / "deploy" / "sbom.py", "v1.2.3"], check=True, capture_output=True, text=True
    )
    document = json.loads(printed.stdout)
    assert document["metadata"]["component"]["version"] == "1.2.3"
    components = [(one["name"], one["version"]) for one in document["components"]]
    assert len(set(components)) >= len(components) - 5  # a jar may be in both folders
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements-java.txt").read_text("utf-8"), re.MULTILINE)
    assert set(pins) <= set(components)
    folders = [jars for name, jars in known_digests().items() if name.startswith(("connectors/", "s3/"))]
    jars = [digest for folder in folders for digest in folder.values()]
    hashed = [one for one in document["components"] if "hashes" in one]
    assert len(hashed) == len(jars)
    assert {one["hashes"][0]["content"] for one in hashed} == set(jars)
    assert {one["purl"] for one in hashed} >= {f"pkg:maven/io.delta/delta-spark_4.2_2.13@{version('delta-spark')}"}


def test_release_builds_the_image_as_the_documents_do() -> None:
    """Both use deploy/container with the same options."""
    build = r"podman build -f (\S+) --ignorefile (\S+)"
    documented = re.search(build, (ROOT / "deploy" / "README.md").read_text("utf-8"))
    released = re.search(build, (GITHUB / "workflows" / "release.yaml").read_text("utf-8"))
    assert documented
    assert released
    assert documented.groups() == released.groups()


def test_release_has_the_helm_chart_with_the_name_of_its_image() -> None:
    steps = workflow("release.yaml")["jobs"]["build"]["steps"]
    (packing,) = [step["run"] for step in steps if "helm package" in step.get("run", "")]
    (pattern, replacement) = re.findall(r"s\|(.*)\|(.*)\|", packing)[0]
    values = (ROOT / "deploy" / "helm" / "grouptrail" / "values.yaml").read_text("utf-8")
    assert len(re.findall(pattern, values, re.MULTILINE)) == 1
    image = str(workflow("release.yaml")["jobs"]["image"]["steps"])
    assert replacement.partition("repository: ")[2] in image
    assert "chart/*" in workflow("release.yaml")["jobs"]["github-release"]["steps"][-1]["run"]


def test_dependabot_leaves_the_fixed_pins_alone() -> None:
    """CONTRIBUTING.md gives the reasons for these pins."""
    updates = yaml.safe_load((GITHUB / "dependabot.yml").read_text("utf-8"))["updates"]
    assert {update["package-ecosystem"] for update in updates} == {"github-actions", "pip", "docker"}
    (pip,) = [update for update in updates if update["package-ecosystem"] == "pip"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    fixed = re.findall(r"^([\w-]+)(?:\[\w+\])?==", "\n".join(project["dependencies"]), re.MULTILINE)
    assert [ignored["dependency-name"] for ignored in pip["ignore"]] == sorted(fixed, reverse=True)

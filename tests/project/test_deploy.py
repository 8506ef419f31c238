"""deploy/: each file passes a validator for its format and matches the program, the image and the other files."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any, cast

import pytest
import typer
import yaml
from croniter import croniter

import audit
from grouptrail.cli import app
from grouptrail.config import Config, load_config
from grouptrail.spark.java import cache_folder, find_java
from servers import debian
from servers.ports import free_port
from support.exporter_tables import lay_everything
from support.kubernetes_objects import Object, assert_matches_schema

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
README = (DEPLOY / "README.md").read_text("utf-8")
CONTAINERFILE = DEPLOY / "container" / "Containerfile"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").iterdir())
SCRIPTS = sorted(DEPLOY.glob("*/*.sh"))
OBJECTS = [
    pytest.param(one, id=f"{path.name}: {one['kind']}")
    for path in MANIFESTS
    for one in yaml.safe_load_all(path.read_text("utf-8"))
]
COMMANDS: dict[str, Any] = cast("Any", typer.main.get_command(app)).commands


def tool(name: str) -> str:
    """Return a program installed by a package of requirements-dev.txt."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def assert_is_command(words: list[str]) -> None:
    """Check that the grouptrail command exists and accepts these options."""
    COMMANDS[words[0]].make_context(words[0], words[1:])


# --- the container -------------------------------------------------------------------------------------------


def test_containerfile_passes_hadolint() -> None:
    checked = subprocess.run([tool("hadolint"), CONTAINERFILE], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_documented_images_pass_hadolint_and_extend_the_one_of_the_project(tmp_path: Path) -> None:
    documented = re.findall(r"^```dockerfile\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len(documented) == 2
    for text in documented:
        assert text.startswith(f"FROM grouptrail:{version('grouptrail')}\n")
        (tmp_path / "Containerfile").write_text(text)
        # Debian removes a package's version when it has a newer one: a pin would break the build.
        command = [tool("hadolint"), "--ignore", "DL3008", tmp_path / "Containerfile"]
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stdout) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_shell_script_passes_shellcheck_and_is_executable(script: Path) -> None:
    checked = subprocess.run([tool("shellcheck"), script], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")
    assert os.access(script, os.X_OK)


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Containerfile as pairs of name and arguments."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text("utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line.strip()]


def test_containerfile_bases_are_one_image_with_tag_and_digest() -> None:
    """A tag can name another image tomorrow; with the digest alone nobody sees which Python it is."""
    base, *others = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+@sha256:[0-9a-f]{64}", base), base
    assert set(others) == {"base"}


def test_dependabot_updates_the_base_of_the_container_image() -> None:
    """But not to another minor version of Python, for which the packages are not pinned."""
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text("utf-8"))["updates"]
    (image,) = [update for update in updates if update["package-ecosystem"] == "docker"]
    assert ROOT / image["directory"].strip("/") == CONTAINERFILE.parent
    (ignored,) = image["ignore"]
    assert ignored["dependency-name"] == "python"
    assert ignored["update-types"] == ["version-update:semver-major", "version-update:semver-minor"]


@pytest.mark.full
@pytest.mark.spark
def test_steps_of_the_image_produce_a_working_grouptrail(tmp_path: Path) -> None:
    """The steps of the stage build-run, on this machine: the pins and the package alone are enough.

    pyspark, which takes minutes to install, and the jars are those that this machine has; what pip has downloaded
    before it does not download again, and it compiles nothing.
    """
    image = tmp_path / "image"
    (image / "cache").mkdir(parents=True)
    for fetched in ("connectors", "s3", "java-home"):
        if (cache_folder() / fetched).exists():
            (image / "cache" / fetched).symlink_to(cache_folder() / fetched)
    environ = environment_of_pip() | {"JAVA_HOME": str(find_java().home)}
    build("build-run", image, tmp_path / "src", environ)
    grouptrail = [image / "venv" / "bin" / "grouptrail"]
    clean = {"PATH": os.defpath, "XDG_CACHE_HOME": str(image / "cache"), "JAVA_HOME": environ["JAVA_HOME"]}
    printed = subprocess.run([*grouptrail, "--version"], env=clean, capture_output=True, text=True, check=True)
    assert version("grouptrail") in printed.stdout
    doctor = [*grouptrail, "doctor", "--bootstrap-server", f"127.0.0.1:{free_port()}"]
    report = subprocess.run(doctor, env=clean, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    for subject in ("python", "java", "versions", "jars"):
        assert re.search(rf"^ok    {subject}", report, re.MULTILINE), report
    assert "Spark's connectors are in" in report
    assert list((image / "jars").glob("*delta-spark*.jar"))


@pytest.mark.full
def test_steps_of_the_image_to_ask_produce_a_grouptrail_that_answers(tmp_path: Path) -> None:
    """Without Java and Spark."""
    image = tmp_path / "image"
    image.mkdir()
    build("build-ask", image, tmp_path / "src", environment_of_pip())
    assert list(image.glob("venv/lib/*/site-packages/pyspark*")) == []
    config = load_config(None, {"warehouse": str(tmp_path / "warehouse")}, {})
    lay_everything(config)
    command = [image / "venv" / "bin" / "grouptrail", "show", "lag", "--warehouse", config.warehouse]
    answer = subprocess.run(command, env={"PATH": os.defpath}, capture_output=True, text=True, check=True)
    assert "billing" in answer.stdout


def environment_of_pip() -> dict[str, str]:
    kept = ("SSL_CERT_FILE", "PIP_CERT", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "PIP_CACHE_DIR")
    settings = {name: os.environ[name] for name in kept if name in os.environ}
    return settings | {"PATH": f"{Path(sys.executable).parent}:{os.defpath}", "HOME": os.environ["HOME"]}


def stage(name: str) -> list[tuple[str, str]]:
    """Return the instructions of a stage of the Containerfile that follow its FROM."""
    starts = [index for index, (word, _) in enumerate(instructions()) if word == "FROM"]
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        if instructions()[start][1].endswith(f" AS {name}"):
            return instructions()[start + 1 : end]
    raise AssertionError(f"no stage {name}")


def build(name: str, image: Path, source: Path, environ: dict[str, str]) -> None:
    """A stage of the Containerfile, with `image` for /opt/grouptrail and `source` for its working folder."""
    source.mkdir()
    settings = [step for step in stage("base") if step[0] == "ENV"]
    steps = [(word, rest.replace("/opt/grouptrail", str(image))) for word, rest in [*settings, *stage(name)]]
    assert [word for word, _ in steps].count("RUN") == {"build-run": 4, "build-ask": 3}[name]
    for word, rest in steps:
        if word == "ENV":
            environ |= {key: value.replace("$PATH", environ["PATH"]) for key, value in _variables(rest)}
        elif word == "COPY":
            for entry in rest.split()[:-1]:
                _copy(ROOT / entry, source / entry)
        elif word == "RUN":
            command = ["sh", "-ec", rest.replace("--no-cache-dir", "--no-compile")]
            done = subprocess.run(command, cwd=source, env=environ, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{rest}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            if "-m venv" in rest and name == "build-run":
                _lend_pyspark(image / "venv")


def _lend_pyspark(venv: Path) -> None:
    (packages,) = venv.glob("lib/python*/site-packages")
    installed = Path(str(distribution("pyspark").locate_file("")))
    for name in ("pyspark", f"pyspark-{version('pyspark')}.dist-info"):
        (packages / name).symlink_to(installed / name)


def _variables(text: str) -> Iterator[tuple[str, str]]:
    for word in shlex.split(text):
        name, _, value = word.partition("=")
        yield name, value


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    else:
        target.parent.mkdir(exist_ok=True)
        shutil.copy(source, target)


def test_containerfile_copied_files_exist_and_match_the_ignore_file() -> None:
    """The files that the stages copy exist, and the ignore file does not exclude them."""
    let_through = {
        line[1:] for line in (DEPLOY / "container" / "ignore").read_text().splitlines() if line.startswith("!")
    }
    copied = {
        entry
        for name, rest in instructions()
        if name == "COPY" and "--from" not in rest
        for entry in [word for word in rest.split() if not word.startswith("--")][:-1]
    }
    assert copied == let_through
    assert [entry for entry in copied if not (ROOT / entry).exists()] == []


@pytest.mark.parametrize("arguments", [[], ["run", "--once"], ["--version"]])
def test_entrypoint_passes_its_arguments_to_grouptrail(arguments: list[str], tmp_path: Path) -> None:
    assert _entered(tmp_path, "grouptrail", *arguments) == arguments


@pytest.mark.spark
def test_entrypoint_spark_driver_and_executor_commands_have_valid_options(tmp_path: Path) -> None:
    """The executor's options are those that Spark's own class says it takes; each Java option stays whole."""
    spark = {
        "SPARK_DRIVER_BIND_ADDRESS": "10.1.2.3",
        "SPARK_DRIVER_URL": "spark://driver:7078",
        "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "1g",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "10.1.2.4",
        "SPARK_EXECUTOR_POD_NAME": "exec-7",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_JAVA_OPT_0": "-Da=b c",
        "SPARK_JAVA_OPT_10": "-Dlast",
        "SPARK_JAVA_OPT_2": "-Dmiddle",
    }
    driver = _entered(tmp_path, "spark-submit", "driver", "--class", "X", "local:///app.py", **spark)
    assert driver[:2] == ["--deploy-mode", "client"]
    assert "spark.driver.bindAddress=10.1.2.3" in driver
    assert driver[-3:] == ["--class", "X", "local:///app.py"]
    executor = _entered(tmp_path, "java", "executor", **spark)
    assert executor[:5] == ["-Da=b c", "-Dmiddle", "-Dlast", "-Xms1g", "-Xmx1g"]
    given = executor[executor.index("-cp") + 3 :]
    jars = distribution("pyspark").locate_file("pyspark/jars")
    backend = executor[executor.index("-cp") + 2]
    usage = subprocess.run(
        [find_java().command, "-cp", f"{jars}/*", backend], capture_output=True, text=True, check=False
    )
    known = set(re.findall(r"--[\w-]+", usage.stdout + usage.stderr))
    assert len(known) > 5, usage
    assert {word for word in given if word.startswith("--")} <= known | {"--podName"}


def _entered(folder: Path, program: str, *arguments: str, **environ: str) -> list[str]:
    """Return the arguments that the entrypoint passes to that program."""
    stand_in = folder / "bin" / program
    stand_in.parent.mkdir(exist_ok=True)
    stand_in.write_text('#!/bin/bash\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    stand_in.chmod(0o755)
    home = {"PATH": f"{folder / 'bin'}:{os.defpath}", "JAVA_HOME": str(folder), "SPARK_HOME": "/spark"}
    entered = subprocess.run(
        [DEPLOY / "container" / "entrypoint.sh", *arguments],
        env=home | environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return entered.stdout.splitlines()


# --- Kubernetes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kubernetes_object", OBJECTS)
def test_kubernetes_object_matches_its_schema(kubernetes_object: Object) -> None:
    assert_matches_schema(kubernetes_object)


def objects(kind: str) -> list[Object]:
    of_kind = [param.values[0] for param in OBJECTS if cast("Object", param.values[0])["kind"] == kind]
    assert of_kind
    return cast("list[Object]", of_kind)


def pods() -> dict[str, Object]:
    """Return pod specifications by the object that creates them."""
    specs = {"Deployment": objects("Deployment")[0]["spec"]["template"]}
    specs |= {job["metadata"]["name"]: job["spec"]["jobTemplate"]["spec"]["template"] for job in objects("CronJob")}
    return specs


def configured() -> Config:
    """Return the configuration of the pods, including their secret."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(objects("ConfigMap")[0]["data"]["grouptrail.toml"])
        file.flush()
        return load_config(file.name, {}, {"GROUPTRAIL_KAFKA__SASL_JAAS_CONFIG": "x"})


def test_pods_run_existing_commands_from_the_image_as_its_user() -> None:
    user = dict(instructions())["USER"].split(":")[0]
    for template in pods().values():
        spec = template["spec"]
        (container,) = spec["containers"]
        assert_is_command(container["args"][:1])
        assert container["image"] == f"grouptrail:{version('grouptrail')}"
        assert str(spec["securityContext"]["runAsUser"]) == user
        assert spec["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounted.keys() == {volume["name"] for volume in spec["volumes"]}
        assert container["args"][1:] == ["--config", f"{mounted['config']}/grouptrail.toml"]
        assert configured().warehouse.startswith(mounted["data"])


def read_only_containers() -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return each container of a Spark application's manifests, and the volumes of its pod, by a name."""
    containers = {}
    for role in ("driver", "executor"):
        (pod,) = yaml.safe_load_all((DEPLOY / "kubernetes" / f"{role}-template.yaml").read_text("utf-8"))
        (container,) = pod["spec"]["containers"]
        containers[f"{role}-template"] = container, pod["spec"]["volumes"]
        applications = {
            "application": objects("SparkApplication")[0]["spec"],
            "scheduled": objects("ScheduledSparkApplication")[0]["spec"]["template"],
        }
        for name, spec in applications.items():
            containers[f"{name} {role}"] = spec[role], spec["volumes"]
    return containers


def test_spark_pods_have_read_only_root_file_systems_and_write_to_volumes_only() -> None:
    """/tmp has Spark's and Python's temporary files; the image's working directory is beside it."""
    folder = dict(instructions())["WORKDIR"]
    for name, (container, volumes) in read_only_containers().items():
        assert container["securityContext"]["readOnlyRootFilesystem"], name
        emptied = {volume["name"] for volume in volumes if "emptyDir" in volume}
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in emptied}
        assert writable == {"/tmp", folder}, name


def test_pod_port_probes_and_selectors_match_the_exporter() -> None:
    """Compare the ports of the pod, the service, the network policy and the PodMonitor."""
    deployment, (service,), (monitor,) = objects("Deployment")[0], objects("Service"), objects("PodMonitor")
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    (port,) = container["ports"]
    assert configured().exporter.listen == f"0.0.0.0:{port['containerPort']}"
    probes = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert probes == {"/healthz", "/ready"}
    labels = template["metadata"]["labels"].items()
    for selector in (
        deployment["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
        monitor["spec"]["selector"]["matchLabels"],
        objects("NetworkPolicy")[0]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels
    named = [container[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "liveness", "readiness")]
    named += [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]]
    named += [listed["targetPort"] for listed in service["spec"]["ports"]]
    assert set(named) == {port["name"]}


def test_spark_applications_use_the_pinned_spark_and_the_submit_script_of_the_image() -> None:
    applications = [
        *objects("SparkApplication"),
        *(it["spec"]["template"] for it in objects("ScheduledSparkApplication")),
    ]
    for application in applications:
        spec = application.get("spec", application)
        assert spec["sparkVersion"] == version("pyspark")
        assert spec["image"] == f"grouptrail:{version('grouptrail')}"
        assert spec["mainApplicationFile"] == "local:///opt/grouptrail/spark/submit.py"
        assert_is_command(["run", *spec["arguments"]])


def test_kubernetes_schedules_are_valid_cron_expressions() -> None:
    schedules = [job["spec"]["schedule"] for job in (*objects("CronJob"), *objects("ScheduledSparkApplication"))]
    assert [schedule for schedule in schedules if not croniter.is_valid(schedule)] == []


# --- schedulers ----------------------------------------------------------------------------------------------


def test_cron_file_has_valid_schedules_and_existing_commands() -> None:
    lines = (DEPLOY / "cron" / "grouptrail.cron").read_text("utf-8").splitlines()
    jobs = [line for line in lines if re.match(r"[\d*@]", line)]
    assert len(jobs) == 4
    for job in jobs:
        when, user, command = re.fullmatch(r"(@\w+|(?:\S+\s+){4}\S+)\s+(\S+)\s+(.*)", job).groups()  # type: ignore[union-attr]
        assert when == "@reboot" or croniter.is_valid(when)
        assert user == "grouptrail"
        words = shlex.split(command.partition(" >>")[0])
        assert_is_command(words[len(words) - words[::-1].index("grouptrail") :])
        assert "%" not in command  # cron takes it for a new line


def test_systemd_units_pass_systemd_analyze_verify(tmp_path: Path) -> None:
    """It ignores unknown settings but reports them."""
    analyze = _systemd_analyze()
    for unit in UNITS:
        text = unit.read_text("utf-8")
        for command in re.findall(r"^ExecStart=/opt/grouptrail/venv/bin/grouptrail (.*)$", text, re.MULTILINE):
            assert_is_command(command.split())
        (tmp_path / unit.name).write_text(text.replace("/opt/grouptrail/venv/bin/grouptrail", "/bin/true"))
    verified = subprocess.run(
        [*analyze, "verify", *sorted(tmp_path.iterdir())], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


def test_systemd_service_security_exposure_is_at_most_2_5() -> None:
    """The scale ends at 10, which means no protection."""
    rate = [*_systemd_analyze(), "security", "--offline=yes", "--threshold=25"]
    service = DEPLOY / "systemd" / "grouptrail.service"
    rated = subprocess.run([*rate, service], capture_output=True, text=True, check=False)
    assert rated.returncode == 0, rated.stdout + rated.stderr


def _systemd_analyze() -> list[str]:
    """Return the program on PATH or from Debian's package; skip without it, but fail in CI."""
    if program := shutil.which("systemd-analyze"):
        return [program]
    try:
        root = debian.unpacked("systemd", "systemd", "libsystemd-shared")
        (library,) = root.rglob("libsystemd-shared-*.so")
        (units,) = {path.parent for path in root.rglob("network-online.target")}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = f"no systemd-analyze, and Debian's package cannot be had ({error}): install systemd"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    environ = [f"LD_LIBRARY_PATH={library.parent}", f"SYSTEMD_UNIT_PATH={units}:"]
    return ["env", *environ, str(root / "usr" / "bin" / "systemd-analyze")]


def test_airflow_dags_have_valid_schedules_and_existing_commands() -> None:
    """Check the commands and schedules of the DAGs; Airflow itself is not installed."""
    tree = ast.parse((DEPLOY / "airflow" / "grouptrail_dags.py").read_text("utf-8"))
    given: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg and isinstance(node.value, ast.Constant):
            given.setdefault(node.arg, []).append(str(node.value.value))
    assert len(given["bash_command"]) == 3
    for command in given["bash_command"]:
        assert_is_command(shlex.split(command)[1:])
    assert [schedule for schedule in given["schedule"] if not croniter.is_valid(schedule)] == []


# --- the audit -----------------------------------------------------------------------------------------------


def test_audit_without_package_index_exits_with_2_and_one_line() -> None:
    """The error is one line, and the exit code differs from that of a clean audit."""
    environ = {"PATH": os.environ["PATH"], "PIP_NO_INDEX": "1", "HOME": os.environ["HOME"]}
    asked = subprocess.run(
        [sys.executable, DEPLOY / "audit.py"], env=environ, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 2
    (line,) = (asked.stdout + asked.stderr).splitlines()
    assert line.startswith("audit: not known, ")


PACKAGES = {
    "known": {"name": "known", "version": "1", "vulns": []},
    "weak": {"name": "weak", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]},
    "private": {"name": "private", "skip_reason": "Dependency not found on PyPI and could not be audited"},
}


@pytest.mark.parametrize(
    ("names", "status", "lines"),
    [
        (["known"], 0, ["audit: 1 package audited, no known vulnerability"]),
        (
            ["known", "private"],
            0,
            [
                "audit: not audited, because the index lacks them: private",
                "audit: 1 package audited, no known vulnerability; 1 not audited",
            ],
        ),
        (
            ["weak", "private"],
            1,
            [
                "audit: weak 2 has PYSEC-1: upgrade to 3",
                "audit: not audited, because the index lacks them: private",
                "audit: 1 package audited, 1 known vulnerability; 1 not audited",
            ],
        ),
        (["private"], 2, ["audit: not known, the index has none of the 1 packages"]),
    ],
)
def test_audit_reports_packages_that_the_index_lacks_and_audits_the_others(
    names: list[str], status: int, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    closure = json.dumps({"dependencies": [PACKAGES[name] for name in names]})
    assert audit.report([closure, closure]) == status  # of two files with the same pins
    printed = capsys.readouterr()
    assert (printed.out + printed.err).splitlines() == lines


def test_audit_workflow_has_valid_schedule_and_paths_and_runs_make_audit() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "audit.yaml").read_text("utf-8"))
    when = workflow[True]  # YAML 1.1 reads "on" so
    assert croniter.is_valid(when["schedule"][0]["cron"])
    assert [path for path in when["push"]["paths"] if not list(ROOT.glob(path))] == []
    assert workflow["jobs"]["audit"]["steps"][-1] == {"run": "make audit"}


# --- Spark ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script", [path for path in SCRIPTS if path.parent.name != "container"], ids=lambda it: it.name
)
def test_submit_script_passes_valid_run_arguments_and_existing_files(script: Path, tmp_path: Path) -> None:
    """Check the arguments of spark-submit; files that they name must exist."""
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "a.jar").touch()
    stand_in = tmp_path / "spark-submit"
    stand_in.write_text('#!/bin/bash\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    stand_in.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.defpath}", "JARS": str(tmp_path / "jars"), "ARCHIVES": "/archives"}
    environ |= {"SPARK_MASTER": "spark://s:7077", "KUBERNETES_SERVER": "https://k:6443"}
    run = subprocess.run([script, "--once"], env=environ, capture_output=True, text=True, check=True)
    words = run.stdout.splitlines()
    (at,) = [index for index, word in enumerate(words) if word.endswith("/submit.py")]
    assert words[at + 1] == "--config"
    assert_is_command(["run", *words[at + 1 :]])
    named = [words[index + 1] for index, word in enumerate(words) if word == "--properties-file"]
    named += [word.partition("=")[2] for word in words if "podTemplateFile" in word]
    assert [name for name in named if not Path(name).is_file()] == []
    without = subprocess.run([script], env={"PATH": environ["PATH"]}, capture_output=True, text=True, check=False)
    assert without.returncode != 0
    assert "set it to" in without.stderr

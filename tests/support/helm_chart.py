"""The Helm chart: what it makes of values, and what must hold for all of it."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart import CHART
from servers import helm
from support.kubernetes_objects import Object

Values = dict[str, Any]

SERVING = ("pipeline", "pages")


def program(release: str) -> Path:
    """Return the path of this release of Helm; skip the test without it, but fail it in CI."""
    try:
        return helm.release(release)
    except helm.HelmError as error:
        pytest.fail(str(error)) if os.environ.get("CI") else pytest.skip(str(error))


def render(program: Path, values: Values, *arguments: str, chart: Path = CHART, name: str = "lag") -> list[Object]:
    """Return the objects of a release. Raises CalledProcessError with Helm's reason in `stderr`."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(values, file)
        file.flush()
        command = [program, "template", name, chart, "--namespace", "kafka", "--values", file.name, *arguments]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [one for one in yaml.load_all(printed, yaml.CSafeLoader) if one is not None]


def refusal(program: Path, values: Values) -> str:
    """Return why Helm refuses these values."""
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(program, values)
    return str(refused.value.stderr)


def merged(*layers: Mapping[str, Any]) -> Values:
    """Return values as Helm merges files of them: maps are merged, all else is replaced."""
    result: Values = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else value
    return result


def all_pairs(choices: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield combinations of choices, by number, in which each pair of choices of two options occurs.

    Greedy: each combination begins with a pair that has not occurred, and takes for each further option the choice
    that adds most of the pairs left.
    """
    names = list(choices)
    numbered = {name: [(name, number) for number in range(choices[name])] for name in names}
    left = {
        frozenset(pair)
        for one, other in itertools.combinations(names, 2)
        for pair in itertools.product(numbered[one], numbered[other])
    }
    while left:
        chosen = dict(min(left, key=sorted))
        for name in names:
            if name not in chosen:
                taken = list(chosen.items())
                gains = [sum(frozenset((choice, one)) in left for one in taken) for choice in numbered[name]]
                chosen[name] = gains.index(max(gains))
        left -= {frozenset(pair) for pair in itertools.combinations(chosen.items(), 2)}
        yield chosen


def of_kind(objects: Sequence[Object], *kinds: str) -> list[Object]:
    return [one for one in objects if one["kind"] in kinds]


def pod_of(one: Object) -> Object:
    """Return the template of a Deployment's or CronJob's pods."""
    spec = one["spec"]["jobTemplate"]["spec"] if one["kind"] == "CronJob" else one["spec"]
    template: Object = spec["template"]
    return template


def settings(objects: Sequence[Object]) -> str:
    (config,) = [one for one in of_kind(objects, "ConfigMap") if "grouptrail.toml" in one["data"]]
    text: str = config["data"]["grouptrail.toml"]
    return text


def problems(objects: Sequence[Object], values: Values) -> Iterator[str]:
    """Yield what is wrong between the objects of a release, which no schema sees."""
    identities = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects]
    yield from (f"twice: {one}" for one in set(identities) if identities.count(one) > 1)
    names = {(kind, name) for kind, _, name in identities}
    yield from (f"{one['kind']}: null at {path}" for one in objects for path in _nulls(one, ""))
    pods = {one["metadata"]["name"]: pod_of(one) for one in of_kind(objects, "Deployment", "CronJob")}
    for name, pod in pods.items():
        yield from (f"{name}: {problem}" for problem in _problems_of_pod(pod["spec"], names, values))
    yield from _problems_of_selectors(objects, [pod["metadata"]["labels"] for pod in pods.values()])


def _nulls(value: Any, path: str) -> Iterator[str]:
    if value is None:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _nulls(inner, f"{path}.{key}")


def _problems_of_pod(spec: Object, names: set[tuple[str, str]], values: Values) -> Iterator[str]:
    (container,) = spec["containers"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    if len(volumes) < len(spec["volumes"]) or len(mounts) < len(container["volumeMounts"]):
        yield "two volumes or mounts are the same"
    if volumes.keys() != {mount["name"] for mount in mounts.values()}:
        yield f"volumes {sorted(volumes)} are not the mounts {sorted(mounts)}"
    claims = {one["persistentVolumeClaim"]["claimName"] for one in volumes.values() if "persistentVolumeClaim" in one}
    existing = values["persistence"]["existingClaim"]
    yield from (
        f"no claim {claim}" for claim in claims if claim != existing and ("PersistentVolumeClaim", claim) not in names
    )
    if ("ConfigMap", volumes["config"]["configMap"]["name"]) not in names:
        yield "no ConfigMap"
    account = spec["serviceAccountName"]
    if values["serviceAccount"]["create"] != (("ServiceAccount", account) in names):
        yield f"service account {account}"
    ports = {port["name"] for port in container.get("ports", ())}
    probes = [probe for key, probe in container.items() if key.endswith("Probe")]
    yield from (f"probe of {probe}" for probe in probes if next(iter(probe.values()))["port"] not in ports)
    for path in ("/tmp", "/var/lib/grouptrail"):
        if path not in mounts:
            yield f"cannot write to {path}"
    yield from _beyond_restricted(spec, container)


def _beyond_restricted(spec: Object, container: Object) -> Iterator[str]:
    """Yield what Kubernetes' Pod Security Standard `restricted` refuses, and a writable root file system."""
    pod, own = spec["securityContext"], container["securityContext"]
    kinds = {
        "configMap",
        "secret",
        "emptyDir",
        "persistentVolumeClaim",
        "projected",
        "csi",
        "downwardAPI",
        "ephemeral",
    }
    kept = {
        "runAsNonRoot": pod["runAsNonRoot"] is True,
        "runAsUser": pod.get("runAsUser", 1) != 0,
        "seccompProfile": pod["seccompProfile"]["type"] == "RuntimeDefault",
        "allowPrivilegeEscalation": own["allowPrivilegeEscalation"] is False,
        "capabilities": own["capabilities"] == {"drop": ["ALL"]},
        "readOnlyRootFilesystem": own["readOnlyRootFilesystem"] is True,
        "volumes": all(volume.keys() <= {"name"} | kinds for volume in spec["volumes"]),
        "host": not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"},
    }
    yield from (f"not restricted: {name}" for name, holds in kept.items() if not holds)


def _problems_of_selectors(objects: Sequence[Object], pods: list[dict[str, str]]) -> Iterator[str]:
    def selected(labels: Mapping[str, str]) -> int:
        return sum(labels.items() <= pod.items() for pod in pods)

    for one in objects:
        kind, spec = one["kind"], one.get("spec", {})
        if (
            kind in ("Deployment", "PodDisruptionBudget", "PodMonitor")
            and selected(spec["selector"]["matchLabels"]) != 1
        ):
            yield f"{kind}: selects {selected(spec['selector']['matchLabels'])} components"
        elif kind == "Service" and selected(spec["selector"]) != 1:
            yield f"Service: selects {selected(spec['selector'])} components"
        elif kind == "NetworkPolicy" and selected(spec["podSelector"]["matchLabels"]) != len(pods):
            yield f"NetworkPolicy: selects {selected(spec['podSelector']['matchLabels'])} of {len(pods)} components"
        elif kind == "ServiceMonitor":
            wanted = spec["selector"]["matchLabels"].items()
            services = [it for it in of_kind(objects, "Service") if wanted <= it["metadata"]["labels"].items()]
            if len(services) != 1:
                yield f"ServiceMonitor: selects {len(services)} services"
        elif kind == "Ingress":
            backends = {
                path["backend"]["service"]["name"] for rule in spec["rules"] for path in rule["http"]["paths"]
            }
            yield from (
                f"Ingress: no service {name}"
                for name in backends
                if name not in {it["metadata"]["name"] for it in of_kind(objects, "Service")}
            )
        elif kind == "CronJob" and not re.fullmatch(r".{1,52}", one["metadata"]["name"]):
            yield f"CronJob: name of {len(one['metadata']['name'])} characters"

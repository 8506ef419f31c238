"""The committed dashboards and alerts: built from this code, with existing metrics and with descriptions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana.__main__ import build
from grafana.descriptions import STATES, VERDICTS
from grouptrail import contracts
from grouptrail.exporter import families
from grouptrail.spark.java import cache_folder
from support import promql_names
from support.prometheus_server import tool

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "dashboards" / "built"
RULES = sorted((ROOT / "dashboards" / "alerts").glob("*.yaml"))
RULE_TESTS = sorted((ROOT / "dashboards" / "alerts" / "tests").glob("*.yaml"))
RUNBOOKS, METRICS = ROOT / "docs" / "runbooks.md", ROOT / "docs" / "metrics.md"

BOARDS: dict[str, Any] = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(BUILT.iterdir())}
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in board["panels"] if panel["type"] != "row"]
GROUPS = [group for path in RULES for group in yaml.safe_load(path.read_text("utf-8"))["groups"]]
ALERTS = [rule for group in GROUPS for rule in group["rules"] if "alert" in rule]
RECORDED = [rule for group in GROUPS for rule in group["rules"] if "record" in rule]
KNOWN_VALUES = {"status": set(families.STATUSES), "state": set(families.STATES)}

# Prometheus' own metric of alerts, with the labels that the rules set.
PROMETHEUS_OWN = contracts.Metric(
    "ALERTS", "gauge", "info", ("alertname", "alertstate", "severity", "cluster", "group", "topic"), "", ""
)

CLICKED = {f'${{__data.fields["{heading}"]:percentencode}}' for heading in ("Cluster", "Group", "Topic")}
GRAFANA_TYPES = ("@grafana/schema@13.2.3", "typescript@7.0.2")
# JSON has no enums, so their values are plain text. Annotations also have the fields of their data source.
_TYPES = """\
import type { AnnotationQuery, Dashboard } from "@grafana/schema";
type Json<T> = T extends string ? `${T}` : T extends number | boolean | null | undefined ? T
  : T extends (infer U)[] ? Json<U>[] : T extends object ? { [K in keyof T]: Json<T[K]> } : T;
type Mark = Json<AnnotationQuery> & { expr: string; titleFormat: string };
type Board = Omit<Json<Dashboard>, "annotations"> & { annotations: { list?: Mark[] } };
"""
_PANEL_TYPES = {"timeseries": "TimeSeries", "stat": "Stat", "table": "Table", "statetimeline": "StateTimeline"}
_PANEL_MODULE = "@grafana/schema/dist/esm/raw/composable/{0}/panelcfg/x/{1}PanelCfg_types.gen"


def variables_of(board: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in board["templating"]["list"]}


def expressions() -> Iterator[tuple[str, str]]:
    """Yield every query of panels, annotations, variables, alerts and the metrics page, with its location."""
    for name, panel in PANELS:
        yield from ((f"{name}: {panel['title']}", target["expr"]) for target in panel["targets"])
    for name, board in BOARDS.items():
        for mark in board["annotations"].get("list", ()):
            yield f"{name}: {mark['name']}", mark["expr"]
        for variable in variables_of(board).values():
            if variable["type"] == "query":
                match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
                assert match, variable
                yield f"{name}: ${variable['name']}", f"count by ({match[2]}) ({match[1]})"
    yield from ((rule["alert"], rule["expr"]) for rule in ALERTS)
    yield from ((rule["record"], rule["expr"]) for rule in RECORDED)
    questions = METRICS.read_text("utf-8").partition("## Questions")[2].partition("##")[0]
    for question, expression in re.findall(r"^\| (.*?) \| `(.*)` \|$", questions, re.MULTILINE):
        yield question, expression.replace(r"\|", "|")


EXPRESSIONS = list(expressions())
each_panel = pytest.mark.parametrize(
    ("name", "panel"), [pytest.param(*it, id=f"{it[0]}: {it[1]['title']}") for it in PANELS]
)
each_alert = pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
each_expression = pytest.mark.parametrize(
    ("where", "expression"), [pytest.param(*it, id=it[0]) for it in EXPRESSIONS]
)


def test_build_reproduces_the_committed_dashboards(tmp_path: Path) -> None:
    """If this fails, run make dashboards."""
    build(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in BUILT.iterdir()
    }


def test_built_dashboards_are_overview_group_topic_and_pipeline() -> None:
    assert {board["uid"] for board in BOARDS.values()} == {f"grouptrail-{name}" for name in BOARDS}
    assert set(BOARDS) == {"overview", "group", "topic", "pipeline"}


@each_expression
def test_query_uses_only_registered_metrics_labels_and_values(where: str, expression: str) -> None:
    names = promql_names.names(expression)
    assert names.selectors, where
    labels = {"le"}
    for selector in names.selectors:
        metrics = _metrics(selector)
        assert metrics, f"{where}: schemas/metrics.yaml has no {selector}"
        for metric in metrics:
            assert set(selector.matchers) - {"__name__"} <= set(metric.labels), f"{where}: {selector}"
            labels |= set(metric.labels)
        for label in KNOWN_VALUES.keys() & selector.matchers.keys():
            assert set(selector.matchers[label].split("|")) <= KNOWN_VALUES[label], f"{where}: {selector}"
    assert names.grouping <= labels, where


def _metrics(selector: promql_names.Selector) -> list[contracts.Metric]:
    known = {**contracts.metrics(), PROMETHEUS_OWN.name: PROMETHEUS_OWN}
    if selector.metric:
        metric = known.get(selector.metric) or known.get(re.sub(r"_(bucket|sum|count)$", "", selector.metric))
        return [metric] if metric else []
    pattern = selector.matchers.get("__name__", "")
    return [metric for name, metric in known.items() if re.fullmatch(pattern, name)]


def test_promql_names_finds_selectors_and_grouping_labels() -> None:
    names = promql_names.names(
        'sum by (a) (rate(m{b="x", c=~"y|z"}[5m]) / on (d) group_left () n offset 1h) or {e!="{"}'
    )
    assert [(selector.metric, selector.matchers) for selector in names.selectors] == [
        ("m", {"b": "x", "c": "y|z"}),
        ("", {"e": "{"}),
        ("n", {}),
    ]
    assert names.grouping == {"a", "d"}


def test_value_mappings_cover_every_status_and_state() -> None:
    assert {name.text for name in VERDICTS} == set(families.STATUSES)
    assert {name.text for name in STATES} == set(families.STATES)


@each_panel
def test_panel_has_description_unit_and_datasource(name: str, panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    for place in [panel, *panel["targets"]]:
        assert place["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    if panel["type"] == "timeseries":
        assert panel["options"]["legend"]["showLegend"] is True
    if panel["type"] == "table":
        columns = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
        order = panel["transformations"][1]["options"]["renameByName"]
        assert [title for field, title in order.items() if field.startswith("Value") and title not in columns] == []


@pytest.mark.parametrize("name", BOARDS)
def test_dashboard_has_no_id_unique_panel_ids_and_only_used_variables(name: str) -> None:
    board = BOARDS[name]
    assert board["schemaVersion"] == 42
    assert "id" not in board
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    variables = variables_of(board)
    assert list(variables)[:2] == ["datasource", "cluster"]
    asked = set(re.findall(r'=~?\\?"\$(\w+)', json.dumps(board["panels"]) + json.dumps(board["templating"])))
    assert asked == set(variables) - {"datasource"}
    # Grafana escapes values for a regular expression only where a variable may hold several.
    assert all(variable["multi"] for variable in variables.values() if variable["type"] == "query")
    assert not re.search(r'[^~]\\"\$\w', json.dumps(board["panels"]))


@pytest.mark.parametrize("name", BOARDS)
def test_dashboard_links_target_existing_dashboards_and_variables(name: str) -> None:
    boards = {board["uid"]: board for board in BOARDS.values()}
    assert BOARDS[name]["links"][0]["tags"] == ["grouptrail"]
    assert "grouptrail" in BOARDS[name]["tags"]
    overrides = [override for panel in BOARDS[name]["panels"] for override in _overrides(panel)]
    links = [link["url"] for override in overrides if override["id"] == "links" for link in override["value"]]
    assert bool(links) == (name != "pipeline")
    for link in links:
        uid, query = link.removeprefix("/d/").split("?")
        assert set(re.findall(r"var-(\w+)=", query)) <= set(variables_of(boards[uid]))
        assert set(re.findall(r"=(\$.*?)(?:&|$)", query)) <= CLICKED


def _overrides(panel: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for override in panel.get("fieldConfig", {}).get("overrides", ()):
        yield from override["properties"]


@each_alert
def test_alert_has_severity_and_runbook_annotation(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{rule['alert'].lower()}"


def test_every_alert_has_its_section_in_the_runbooks() -> None:
    sections = re.split(r"^## ", RUNBOOKS.read_text("utf-8"), flags=re.MULTILINE)[1:]
    titles = [section.splitlines()[0] for section in sections]
    assert titles == [rule["alert"] for rule in ALERTS]
    assert [title for title, text in zip(titles, sections, strict=True) if "grouptrail " not in text] == []


def test_dashboards_readme_lists_every_alert_with_its_severity() -> None:
    listed = re.findall(
        r"^\| `(\w+)` \| (\w+) \|", (ROOT / "dashboards" / "README.md").read_text("utf-8"), re.MULTILINE
    )
    assert listed == [(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS]


def test_promtool_check_accepts_the_alert_rules() -> None:
    _promtool("check", "rules", *RULES)


def test_every_alert_has_a_promtool_test_and_all_pass() -> None:
    tested = "".join(path.read_text("utf-8") for path in RULE_TESTS)
    assert [rule["alert"] for rule in ALERTS if f'alertname="{rule["alert"]}"' not in tested.replace(": ", "=")] == []
    _promtool("test", "rules", *RULE_TESTS)


def test_every_recorded_series_is_listed_and_has_a_promtool_test() -> None:
    readme = (ROOT / "dashboards" / "README.md").read_text("utf-8")
    names = [rule["record"] for rule in RECORDED]
    assert names
    assert re.findall(r"^\| `(\w+:\w+:\w+)` \|", readme, re.MULTILINE) == names
    tested = {
        test["expr"]
        for path in RULE_TESTS
        for case in yaml.safe_load(path.read_text("utf-8"))["tests"]
        for test in case.get("promql_expr_test", ())
        if test["exp_samples"]
    }
    assert set(names) <= tested


def _promtool(*arguments: str | Path) -> None:
    done = subprocess.run([tool("promtool"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboards_type_check_against_the_grafana_schema(tmp_path: Path) -> None:
    """Grafana ignores misspelt keys."""
    compiler = _typescript()
    (tmp_path / "node_modules").symlink_to(compiler / "node_modules")
    for name in BOARDS:
        (tmp_path / f"{name}.ts").write_text(_typed(name), "utf-8")
    flags = ["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler"]
    command = [compiler / "node_modules" / ".bin" / "tsc", *flags, *sorted(tmp_path.glob("*.ts"))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def _typed(name: str) -> str:
    """Return a dashboard as TypeScript, followed by the type-specific options of its panels."""
    lines = [f'import type * as {it} from "{_PANEL_MODULE.format(it, _PANEL_TYPES[it])}";' for it in _PANEL_TYPES]
    lines += [_TYPES, f"export const board = {json.dumps(BOARDS[name])} satisfies Board;"]
    for number, panel in enumerate(panel for board, panel in PANELS if board == name):
        own = panel["type"].replace("-", "")
        lines.append(f"export const options{number} = {json.dumps(panel['options'])} satisfies Json<{own}.Options>;")
        if custom := panel["fieldConfig"]["defaults"].get("custom"):
            lines.append(f"export const custom{number} = {json.dumps(custom)} satisfies Json<{own}.FieldConfig>;")
    return "\n".join(lines)


def _typescript() -> Path:
    """Return the folder with TypeScript and Grafana's types, downloaded once; skip without npm."""
    folder = cache_folder() / "grafana-types" / re.sub(r"[^\w.-]", "_", "-".join(GRAFANA_TYPES))
    if folder.is_dir():
        return folder
    if not shutil.which("npm"):
        pytest.skip("no npm: install Node.js to check the dashboards against Grafana's types")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", f"{place}/whole"]
        fetched = subprocess.run([*command, *GRAFANA_TYPES], capture_output=True, text=True, check=False)
        if fetched.returncode:
            pytest.skip(f"npm cannot fetch {GRAFANA_TYPES[0]}: {fetched.stderr[-200:]}")
        os.rename(f"{place}/whole", folder)
    return folder


def test_prometheus_tool_missing_skips_locally_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servers.prometheus._unpacked", lambda: "there is none")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is none"):
        tool("promtool")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="there is none"):
        tool("promtool")

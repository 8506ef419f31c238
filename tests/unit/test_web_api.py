"""The JSON of the pages: described by OpenAPI, with the tables' names, and errors as problem+json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from grouptrail import contracts
from grouptrail.web import answers
from support.broker_facts import lay_facts, led
from support.exporter_tables import STRANGE, configured, lay_everything
from support.sample_groups import billing
from support.web_client import Site

COLUMNS = {column.name for table in contracts.tables().values() for column in table.columns}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    config = configured(tmp_path_factory.mktemp("api"))
    billing(config, group_id="history")
    lay_everything(config)
    lay_facts(config, led("orders", 0, 3, [2, 3]))
    return Site(config)


def described(site: Site) -> dict[str, Any]:
    return dict(json.loads(site.get("/api/v1/openapi.json")))


def test_description_is_valid_openapi(site: Site) -> None:
    validate(described(site))


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/api/v1/groups", "/api/v1/groups"),
        ("/api/v1/groups?status=WARN&sort=-lag&per_page=1", "/api/v1/groups"),
        ("/api/v1/groups/billing", "/api/v1/groups/{group_id}"),
        ("/api/v1/groups/history", "/api/v1/groups/{group_id}"),
        ("/api/v1/groups/history?at=2026-03-04T12:30:00Z", "/api/v1/groups/{group_id}"),
        ("/api/v1/topics/orders", "/api/v1/topics/{topic}"),
        ("/api/v1/brokers/3", "/api/v1/brokers/{broker_ids}"),
        ("/api/v1/sql?q=SELECT+*+FROM+group_states", "/api/v1/sql"),
    ],
)
def test_answer_matches_its_description(site: Site, path: str, operation: str) -> None:
    document = described(site)
    reference = document["paths"][operation]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    checked = Draft202012Validator({**reference, "components": document["components"]})
    assert [error.message for error in checked.iter_errors(json.loads(site.get(path)))] == []


def test_every_parameter_of_a_query_is_described(site: Site) -> None:
    parameters = described(site)["paths"]["/api/v1/groups/{group_id}"]["get"]["parameters"]
    assert {one["name"] for one in parameters} == {"group_id", "cluster", "from", "to", "at", "name"}
    assert all(one["description"] for one in parameters if one["in"] == "query")


def test_names_of_fields_are_those_of_columns() -> None:
    """All others are counts and sums over several rows, which no column has."""
    models = (answers.GroupSummary, answers.GroupPartition, answers.Rebalance, answers.GroupMember)
    fields = {field for model in models for field in model.model_fields}
    derived = {
        "as_of",
        "is_stale",
        "lag_is_least",
        "lag_seconds_is_least",
        "partitions",
        "rebalances_last_hour",
        "trend",
        "points",
        "endings",
        "tasks",
    }
    assert fields - derived <= COLUMNS


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/nothing", 404),
        ("/api/v1/groups/unknown", 404),
        ("/api/v1/topics/unknown", 404),
        ("/api/v1/groups/billing?cluster=unknown", 404),
        ("/api/v1/groups/history?at=2020-01-01", 404),
        ("/api/v1/groups/history?from=2999-01-01", 404),
        ("/api/v1/groups/billing?from=2999-01-01", 404),
        ("/api/v1/groups/billing?from=yesteryear", 400),
        ("/api/v1/groups/billing?at=0001-01-01", 400),
        ("/api/v1/groups/billing?to=9999-12-31T23:59:59Z", 400),
        ("/api/v1/groups/billing?at=999999w", 400),
        ("/api/v1/groups/billing?from=1h&to=2h", 400),
        ("/api/v1/topics/orders?at=now", 400),
    ],
)
def test_error_is_a_problem_of_one_line(site: Site, path: str, status: int) -> None:
    answer = site.client.get(path)
    assert (answer.status_code, answer.content_type) == (status, "application/problem+json")
    problem = answers.Problem.model_validate_json(answer.text)
    assert problem.status == status
    assert "\n" not in problem.detail


def test_times_without_data_are_answered(site: Site) -> None:
    for query in ("at=now", "to=2999-01-01", "to=1970-01-02", "from=1970-01-01&to=1970-01-02"):
        site.get(f"/api/v1/groups/billing?{query}")


def test_unknown_name_gets_the_names_that_were_meant(site: Site) -> None:
    assert json.loads(site.get("/api/v1/groups/biling", status=404))["near"] == ["billing"]
    assert json.loads(site.get("/api/v1/topics/ordrs", status=404))["near"] == ["orders"]


def test_group_with_a_hostile_name_is_found_by_its_encoded_name(site: Site) -> None:
    [group] = json.loads(site.get("/api/v1/groups?status=UNKNOWN"))["groups"]
    assert group["group_id"] == STRANGE
    group = json.loads(site.get("/api/v1/groups/we%22ird%0A%5C%7Bgroup%3D%22billing%22%7D%201"))
    assert group["group_id"] == STRANGE


def test_methods_other_than_get_are_refused(site: Site) -> None:
    for method in ("post", "put", "delete", "patch"):
        assert getattr(site.client, method)("/api/v1/groups").status_code == 405


def test_openapi_covers_every_path_of_the_api(tmp_path: Path) -> None:
    site = Site(configured(tmp_path))
    rules = {rule.rule for rule in site.rules() if rule.rule.startswith("/api/")}
    described_paths = {path.replace("{", "<name:").replace("}", ">") for path in described(site)["paths"]}
    # The paths that end in a slash take the name as a parameter.
    assert {rule for rule in rules if not rule.endswith("/")} == {*described_paths, "/api/v1/openapi.json"}

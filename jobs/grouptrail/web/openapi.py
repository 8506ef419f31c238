"""The description of the API, from the models of its parameters and answers."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema

from grouptrail.web.answers import (
    Answer,
    BrokersQuery,
    Changes,
    ChangesQuery,
    Group,
    GroupQuery,
    Groups,
    GroupsQuery,
    Parameters,
    Problem,
    Rebalances,
    RebalancesQuery,
    Rollouts,
    RolloutsQuery,
    SqlQuery,
    SqlRows,
    Stop,
    Topic,
    TopicQuery,
    Topics,
    TopicsQuery,
)

API = "/api/v1/"

OPERATIONS: dict[str, tuple[type[Parameters], type[Answer], str]] = {
    "groups": (GroupsQuery, Groups, "The groups of all clusters, or those that the parameters select."),
    "groups/{group_id}": (GroupQuery, Group, "A group now or at another time, and its history."),
    "rebalances": (RebalancesQuery, Rebalances, "The rebalances of all groups of a cluster, by cause and time."),
    "changes": (ChangesQuery, Changes, "The groups of a cluster that are not as they were at a time."),
    "topics": (TopicsQuery, Topics, "The topics that groups consume, or those that the parameters select."),
    "rollouts/{group_id}": (RolloutsQuery, Rollouts, "The rollouts of a group, such as deploys, as one row each."),
    "topics/{topic}": (TopicQuery, Topic, "A topic: its partitions, the groups that consume it, and retention."),
    "brokers/{broker_ids}": (BrokersQuery, Stop, "What would happen if brokers stopped: partitions, topics, groups."),
    "sql": (SqlQuery, SqlRows, "The rows of a query of the tables and views, within the limits of the settings."),
}
"""By path below `API`: the parameters, the answer, and what it is."""

_WITH_FORM = ("sql",)

_REF = "#/components/schemas/{model}"
_ERRORS = {
    "400": "A parameter is wrong.",
    "403": "A page of another site asks.",
    "404": "There is no such group, topic, broker or cluster.",
    "503": "The tables cannot be read, or too much is asked for at a time.",
}


def description() -> dict[str, Any]:
    """Return the OpenAPI document."""
    models: list[type[Answer]] = [*(answer for _, answer, _ in OPERATIONS.values()), Problem]
    _, schemas = models_json_schema([(model, "serialization") for model in models], ref_template=_REF)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "grouptrail",
            "version": version("grouptrail"),
            "description": "Kafka consumer groups now and in the past. Names of fields are those of the tables' "
            "columns. Times are UTC in ISO 8601. Read only.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": {f"{API}{path}": _path(path, *operation) for path, operation in OPERATIONS.items()},
        "components": {"schemas": schemas["$defs"]},
    }


def _path(path: str, query: type[Parameters], answer: type[Answer], about: str) -> dict[str, Any]:
    named = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    answered = {
        "summary": about,
        "responses": {
            "200": _response(about, "application/json", answer),
            **{status: _response(text, "application/problem+json", Problem) for status, text in _ERRORS.items()},
        },
    }
    operation = answer.__name__.lower()
    paths = ({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in named)
    described = {"get": {"operationId": operation, **answered, "parameters": [*paths, *_parameters(query)]}}
    if path in _WITH_FORM:
        form = {"application/x-www-form-urlencoded": {"schema": query.model_json_schema()}}
        body = {"required": True, "content": form, "description": "The same, for queries too long for an address."}
        described["post"] = {"operationId": f"post{operation}", **answered, "requestBody": body}
    return described


def _parameters(query: type[Parameters]) -> list[dict[str, Any]]:
    schema = query.model_json_schema()
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "description": described.pop("description", ""),
            "schema": described,
        }
        for name, described in schema["properties"].items()
    ]


def _response(about: str, type_: str, model: type[Answer]) -> dict[str, Any]:
    content = {type_: {"schema": {"$ref": _REF.format(model=model.__name__)}}}
    return {"description": about, "content": content}

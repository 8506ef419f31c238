"""The parameters of a request, and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from flask import Response, request
from pydantic import ValidationError

from grouptrail.console.text import harmless_json
from grouptrail.errors import GrouptrailError
from grouptrail.http.encoding import accepts_gzip, gzipped
from grouptrail.web import texts
from grouptrail.web.answers import Answer, Parameters

if TYPE_CHECKING:
    from grouptrail.snapshot.reader import ServedCluster

_TEXTS = {
    *("text/html", "text/css", "text/javascript", "text/csv", "text/markdown", "image/svg+xml"),
    *("application/json", "application/jsonl", "application/problem+json"),
}
# Shorter ones fit into one packet all the same.
_LEAST_COMPRESSED = 1_000

Query = TypeVar("Query", bound=Parameters)


class PageError(GrouptrailError):
    """A request that cannot be answered: its HTTP status, and names that may have been meant.

    `kind` is what they name: groups, topics or brokers."""

    def __init__(self, status: int, detail: str, near: Sequence[str] = (), kind: str = "groups") -> None:
        super().__init__(detail)
        self.status = status
        self.near = list(near)
        self.kind = kind


def asked(model: type[Query]) -> Query:
    """Return the parameters of the request: address and form. Raises PageError if one is unknown or wrong."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    given: dict[str, Any] = {}
    for name, values in request.values.lists():
        many = name in fields and isinstance(fields[name].default, list)
        given[name] = values if many else values[-1]
    try:
        return model.model_validate({name: value for name, value in given.items() if value or name == "name"})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        reason = first["msg"].removeprefix("Value error, ")
        if name and name not in fields:
            reason = f"there is no parameter {texts.name(name)}: {', '.join(fields)} are known"
        elif name:
            reason = f"parameter {name}: {reason}"
        raise PageError(HTTPStatus.BAD_REQUEST, reason) from error


def of_cluster(clusters: Mapping[str, ServedCluster], name: str) -> ServedCluster:
    """Return a cluster by its name. Raises PageError if there is none of this name."""
    if name not in clusters:
        raise PageError(HTTPStatus.NOT_FOUND, f"there is no cluster {name!r}: known are {', '.join(clusters)}")
    return clusters[name]


def this_page_with(**changes: Any) -> str:
    """Return the address of the page of this request with some parameters changed; None removes one."""
    kept = [(name, value) for name, value in request.args.items(multi=True) if name not in changes and value]
    added = [(name, str(value)) for name, value in changes.items() if value is not None]
    return f"?{urlencode([*kept, *added])}"


def json_path() -> str:
    """Return the address of the JSON of the page of this request."""
    kind, _, name = request.path.lstrip("/").partition("/")
    is_list = not kind or "/" not in request.path.lstrip("/")
    path = f"/api/v1/{kind or 'groups'}" if is_list else f"/api/v1/{kind}/{quote(name, safe='')}"
    query = request.query_string.decode("ascii", "ignore")
    return f"{path}?{query}" if query else path


def compressed(response: Response, accept_encoding: str) -> Response:
    """Return a response, compressed if it is a longer text and its client takes gzip.

    No page has a secret that its length could give away to a site that makes a browser request it: passwords and
    tokens are in headers.
    """
    if response.mimetype not in _TEXTS:
        return response
    response.headers.add("Vary", "Accept-Encoding")
    content = response.get_data()
    if len(content) >= _LEAST_COMPRESSED and accepts_gzip(accept_encoding):
        response.set_data(gzipped(content))
        response.headers["Content-Encoding"] = "gzip"
    return response


def json_answer(answer: Answer, status: int = HTTPStatus.OK, type_: str = "application/json") -> Response:
    """Return a model as JSON, which also a terminal can show."""
    return Response(harmless_json(answer.model_dump_json(by_alias=True)), status, content_type=type_)

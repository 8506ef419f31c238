"""The Flask application: what all pages have in common, and how errors are answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING

from flask import Flask, Response, render_template, request
from jinja2 import StrictUndefined
from markupsafe import Markup
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import BaseConverter

from grouptrail.console.progress import Log
from grouptrail.errors import GrouptrailError, one_line
from grouptrail.http.server import MAX_BODY_BYTES
from grouptrail.query import freshness
from grouptrail.query.formats import counted
from grouptrail.query.group_tasks import USES, roles_of
from grouptrail.query.rollouts import name_of_way
from grouptrail.query.show_group import ranges
from grouptrail.report.layout import sort_of
from grouptrail.report.page import asset
from grouptrail.storage.damage import out_of_range
from grouptrail.web import drawing, texts
from grouptrail.web.answers import Problem
from grouptrail.web.assets import assets
from grouptrail.web.group_index import GroupIndex
from grouptrail.web.openapi import API
from grouptrail.web.requests import PageError, compressed, json_answer, json_path, this_page_with
from grouptrail.web.routes import broker_pages, change_pages, list_pages, pages, rollout_pages
from grouptrail.web.runbooks import runbook_of
from grouptrail.web.security import HEADERS, check_request
from grouptrail.web.sql_page import sql_pages

if TYPE_CHECKING:
    from grouptrail.config.model import WebConfig
    from grouptrail.snapshot.reader import ServedCluster
    from grouptrail.snapshot.state import ClusterState

_YEAR_SECONDS = 31_536_000


class _Name(BaseConverter):
    """Any name as the rest of a path, with slashes and line ends."""

    regex = r"[\s\S]+"
    part_isolating = False


def application(
    clusters: Sequence[ServedCluster],
    web: WebConfig,
    state: Callable[[str], ClusterState],
    log: Log,
) -> Flask:
    """Return the application that shows these clusters; see `Pages`."""
    index = GroupIndex(clusters, state)
    app = _flask(log)
    app.register_blueprint(list_pages(index))
    app.register_blueprint(pages(index))
    app.register_blueprint(change_pages(index))
    app.register_blueprint(rollout_pages(index))
    app.register_blueprint(broker_pages(index))
    app.register_blueprint(sql_pages(clusters, web))
    return app


def _flask(log: Log) -> Flask:
    """Return a Flask application without pages: headers, errors, assets, and what templates may call."""
    app = Flask("grouptrail.web", static_folder=None)
    app.config |= {"MAX_CONTENT_LENGTH": MAX_BODY_BYTES, "MAX_FORM_MEMORY_SIZE": MAX_BODY_BYTES}
    app.url_map.merge_slashes = False
    app.url_map.converters["name"] = _Name
    app.jinja_env.undefined = StrictUndefined
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    files = assets()
    by_path = {file.path: file for file in files.values()}

    @app.before_request
    def check() -> None:
        check_request(request.method, request.headers)

    @app.after_request
    def add_headers(response: Response) -> Response:
        response.headers.update(HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
        return compressed(response, request.headers.get("Accept-Encoding", ""))

    @app.errorhandler(Exception)
    def show_error(error: Exception) -> Response:
        problem = _problem(error)
        if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            log(f"web: {texts.name(request.path)}: {problem.detail}")
        if request.path.startswith(API):
            answer = json_answer(problem, problem.status, "application/problem+json")
            return _with_allowed_methods(answer, error)
        kind = error.kind if isinstance(error, PageError) else ""
        page = Response(render_template("error.html", problem=problem, kind=kind), problem.status)
        return _with_allowed_methods(page, error)

    @app.get("/static/<name:path>")
    def show_asset(path: str) -> Response:
        file = by_path.get(f"/static/{path}")
        if file is None:
            raise NotFound
        kept = {"Cache-Control": f"public, max-age={_YEAR_SECONDS}, immutable"}
        return Response(file.content, content_type=file.type, headers=kept)

    app.jinja_env.filters |= {
        filter_.__name__: filter_
        for filter_ in (
            freshness.as_of,
            texts.ago,
            texts.coded,
            texts.milliseconds,
            texts.name,
            texts.named,
            texts.number,
            texts.rate,
            texts.shown,
            texts.span,
            texts.utc,
        )
    }
    app.jinja_env.globals |= {
        "runbook_of": runbook_of,
        "path_of": lambda name: files[name].path,
        "page_of": texts.page_of,
        "count": counted,
        "bar": drawing.bar,
        "json_path": json_path,
        "lag_chart": drawing.lag_chart,
        "offsets_chart": drawing.offsets_chart,
        "picture": Markup(asset("picture.html")),  # no part of it comes from the tables
        "name_of_way": name_of_way,
        "ranges": ranges,
        "roles_of": roles_of,
        "uses": USES,
        "sort_of": sort_of,
        "sparkline": drawing.sparkline,
        "this_page_with": this_page_with,
        "version": version("grouptrail"),
    }
    return app


def _with_allowed_methods(response: Response, error: Exception) -> Response:
    """Return a response, with the methods of its path if the error is that the request's is none of them."""
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return response


def _problem(error: Exception) -> Problem:
    if isinstance(error, PageError):
        status, detail, near = error.status, str(error), error.near
    elif isinstance(error, NotFound):
        status, detail, near = 404, f"there is no page {texts.name(request.path)}: / lists all groups", []
    elif isinstance(error, HTTPException):
        status, detail, near = error.code or 500, error.description or "", []
    elif isinstance(error, GrouptrailError):
        status, detail, near = 503, str(error), []
    elif isinstance(error, OverflowError):
        status, detail, near = 503, out_of_range(error), []
    else:
        status, detail, near = 500, f"{one_line(error)}; report it", []
    return Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, near=near)

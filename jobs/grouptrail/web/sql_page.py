"""The page of SQL, its JSON and its exports."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import quote, urlencode

import pyarrow as pa
from flask import Blueprint, Response, redirect, render_template, request
from werkzeug.exceptions import UnsupportedMediaType
from werkzeug.wrappers import Response as AnyResponse

from grouptrail import contracts
from grouptrail.http.server import IS_GONE
from grouptrail.query.errors import QueryError
from grouptrail.query.formats import (
    PLAN_COLUMNS,
    displayed,
    write_csv,
    write_json,
    write_markdown,
    write_parquet,
    write_reset_offsets,
)
from grouptrail.query.process import BusyError, Limits, QueryProcesses, QueryResult
from grouptrail.query.sql import first_sentence
from grouptrail.storage.result_rows import Row, column_names, rows
from grouptrail.storage.schema import column_type
from grouptrail.web.answers import MAX_SQL, Export, SqlColumn, SqlPageQuery, SqlParameters, SqlQuery, SqlRows
from grouptrail.web.openapi import API
from grouptrail.web.requests import PageError, asked, json_answer, of_cluster
from grouptrail.web.sql_chart import Chart, chart, is_number

if TYPE_CHECKING:
    from grouptrail.config.model import WebConfig
    from grouptrail.snapshot.reader import ServedCluster

MAX_SHOWN_ROWS = 500
# Proxies refuse longer addresses, and programs cut them where they show or send them.
MAX_LINK = 8_000
_MAX_CELL = 1000
_FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class ShownResult:
    """A result as the page shows it: the first rows as texts, None for null, and the CSS class of each column."""

    columns: Sequence[SqlColumn]
    classes: Sequence[str]
    cells: Sequence[Sequence[str | None]]
    has_lines: bool
    row_count: int
    is_cut: bool
    note: str | None
    seconds: float
    chart: Chart | None


@dataclass(frozen=True)
class _Download:
    type: str
    ending: str
    write: Callable[[QueryResult], bytes]


def _text(write: Callable[[list[str], Iterable[Row], TextIO], None]) -> Callable[[QueryResult], bytes]:
    """Return what writes a result as text."""

    def write_text(result: QueryResult) -> bytes:
        out = io.StringIO(newline="")
        write(column_names(result.schema), rows(result.batches()), out)
        return out.getvalue().encode()

    return write_text


def _parquet(result: QueryResult) -> bytes:
    out = io.BytesIO()
    write_parquet(result.schema, result.batches(), out)
    return out.getvalue()


_DOWNLOADS: dict[str, _Download] = {
    "csv": _Download("text/csv; charset=utf-8", "csv", _text(partial(write_csv, guard=True))),
    "jsonl": _Download("application/jsonl; charset=utf-8", "jsonl", _text(write_json)),
    "markdown": _Download("text/markdown; charset=utf-8", "md", _text(write_markdown)),
    "parquet": _Download("application/vnd.apache.parquet", "parquet", _parquet),
    "reset-offsets": _Download("text/csv; charset=utf-8", "csv", _text(write_reset_offsets)),
}
_UNGUARDED = {"csv": _Download("text/csv; charset=utf-8", "csv", _text(write_csv))}


class _Queries:
    """Answers queries of the clusters."""

    def __init__(self, clusters: Sequence[ServedCluster], web: WebConfig) -> None:
        self.limits = Limits(
            web.sql_max_rows, web.sql_max_result_bytes, web.sql_max_memory_bytes, web.sql_timeout_seconds
        )
        self.clusters = {cluster.name: cluster for cluster in clusters}
        self._processes = QueryProcesses(self.limits, web.sql_max_queries)

    def cluster(self, parameters: SqlParameters) -> ServedCluster:
        """Return the cluster that is asked for."""
        return of_cluster(self.clusters, parameters.cluster or next(iter(self.clusters)))

    def answer(self, parameters: SqlParameters) -> QueryResult:
        """Run a query. Raises PageError with one line."""
        try:
            cluster = self.cluster(parameters)
            return self._processes.run(
                cluster.warehouse,
                parameters.q,
                sample_seconds=cluster.sample_seconds,
                is_abandoned=request.environ.get(IS_GONE, lambda: False),
            )
        except BusyError as error:
            raise PageError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        except QueryError as error:
            raise PageError(HTTPStatus.BAD_REQUEST, str(error)) from error


def sql_pages(clusters: Sequence[ServedCluster], web: WebConfig) -> Blueprint:
    """Return the page of SQL and its API."""
    routes = Blueprint("sql", __name__)
    queries = _Queries(clusters, web)

    routes.before_request(_check_form)

    @routes.route("/sql", methods=["GET", "POST"])
    def show_sql() -> AnyResponse | tuple[str, int]:
        query = asked(SqlPageQuery)
        link = _link(query)
        if request.method == "POST" and len(link) <= MAX_LINK:
            return redirect(link, HTTPStatus.SEE_OTHER)
        result, problem = None, None
        if query.q.strip():
            try:
                result = _shown(queries.answer(query), with_chart=query.view == "chart")
            except PageError as error:
                problem = error
        page = render_template(
            "sql.html",
            query=query,
            cluster=queries.cluster(query).name,
            clusters=list(queries.clusters),
            result=result,
            problem=problem,
            has_link=request.method == "GET",
            limits=queries.limits,
            max_length=MAX_SQL,
            tables=contracts.tables().values(),
            views=contracts.views().values(),
            address=sql_address,
            first_sentence=first_sentence,
        )
        return page, problem.status if problem else HTTPStatus.OK

    @routes.route(f"{API}sql", methods=["GET", "POST"])
    def answer_sql() -> Response:
        query = asked(SqlQuery)
        result = queries.answer(query)
        if query.format == "json":
            return json_answer(_answer(queries.cluster(query).name, result))
        try:
            return _download(query.format, result, is_guarded=query.guard)
        except QueryError as error:
            raise PageError(HTTPStatus.BAD_REQUEST, str(error)) from error

    return routes


def _check_form() -> None:
    """Raise UnsupportedMediaType for a body that is not what `asked` reads."""
    if request.method == "POST" and request.mimetype != _FORM:
        raise UnsupportedMediaType(f"send the parameters as {_FORM}")


def _link(query: SqlPageQuery) -> str:
    """Return the address of the page of a query."""
    given = query.model_dump(exclude={"q"}, exclude_defaults=True)
    return sql_address(query.q, **given) if query.q else "/sql"


def sql_address(query: str, path: str = "/sql", **parameters: str | None) -> str:
    """Return the address of a query's page, or of another path with it."""
    given = {name: value for name, value in parameters.items() if value}
    return f"{path}?{urlencode({'q': query, **given})}"


def _columns(result: QueryResult) -> list[SqlColumn]:
    types = map(column_type, result.table.schema.types)
    return [SqlColumn(name=name, type=type_) for name, type_ in zip(column_names(result.schema), types, strict=True)]


def _answer(cluster: str, result: QueryResult) -> SqlRows:
    names = column_names(result.schema)
    return SqlRows(
        cluster=cluster,
        columns=_columns(result),
        rows=[dict(zip(names, row, strict=True)) for row in rows(result.batches())],
        is_cut=result.is_cut,
        note=result.note,
        seconds=round(result.seconds, 3),
    )


def _download(format: Export, result: QueryResult, *, is_guarded: bool) -> Response:
    download = (_DOWNLOADS if is_guarded else _DOWNLOADS | _UNGUARDED)[format]
    headers = {
        "Content-Disposition": f'attachment; filename="grouptrail.{download.ending}"',
        "X-Grouptrail-Is-Cut": str(result.is_cut).lower(),
    }
    if result.note:
        headers["X-Grouptrail-Note"] = quote(result.note, safe=" `:(),;/")
    return Response(download.write(result), content_type=download.type, headers=headers)


def _shown(result: QueryResult, *, with_chart: bool) -> ShownResult:
    columns = _columns(result)
    names = [column.name for column in columns]
    has_lines = names == PLAN_COLUMNS
    first = QueryResult(result.table.slice(0, MAX_SHOWN_ROWS), result.is_cut, result.seconds)
    cells = [
        [None if value is None else _cell(value, keep_lines=has_lines) for value in row]
        for row in rows(first.batches())
    ]
    return ShownResult(
        columns,
        [
            "number" if is_number(type_) else "whole" if pa.types.is_temporal(type_) else ""
            for type_ in result.table.schema.types
        ],
        cells,
        has_lines,
        result.table.num_rows,
        result.is_cut,
        result.note,
        result.seconds,
        chart(result.table, names) if with_chart else None,
    )


def _cell(value: Any, *, keep_lines: bool) -> str:
    text = displayed(value, keep_lines=keep_lines)
    return text if keep_lines or len(text) <= _MAX_CELL else f"{text[: _MAX_CELL - 1]}…"

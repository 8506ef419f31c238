"""The contents of `schemas/`: tables, views, metrics, expectations and record layouts. Its only reader."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import takewhile
from typing import Any

import yaml


def _folder(name: str, ending: str) -> list[Traversable]:
    entries = (files("grouptrail.schemas") / name).iterdir()
    return sorted((entry for entry in entries if entry.name.endswith(ending)), key=lambda entry: entry.name)


def _yaml(text: str) -> Any:
    # libyaml's parser, where there is one: every command that queries tables waits for this.
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def wire_layouts() -> dict[str, dict[str, Any]]:
    """Return every record and blob layout of `schemas/wire/` by its name in Kafka."""
    layouts: dict[str, dict[str, Any]] = {}
    for file in _folder("wire", ".json"):
        layouts.update(json.loads(file.read_text("utf-8")))
    return layouts


@dataclass(frozen=True)
class Column:
    """A column of a table or view.

    `type` is Spark's DDL; `null_means` is the meaning of a null (None: the column is never null); `stats` is whether
    Delta keeps each file's minimum and maximum for data skipping; `values` are the possible values, if they are few.
    `formerly` is the name that earlier versions gave the column.
    """

    name: str
    type: str
    about: str
    null_means: str | None = None
    stats: bool = False
    values: tuple[str, ...] = ()
    formerly: str | None = None


@dataclass(frozen=True)
class Table:
    """A table: `key` are the columns that identify a row, `cluster_by` those that its files are sorted by.

    A table whose rows change is partitioned (`partition_by`), to separate rows that may still change from final ones.
    """

    name: str
    about: str
    key: tuple[str, ...]
    cluster_by: tuple[str, ...]
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...] = ()

    @property
    def has_renamed_columns(self) -> bool:
        """Whether columns had other names in earlier versions."""
        return any(column.formerly for column in self.columns)

    @property
    def time_column(self) -> str | None:
        """The column that dates a row: the first timestamp with file statistics."""
        return next((column.name for column in self.columns if column.type == "timestamp" and column.stats), None)

    def ddl(self, *, without: Sequence[str] = ()) -> str:
        """Return the columns as Spark DDL."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns if column.name not in without)


def _table(file: Traversable) -> Table:
    data = _yaml(file.read_text("utf-8"))
    types: dict[str, str] = {}
    for name, text in data.get("types", {}).items():
        types[name] = _with_types(" ".join(text.split()), types)
    return Table(
        name=file.name.removesuffix(".yaml"),
        about=data["about"],
        key=tuple(data["key"]),
        cluster_by=tuple(data["cluster_by"]),
        columns=tuple(
            Column(
                **{
                    **column,
                    "type": _with_types(column["type"], types),
                    "values": tuple(column.get("values", ())),
                }
            )
            for column in _columns(data["columns"])
        ),
        partition_by=tuple(data.get("partition_by", ())),
    )


def _columns(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        if "use" in entry:
            shared = files("grouptrail.schemas") / "tables" / f"{entry['use']}.yaml"
            yield from _yaml(shared.read_text("utf-8"))["columns"]
        else:
            yield entry


def _with_types(text: str, types: dict[str, str]) -> str:
    """Replace the names of a table's own types by their definitions; field names, which end in a colon, are kept."""
    return re.sub(r"\b(\w+)\b(?!:)", lambda match: types.get(match[1], match[1]), text)


@cache
def tables() -> dict[str, Table]:
    """Return every table of `schemas/tables/` by name."""
    contracts = [_table(file) for file in _folder("tables", ".yaml") if not file.name.startswith("_")]
    return {table.name: table for table in contracts}


@cache
def expectations() -> dict[str, list[dict[str, Any]]]:
    """Return the expectations of `schemas/tables/<table>.expectations.json` by table.

    Their format is that of Great Expectations; `meta.name` is unique in a table. Expectations that follow from the
    columns are not among them: see `quality.suites`.
    """
    suites = [json.loads(file.read_text("utf-8")) for file in _folder("tables", ".expectations.json")]
    return {suite["name"]: suite["expectations"] for suite in suites}


@cache
def statuses() -> tuple[str, ...]:
    """Return the verdicts on lag, the worst first. A group has the verdict of its worst partition."""
    return next(column.values for column in tables()["consumer_lag"].columns if column.name == "status")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a view.

    `type` is string, int, timestamp, date or interval. A parameter without a `default` is required.
    """

    name: str
    type: str
    about: str
    default: int | str | None = None


@dataclass(frozen=True)
class View:
    """A query in SQL that both DataFusion (delta-rs) and Spark accept; its parameters are written as `:name`.

    Every view also has `:cluster`, the cluster whose rows it reads, `:now`, and `:seconds(later, earlier)`, the time
    between two timestamps, whose syntax differs between the engines. `about` describes a row.
    """

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    columns: tuple[Column, ...]
    example: str
    sql: str

    @property
    def required(self) -> int:
        """The number of required parameters."""
        return sum(parameter.default is None for parameter in self.parameters)

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that it reads, also through other views, in the order in which the query names them."""
        named = list(dict.fromkeys(re.findall(r"\b(?:FROM|JOIN) (\w+)", self.sql)))
        inner = (views()[name].tables if name in views() else (name,) for name in named)
        return tuple(dict.fromkeys(name for names in inner for name in names if name in tables()))

    @property
    def group_table(self) -> str:
        """The table with all groups that the view may return rows of; for history tables, `generations`."""
        columns = {column.name for column in tables()[self.tables[0]].columns}
        return "generations" if "incarnation" in columns else self.tables[0]

    @property
    def signature(self) -> str:
        """The call as documentation shows it: `owners_at(group, time)`, with optional parameters in brackets."""
        text = ""
        for number, parameter in enumerate(self.parameters):
            part = f", {parameter.name}" if number else parameter.name
            text += part if parameter.default is None else f"[{part}]"
        return f"{self.name}({text})"


def _view(file: Traversable) -> View:
    """Return a view from its file: a comment with YAML, then the query."""
    lines = file.read_text("utf-8").splitlines(keepends=True)
    head = list(takewhile(lambda line: line.startswith("--"), lines))
    data = _yaml("".join(line.removeprefix("--").removeprefix(" ") for line in head))
    return View(
        name=file.name.removesuffix(".sql"),
        about=data["about"],
        parameters=tuple(Parameter(**parameter) for parameter in data.get("parameters", ())),
        columns=tuple(Column(**column) for column in data["columns"]),
        example=data["example"],
        sql="".join(lines[len(head) :]),
    )


@cache
def views() -> dict[str, View]:
    """Return every view of `schemas/views/` by name."""
    parsed = [_view(file) for file in _folder("views", ".sql")]
    return {view.name: view for view in parsed}


@dataclass(frozen=True)
class Metric:
    """A metric that the exporter serves.

    `type` is gauge, counter or histogram; `unit` is that of its values, `table` where they come from; `buckets` are
    a histogram's upper bounds without +Inf.
    """

    name: str
    type: str
    unit: str
    labels: tuple[str, ...]
    table: str
    help: str
    buckets: tuple[float, ...] = ()


@cache
def metrics() -> dict[str, Metric]:
    """Return every metric of `schemas/metrics.yaml` by name, in the order of the file."""
    entries = yaml.safe_load((files("grouptrail.schemas") / "metrics.yaml").read_text("utf-8"))
    parsed = [
        Metric(**{**entry, "labels": tuple(entry["labels"]), "buckets": tuple(entry.get("buckets", ()))})
        for entry in entries
    ]
    return {metric.name: metric for metric in parsed}

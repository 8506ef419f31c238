"""The only reader of `schemas/`: everything that is data, not code, comes from here."""

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
    # libyaml's parser, where there is one: every command that asks the tables waits for this.
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def wire_layouts() -> dict[str, dict[str, Any]]:
    """Every record and blob layout of `schemas/wire/`, by its Kafka name."""
    layouts: dict[str, dict[str, Any]] = {}
    for file in _folder("wire", ".json"):
        layouts.update(json.loads(file.read_text("utf-8")))
    return layouts


@dataclass(frozen=True)
class Column:
    """One column.

    `type` is Spark's DDL, `null_means` says what a null means (None: never null), `stats` whether files keep
    its minimum and maximum for skipping, `values` what it may hold, where that is a few words."""

    name: str
    type: str
    about: str
    null_means: str | None = None
    stats: bool = False
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """One table: `key` is what makes a row unique, `cluster_by` what its files are sorted by.

    A table whose rows change is partitioned, to keep those that may still change apart from the many that do not."""

    name: str
    about: str
    key: tuple[str, ...]
    cluster_by: tuple[str, ...]
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...] = ()

    def ddl(self, *, without: Sequence[str] = ()) -> str:
        """The columns as Spark's DDL."""
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
    """Puts a table's own named types in where a type is written; field names end in a colon and stay."""
    return re.sub(r"\b(\w+)\b(?!:)", lambda found: types.get(found[1], found[1]), text)


@cache
def tables() -> dict[str, Table]:
    """Every table contract of `schemas/tables/`, by name."""
    contracts = [_table(file) for file in _folder("tables", ".yaml") if not file.name.startswith("_")]
    return {table.name: table for table in contracts}


@cache
def expectations() -> dict[str, list[dict[str, Any]]]:
    """What a table's contract cannot say: the expectations of `schemas/tables/<table>.expectations.json`, by table.

    In the form of Great Expectations; `meta.name` names one within its table."""
    suites = [json.loads(file.read_text("utf-8")) for file in _folder("tables", ".expectations.json")]
    return {suite["name"]: suite["expectations"] for suite in suites}


@cache
def statuses() -> tuple[str, ...]:
    """The verdicts on lag, the worst first: a group has that of its worst partition."""
    return next(column.values for column in tables()["consumer_lag"].columns if column.name == "status")


@dataclass(frozen=True)
class Parameter:
    """What a view is asked with.

    `type` is string, int, timestamp, date or interval; one without a `default` must be given."""

    name: str
    type: str
    about: str
    default: int | str | None = None


@dataclass(frozen=True)
class View:
    """A query in the SQL that delta-rs' engine and Spark have in common, with its parameters as `:name`.

    Beside its own it has `:cluster`, the cluster whose rows it reads, `:now`, and `:seconds(later, earlier)` for the
    time between two timestamps, which each engine writes in its own way. `about` says what a row is."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    columns: tuple[Column, ...]
    example: str
    sql: str

    @property
    def required(self) -> int:
        """How many parameters must be given."""
        return sum(parameter.default is None for parameter in self.parameters)

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables it reads, in the order in which it names them, with those of the views it calls."""
        named = list(dict.fromkeys(re.findall(r"\b(?:FROM|JOIN) (\w+)", self.sql)))
        inner = (views()[name].tables if name in views() else (name,) for name in named)
        return tuple(dict.fromkeys(name for names in inner for name in names if name in tables()))

    @property
    def group_table(self) -> str:
        """The table that has every group it can be asked for: for the history tables all that have generations."""
        columns = {column.name for column in tables()[self.tables[0]].columns}
        return "generations" if "incarnation" in columns else self.tables[0]

    @property
    def signature(self) -> str:
        """As in `owners_at(group, time)`; what may be left out is in brackets."""
        text = ""
        for number, parameter in enumerate(self.parameters):
            part = f", {parameter.name}" if number else parameter.name
            text += part if parameter.default is None else f"[{part}]"
        return f"{self.name}({text})"


def _view(file: Traversable) -> View:
    """The comment that the file begins with is YAML, the rest the query."""
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
    """Every view of `schemas/views/`, by name."""
    found = [_view(file) for file in _folder("views", ".sql")]
    return {view.name: view for view in found}


@dataclass(frozen=True)
class Metric:
    """A metric that the exporter serves.

    `type` is gauge, counter or histogram, `unit` what a value counts, `table` where it comes from; `buckets` are a
    histogram's upper bounds without +Inf."""

    name: str
    type: str
    unit: str
    labels: tuple[str, ...]
    table: str
    help: str
    buckets: tuple[float, ...] = ()


@cache
def metrics() -> dict[str, Metric]:
    """Every metric of `schemas/metrics.yaml`, by name, in its order."""
    entries = yaml.safe_load((files("grouptrail.schemas") / "metrics.yaml").read_text("utf-8"))
    found = [
        Metric(**{**entry, "labels": tuple(entry["labels"]), "buckets": tuple(entry.get("buckets", ()))})
        for entry in entries
    ]
    return {metric.name: metric for metric in found}

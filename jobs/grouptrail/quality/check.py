"""`grouptrail check`: holds the tables against their expectations, and keeps what came of it in `check_results`."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grouptrail import contracts
from grouptrail.errors import GrouptrailError, first_cause
from grouptrail.quality import snapshot, suites
from grouptrail.quality.docs import Entry, index
from grouptrail.query.formats import console_on, displayed
from grouptrail.storage import tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.config import Config
    from grouptrail.quality.expectations import Validator

RESULTS = "check_results"
_SAMPLES = 3
_READABLE = "readable"
_HEADS = ("table", "version", "rows", "expectations", "breached", "seconds")


class ExpectationsBreached(GrouptrailError):
    """The tables are not what they should be."""


@dataclass(frozen=True)
class Result:
    """What came of one expectation; `unexpected_count` is None where it could not be looked at, see `problem`."""

    expectation: str
    meaning: str
    success: bool
    unexpected_count: int | None
    sample_keys: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Checked:
    """A table's results, in the order of its expectations; `lacking` are columns that it does not have yet.

    Of a table that cannot be read there is one result, which says so; `version` is None if not even its log can be.
    """

    table: str
    version: int | None
    rows: int
    results: tuple[Result, ...]
    seconds: float
    lacking: tuple[str, ...] = ()

    @property
    def is_readable(self) -> bool:
        return [result.expectation for result in self.results] != [_READABLE]

    @property
    def breaches(self) -> list[Result]:
        return [result for result in self.results if not result.success]

    @property
    def figures(self) -> tuple[str, ...]:
        """For people, from the version on."""
        version = "-" if self.version is None else str(self.version)
        counts = (f"{count:,}" for count in (self.rows, len(self.results), len(self.breaches)))
        return (version, *counts, f"{self.seconds:.1f}")


def check(
    config: Config,
    names: tuple[str, ...],
    *,
    since: datetime | None,
    docs: Path | None,
    out: TextIO,
    report: Callable[[str], None] = print,
) -> None:
    """Checks the named tables, or all, and prints what came of it; `docs` is where Data Docs are written to.

    Raises ExpectationsBreached where one is breached, when all is written.
    """
    from grouptrail.spark.session import start_session

    tables.check_warehouse(config)
    spark = start_session(config, "grouptrail-check", report)
    try:
        checked = run(spark, config, names, since=since, docs=docs)
    finally:
        spark.stop()
    print_checked(checked, config, console_on(out))
    if docs is not None:
        report(f"Data Docs: {docs / 'index.html'}")
    refuse_breaches(checked)


def run(
    spark: SparkSession,
    config: Config,
    names: tuple[str, ...] = (),
    *,
    since: datetime | None = None,
    docs: Path | None = None,
    patience_seconds: float = 30,
) -> list[Checked]:
    """As `check`, in a session that is there: gives what came of each table, and appends it to `check_results`.

    For so many seconds it waits for batches under way, which write one table after the other.
    """
    from grouptrail.quality.expectations import Validator

    began = datetime.now(UTC)
    tables.ensure_table(spark, config, RESULTS)
    taken = snapshot.take(config, patience_seconds=patience_seconds)
    validator = Validator()
    checked = []
    with snapshot.views(spark, config, taken) as (views, unreadable):
        for name in (name for name in names or contracts.tables() if name != RESULTS):
            if name in unreadable:
                checked.append(_unreadable(name, None, unreadable[name]))
            elif name in taken.versions:
                rows = _newer(views[name], name, since)
                checked.append(_check(validator, name, rows, taken.versions[name], unreadable))
    _append(spark, config, checked, began, since)
    if docs is not None:
        _write_docs(validator, docs, checked, config)
    return checked


def _newer(rows: DataFrame, name: str, since: datetime | None) -> DataFrame:
    from pyspark.sql import functions as F

    time_column = suites.time_column(contracts.tables()[name])
    return rows if since is None or time_column is None else rows.where(F.col(time_column) >= since)


def _check(
    validator: Validator, name: str, rows: DataFrame, at: snapshot.Commit, unreadable: Collection[str]
) -> Checked:
    started = time.monotonic()
    try:
        count = rows.count()
    except Exception as error:  # a file that is gone or damaged: the other tables are worth a look all the same
        return _unreadable(name, at.version, first_cause(error))
    expected = suites.expectations(contracts.tables()[name], lacking=at.lacking)
    blind = {one["meta"]["name"]: gone for one in expected if (gone := suites.tables_read(one) & set(unreadable))}
    found = validator.validate(name, rows, [one for one in expected if one["meta"]["name"] not in blind])
    by_name = {one["expectation_config"]["meta"]["name"]: _result(one) for one in found}
    results = (by_name.get(one["meta"]["name"]) or _without(one, blind[one["meta"]["name"]]) for one in expected)
    return Checked(name, at.version, count, tuple(results), time.monotonic() - started, at.lacking)


def _unreadable(name: str, version: int | None, why: str) -> Checked:
    problem = f"it cannot be read ({why}): correct the warehouse, or upgrade grouptrail"
    result = Result(_READABLE, "the table can be read", False, None, problem=problem)
    return Checked(name, version, 0, (result,), 0.0)


def _without(expectation: suites.Expectation, gone: set[str]) -> Result:
    problem = f"it looks at {', '.join(sorted(gone))} as well, which cannot be read"
    return Result(expectation["meta"]["name"], expectation["description"], False, None, problem=problem)


def _result(found: dict[str, Any]) -> Result:
    """From a result in the form of Great Expectations."""
    config, result = found["expectation_config"], found["result"]
    name, meaning = config["meta"]["name"], config["description"]
    if found["success"]:
        return Result(name, meaning, True, 0)
    if problem := _problem(found["exception_info"]):
        return Result(name, meaning, False, None, problem=problem)
    if "details" not in result:  # of a column's type, which Delta holds the same for all rows
        return Result(name, meaning, False, None, problem=f"it is {result['observed_value']}")
    rows = result["details"]["unexpected_rows"]
    keys = (json.dumps(row, default=str, ensure_ascii=False) for row in rows[:_SAMPLES])
    return Result(name, meaning, False, result["observed_value"], tuple(keys))


def _problem(raised: dict[str, Any]) -> str | None:
    """The first line of why an expectation could not be looked at."""
    faults = [raised] if "raised_exception" in raised else list(raised.values())
    messages = (str(fault["exception_message"]) for fault in faults if fault["raised_exception"])
    return next((message.strip().splitlines()[0][:300] for message in messages), None)


def _append(
    spark: SparkSession, config: Config, checked: list[Checked], began: datetime, since: datetime | None
) -> None:
    run_id = str(uuid.uuid4())
    rows = [
        {
            "cluster": config.cluster,
            "run_id": run_id,
            "table_name": table.table,
            "table_version": table.version,
            "checked_since": since,
            "checked_rows": table.rows,
            "expectation": result.expectation,
            "meaning": result.meaning,
            "success": result.success,
            "unexpected_count": result.unexpected_count,
            "sample_keys": list(result.sample_keys),
            "problem": result.problem,
            "checked_at": began,
        }
        for table in checked
        for result in table.results
    ]
    if rows:
        tables.append_new(spark, rows, config, RESULTS)


def _write_docs(validator: Validator, folder: Path, checked: list[Checked], config: Config) -> None:
    validator.write_docs(folder)
    entries = [
        Entry(one.table, one.figures, [line for line in _remarks(one) if line], one.is_readable) for one in checked
    ]
    title = f"Tables of cluster {config.cluster}"
    (folder / "index.html").write_text(index(title, _HEADS, entries), "utf-8")


def print_checked(checked: list[Checked], config: Config, console: Console) -> None:
    """One line a table, then what is breached, then what there was nothing to look at of."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(_HEADS[0], no_wrap=True)
    for name in _HEADS[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for one in checked:
        table.add_row(one.table, *one.figures, style="bold red" if one.breaches else "")
    console.print(table)
    console.print(f"cluster {displayed(config.cluster)} in {config.warehouse}", markup=False, soft_wrap=True)
    for line in (line for one in checked for line in _remarks(one)):
        console.print(Text(line), soft_wrap=True)
    if empty := [one.table for one in checked if not one.rows and not one.breaches]:
        console.print(Text(f"\nnothing can be said of {', '.join(empty)}: no rows"), soft_wrap=True)


def _remarks(checked: Checked) -> Iterator[str]:
    """What is to be said of a table beside its figures; a blank line before each."""
    for result in checked.breaches:
        yield ""
        many = "not counted" if result.unexpected_count is None else f"{result.unexpected_count:,} rows"
        yield f"{checked.table}.{result.expectation}: {many}; expected: {result.meaning}"
        if result.problem:
            yield f"  {displayed(result.problem)}"
        for key in result.sample_keys:
            yield f"  such as {displayed(key)}"
    if checked.lacking:
        yield ""
        yield f"{checked.table} has no column {', '.join(checked.lacking)} yet: the next `grouptrail run` adds it"


def refuse_breaches(checked: list[Checked]) -> None:
    """Raises where an expectation is breached, or there is no table at all."""
    if not checked:
        raise ExpectationsBreached("there is no table to check: run `grouptrail run`, or correct --warehouse")
    breached = [table for table in checked if table.breaches]
    if breached:
        count = sum(len(table.breaches) for table in breached)
        what = "1 expectation is" if count == 1 else f"{count} expectations are"
        raise ExpectationsBreached(
            f"{what} breached, of {', '.join(table.table for table in breached)}: docs/operations.md says what to do"
        )

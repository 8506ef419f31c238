"""`grouptrail check`: validate the tables against their expectations and store the results in `check_results`."""

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
from grouptrail.console.progress import print_now
from grouptrail.errors import GrouptrailError, first_cause
from grouptrail.quality import snapshot, suites
from grouptrail.quality.docs import Entry, index
from grouptrail.query.formats import console_on, displayed
from grouptrail.storage import tables
from grouptrail.storage.reader import Commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.config import Config
    from grouptrail.quality.expectations import Validator

RESULTS = "check_results"
_SAMPLES = 3
_READABLE = "readable"
_HEADS = ("table", "version", "rows", "expectations", "failed", "seconds")


class ExpectationError(GrouptrailError):
    """At least one expectation failed, or there is no table."""


@dataclass(frozen=True)
class Result:
    """The result of one expectation. If it was not evaluated, `unexpected_count` is None and `problem` says why."""

    expectation: str
    meaning: str
    success: bool
    unexpected_count: int | None
    sample_keys: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class TableResult:
    """The results of one table, in the order of its expectations; `lacking` are columns that it does not have yet.

    A table that cannot be read has a single result that says so; `version` is None if even its log cannot be read.
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
    def failures(self) -> list[Result]:
        return [result for result in self.results if not result.success]

    @property
    def figures(self) -> tuple[str, ...]:
        """The formatted cells of the table's line, starting with the version."""
        version = "-" if self.version is None else str(self.version)
        counts = (f"{count:,}" for count in (self.rows, len(self.results), len(self.failures)))
        return (version, *counts, f"{self.seconds:.1f}")


def check(
    config: Config,
    names: tuple[str, ...],
    *,
    since: datetime | None,
    docs: Path | None,
    out: TextIO,
    report: Callable[[str], None] = print_now,
) -> None:
    """Check the named tables, or all, and print the results; `docs` is the folder for Data Docs.

    Raises ExpectationError if an expectation failed, after everything has been written.
    """
    from grouptrail.spark.session import start_session

    tables.check_warehouse_exists(config)
    spark = start_session(config, "grouptrail-check", report)
    try:
        checked = run(spark, config, names, since=since, docs=docs)
    finally:
        spark.stop()
    print_checked(checked, config, console_on(out))
    if docs is not None:
        report(f"Data Docs: {docs / 'index.html'}")
    raise_on_failures(checked)


def run(
    spark: SparkSession,
    config: Config,
    names: tuple[str, ...] = (),
    *,
    since: datetime | None = None,
    docs: Path | None = None,
    patience_seconds: float = 30,
) -> list[TableResult]:
    """Check tables like `check`, but in an existing session: return the results and append them to `check_results`.

    Waits up to `patience_seconds` for running batches, which write one table after the other.
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


def _check(validator: Validator, name: str, rows: DataFrame, at: Commit, unreadable: Collection[str]) -> TableResult:
    started = time.monotonic()
    try:
        count = rows.count()
    except Exception as error:  # a missing or damaged file: the other tables are still checked
        return _unreadable(name, at.version, first_cause(error))
    expected = suites.expectations(contracts.tables()[name], lacking=at.lacking)
    unevaluable = {
        one["meta"]["name"]: gone for one in expected if (gone := suites.tables_read(one) & set(unreadable))
    }
    found = validator.validate(name, rows, [one for one in expected if one["meta"]["name"] not in unevaluable])
    by_name = {one["expectation_config"]["meta"]["name"]: _result(one) for one in found}
    results = (
        by_name.get(one["meta"]["name"]) or _without(one, unevaluable[one["meta"]["name"]]) for one in expected
    )
    return TableResult(name, at.version, count, tuple(results), time.monotonic() - started, at.lacking)


def _unreadable(name: str, version: int | None, why: str) -> TableResult:
    problem = f"it cannot be read ({why}): check the warehouse, or upgrade grouptrail"
    result = Result(_READABLE, "the table can be read", False, None, problem=problem)
    return TableResult(name, version, 0, (result,), 0.0)


def _without(expectation: suites.Expectation, gone: set[str]) -> Result:
    problem = f"it also reads {', '.join(sorted(gone))}, which cannot be read"
    return Result(expectation["meta"]["name"], expectation["description"], False, None, problem=problem)


def _result(found: dict[str, Any]) -> Result:
    """Convert a result of Great Expectations."""
    config, result = found["expectation_config"], found["result"]
    name, meaning = config["meta"]["name"], config["description"]
    if found["success"]:
        return Result(name, meaning, True, 0)
    if problem := _problem(found["exception_info"]):
        return Result(name, meaning, False, None, problem=problem)
    if "details" not in result:  # the type of a column, which is the same for all rows in Delta
        return Result(name, meaning, False, None, problem=f"it is {result['observed_value']}")
    rows = result["details"]["unexpected_rows"]
    keys = (json.dumps(row, default=str, ensure_ascii=False) for row in rows[:_SAMPLES])
    return Result(name, meaning, False, result["observed_value"], tuple(keys))


def _problem(exception_info: dict[str, Any]) -> str | None:
    """Return the first line of the error that prevented an evaluation."""
    exceptions = [exception_info] if "raised_exception" in exception_info else list(exception_info.values())
    messages = (str(exception["exception_message"]) for exception in exceptions if exception["raised_exception"])
    return next((message.strip().splitlines()[0][:300] for message in messages), None)


def _append(
    spark: SparkSession, config: Config, checked: list[TableResult], began: datetime, since: datetime | None
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


def _write_docs(validator: Validator, folder: Path, checked: list[TableResult], config: Config) -> None:
    validator.write_docs(folder)
    entries = [
        Entry(one.table, one.figures, [line for line in _remarks(one) if line], one.is_readable) for one in checked
    ]
    title = f"Tables of cluster {config.cluster}"
    (folder / "index.html").write_text(index(title, _HEADS, entries), "utf-8")


def print_checked(checked: list[TableResult], config: Config, console: Console) -> None:
    """Print one line per table, then the failed expectations, then the tables without rows."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(_HEADS[0], no_wrap=True)
    for name in _HEADS[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for one in checked:
        table.add_row(one.table, *one.figures, style="bold red" if one.failures else "")
    console.print(table)
    console.print(f"cluster {displayed(config.cluster)} in {config.warehouse}", markup=False, soft_wrap=True)
    for line in (line for one in checked for line in _remarks(one)):
        console.print(Text(line), soft_wrap=True)
    if empty := [one.table for one in checked if not one.rows and not one.failures]:
        console.print(Text(f"\nnot checked, because there are no rows: {', '.join(empty)}"), soft_wrap=True)


def _remarks(checked: TableResult) -> Iterator[str]:
    """Return the lines about a table's failed expectations and missing columns, separated by blank lines."""
    for result in checked.failures:
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


def raise_on_failures(checked: list[TableResult]) -> None:
    """Raise ExpectationError if an expectation failed or there is no table at all."""
    if not checked:
        raise ExpectationError("there is no table to check: run `grouptrail run`, or check --warehouse")
    failed = [table for table in checked if table.failures]
    if failed:
        count = sum(len(table.failures) for table in failed)
        what = "1 expectation" if count == 1 else f"{count} expectations"
        raise ExpectationError(
            f"{what} failed, in {', '.join(table.table for table in failed)}: docs/operations.md says what to do"
        )

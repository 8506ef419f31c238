"""`grouptrail check`: holds the tables against their expectations, and keeps what came of it in `check_results`."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grouptrail import contracts, tables
from grouptrail.errors import GrouptrailError
from grouptrail.explore.formats import console_on, displayed
from grouptrail.quality import snapshot, suites
from grouptrail.quality.docs import Entry, index

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.config import Config
    from grouptrail.quality.expectations import Validator

RESULTS = "check_results"
_SAMPLES = 3
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
    """A table's results, in the order of its expectations; `lacking` are columns that it does not have yet."""

    table: str
    version: int
    rows: int
    results: tuple[Result, ...]
    seconds: float
    lacking: tuple[str, ...] = ()

    @property
    def breaches(self) -> list[Result]:
        return [result for result in self.results if not result.success]

    @property
    def figures(self) -> tuple[str, ...]:
        """For people, from the version on."""
        counts = (self.version, f"{self.rows:,}", len(self.results), len(self.breaches))
        return (*map(str, counts), f"{self.seconds:.1f}")


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
    from grouptrail.session import start_session

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
    versions = snapshot.take(config, patience_seconds=patience_seconds)
    validator = Validator()
    with snapshot.views(spark, config, versions) as views:
        checked = [
            _check(validator, contracts.tables()[name], views[name], versions[name], since)
            for name in names or contracts.tables()
            if name in versions and name != RESULTS
        ]
    _append(spark, config, checked, began, since)
    if docs is not None:
        _write_docs(validator, docs, checked, config)
    return checked


def _check(
    validator: Validator, table: contracts.Table, view: DataFrame, at: snapshot.Commit, since: datetime | None
) -> Checked:
    from pyspark.sql import functions as F

    started = time.monotonic()
    time_column = suites.time_column(table)
    rows = view if since is None or time_column is None else view.where(F.col(time_column) >= since)
    count = rows.count()
    expected = suites.expectations(table, lacking=at.lacking)
    results = tuple(_result(found) for found in validator.validate(table.name, rows, expected))
    return Checked(table.name, at.version, count, results, time.monotonic() - started, at.lacking)


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
    tables.ensure_table(spark, config, RESULTS)
    if rows:
        tables.append_new(spark, rows, config, RESULTS)


def _write_docs(validator: Validator, folder: Path, checked: list[Checked], config: Config) -> None:
    validator.write_docs(folder)
    entries = [Entry(one.table, one.figures, [line for line in _remarks(one) if line]) for one in checked]
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
    if empty := [one.table for one in checked if not one.rows]:
        console.print(Text(f"\nnothing can be said of {', '.join(empty)}: no rows"), soft_wrap=True)


def _remarks(checked: Checked) -> Iterator[str]:
    """What is to be said of a table beside its figures; a blank line before each."""
    for result in checked.breaches:
        yield ""
        many = "not looked at" if result.unexpected_count is None else f"{result.unexpected_count:,} rows"
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

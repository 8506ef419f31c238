"""`grouptrail check`: validate the tables against their expectations and store the results in `check_results`."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grouptrail import contracts
from grouptrail.console.progress import Log, print_now, waiting
from grouptrail.errors import GrouptrailError, first_cause, first_cause_in
from grouptrail.quality import snapshot, suites
from grouptrail.quality.docs import Entry, index
from grouptrail.quality.results import SAMPLES, Result, TableResult, not_evaluated, unreadable
from grouptrail.query.formats import RowsFormat, console_on, displayed, write_rows
from grouptrail.query.freshness import stale_note
from grouptrail.storage.errors import NeedsSparkError
from grouptrail.storage.reader import Commit
from grouptrail.storage.warehouse import StartSpark, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from grouptrail.quality.expectations import Validator

RESULTS = "check_results"
MOST_ROWS = 5_000_000
"""Maximum number of rows in the largest table for a check without Spark, in memory."""

_PATIENCE_SECONDS = 30.0
_HEADS = ("table", "version", "rows", "expectations", "failed", "seconds")


class ExpectationError(GrouptrailError):
    """At least one expectation failed, or there is no table."""


def check(
    warehouse: Warehouse,
    names: tuple[str, ...],
    *,
    since: datetime | None,
    docs: Path | None,
    sample_seconds: float,
    start_spark: StartSpark,
    out: TextIO,
    format: RowsFormat = "table",
    log: Log = print_now,
) -> None:
    """Check the named tables, or all, and print the results; `docs` is the folder for Data Docs.

    Spark does it for Data Docs, for more than fits into memory, and in a store that delta-rs does not support;
    otherwise delta-rs does, without a JVM. Raises ExpectationError if an expectation failed, after everything has
    been written, and if there are no rows since a time because the pipeline has stopped.
    """
    warehouse.check_exists()
    with waiting("waiting for the batches that are being written"):
        taken = snapshot.take(warehouse, patience_seconds=_PATIENCE_SECONDS)
    are_small = all(commit.rows is not None and commit.rows <= MOST_ROWS for commit in taken.versions.values())
    if docs is None and are_small and warehouse.is_readable_without_spark:
        checked = run_with_delta_rs(warehouse, names, taken, since=since, start_spark=start_spark)
    else:
        with start_spark() as in_session:
            checked = run(in_session, names, since=since, docs=docs)
    if format == "table":
        print_checked(checked, warehouse, console_on(out))
        if docs is not None:
            log(f"Data Docs: {docs / 'index.html'}")
    else:
        _write(checked, out, format)
    raise_on_failures(checked)
    if since is not None and not any(one.rows for one in checked) and (note := stale_note(warehouse, sample_seconds)):
        raise ExpectationError(f"no row is newer than {since:%Y-%m-%d %H:%M:%S} UTC, so nothing was checked; {note}")


def run_with_delta_rs(
    warehouse: Warehouse,
    names: tuple[str, ...],
    taken: snapshot.Snapshot,
    *,
    since: datetime | None = None,
    start_spark: StartSpark,
) -> list[TableResult]:
    """Check tables without Spark: return the results and append them to `check_results`.

    Spark is started only if that table needs it: one that Spark has created.
    """
    from grouptrail.quality.delta_rs import CheckedTables

    started_at = datetime.now(UTC)
    checked = []
    with CheckedTables(warehouse, taken) as stored:
        for name in _checkable(names):
            if name in stored.unreadable:
                checked.append(unreadable(name, None, stored.unreadable[name]))
            elif name in taken.versions:
                with waiting(f"checking {name}"):
                    checked.append(stored.check(name, taken.versions[name], since))
    if rows := _rows(checked, started_at, since):
        try:
            _append(warehouse, rows)
        except NeedsSparkError:
            with start_spark() as in_session:
                _append(in_session, rows)
    return checked


def run(
    warehouse: Warehouse,
    names: tuple[str, ...] = (),
    *,
    since: datetime | None = None,
    docs: Path | None = None,
    patience_seconds: float = _PATIENCE_SECONDS,
) -> list[TableResult]:
    """Check tables with Great Expectations in the warehouse's session.

    Return the results, and append them to `check_results`. Waits up to `patience_seconds` for running batches, which
    write one table after the other.
    """
    from grouptrail.quality.expectations import Validator

    started_at = datetime.now(UTC)
    taken = snapshot.take(warehouse, patience_seconds=patience_seconds)
    validator = Validator()
    checked = []
    with snapshot.views(warehouse, taken) as (views, missing):
        for name in _checkable(names):
            if name in missing:
                checked.append(unreadable(name, None, missing[name]))
            elif name in taken.versions:
                rows = _newer(views[name], name, since)
                with waiting(f"checking {name}"):
                    checked.append(_check(validator, name, rows, taken.versions[name], missing))
    if stored := _rows(checked, started_at, since):
        _append(warehouse, stored)
    if docs is not None:
        _write_docs(validator, docs, checked, warehouse.cluster)
    return checked


def _checkable(names: tuple[str, ...]) -> list[str]:
    return [name for name in names or contracts.tables() if name != RESULTS]


def _newer(rows: DataFrame, name: str, since: datetime | None) -> DataFrame:
    from pyspark.sql import functions as F

    time_column = contracts.tables()[name].time_column
    return rows if since is None or time_column is None else rows.where(F.col(time_column) >= since)


def _check(validator: Validator, name: str, rows: DataFrame, at: Commit, missing: Collection[str]) -> TableResult:
    started = time.monotonic()
    try:
        count = rows.count()
    except Exception as error:  # a missing or damaged file: the other tables are still checked
        return unreadable(name, at.version, first_cause(error))
    expected = suites.expectations(contracts.tables()[name], lacking=at.lacking)
    unevaluable = {one["meta"]["name"]: gone for one in expected if (gone := suites.tables_read(one) & set(missing))}
    documents = validator.validate(name, rows, [one for one in expected if one["meta"]["name"] not in unevaluable])
    by_name = {one["expectation_config"]["meta"]["name"]: _result(one) for one in documents}
    results = (
        by_name.get(one["meta"]["name"]) or not_evaluated(one, unevaluable[one["meta"]["name"]]) for one in expected
    )
    return TableResult(name, at.version, count, tuple(results), time.monotonic() - started, at.lacking)


def _result(document: dict[str, Any]) -> Result:
    """Convert a result of Great Expectations."""
    config, result = document["expectation_config"], document["result"]
    name, meaning = config["meta"]["name"], config["description"]
    if document["success"]:
        return Result(name, meaning, True, 0)
    if problem := _problem(document["exception_info"]):
        return Result(name, meaning, False, None, problem=problem)
    if "details" not in result:  # the type of a column, which is the same for all rows in Delta
        return Result(name, meaning, False, None, problem=f"it is {result['observed_value']}")
    rows = result["details"]["unexpected_rows"]
    keys = (json.dumps(row, default=str, ensure_ascii=False) for row in rows[:SAMPLES])
    return Result(name, meaning, False, result["observed_value"], tuple(keys))


def _problem(exception_info: dict[str, Any]) -> str | None:
    """Return the cause of the error that prevented an evaluation."""
    exceptions = [exception_info] if "raised_exception" in exception_info else list(exception_info.values())
    messages = (str(exception["exception_message"]) for exception in exceptions if exception["raised_exception"])
    return next(map(first_cause_in, messages), None)


def _rows(checked: list[TableResult], started_at: datetime, since: datetime | None) -> list[dict[str, Any]]:
    """Return the rows of `check_results`, without the cluster."""
    run_id = str(uuid.uuid4())
    return [
        {
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
            "checked_at": started_at,
        }
        for table in checked
        for result in table.results
    ]


def _append(warehouse: Warehouse, rows: list[dict[str, Any]]) -> None:
    results = warehouse.table(RESULTS)
    results.ensure()
    results.append_rows(rows)


def _write(checked: list[TableResult], out: TextIO, format: RowsFormat) -> None:
    """Write a row for each expectation."""
    names = ["table", *(field.name for field in fields(Result))]
    results = ({"table": table.table, **asdict(result)} for table in checked for result in table.results)
    rows = ([*(one | {"sample_keys": list(one["sample_keys"])}).values()] for one in results)
    write_rows(names, rows, out, format=format)


def _write_docs(validator: Validator, folder: Path, checked: list[TableResult], cluster: str) -> None:
    validator.write_docs(folder)
    entries = [
        Entry(one.table, one.figures, [line for line in _remarks(one) if line], one.is_readable) for one in checked
    ]
    title = f"Tables of cluster {cluster}"
    (folder / "index.html").write_text(index(title, _HEADS, entries), "utf-8")


def print_checked(checked: list[TableResult], warehouse: Warehouse, console: Console) -> None:
    """Print one line per table, then the failed expectations, then the tables without rows."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(_HEADS[0], no_wrap=True)
    for name in _HEADS[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for one in checked:
        table.add_row(one.table, *one.figures, style="bold red" if one.failures else "")
    console.print(table)
    console.print(f"cluster {displayed(warehouse.cluster)} in {warehouse.shown}", markup=False, soft_wrap=True)
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

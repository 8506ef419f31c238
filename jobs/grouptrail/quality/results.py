"""The results of a check: those of each expectation, by table."""

from __future__ import annotations

from dataclasses import dataclass

from grouptrail.quality.suites import Expectation

SAMPLES = 3
"""Maximum number of rows kept as examples of those that do not meet an expectation."""

_READABLE = "readable"


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


def unreadable(name: str, version: int | None, why: str) -> TableResult:
    """Return the result of a table that cannot be read."""
    problem = f"it cannot be read ({why}): check the warehouse, or upgrade grouptrail"
    result = Result(_READABLE, "the table can be read", False, None, problem=problem)
    return TableResult(name, version, 0, (result,), 0.0)


def not_evaluated(expectation: Expectation, gone: set[str]) -> Result:
    """Return the result of an expectation that also reads tables that cannot be read."""
    problem = f"it also reads {', '.join(sorted(gone))}, which cannot be read"
    return Result(expectation["meta"]["name"], expectation["description"], False, None, problem=problem)

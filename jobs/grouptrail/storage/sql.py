"""Values and names as text of SQL, for DataFusion (the engine of delta-rs) and for Spark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta


@dataclass(frozen=True)
class Expression:
    """SQL that stands for a value, such as the parameter of a function."""

    sql: str


Value = str | int | datetime | date | timedelta | Expression


def datafusion_literal(value: Value) -> str:
    """Return a value in DataFusion's SQL; timestamps in microseconds, as in the tables."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime):
        # DataFusion's TIMESTAMP counts nanoseconds and ends in 2262.
        return f"""arrow_cast('{value.isoformat()}', 'Timestamp(Microsecond, Some("UTC"))')"""
    return _literal(value)


def spark_literal(value: Value) -> str:
    """Return a value in Spark's SQL."""
    if isinstance(value, str):
        # Spark replaces ${...} by variables before it parses a query.
        escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
        return f"'{escaped}'"
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.isoformat()}'"
    return _literal(value)


def datafusion_identifier(name: str) -> str:
    """Return a name as DataFusion's SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def spark_identifier(name: str) -> str:
    """Return the quoted name of a table, column or schema in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def _literal(value: int | date | timedelta | Expression) -> str:
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, timedelta):
        return f"INTERVAL '{value // timedelta(seconds=1)} seconds'"
    return value.sql if isinstance(value, Expression) else str(value)

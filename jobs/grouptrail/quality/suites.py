"""The expectations of a table: those derived from its contract, and those written by hand.

Each expectation is a dict in the format of Great Expectations. In a query, `{batch}` is the rows being checked; other
tables have their own names. All contain the rows of one cluster. A query selects keys, never other values. It is SQL
that both Spark and delta-rs accept, with `:seconds(later, earlier)` as in the views; where there is no such SQL,
`meta.delta_rs` has the query for delta-rs, or `meta.json_columns` the columns that have to be JSON.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from grouptrail import contracts
from grouptrail.query.views import DELTA_RS, SPARK, Dialect, filled

Expectation = dict[str, Any]

_SPARK_TYPES = {
    "binary": "BinaryType",
    "boolean": "BooleanType",
    "smallint": "ShortType",
    "int": "IntegerType",
    "bigint": "LongType",
    "double": "DoubleType",
    "string": "StringType",
    "timestamp": "TimestampType",
}


def expectations(
    table: contracts.Table, *, lacking: Collection[str] = (), dialect: Dialect = SPARK
) -> list[Expectation]:
    """Return all expectations of a table, in an engine's SQL; `lacking` are columns that it does not have yet."""
    written = (_in_dialect(one, dialect) for one in contracts.expectations().get(table.name, ()))
    return [*from_contract(table, lacking), *written]


def _in_dialect(one: Expectation, dialect: Dialect) -> Expectation:
    query = one["kwargs"]["unexpected_rows_query"]
    if dialect is DELTA_RS:
        query = one["meta"].get("delta_rs", query)
    return {**one, "kwargs": {"unexpected_rows_query": filled(query, {}, dialect)}}


def from_contract(table: contracts.Table, lacking: Collection[str] = ()) -> list[Expectation]:
    """Return the expectations derived from the contract: unique key, no nulls without a meaning, correct types."""
    keys = ", ".join(key_columns(table))
    never_null = (column.name for column in table.columns if not column.null_means and column.name not in lacking)
    required = " OR ".join(f"{name} IS NULL" for name in never_null)
    return [
        _no_rows(
            "key_unique",
            f"{keys}: unique",
            f"SELECT {keys} FROM {{batch}} GROUP BY {keys} HAVING count(*) > 1",
        ),
        _no_rows(
            "never_null",
            "no null in a column whose contract has no null_means",
            f"SELECT {keys} FROM {{batch}} WHERE {required}",
        ),
        *(_of_type(column) for column in table.columns),
    ]


def tables_read(expectation: Expectation) -> set[str]:
    """Return the other tables that an expectation reads."""
    return tables_in(expectation["kwargs"].get("unexpected_rows_query", ""))


def tables_in(query: str) -> set[str]:
    """Return the tables that a query names, other than `{batch}`."""
    return contracts.tables().keys() & re.findall(r"(?:FROM|JOIN) (\w+)", query)


def key_columns(table: contracts.Table) -> list[str]:
    """Return the columns that identify a row within its cluster."""
    return [name for name in table.key if name != "cluster"]


def _no_rows(name: str, description: str, query: str) -> Expectation:
    return {
        "type": "unexpected_rows_expectation",
        "kwargs": {"unexpected_rows_query": query},
        "description": description,
        "meta": {"name": name},
    }


def _of_type(column: contracts.Column) -> Expectation:
    return {
        "type": "expect_column_values_to_be_of_type",
        "kwargs": {"column": column.name, "type_": _SPARK_TYPES.get(column.type, "ArrayType")},
        "description": f"{column.name} is {column.type}",
        "meta": {"name": f"type_of_{column.name}"},
    }

"""`grouptrail views install`: tables, views and SQL table functions in a Spark catalog.

A view without parameters becomes a view, one with parameters a table function; both read one cluster. Installing
again is idempotent, or updates them to this version.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.errors import PySparkException

from grouptrail import contracts
from grouptrail.console.progress import Log
from grouptrail.errors import GrouptrailError, first_cause
from grouptrail.query.views import SPARK, default_values, view_query
from grouptrail.storage.sql import Expression, Value, spark_identifier, spark_literal
from grouptrail.storage.upkeep import register
from grouptrail.storage.warehouse import Warehouse

_TYPES = {
    "string": "STRING",
    "int": "INT",
    "timestamp": "TIMESTAMP",
    "date": "DATE",
    "interval": "INTERVAL DAY TO SECOND",
}
_IN_MEMORY = (
    "this session's catalog is in memory and ends with this command: name a lasting one in [spark], such as "
    '"spark.sql.catalogImplementation" = "hive", or let `grouptrail serve-sql` serve the views'
)


class CatalogError(GrouptrailError):
    """A table, view or function cannot be installed."""


@dataclass(frozen=True)
class Installed:
    """The names in the catalog, and the views that wait for tables that do not exist yet."""

    tables: tuple[str, ...]
    views: tuple[str, ...]
    functions: tuple[str, ...]
    waiting: tuple[str, ...]


def install_views(warehouse: Warehouse, *, schema: str, log: Log) -> None:
    """Install them in a schema of the session catalog: Spark has persistent views and SQL functions only there."""
    try:
        if warehouse.session.conf.get("spark.sql.catalogImplementation") == "in-memory":
            raise CatalogError(_IN_MEMORY)
        done = install(warehouse, schema=schema)
    except PySparkException as error:
        raise CatalogError(f"{first_cause(error)}: check --schema, or the rights to the catalog") from error
    log(
        f"{schema} has {len(done.tables)} tables, {len(done.views)} views and {len(done.functions)} functions of "
        f"cluster {warehouse.cluster}"
    )
    if done.waiting:
        log(f"not installed, because their tables do not exist yet: {', '.join(done.waiting)}; repeat this later")


def install(warehouse: Warehouse, *, schema: str, tables_schema: str | None = None) -> Installed:
    """Install the tables, views and functions in a schema of the session's catalog.

    With `tables_schema` the tables are registered there, and `schema` contains views of them, which Spark does not
    allow to be written to. Raises CatalogError if a table of that name has another location. Spark 4.0 does not
    replace a function that its session has called: install before the first query.
    """
    spark, cluster = warehouse.session, warehouse.cluster
    tables = [table for table in warehouse.tables(contracts.tables()) if table.exists()]
    names = [table.name for table in tables]
    for own in filter(None, (schema, tables_schema)):
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {spark_identifier(own)}")
    for table in tables:
        own = tables_schema or schema
        if other := register(table, f"{spark_identifier(own)}.{table.name}"):
            raise CatalogError(
                f"{own}.{table.name} is another table, of {other}: choose another --schema, or drop it there"
            )
    spark.sql(f"USE {spark_identifier(schema)}")
    if tables_schema is not None:
        for name in names:
            spark.sql(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {spark_identifier(tables_schema)}.{name}")
    there = [view for view in contracts.views().values() if set(view.tables) <= set(names)]
    for view in there:
        spark.sql(_function(view, cluster) if view.parameters else _view(view, cluster))
    return Installed(
        tables=tuple(names),
        views=tuple(view.name for view in there if not view.parameters),
        functions=tuple(view.name for view in there if view.parameters),
        waiting=tuple(view.name for view in contracts.views().values() if view not in there),
    )


def _view(view: contracts.View, cluster: str) -> str:
    columns = ", ".join(
        f"{spark_identifier(column.name)} COMMENT {spark_literal(column.about)}" for column in view.columns
    )
    query = view_query(view, cluster, _NOW, SPARK)
    return f"CREATE OR REPLACE VIEW {view.name} ({columns}) COMMENT {spark_literal(view.about)} AS {query}"


def _function(view: contracts.View, cluster: str) -> str:
    defaults = default_values(view)
    parameters = ", ".join(
        f"{spark_identifier(parameter.name)} {_TYPES[parameter.type]}"
        + (f" DEFAULT {spark_literal(defaults[parameter.name])}" if parameter.name in defaults else "")
        for parameter in view.parameters
    )
    columns = ", ".join(f"{spark_identifier(column.name)} {column.type}" for column in view.columns)
    values = {
        parameter.name: Expression(f"{view.name}.{spark_identifier(parameter.name)}") for parameter in view.parameters
    }
    return (
        f"CREATE OR REPLACE FUNCTION {view.name}({parameters}) RETURNS TABLE({columns}) "
        f"COMMENT {spark_literal(view.about)} RETURN {view_query(view, cluster, _NOW | values, SPARK)}"
    )


_NOW: dict[str, Value] = {"now": Expression("current_timestamp()")}

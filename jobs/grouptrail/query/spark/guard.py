"""Check statements for Spark on the plan that Spark itself parses them to.

Only what is listed here runs: comments, escapes and new statements cannot hide anything from it. `sql --engine spark`
and `serve-sql` share this list; `connect_guard` applies it to the plans that are no SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from grouptrail.query.errors import QueryError
from grouptrail.query.sql import ONLY_QUERIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SOURCES = {"UnresolvedRelation", "UnresolvedTableOrView"}
_NODES = """
Aggregate Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LocalLimit LocalRelation Offset
OneRowRelation PipeOperator Pivot Project RepartitionByExpression Sample Sort SubqueryAlias Union Unpivot
UnresolvedHaving UnresolvedHint UnresolvedInlineTable UnresolvedSubqueryColumnAliases UnresolvedTVFAliases
UnresolvedTableValuedFunction UnresolvedWith WithWindowDefinition
CurrentNamespace$ DescribeColumn DescribeFunction DescribeNamespace DescribeQueryCommand DescribeRelation
ExplainCommand SetCatalogAndNamespace SetNamespaceCommand ShowCatalogsCommand ShowColumns
ShowCurrentNamespaceCommand ShowFunctions ShowNamespacesCommand ShowTableProperties ShowTables ShowViews
UnresolvedFunctionName UnresolvedNamespace
"""
_ALLOWED_NODES = _SOURCES | set(_NODES.split())
# These commands keep the plan of their query apart from their children.
_INNER_PLAN = {"ExplainCommand": "logicalPlan", "DescribeQueryCommand": "plan"}
# What names a schema, and the method that returns its parts.
_NAMESPACE = {"UnresolvedNamespace": "multipartIdentifier", "SetNamespaceCommand": "namespace"}
_TABLE_FUNCTIONS = "explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range stack"
_ALLOWED_TABLE_FUNCTIONS = frozenset(_TABLE_FUNCTIONS.split())
# Functions that call any Java method, or read a file that their arguments name.
_FORBIDDEN = """
from_avro from_protobuf from_xml java_method reflect schema_of_avro schema_of_xml to_avro to_protobuf try_reflect
"""
FORBIDDEN_FUNCTIONS = frozenset(_FORBIDDEN.split())


class UnknownSourceError(QueryError):
    """A query reads something that is no table of the warehouse; `name` is what it reads."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is no table of the warehouse: `grouptrail tables` lists them")
        self.name = name


class RefusedError(QueryError):
    """A request that a client may not send; the message says why and what to do."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is refused, because this server only answers queries (serve-sql --allow-writes)")


@dataclass(frozen=True)
class Scope:
    """Names that statements may use, in lower case: tables and views, table functions, and schemas for USE and SHOW.

    `queries`: the names that the statement itself gives to queries (WITH), which are never qualified.
    """

    tables: Set[str]
    functions: Set[str] = frozenset()
    schemas: Set[str] = frozenset()
    queries: Set[str] = frozenset()


def prepare_session(spark: SparkSession) -> None:
    """Remove what a plan does not show: forbidden functions, and ${env:...} in the text of a query.

    The functions are removed from this session and from those that start after it; `serve-sql` sets the setting for
    all sessions (`server.py`).
    """
    spark.conf.set("spark.sql.variable.substitute", "false")
    catalyst: Any = spark._jvm.org.apache.spark.sql.catalyst  # type: ignore[union-attr]
    some: Any = spark._jvm.scala.Some  # type: ignore[union-attr]
    builtin = getattr(getattr(catalyst.analysis, "FunctionRegistry$"), "MODULE$").builtin()
    for registry in (builtin, spark._jsparkSession.sessionState().functionRegistry()):
        for name in FORBIDDEN_FUNCTIONS:
            registry.dropFunction(catalyst.FunctionIdentifier(name, some("builtin"), some("system")))


class Guard:
    """Checks SQL before it runs; the parser is that of a session whose settings the clients' sessions share."""

    def __init__(self, spark: SparkSession, scope: Scope) -> None:
        self._jvm: Any = spark._jvm
        self._parser = spark._jsparkSession.sessionState().sqlParser()
        self.scope = scope

    def check_statement(self, text: str) -> None:
        """Raise QueryError unless a statement only reads what is in scope; a PySparkException if it has no plan."""
        _check(self._parser.parsePlan(text), self.scope)

    def check_expression(self, text: str) -> None:
        """Raise QueryError unless the subqueries of an expression only read what is in scope."""
        plans = self._jvm.org.apache.spark.sql.catalyst.plans.logical
        _check(plans.Filter(self._parser.parseExpression(text), plans.OneRowRelation()), self.scope)

    def check_table(self, identifier: str) -> None:
        """Raise QueryError unless a name, quoted as in SQL, is that of a table in scope."""
        _check_table(self._parser.parseMultipartIdentifier(identifier), self.scope)

    def check_table_function(self, name: str) -> None:
        """Raise QueryError unless this is the name of a table function in scope."""
        _check_table_function(name.lower(), self.scope)

    def check_schema(self, identifier: str) -> None:
        """Raise QueryError unless a name, quoted as in SQL, is that of a schema in scope."""
        _check_schema(self._parser.parseMultipartIdentifier(identifier), self.scope)


def _check(node: Any, scope: Scope) -> None:
    kind = node.getClass().getSimpleName()
    if kind not in _ALLOWED_NODES or (kind == "UnresolvedRelation" and not node.options().isEmpty()):
        raise QueryError(f"{ONLY_QUERIES}; Spark reads {kind} in this one")
    if kind in _SOURCES:
        _check_table(node.multipartIdentifier(), scope)
    if kind in _NAMESPACE:
        _check_schema(getattr(node, _NAMESPACE[kind])(), scope)
    if kind == "UnresolvedTableValuedFunction":
        _check_table_function(".".join(_parts(node.name())), scope)
    inner = list(_items(node.innerChildren()))
    if kind == "UnresolvedWith":
        scope = replace(scope, queries=scope.queries | {query.alias().lower() for query in inner})
    if kind in _INNER_PLAN:
        inner.append(getattr(node, _INNER_PLAN[kind])())
    for below in (*inner, *_items(node.children()), *_items(node.subqueries())):
        _check(below, scope)


def _check_table(name: Any, scope: Scope) -> None:
    parts = _parts(name)
    if (len(parts) == 1 and parts[0] in scope.queries) or _is_in(scope.tables, parts):
        return
    raise UnknownSourceError(".".join(parts))


def _check_table_function(name: str, scope: Scope) -> None:
    if name not in _ALLOWED_TABLE_FUNCTIONS | scope.functions:
        raise UnknownSourceError(name)


def _check_schema(name: Any, scope: Scope) -> None:
    parts = _parts(name)
    if parts and not _is_in(scope.schemas, parts):
        raise QueryError(f"{'.'.join(parts)} is no schema here: SHOW SCHEMAS lists them")


def _is_in(names: Set[str], parts: list[str]) -> bool:
    """Return whether dotted names have this one; a part with a dot of its own is in none of them."""
    return ".".join(parts) in names and not any("." in part for part in parts)


def _parts(name: Any) -> list[str]:
    """Return the parts of a name of Scala in lower case."""
    return [str(part).lower() for part in _items(name)]


def _items(sequence: Any) -> Iterator[Any]:
    """Yield the items of a sequence of Scala."""
    return (sequence.apply(index) for index in range(sequence.size()))

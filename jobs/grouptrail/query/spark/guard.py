"""What a query may do on Spark, decided on the plan that Spark itself parses it to.

Only what is listed here runs: comments, escapes and new statements cannot hide anything from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
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
CurrentNamespace$ DescribeColumn DescribeQueryCommand DescribeRelation ExplainCommand ShowColumns ShowTables
"""
_ALLOWED_NODES = _SOURCES | set(_NODES.split())
# These commands keep the plan of their query apart from their children.
_INNER_PLAN = {"ExplainCommand": "logicalPlan", "DescribeQueryCommand": "plan"}
_TABLE_FUNCTIONS = "explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range stack"
_ALLOWED_TABLE_FUNCTIONS = set(_TABLE_FUNCTIONS.split())
# Functions that call any Java method or read any file.
_FORBIDDEN_FUNCTIONS = ("from_protobuf", "java_method", "reflect", "to_protobuf", "try_reflect")


class UnknownSourceError(QueryError):
    """A query reads something that is no table of the warehouse; `name` is what it reads."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is no table of the warehouse: `grouptrail tables` lists them")
        self.name = name


def prepare_session(spark: SparkSession) -> None:
    """Remove from a session what a plan does not show: forbidden functions, and ${env:...} in the text of a query."""
    spark.conf.set("spark.sql.variable.substitute", "false")
    jvm: Any = spark._jvm
    registry = spark._jsparkSession.sessionState().functionRegistry()
    some = jvm.scala.Some
    for name in _FORBIDDEN_FUNCTIONS:
        registry.dropFunction(
            jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name, some("builtin"), some("system"))
        )


def check_plan(spark: SparkSession, text: str, tables: Set[str]) -> None:
    """Raise QueryError unless a statement only reads tables of these names; a PySparkException if it has no plan."""
    _check(spark._jsparkSession.sessionState().sqlParser().parsePlan(text), tables)


def _check(node: Any, tables: Set[str]) -> None:
    kind = node.getClass().getSimpleName()
    if kind not in _ALLOWED_NODES or (kind == "UnresolvedRelation" and not node.options().isEmpty()):
        raise QueryError(f"{ONLY_QUERIES}; Spark reads {kind} in this one")
    if kind in _SOURCES:
        name = node.multipartIdentifier().mkString(".").lower()
        if name not in tables:
            raise UnknownSourceError(name)
    if kind == "UnresolvedTableValuedFunction":
        name = node.name().mkString(".").lower()
        if name not in _ALLOWED_TABLE_FUNCTIONS:
            raise UnknownSourceError(name)
    inner = list(_items(node.innerChildren()))
    if kind == "UnresolvedWith":
        tables = tables | {query.alias().lower() for query in inner}
    if kind in _INNER_PLAN:
        inner.append(getattr(node, _INNER_PLAN[kind])())
    for below in (*inner, *_items(node.children()), *_items(node.subqueries())):
        _check(below, tables)


def _items(sequence: Any) -> Iterator[Any]:
    """Yield the items of a sequence of Scala."""
    return (sequence.apply(index) for index in range(sequence.size()))

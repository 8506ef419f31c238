"""Check requests of Spark Connect clients: queries only, of what `guard` allows.

A request is a tree of messages. Each kind of message that is not listed here is refused, so that a new kind of plan,
command or expression is refused until someone has looked at it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow.ipc
from google.protobuf.message import Message

from grouptrail.query.spark.guard import FORBIDDEN_FUNCTIONS, Guard, RefusedError

_PACKAGE = "spark.connect."
# Not here: commands, writes, files and other data sources, functions and data sources of clients in Python, Scala or
# Java, artifacts, streams, machine learning, pipelines, caches, and extensions.
_REQUESTS = """
ExecutePlanRequest ExecutePlanRequest.RequestOption ReattachOptions ResultChunkingOptions UserContext Plan Command
SqlCommand
AnalyzePlanRequest AnalyzePlanRequest.Schema AnalyzePlanRequest.Explain AnalyzePlanRequest.TreeString
AnalyzePlanRequest.IsLocal AnalyzePlanRequest.IsStreaming AnalyzePlanRequest.SparkVersion AnalyzePlanRequest.DDLParse
AnalyzePlanRequest.SameSemantics AnalyzePlanRequest.SemanticHash
ConfigRequest ConfigRequest.Operation ConfigRequest.Set ConfigRequest.Get ConfigRequest.GetWithDefault
ConfigRequest.GetOption ConfigRequest.Unset ConfigRequest.IsModifiable KeyValue
ArtifactStatusesRequest InterruptRequest ReattachExecuteRequest ReleaseExecuteRequest ReleaseExecuteRequest.ReleaseAll
ReleaseExecuteRequest.ReleaseUntil ReleaseSessionRequest FetchErrorDetailsRequest CloneSessionRequest GetStatusRequest
GetStatusRequest.OperationStatusRequest
"""
_RELATIONS = """
Relation RelationCommon Origin PythonOrigin JvmOrigin StackTraceElement SQL WithRelations Read Read.NamedTable Project
Filter Join Join.JoinDataType LateralJoin AsOfJoin SetOperation Limit Offset Tail Aggregate Aggregate.Pivot
Aggregate.GroupingSets Sort Drop Deduplicate LocalRelation Sample Range SubqueryAlias Repartition
RepartitionByExpression ShowString HtmlString StatSummary StatDescribe StatCrosstab StatCov StatCorr
StatApproxQuantile StatFreqItems StatSampleBy StatSampleBy.Fraction NAFill NADrop NAReplace NAReplace.Replacement ToDF
ToSchema WithColumnsRenamed WithColumnsRenamed.Rename WithColumns Hint Unpivot Unpivot.Values Transpose
UnresolvedTableValuedFunction
Catalog CurrentDatabase SetCurrentDatabase ListDatabases ListTables ListViews ListFunctions ListColumns GetDatabase
GetTable DatabaseExists TableExists FunctionExists CurrentCatalog ListCatalogs
"""
_EXPRESSIONS = """
Expression ExpressionCommon Expression.Window Expression.Window.WindowFrame
Expression.Window.WindowFrame.FrameBoundary Expression.SortOrder Expression.Cast Expression.Literal
Expression.Literal.Decimal Expression.Literal.CalendarInterval Expression.Literal.Array Expression.Literal.Map
Expression.Literal.Struct Expression.Literal.SpecializedArray Expression.Literal.Time Expression.UnresolvedAttribute
Expression.UnresolvedFunction Expression.ExpressionString Expression.UnresolvedStar Expression.UnresolvedRegex
Expression.UnresolvedExtractValue Expression.UpdateFields Expression.Alias Expression.LambdaFunction
Expression.UnresolvedNamedLambdaVariable CallFunction NamedArgumentExpression SubqueryExpression
SubqueryExpression.TableArgOptions Bools Ints Longs Floats Doubles Strings
DataType DataType.Boolean DataType.Byte DataType.Short DataType.Integer DataType.Long DataType.Float DataType.Double
DataType.String DataType.Binary DataType.NULL DataType.Timestamp DataType.Date DataType.TimestampNTZ DataType.Time
DataType.CalendarInterval DataType.YearMonthInterval DataType.DayTimeInterval DataType.Char DataType.VarChar
DataType.Decimal DataType.StructField DataType.Struct DataType.Array DataType.Map DataType.Variant
"""
_ALLOWED = frozenset((*_REQUESTS.split(), *_RELATIONS.split(), *_EXPRESSIONS.split()))
_ONE_OF = {
    "AnalyzePlanRequest": "analyze",
    "Catalog": "cat_type",
    "Command": "command_type",
    "ConfigRequest.Operation": "op_type",
    "Expression": "expr_type",
    "Plan": "op_type",
    "Relation": "rel_type",
}

# What clients ask for by themselves, and what changes only how their own results look.
_READABLE = re.compile(
    r"spark\.(connect\.session\.planCompression\.[\w.]+|python\.sql\.dataFrameDebugging\.enabled|"
    r"sql\.(session|execution|pyspark|repl\.eagerEval)\.[\w.]+|"
    r"sql\.(ansi\.enabled|connect\.serverStacktrace\.enabled|shuffle\.partitions|stackTracesInDataFrameContext|"
    r"timestampType))"
)
_WRITABLE = re.compile(
    r"spark\.(app\.name|sql\.(session\.timeZone|shuffle\.partitions|(execution\.arrow|repl\.eagerEval)\.[\w.]+))"
)


def check_request(request: Message, guard: Guard) -> None:
    """Raise QueryError unless a request only reads what the guard allows; a PySparkException for bad syntax.

    The request is what may be passed on afterwards: its local data has been rewritten.
    """
    for message in _messages(request):
        name = message.DESCRIPTOR.full_name.removeprefix(_PACKAGE)
        if name not in _ALLOWED:
            raise RefusedError(name)
        if name in _ONE_OF and message.WhichOneof(_ONE_OF[name]) is None:
            # Newer than this version, which leaves it out when it parses the request.
            raise RefusedError(f"{name} of an unknown kind")
        if name in _CHECKS:
            _CHECKS[name](message)
        if name in _SQL_CHECKS:
            _SQL_CHECKS[name](message, guard)


def _messages(message: Message) -> Iterator[Message]:
    """Yield a message and all messages in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if isinstance(value, Message):
            yield from _messages(value)
            continue
        # A map of plain values has no messages to look at.
        for item in value.values() if hasattr(value, "values") else value:
            if isinstance(item, Message):
                yield from _messages(item)


def _check_sql(message: Any, guard: Guard) -> None:
    if message.args or message.pos_args or message.named_arguments or message.pos_arguments:
        # Spark may put them into the text, which would no longer be what was checked. Delta's parser drops them.
        raise RefusedError("a query with arguments")
    if message.DESCRIPTOR.name == "SQL":
        guard.check_statement(message.query)
    elif message.sql:
        guard.check_statement(message.sql)


def _check_read(message: Any, guard: Guard) -> None:
    if message.WhichOneof("read_type") != "named_table" or message.is_streaming or message.named_table.options:
        raise RefusedError("reading something else than a table by its name")
    guard.check_table(message.named_table.unparsed_identifier)


def _check_function(message: Any) -> None:
    if message.is_internal or message.is_user_defined_function:
        raise RefusedError(f"the function {message.function_name}")
    _check_call(message)


def _check_call(message: Any) -> None:
    if message.function_name.lower().strip("`").rpartition(".")[2].strip("`") in FORBIDDEN_FUNCTIONS:
        raise RefusedError(f"the function {message.function_name}")


def _check_local_relation(message: Any) -> None:
    _check_schema_text(message.schema)
    if message.data:
        message.data = _validated(message.data)


def _validated(data: bytes) -> bytes:
    """Return a rewritten Arrow stream: Spark reads memory wherever the offsets of a given one point."""
    try:
        with pyarrow.ipc.open_stream(data) as stream:
            table = stream.read_all()
        table.validate(full=True)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise RefusedError("data that is no valid stream of Arrow") from error
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _check_schema_text(text: str) -> None:
    # Spark makes an object of the class that the schema of a user-defined type names.
    if "udt" in text.lower() or "\\" in text:
        raise RefusedError("a schema with a user-defined type")


def _check_table_of_catalog(message: Any, guard: Guard) -> None:
    if message.HasField("db_name"):
        guard.check_schema(message.db_name)
        guard.check_table(f"{message.db_name}.{message.table_name}")
    else:
        guard.check_table(message.table_name)


def _check_settings(names: Iterable[str], allowed: re.Pattern[str]) -> None:
    for name in names:
        if not allowed.fullmatch(name):
            raise RefusedError(f"the setting {name}")


_CHECKS: dict[str, Callable[[Any], None]] = {
    "AnalyzePlanRequest.DDLParse": lambda message: _check_schema_text(message.ddl_string),
    "CallFunction": _check_call,
    "ConfigRequest.Get": lambda message: _check_settings(message.keys, _READABLE),
    "ConfigRequest.GetOption": lambda message: _check_settings(message.keys, _READABLE),
    "ConfigRequest.GetWithDefault": lambda message: _check_settings((pair.key for pair in message.pairs), _READABLE),
    "ConfigRequest.Set": lambda message: _check_settings((pair.key for pair in message.pairs), _WRITABLE),
    "ConfigRequest.Unset": lambda message: _check_settings(message.keys, _WRITABLE),
    "Expression.Cast": lambda message: _check_schema_text(message.type_str),
    "Expression.UnresolvedFunction": _check_function,
    "LocalRelation": _check_local_relation,
}
_SQL_CHECKS: dict[str, Callable[[Any, Guard], None]] = {
    "Expression.ExpressionString": lambda message, guard: guard.check_expression(message.expression),
    "GetTable": _check_table_of_catalog,
    "ListColumns": _check_table_of_catalog,
    "Read": _check_read,
    "SQL": _check_sql,
    "SetCurrentDatabase": lambda message, guard: guard.check_schema(message.db_name),
    "SqlCommand": _check_sql,
    "TableExists": _check_table_of_catalog,
    "UnresolvedTableValuedFunction": lambda message, guard: guard.check_table_function(message.function_name),
}

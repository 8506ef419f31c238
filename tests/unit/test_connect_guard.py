"""What a request of Spark Connect may contain; statements are checked by `tests/spark`."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from pyspark.sql.connect.proto import base_pb2, commands_pb2, expressions_pb2, relations_pb2

from grouptrail.query.spark.connect_guard import check_request
from grouptrail.query.spark.guard import Guard, RefusedError


class Allowing:
    """A guard that allows all SQL and all names, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return self.asked.append


def checked(request: Message) -> list[str]:
    guard = Allowing()
    check_request(request, cast("Guard", guard))
    return guard.asked


def plan(relation: relations_pb2.Relation) -> base_pb2.ExecutePlanRequest:
    return base_pb2.ExecutePlanRequest(plan=base_pb2.Plan(root=relation))


def projected(expression: expressions_pb2.Expression) -> base_pb2.ExecutePlanRequest:
    table = relations_pb2.Relation(read={"named_table": {"unparsed_identifier": "memberships"}})
    return plan(relations_pb2.Relation(project={"input": table, "expressions": [expression]}))


def alternatives(message: Descriptor, oneof: str, *allowed: str) -> list[str]:
    return [field.name for field in message.oneofs_by_name[oneof].fields if field.name not in allowed]


def test_check_request_passes_each_name_and_text_to_the_guard() -> None:
    text = expressions_pb2.Expression(expression_string={"expression": "1 IN (SELECT 1)"})
    assert checked(projected(text)) == ["memberships", "1 IN (SELECT 1)"]
    assert checked(plan(relations_pb2.Relation(sql={"query": "SELECT 1"}))) == ["SELECT 1"]


@pytest.mark.parametrize("kind", alternatives(commands_pb2.Command.DESCRIPTOR, "command_type", "sql_command"))
def test_check_request_every_command_but_sql_is_refused(kind: str) -> None:
    """Also those that a later Spark adds: this list comes from its definition of the protocol."""
    request = base_pb2.ExecutePlanRequest()
    getattr(request.plan.command, kind).SetInParent()
    with pytest.raises(RefusedError):
        checked(request)


_FOREIGN = (
    "map_partitions", "group_map", "co_group_map", "apply_in_pandas_with_state", "with_watermark", "parse",
    "common_inline_user_defined_table_function", "common_inline_user_defined_data_source", "ml_relation",
    "cached_local_relation", "chunked_cached_local_relation", "cached_remote_relation", "relation_changes",
    "extension",
)  # fmt: skip


@pytest.mark.parametrize("kind", _FOREIGN)
def test_check_request_relations_with_code_or_other_sources_are_refused(kind: str) -> None:
    relation = relations_pb2.Relation()
    getattr(relation, kind).SetInParent()
    with pytest.raises(RefusedError):
        checked(plan(relation))


@pytest.mark.parametrize(
    "kind", ["common_inline_user_defined_function", "typed_aggregate_expression", "merge_action", "extension"]
)
def test_check_request_expressions_with_code_are_refused(kind: str) -> None:
    expression = expressions_pb2.Expression()
    getattr(expression, kind).SetInParent()
    with pytest.raises(RefusedError):
        checked(projected(expression))


@pytest.mark.parametrize(
    "expression",
    [
        {"unresolved_function": {"function_name": "reflect"}},
        {"unresolved_function": {"function_name": "Java_Method"}},
        {"unresolved_function": {"function_name": "invoke", "is_internal": True}},
        {"unresolved_function": {"function_name": "own", "is_user_defined_function": True}},
        {"call_function": {"function_name": "system.builtin.`from_protobuf`"}},
        {"cast": {"type": {"udt": {"jvm_class": "java.lang.String"}}}},
        {"cast": {"type_str": '{"type":"udt","class":"java.lang.String"}'}},
    ],
)
def test_check_request_functions_and_types_that_load_classes_are_refused(expression: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        checked(projected(expressions_pb2.Expression(**expression)))


def test_check_request_plan_of_a_later_version_is_refused() -> None:
    """A field that this version does not know, and a plan that it cannot see because it is compressed."""
    unknown = relations_pb2.Relation.FromString(b"\xa2\x1f\x02\x08\x01")  # field 500
    with pytest.raises(RefusedError, match="unknown kind"):
        checked(plan(unknown))
    with pytest.raises(RefusedError, match="CompressedOperation"):
        checked(base_pb2.ExecutePlanRequest(plan=base_pb2.Plan(compressed_operation={"data": b"x"})))


def test_check_request_extensions_are_refused() -> None:
    request = base_pb2.AnalyzePlanRequest(spark_version={})
    assert checked(request) == []
    request.user_context.extensions.add().type_url = "type.googleapis.com/own"
    with pytest.raises(RefusedError, match="Any"):
        checked(request)


def local_relation(data: bytes, schema: str = "") -> base_pb2.ExecutePlanRequest:
    return plan(relations_pb2.Relation(local_relation={"data": data, "schema": schema}))


def stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def test_check_request_local_data_is_kept_if_it_is_valid() -> None:
    batch = pa.record_batch({"group_id": ["billing", None], "n": [1, 2]})
    request = local_relation(stream(batch), "group_id string, n bigint")
    checked(request)
    assert pa.ipc.open_stream(request.plan.root.local_relation.data).read_all().to_batches() == [batch]


def test_check_request_local_data_whose_offsets_point_elsewhere_is_refused() -> None:
    """Spark would read the memory of the JVM there."""
    data = stream(pa.record_batch({"x": ["y" * 12345]}))
    start, offsets, end = data.rpartition(bytes(4) + (12345).to_bytes(4, "little"))  # the offsets of the only value
    assert offsets
    with pytest.raises(RefusedError, match="Arrow"):
        checked(local_relation(start + bytes(4) + (1 << 20).to_bytes(4, "little") + end))
    with pytest.raises(RefusedError, match="Arrow"):
        checked(local_relation(b"no Arrow"))


@pytest.mark.parametrize("schema", ['{"type":"UDT","class":"x"}', '{"type":"\\u0075dt","class":"x"}'])
def test_check_request_schema_of_a_user_defined_type_is_refused(schema: str) -> None:
    with pytest.raises(RefusedError, match="user-defined type"):
        checked(local_relation(b"", schema))


@pytest.mark.parametrize(
    ("operation", "allowed"),
    [
        ({"get": {"keys": ["spark.sql.session.timeZone"]}}, True),
        ({"set": {"pairs": [{"key": "spark.sql.session.timeZone", "value": "UTC"}]}}, True),
        ({"get": {"keys": ["spark.hadoop.fs.s3a.secret.key"]}}, False),
        ({"get_option": {"keys": ["spark.connect.authenticate.token"]}}, False),
        ({"get_with_default": {"pairs": [{"key": "spark.own.password"}]}}, False),
        ({"get_all": {}}, False),
        ({"set": {"pairs": [{"key": "spark.sql.variable.substitute", "value": "true"}]}}, False),
        ({"unset": {"keys": ["spark.sql.variable.substitute"]}}, False),
        ({"set": {"pairs": [{"key": "spark.sql.catalog.own", "value": "x"}]}}, False),
    ],
)
def test_check_request_only_harmless_settings(operation: dict[str, Any], allowed: bool) -> None:
    request = base_pb2.ConfigRequest(operation=operation)
    if allowed:
        checked(request)
    else:
        with pytest.raises(RefusedError):
            checked(request)


def test_check_request_added_files_are_refused() -> None:
    with pytest.raises(RefusedError, match="AddArtifactsRequest"):
        checked(base_pb2.AddArtifactsRequest(session_id="x"))


@pytest.mark.parametrize("name", ["args", "named_arguments", "pos_arguments"])
def test_check_request_arguments_of_a_query_are_refused(name: str) -> None:
    """Spark may put them into the text that was checked."""
    sql = relations_pb2.SQL(query="SELECT :a")
    if name == "pos_arguments":
        sql.pos_arguments.add().literal.integer = 1
    else:
        getattr(sql, name)["a"].SetInParent()
    with pytest.raises(RefusedError, match="arguments"):
        checked(plan(relations_pb2.Relation(sql=sql)))

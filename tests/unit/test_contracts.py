"""The contracts of the tables, the layouts' files, and that both are packaged."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest

from grouptrail.contracts import Column, Metric, Table, metrics, tables, wire_layouts
from grouptrail.decode.rows import decode_row
from grouptrail.decode.schema import TABLES, own_columns, row_ddl, row_schema
from grouptrail.storage.schema import arrow_type
from grouptrail.wire.layout import Field, Versions, messages, record_types
from support.wire_vectors import RECORDS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
COLUMNS = [(table, column) for table in tables().values() for column in table.columns]

each_table = pytest.mark.parametrize("table", tables().values(), ids=lambda table: table.name)
each_column = pytest.mark.parametrize(
    ("table", "column"), COLUMNS, ids=[f"{table.name}.{column.name}" for table, column in COLUMNS]
)


@each_table
def test_table_column_names_are_unique(table: Table) -> None:
    names = [column.name for column in table.columns]
    assert sorted(names) == sorted(set(names))


@each_table
def test_table_key_starts_with_cluster_and_is_never_null(table: Table) -> None:
    columns = {column.name: column for column in table.columns}
    assert table.key[0] == "cluster"
    assert [columns[name].null_means for name in table.key] == [None] * len(table.key)


@each_table
def test_table_cluster_by_columns_have_statistics(table: Table) -> None:
    """Delta clusters only by columns with statistics."""
    columns = {column.name: column for column in table.columns}
    assert table.cluster_by
    assert [name for name in table.cluster_by if not columns[name].stats] == []


@each_table
def test_table_description_ends_with_a_full_stop(table: Table) -> None:
    assert table.about.rstrip().endswith(".")


@each_column
def test_column_description_and_null_meaning_are_not_blank(table: Table, column: Column) -> None:
    assert column.about.strip()
    assert column.null_means is None or column.null_means.strip()


@each_column
def test_column_type_maps_to_arrow_and_nested_columns_have_no_statistics(table: Table, column: Column) -> None:
    """Named types of the contract are resolved."""
    arrow = arrow_type(column.type)
    assert column.type.startswith("array<struct<") is (
        pa.types.is_list(arrow) and pa.types.is_struct(arrow.value_type)
    )
    assert column.stats <= (not pa.types.is_nested(arrow))


def test_decoded_tables_start_with_record_coordinates_and_end_with_verbatim_columns() -> None:
    """Undecodable records have no verbatim columns: their bytes are kept anyway."""
    for name in TABLES:
        columns = [column.name for column in tables()[name].columns]
        assert columns[:4] == ["cluster", "record_partition", "record_offset", "record_at"]
        ending = ["key_type", "value_version", "is_tombstone", "verbatim_key", "verbatim_value"]
        assert (columns[-5:] == ending) is (name != "undecodable_records")


def test_decode_row_vectors_have_nulls_only_in_nullable_columns() -> None:
    """A column may be null only if its contract says what null means."""
    nulls = set()
    for vector in RECORDS:
        name, row = decode_row(vector.key, vector.value)
        documented = {column.name for column in tables()[name].columns if column.null_means}
        nulls |= {f"{name}.{column}" for column, value in row.items() if value is None and column not in documented}
    assert nulls == set()


@pytest.mark.parametrize("name", TABLES)
def test_row_schema_is_the_contract_without_what_a_decoder_cannot_know(name: str) -> None:
    """As an Arrow schema and as Spark DDL; `own_columns` also omits what is copied from the record."""
    columns = [column.name for column in tables()[name].columns]
    assert columns[4:6] == ["source", "not_before"]
    decoded = [column for column in columns[6:] if column not in ("read_at", "is_gapless")]
    assert row_schema(name).names == [*columns[1:4], *decoded]
    assert own_columns(name).names == [
        column for column in decoded if column not in ("is_transactional", "partition_leader_epoch")
    ]
    assert row_ddl(name).startswith("`record_partition` int, `record_offset` bigint, `record_at` timestamp, ")
    assert row_ddl(name).count("`") == 2 * len(row_schema(name))


def test_ingest_progress_has_a_count_column_for_every_decoded_table() -> None:
    """Besides `holes` and `lost`, which make up the rest of the offsets."""
    columns = {column.name: column for column in tables()["ingest_progress"].columns}
    counts = (*TABLES, "holes", "lost", "start_offset", "end_offset")
    assert [(columns[name].type, columns[name].null_means) for name in counts] == [("bigint", None)] * len(counts)
    assert [name for name in TABLES if name not in tables()["ingest_progress"].about] == []


@pytest.mark.parametrize("text", ["decimal", "array<>", "struct<a: array<strin>>", "map<string, int>", ""])
def test_arrow_type_unknown_type_raises(text: str) -> None:
    with pytest.raises(ValueError, match="no such type"):
        arrow_type(text)


def test_arrow_type_nested_types_are_parsed() -> None:
    """The commas of inner structs do not separate the outer one's fields."""
    inner = pa.struct([pa.field("t", pa.string()), pa.field("p", pa.list_(pa.int32()))])
    expected = pa.struct([pa.field("a", pa.list_(inner)), pa.field("b", pa.binary())])
    assert arrow_type("struct<a: array<struct<t: string, p: array<int>>>, b: binary>") == expected


# --- metrics ------------------------------------------------------------------------------------------------

each_metric = pytest.mark.parametrize("metric", metrics().values(), ids=lambda metric: metric.name)


@each_metric
def test_metric_name_type_and_labels_follow_prometheus_conventions(metric: Metric) -> None:
    """Prefix, `_total` only for counters, `_seconds` for times; a member id is a label where it is asked for only."""
    assert metric.name.startswith(("kafka_consumer_group_", "kafka_topic_", "kafka_cluster_", "grouptrail_"))
    assert metric.type in ("gauge", "counter", "histogram")
    assert metric.name.endswith("_total") is (metric.type == "counter")
    assert metric.name.endswith("_seconds") is (metric.unit in ("seconds", "unix_seconds"))
    assert bool(metric.buckets) is (metric.type == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))
    allowed = {
        "group",
        "topic",
        "partition",
        "protocol",
        "protocol_type",
        "status",
        "state",
        "cause",
        "type",
        "outcome",
        "table",
        "file",
        "reason",
        "version",
        "job_name",  # not job, which Prometheus sets itself
    }
    assert metric.labels[0] == "cluster"
    if metric.name == "kafka_consumer_group_owner_info":
        allowed |= {"member_id", "client_id", "client_host"}
    assert set(metric.labels[1:]) <= allowed
    assert metric.help.endswith(".")


@each_metric
def test_metric_source_is_a_known_table_or_the_exporter(metric: Metric) -> None:
    """`check_results` exists only once a check has run."""
    assert metric.table in {*tables(), "exporter", "check_results"}


# --- layouts ------------------------------------------------------------------------------------------------


def test_wire_layout_has_both_type_and_key_or_neither() -> None:
    """A record or a blob; each file's names are its own."""
    per_file = [len(messages_of) for messages_of in _layout_files()]
    assert sum(per_file) == len(wire_layouts())
    assert [name for name, message in messages().items() if (message.type is None) is bool(message.key)] == []


def _layout_files() -> list[dict[str, object]]:
    return [json.loads(path.read_text("utf-8")) for path in sorted((ROOT / "schemas" / "wire").glob("*.json"))]


def test_record_types_match_kafka_4_3() -> None:
    """9 and 18 have no meaning in `__consumer_offsets`."""
    assert sorted(record_types()) == [*range(9), *range(10, 18), *range(19, 24)]
    assert sorted(record_types("share")) == [0, 1]


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("epoch int32", Field("epoch", "int32", False, False, Versions(0, None), None, None)),
        ("config-offset int64 1", Field("config-offset", "int64", False, False, Versions(1, 1), None, None)),
        ("a []Topic? 1-3 tag 2 = -1", Field("a", "Topic", True, True, Versions(1, 3), 2, -1)),
    ],
)
def test_field_parse_valid_line_returns_the_field(line: str, field: Field) -> None:
    """`name type [versions] [tag N] [= default]`."""
    assert Field.parse(line) == field


@pytest.mark.parametrize(
    "line", ["epoch", "epoch int32 tag", "epoch int32 3+ 4", "epoch int32 = x", " epoch int32", ""]
)
def test_field_parse_invalid_line_raises(line: str) -> None:
    """The error contains the line."""
    with pytest.raises(ValueError, match="not a field"):
        Field.parse(line)


# --- packaging ----------------------------------------------------------------------------------------------


def _folders(root: Path, package: str, *endings: str) -> set[str]:
    """The packages that folders under a root are, where they hold files of these endings."""
    files = [path for ending in endings for path in root.rglob(f"*{ending}")]
    return {".".join((package, *path.parent.relative_to(root).parts)) for path in files}


def test_wheel_packages_match_the_source_folders() -> None:
    """Code under jobs/grouptrail and data beside it; an unlisted folder would be missing once installed."""
    code = _folders(ROOT / "jobs" / "grouptrail", "grouptrail", ".py")
    data = _folders(ROOT / "schemas", "grouptrail.schemas", ".py", ".sql", ".yaml", ".json")
    assert sorted(PROJECT["packages"]) == sorted(code | data | {"grouptrail.dashboards"})


def test_wheel_package_data_includes_every_data_file() -> None:
    """Each file that is not Python matches a pattern of its package, or of one above it."""
    roots = {"grouptrail": ROOT / "jobs" / "grouptrail", "grouptrail.schemas": ROOT / "schemas"}
    missing = []
    for package, root in roots.items():
        for path in root.rglob("*"):
            if path.is_dir() or path.suffix in (".py", ".pyc", ".md"):
                continue
            parts = path.parent.relative_to(root).parts
            names = [".".join((package, *parts[:depth])) for depth in range(len(parts) + 1)]
            patterns = [pattern for name in names for pattern in PROJECT["package-data"].get(name, [])]
            if not any(path.match(pattern) for pattern in patterns):
                missing.append(str(path.relative_to(ROOT)))
    assert missing == []

"""`grouptrail contracts export`: the contracts of the tables in the formats of other tools.

dbt's sources (https://docs.getdbt.com/reference/source-properties), and a data contract of the Open Data Contract
Standard 3.1 (https://bitol-io.github.io/open-data-contract-standard/).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from grouptrail import contracts
from grouptrail.contracts import Column, Table

Format = Literal["dbt", "odcs"]

# Spark's types as the standard's logical ones; any other is a structure or a list.
_LOGICAL = {
    "string": "string",
    "binary": "string",
    "boolean": "boolean",
    "timestamp": "timestamp",
    "date": "date",
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "integer"),
    **dict.fromkeys(("float", "double"), "number"),
}


def exported(format: Format, *, version: str, schema: str) -> str:
    """Return the contracts of all tables as YAML.

    `schema` is the catalog's schema that has the tables, `version` that of grouptrail."""
    import yaml

    tables = contracts.tables().values()
    document = _dbt(tables, schema) if format == "dbt" else _odcs(tables, version, schema)
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=118))


def _dbt(tables: Collection[Table], schema: str) -> Mapping[str, Any]:
    return {
        "version": 2,
        "sources": [
            {
                "name": "grouptrail",
                "schema": schema,
                "description": "The history of Kafka's consumer groups, decoded from __consumer_offsets.",
                "tables": [
                    {
                        "name": table.name,
                        "description": _sentence(table.about),
                        "columns": [_dbt_column(column) for column in table.columns],
                    }
                    for table in tables
                ],
            }
        ],
    }


def _dbt_column(column: Column) -> Mapping[str, Any]:
    tests: list[Any] = [] if column.null_means else ["not_null"]
    if column.values:
        tests.append({"accepted_values": {"arguments": {"values": list(column.values)}}})
    described = {"name": column.name, "description": _about(column), "data_type": column.type}
    return described | ({"data_tests": tests} if tests else {})


def _odcs(tables: Collection[Table], version: str, schema: str) -> Mapping[str, Any]:
    return {
        "apiVersion": "v3.1.0",
        "kind": "DataContract",
        "id": "grouptrail",
        "name": "grouptrail",
        "version": version,
        "status": "active",
        "description": {"purpose": "The history of Kafka's consumer groups, decoded from __consumer_offsets."},
        "schema": [
            {
                "name": table.name,
                "physicalName": f"{schema}.{table.name}",
                "physicalType": "table",
                "logicalType": "object",
                "description": _sentence(table.about),
                "properties": [_odcs_property(table, column) for column in table.columns],
            }
            for table in tables
        ],
    }


def _odcs_property(table: Table, column: Column) -> Mapping[str, Any]:
    described: dict[str, Any] = {
        "name": column.name,
        "logicalType": _logical_type(column.type),
        "physicalType": column.type,
        "description": _about(column),
        "required": column.null_means is None,
    }
    if described["logicalType"] == "array":
        described["items"] = {"logicalType": _logical_type(column.type[len("array<") : -1])}
    if column.name in table.key:
        described |= {"primaryKey": True, "primaryKeyPosition": table.key.index(column.name) + 1}
    if column.name in table.partition_by:
        described |= {"partitioned": True, "partitionKeyPosition": table.partition_by.index(column.name) + 1}
    return described


def _logical_type(type_: str) -> str:
    return _LOGICAL.get(type_, "array" if type_.startswith("array<") else "object")


def _about(column: Column) -> str:
    null = f" Null: {column.null_means}." if column.null_means else ""
    return f"{_sentence(column.about)}{null}"


def _sentence(text: str) -> str:
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"

"""Create a small table and append to it with delta-rs, without a JVM.

delta-rs does not write to tables with liquid clustering, as Spark creates them; a table that it creates has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema, write_deltalake

from grouptrail import contracts
from grouptrail.storage import layout
from grouptrail.storage.reader import OpenTable, column_names, open_table
from grouptrail.storage.schema import table_schema
from grouptrail.storage.table_log import log_file

if TYPE_CHECKING:
    from grouptrail.config import Config

_CLUSTERING = "clustering"
_DOMAIN = "delta.clustering"
_FIRST_COMMIT = Path(log_file(0))


def append_without_spark(config: Config, name: str, rows: list[dict[str, Any]]) -> bool:
    """Append rows, to a new table if there is none; return False if only Spark can do it."""
    table = open_table(config, name)
    if table is None:
        table = create_without_spark(name, config.table_path(name), config.storage_options())
    names = table_schema(name).names
    if _CLUSTERING in (table.protocol().writer_features or ()) or not column_names(table) >= set(names):
        return False
    write_deltalake(table, pa.Table.from_pylist(rows, table_schema(name)), mode="append")
    return True


def create_as_spark_does(name: str, folder: Path) -> None:
    """Create a table of a contract, clustered where Spark's would be, unless the local folder has one.

    delta-rs makes the first commit in another folder; clustering is added to it as Delta's protocol has it (there:
    "Clustered Table"). Spark takes seconds for the first tables after its start. Raises OSError.
    """
    table = contracts.tables()[name]
    actions: dict[str, Any] = {}
    with TemporaryDirectory() as elsewhere:
        create_without_spark(name, elsewhere, {})
        for line in (Path(elsewhere) / _FIRST_COMMIT).read_text().splitlines():
            actions |= json.loads(line)
    actions["metaData"]["configuration"] = layout.spark_properties(table, takes_files=not table.partition_by)
    if not table.partition_by:
        columns = json.dumps({"clusteringColumns": [[column] for column in table.cluster_by], "domainName": _DOMAIN})
        actions["domainMetadata"] = {"domain": _DOMAIN, "configuration": columns, "removed": False}
        features = ["domainMetadata", _CLUSTERING, "invariants", "appendOnly"]
        actions["protocol"] = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
    first = folder / _FIRST_COMMIT
    first.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=first.parent, prefix=".creating-") as file:
        file.writelines(f"{json.dumps({kind: action})}\n" for kind, action in actions.items())
        file.flush()
        try:
            first.hardlink_to(file.name)
        except FileExistsError:  # another driver was first
            return
    first.with_suffix(".crc").write_text(json.dumps(_checksum(actions)))


def _checksum(actions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new table's version checksum, from which Spark computes those of later versions, instead of from all
    of the log."""
    return {
        "tableSizeBytes": 0,
        "numFiles": 0,
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": [],
        "domainMetadata": [actions["domainMetadata"]] if "domainMetadata" in actions else [],
        "metadata": actions["metaData"],
        "protocol": actions["protocol"],
        "allFiles": [],
    }


def create_without_spark(name: str, path: str, options: Mapping[str, str]) -> OpenTable:
    """Create a table of a contract at a place; return it."""
    table = contracts.tables()[name]
    plain = Schema.from_arrow(table_schema(name)).fields
    fields = [
        Field(field.name, field.type, nullable=True, metadata={"comment": layout.meaning(column)})
        for field, column in zip(plain, table.columns, strict=True)
    ]
    return DeltaTable.create(
        path,
        Schema(fields),
        partition_by=list(table.partition_by),
        description=table.about,
        configuration=layout.properties(table),
        storage_options=dict(options),
    )

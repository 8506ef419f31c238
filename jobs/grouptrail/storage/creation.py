"""Create tables without a JVM: without clustering as delta-rs does, or clustered as Spark does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any

from deltalake import DeltaTable, Field, Schema

from grouptrail.storage import layout
from grouptrail.storage.location import TableLocation
from grouptrail.storage.reader import OpenTable
from grouptrail.storage.schema import table_schema
from grouptrail.storage.table_log import log_file

_DOMAIN = "delta.clustering"
_FIRST_COMMIT = Path(log_file(0))


def create_as_spark_does(location: TableLocation) -> None:
    """Create a table in a local folder, clustered where Spark's would be, unless the folder has one.

    delta-rs makes the first commit in another folder; clustering is added to it as Delta's protocol has it (there:
    "Clustered Table"). Spark takes seconds for the first tables after its start. Raises OSError.
    """
    table, actions = location.contract, dict[str, Any]()
    with TemporaryDirectory() as elsewhere:
        create_table(replace(location, path=elsewhere))
        for line in (Path(elsewhere) / _FIRST_COMMIT).read_text().splitlines():
            actions |= json.loads(line)
    actions["metaData"]["configuration"] = layout.spark_properties(table, takes_files=not table.partition_by)
    if not table.partition_by:
        columns = json.dumps({"clusteringColumns": [[column] for column in table.cluster_by], "domainName": _DOMAIN})
        actions["domainMetadata"] = {"domain": _DOMAIN, "configuration": columns, "removed": False}
        features = ["domainMetadata", layout.CLUSTERING, "invariants", "appendOnly"]
        actions["protocol"] = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
    first = Path(location.path) / _FIRST_COMMIT
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


def create_table(location: TableLocation) -> OpenTable:
    """Create a table without clustering; return it."""
    table = location.contract
    plain = Schema.from_arrow(table_schema(location.name)).fields
    fields = [
        Field(field.name, field.type, nullable=True, metadata={"comment": layout.meaning(column)})
        for field, column in zip(plain, table.columns, strict=True)
    ]
    return DeltaTable.create(
        location.path,
        Schema(fields),
        partition_by=list(table.partition_by),
        description=table.about,
        configuration=layout.properties(table),
        storage_options=dict(location.options),
    )

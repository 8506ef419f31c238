"""`grouptrail contracts export --to openlineage`: what each job reads and writes, as OpenLineage describes jobs.

Sources of the format and of the datasets' names: https://openlineage.io/docs/spec/object-model and
https://openlineage.io/docs/spec/naming.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from grouptrail import contracts
from grouptrail.jobs import Job
from grouptrail.locations import is_uri, shown

_SPEC = "https://openlineage.io/spec"
_NAMESPACE = "grouptrail"
_TOPIC = "__consumer_offsets"
_KIND = {"processingType": "STREAMING", "integration": "GROUPTRAIL", "jobType": "JOB"}
# Of these stores a name is the key of an object, of others a path.
_STORES_OF_OBJECTS = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs"}


def job_events(
    jobs: Iterable[Job], *, cluster: str, bootstrap_servers: str, warehouse: str, version: str, at: str
) -> Iterator[Mapping[str, Any]]:
    """Yield a JobEvent for each job of a cluster; tables have their columns where they are written.

    `bootstrap_servers` and `warehouse` are as in the settings, `version` is that of grouptrail, `at` the time of the
    events in ISO 8601. Of an address, the events have neither user nor password.
    """
    producer = f"urn:grouptrail:{version}"
    broker = bootstrap_servers.partition(",")[0].strip().rpartition("://")[2]

    def facet(name: str, version: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
        url = f"{_SPEC}/facets/{version}/{name}.json#/$defs/{name}"
        return {"_producer": producer, "_schemaURL": url, **content}

    def read(name: str) -> Mapping[str, Any]:
        return {"namespace": f"kafka://{broker}", "name": name} if name == _TOPIC else _place(warehouse, name)

    def written(name: str) -> Mapping[str, Any]:
        table = contracts.tables()[name]
        columns = [{"name": one.name, "type": one.type, "description": one.about} for one in table.columns]
        facets = {
            "documentation": facet("DocumentationDatasetFacet", "1-0-1", {"description": table.about}),
            "schema": facet("SchemaDatasetFacet", "1-1-1", {"fields": columns}),
        }
        return {**_place(warehouse, name), "facets": facets}

    for job in jobs:
        facets = {
            "documentation": facet("DocumentationJobFacet", "1-0-1", {"description": job.about}),
            "jobType": facet("JobTypeJobFacet", "2-0-3", _KIND),
        }
        yield {
            "eventTime": at,
            "producer": producer,
            "schemaURL": f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/JobEvent",
            "job": {"namespace": _NAMESPACE, "name": f"{cluster}.{job.name}", "facets": facets},
            "inputs": [read(name) for name in job.reads],
            "outputs": [written(name) for name in job.writes],
        }


def _place(warehouse: str, table: str) -> Mapping[str, str]:
    """Return the dataset's namespace and name of a table."""
    if not is_uri(warehouse):
        return {"namespace": "file", "name": f"{warehouse}/{table}"}
    # A user, a password or a query is no part of it; the container that stands in the user's place is.
    scheme, address, path, _, _ = urlsplit(shown(warehouse))
    address = address.removeprefix("***@")
    if scheme in _STORES_OF_OBJECTS:
        return {"namespace": f"{_STORES_OF_OBJECTS[scheme]}://{address}", "name": f"{path}/{table}".removeprefix("/")}
    return {"namespace": f"{scheme}://{address}" if address else scheme, "name": f"{path}/{table}"}

"""The names of topic ids: records of broker-assigned groups hold only ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.kafka.errors import ClusterError
from grouptrail.kafka.offsets_topic import OffsetsTopic
from grouptrail.storage.schema import ddl_schema
from grouptrail.storage.warehouse import Warehouse

TABLE = "topic_names"

REFERENCES_DDL = "topic_id string, topic string"
"""A topic id in a record, and the topic's name, which is null where the record has only the id."""

_REFERENCES = ddl_schema(REFERENCES_DDL)

# Only these records hold both names and ids.
_WITH_NAMES = {
    "ConsumerGroupPartitionMetadata": ("topics",),
    "ShareGroupStatePartitionMetadata": ("initializingTopics", "initializedTopics", "deletingTopics"),
}
_ID = re.compile(r'"topicId":"([^"]+)"')


def known_names(warehouse: Warehouse) -> dict[str, str]:
    """Return the names by topic id in the table."""
    return {row["topic_id"]: row["topic"] for row in warehouse.table(TABLE).select("topic_id, topic")}


def topic_references(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Find the topic ids in records (type, body), each once a batch: a function for `DataFrame.mapInArrow`."""
    for records in batches:
        names: dict[str, str | None] = {}
        for type_, body in zip(records["type"].to_pylist(), records["body"].to_pylist(), strict=True):
            names = dict.fromkeys(_ID.findall(body or "")) | names
            for field in _WITH_NAMES.get(type_, ()) if body else ():
                names |= {topic["topicId"]: topic["topicName"] for topic in json.loads(body).get(field) or ()}
        yield pa.RecordBatch.from_pydict({"topic_id": list(names), "topic": list(names.values())}, schema=_REFERENCES)


def references_in(records: pa.Table) -> pa.Table:
    """Return the topic ids in records (type, body), and the names that stand beside some (`REFERENCES_DDL`)."""
    return pa.Table.from_batches(topic_references(records.to_batches()), _REFERENCES)


class TopicNames:
    """Names by topic id, kept in the table `topic_names`, so that a deleted topic keeps its name.

    `kafka` are settings of Kafka's client: names are requested from a broker, too.
    """

    def __init__(self, warehouse: Warehouse, kafka: Mapping[str, str]) -> None:
        self._warehouse = warehouse
        self._kafka = kafka
        self._names = known_names(warehouse)
        self._nameless: set[str] = set()

    def known(self) -> dict[str, str]:
        """Return all known names by topic id."""
        return dict(self._names)

    def look_up(self, references: pa.Table) -> dict[str, str]:
        """Return all known names, after a search for those of new ids (`REFERENCES_DDL`).

        They are searched in the records, then on a broker, then in commits.
        """
        wanted = set(references["topic_id"].to_pylist()) - self._names.keys() - self._nameless
        if not wanted:
            return self.known()
        named = references.filter(pc.is_valid(references["topic"]))
        in_records = dict(zip(named["topic_id"].to_pylist(), named["topic"].to_pylist(), strict=True))
        self._learn("record", in_records, wanted)
        by_broker = self._names_from_broker()
        self._learn("broker", by_broker, wanted)
        self._learn("commit", self._names_in_commits(wanted - self._names.keys()), wanted)
        # A cluster that answers has at least the offsets topic: after an empty answer the next batch tries again.
        if by_broker:
            self._nameless |= wanted - self._names.keys()
        return self.known()

    def _names_from_broker(self) -> dict[str, str]:
        """Return names by topic id from a broker; empty if none answers, so that the rows show ids."""
        try:
            with OffsetsTopic(self._kafka) as topic:
                return topic.topic_names()
        except ClusterError:
            return {}

    def _names_in_commits(self, wanted: set[str]) -> dict[str, str]:
        if not wanted:
            return {}
        among = ", ".join(map(self._warehouse.literal, sorted(wanted)))
        commits = self._warehouse.table("offset_commits")
        rows = commits.select("DISTINCT topic_id, topic", f"AND topic_id IN ({among})")
        return {row["topic_id"]: row["topic"] for row in rows}

    def _learn(self, source: str, names: Mapping[str, str], wanted: set[str]) -> None:
        """Keep the names of ids that are new, in the table, too."""
        new = {topic_id: names[topic_id] for topic_id in sorted(wanted & names.keys() - self._names.keys())}
        if not new:
            return
        self._names |= new
        same = {"learned_from": source, "learned_at": datetime.now(UTC)}
        rows = ({**same, "topic_id": topic_id, "topic": topic} for topic_id, topic in new.items())
        self._warehouse.table(TABLE).append_rows(rows)

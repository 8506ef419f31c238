"""The names of topic ids: records of broker-assigned groups hold only ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.kafka.errors import ClusterError
from grouptrail.kafka.offsets_topic import OffsetsTopic
from grouptrail.storage import tables
from grouptrail.storage.sql import spark_literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from grouptrail.config import Config

TABLE = "topic_names"

# Only these records hold both names and ids.
_NAMING = {
    "ConsumerGroupPartitionMetadata": ("topics",),
    "ShareGroupStatePartitionMetadata": ("initializingTopics", "initializedTopics", "deletingTopics"),
}
_ID = r'"topicId":"([^"]+)"'


def known_names(spark: SparkSession | None, config: Config) -> dict[str, str]:
    """Return the names by topic id in the table; Spark is used only for stores that delta-rs does not support."""
    return {row["topic_id"]: row["topic"] for row in tables.select(spark, config, TABLE, "topic_id, topic")}


def topic_ids(bodies: Iterable[str | None]) -> set[str]:
    """Return the topic ids in the bodies of records."""
    return {topic_id for body in bodies if body for topic_id in re.findall(_ID, body)}


def _names_in_records(naming: pa.Table) -> dict[str, str]:
    return {
        topic["topicId"]: topic["topicName"]
        for type_, body in zip(naming["type"].to_pylist(), naming["body"].to_pylist(), strict=True)
        for field in _NAMING[type_]
        for topic in json.loads(body).get(field) or ()
    }


class TopicNames:
    """Names by topic id, kept in the table `topic_names`, so that a deleted topic keeps its name."""

    def __init__(self, spark: SparkSession, config: Config) -> None:
        self._spark = spark
        self._config = config
        self._names = known_names(spark, config)
        self._nameless: set[str] = set()

    def known(self) -> dict[str, str]:
        """Return all known names by topic id."""
        return dict(self._names)

    def of(self, group_records: DataFrame) -> dict[str, str]:
        """Return all known names, after looking up the new ids in these records (`tasks.INPUT_DDL`)."""
        from pyspark.sql import functions as F

        wanted = self._ids(group_records) - self._names.keys() - self._nameless
        if wanted:
            naming = group_records.where(F.col("type").isin(*_NAMING) & F.col("body").isNotNull())
            self._look_up(wanted, naming.select("type", "body").distinct().toArrow())
        return self.known()

    def of_few(self, group_records: pa.Table) -> dict[str, str]:
        """Do the same for few records."""
        wanted = topic_ids(group_records["body"].to_pylist()) - self._names.keys() - self._nameless
        if wanted:
            naming = pc.and_(pc.is_in(group_records["type"], pa.array(_NAMING)), pc.is_valid(group_records["body"]))
            self._look_up(wanted, group_records.filter(naming))
        return self.known()

    def _look_up(self, wanted: set[str], naming: pa.Table) -> None:
        """Find names of ids: in records that hold both (type, body), from the broker, or from commits."""
        self._learn("record", _names_in_records(naming), wanted)
        by_broker = self._names_from_broker()
        self._learn("broker", by_broker, wanted)
        self._learn("commit", self._names_in_commits(wanted - self._names.keys()), wanted)
        # A cluster that answers has at least the offsets topic: after an empty answer the next batch tries again.
        if by_broker:
            self._nameless |= wanted - self._names.keys()

    @staticmethod
    def _ids(group_records: DataFrame) -> set[str]:
        from pyspark.sql import functions as F

        ids = F.explode(F.regexp_extract_all("body", F.lit(_ID), F.lit(1)))
        return {row.id for row in group_records.select(ids.alias("id")).distinct().collect()}

    def _names_from_broker(self) -> dict[str, str]:
        """Return names by topic id from a broker; empty if none answers, so that the rows show ids."""
        try:
            with OffsetsTopic(self._config.kafka_settings()) as topic:
                return topic.topic_names()
        except ClusterError:
            return {}

    def _names_in_commits(self, wanted: set[str]) -> dict[str, str]:
        if not wanted:
            return {}
        among = ", ".join(map(spark_literal, sorted(wanted)))
        rows = tables.select(
            self._spark, self._config, "offset_commits", "DISTINCT topic_id, topic", f"AND topic_id IN ({among})"
        )
        return {row["topic_id"]: row["topic"] for row in rows}

    def _learn(self, source: str, names: dict[str, str], wanted: set[str]) -> None:
        new = {topic_id: names[topic_id] for topic_id in sorted(wanted & names.keys() - self._names.keys())}
        if not new:
            return
        self._names |= new
        rows: list[dict[str, Any]] = [
            {
                "cluster": self._config.cluster,
                "topic_id": topic_id,
                "topic": topic,
                "told_by": source,
                "told_at": datetime.now(UTC),
            }
            for topic_id, topic in new.items()
        ]
        tables.append_new(self._spark, rows, self._config, TABLE)

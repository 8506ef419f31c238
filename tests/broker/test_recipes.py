"""The recipe that restores offsets, with Kafka's own tool."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition

from grouptrail.config import Config
from grouptrail.query.sql import save_sql
from servers.kafka import Broker
from support.from_config import sql_context
from support.sample_history import lay_sample_history

RECIPES = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
QUERY = "SELECT * FROM offsets_as_of('billing', '2026-03-04T12:02:30Z')"


def test_reset_offsets_recipe_restores_offsets_with_kafka_consumer_groups(
    broker: Broker, config: Config, tmp_path: Path
) -> None:
    """The command of docs/recipes.md resets the group to the offsets in the tables."""
    lay_sample_history(config)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for _ in range(40):
        producer.send("orders", b"x", partition=0)
    producer.flush()
    partition = TopicPartition("orders", 0)
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id="billing", enable_auto_commit=False)
    consumer.assign([partition])
    consumer.commit({partition: OffsetAndMetadata(30, "", -1)})
    consumer.close()
    save_sql(sql_context(config), QUERY, format="reset-offsets", path=tmp_path / "offsets.csv")

    run = broker.tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *_arguments(broker, tmp_path))

    assert run.returncode == 0, run.stdout + run.stderr
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        offsets = admin.list_group_offsets({"billing": [partition]})["billing"]
    assert offsets[partition].offset == 15


def _arguments(broker: Broker, folder: Path) -> list[str]:
    """Return the arguments of the recipe's command with this broker's address and --execute."""
    [command] = re.findall(r"^kafka-consumer-groups.sh (.*?)#", RECIPES.read_text(), re.MULTILINE | re.DOTALL)
    text = command.replace("\\\n", " ").replace("localhost:9092", broker.bootstrap)
    return shlex.split(text.replace("offsets.csv", str(folder / "offsets.csv")).replace("--dry-run", "--execute"))

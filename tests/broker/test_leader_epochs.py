"""Where leader epochs began, asked of real brokers; the records' own epochs and the leader's file are the judge."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from grouptrail.kafka.cluster import Cluster
from grouptrail.kafka.leader_epochs import LeaderEpoch, Place
from servers.kafka import PASSWORDS, Broker
from servers.kafka_cluster import KafkaCluster
from servers.offsets_topic import OFFSETS_TOPIC, read_records
from support.kafka_clients import PATIENCE_SECONDS, commit, make_orders

COMMITS = (10, 7, 7)
PLACE: Place = (OFFSETS_TOPIC, 0)


def epochs_in_records(bootstrap: str) -> list[LeaderEpoch]:
    """Return each epoch in the batches of the partition, with the offset of its first record."""
    records = [record for record in read_records(bootstrap) if record.partition == PLACE[1]]
    return [
        LeaderEpoch(epoch, next(batch).offset)
        for epoch, batch in groupby(records, lambda record: record.leader_epoch)
        if epoch is not None
    ]


def checkpoint(leader: Broker) -> list[LeaderEpoch]:
    """Return the epochs in Kafka's own file, which the leader reads when it starts."""
    [file] = leader.directory.glob(f"data/{PLACE[0]}-{PLACE[1]}/leader-epoch-checkpoint")
    return [LeaderEpoch(*map(int, line.split())) for line in file.read_text("ascii").splitlines()[2:]]


@pytest.mark.full
def test_leader_epochs_of_a_leader_stopped_twice_begin_where_its_records_do(tmp_path: Path) -> None:
    with KafkaCluster(tmp_path / "kafka", properties={"offsets.topic.num.partitions": "1"}) as cluster:
        make_orders(cluster.bootstrap)
        for term, commits in enumerate(COMMITS):
            if term > 0:
                leader = cluster.leader(*PLACE)
                leader.stop()
                assert cluster.leader(*PLACE) is not leader
                leader.start()
            for offset in range(commits):
                commit(cluster.bootstrap, "billing", offset)
        written = epochs_in_records(cluster.bootstrap)
        assert len(written) == len(COMMITS)
        with Cluster({"bootstrap.servers": cluster.bootstrap}) as asked:
            [place] = asked.partition_metadata({PLACE[0]: [PLACE[1]]})
            assert place.leader is not None
            assert place.leader_epoch is not None
            newest = {PLACE: place.leader_epoch}
            epochs = asked.leader_epochs(place.leader, newest)[PLACE]
            assert isinstance(epochs, list)
            assert epochs == checkpoint(cluster.brokers[place.leader - 1])
            assert [one for one in epochs if one in written] == written
            later = asked.leader_epochs(place.leader, newest, {PLACE: epochs[0].epoch})
            assert later == {PLACE: epochs[1:]}
            follower = next(number for number in (1, 2, 3) if number != place.leader)
            assert asked.leader_epochs(follower, newest) == {PLACE: "not led by this broker"}


def test_leader_epochs_need_describe_on_the_topic(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for made in admin.create_topics([NewTopic("visible", 1), NewTopic("hidden", 1)]).values():
        made.result(PATIENCE_SECONDS)
    broker.allow("reader", "DESCRIBE", "TOPIC", "visible")
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "bootstrap.servers": broker.sasl_bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{module} required username="reader" password="{PASSWORDS["reader"]}";',
    }
    with Cluster({"bootstrap.servers": broker.bootstrap}) as unlimited:
        [place] = unlimited.partition_metadata({"visible": [0]})
    assert place.leader is not None
    with Cluster(settings) as asked:
        epochs = asked.leader_epochs(place.leader, {("visible", 0): 0, ("hidden", 0): 0, ("missing", 0): 0})
    assert epochs == {
        ("visible", 0): [LeaderEpoch(0, 0)],
        ("hidden", 0): "DESCRIBE is denied",
        ("missing", 0): "DESCRIBE is denied",
    }

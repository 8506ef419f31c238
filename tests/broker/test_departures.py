"""How real consumers leave, and what the history says of it with their commits and with the brokers' log."""

from __future__ import annotations

import sys

import pytest

from proof.played_departures import play, play_moves, properties
from proof.recorded_departures import RecordedDepartures, judge, markdown, save
from servers.kafka import VERSIONS, Broker
from servers.kafka_cluster import KafkaCluster
from support.departing_clients import Programs

pytestmark = pytest.mark.full


def check(recording: RecordedDepartures, factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]) -> None:
    """Save a recording; fail if the history is wrong about it, or knows too little."""
    save(recording, factory.getbasetemp())
    said = list(judge(recording))
    with capsys.disabled():
        sys.stdout.write(f"\n{recording.name}\n{markdown((recording, one) for one in said)}\n")
    assert [one for one in said if one.is_wrong] == []
    assert sum(one.verdicts["log"] == "right" for one in said) >= len(said) * 0.8


@pytest.mark.parametrize("version", VERSIONS)
def test_history_says_how_real_consumers_left_and_is_never_wrong(
    version: str, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("kafka")
    with Broker(folder, version=version, properties=properties(version)) as broker:
        recording = play(broker, version, Programs(version))
    check(recording, tmp_path_factory, capsys)


@pytest.mark.parametrize("version", VERSIONS)
def test_history_says_how_real_consumers_left_as_their_coordinator_moved(
    version: str, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, one_coordinator = tmp_path_factory.mktemp("kafka"), {"offsets.topic.num.partitions": "1"}
    settings = properties(version) | one_coordinator
    with KafkaCluster(folder, version=version, properties=settings) as cluster:
        recording = play_moves(cluster, version, Programs(version))
    check(recording, tmp_path_factory, capsys)

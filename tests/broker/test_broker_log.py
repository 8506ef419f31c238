"""What a broker logs about groups, compared with its records: each release may change its messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from grouptrail.broker_log.reading import LineCounts, read_events
from grouptrail.history.broker_log_evidence import prove_ending, prove_rebalance
from grouptrail.history.operations import CLASSIC
from proof.recorded_runs import folded, group_records
from servers.kafka import VERSIONS, Broker
from servers.offsets_topic import ensure_offsets_topic
from support.broker_logs import poll_until

GROUP, TOPIC = "orders", "orders-topic"
EPOCH = datetime.fromtimestamp(0, UTC)


@pytest.fixture(
    scope="module", params=[VERSIONS[0], *(pytest.param(one, marks=pytest.mark.full) for one in VERSIONS[1:])]
)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("kafka")
    with Broker(folder, version=request.param) as started:
        ensure_offsets_topic(started.bootstrap)
        yield started


@pytest.fixture(scope="module")
def members(broker: Broker) -> list[str]:
    """Two members join, the second leaves, then the first; their ids."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 2)])[TOPIC].result()
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": GROUP, "enable.auto.commit": False}
    with closing(Consumer(settings)) as first:
        first.subscribe([TOPIC])
        poll_until([first], 2)
        with closing(Consumer(settings)) as second:
            second.subscribe([TOPIC])
            poll_until([first, second], 2)
            ids = [first.memberid(), second.memberid()]
        poll_until([first], 2)
    return ids


def events_of(broker: Broker) -> list[dict[str, Any]]:
    counts = LineCounts()
    found = list(read_events(broker.log_file, UTC, counts, trusts_clients=True))
    assert (counts.unmatched, counts.malformed) == (0, 0)
    return [event for event in found if event["group_id"] == GROUP]


def test_read_events_of_a_broker_has_the_generations_that_it_recorded(broker: Broker, members: list[str]) -> None:
    _, records = group_records(broker)[GROUP]
    bodies = [(record.at, record.body) for record in records if record.type == CLASSIC and record.body]
    # A new group is written as generation 0, without members.
    recorded = {body["generation"]: at for at, body in bodies if body["generation"]}
    ends = [event for event in events_of(broker) if event["event"] in ("assignment_received", "group_emptied")]
    assert [event["generation"] for event in ends] == [*recorded]
    for event in ends:
        at = EPOCH + timedelta(milliseconds=recorded[event["generation"]])
        assert abs(event["logged_at"] - at) < timedelta(seconds=2)


def test_read_events_of_a_broker_names_the_members_that_left(broker: Broker, members: list[str]) -> None:
    found = events_of(broker)
    assert [one["member_id"] for one in found if one["event"] == "member_left"] == [members[1], members[0]]
    triggers = [one["trigger"] for one in found if one["event"] == "rebalance_started"]
    assert triggers[:2] == ["member_joined"] * 2
    assert triggers[-2:] == ["member_left"] * 2


def test_broker_log_proves_how_the_members_left(broker: Broker, members: list[str]) -> None:
    history = folded(group_records(broker), {})
    found = events_of(broker)
    for row in history.of("memberships", GROUP):
        times = {name: EPOCH + timedelta(milliseconds=row[name]) for name in ("joined_at", "left_at")}
        as_unknown = {**row, **times, "ended": "left_or_expired"}
        proof = prove_ending(as_unknown, found, poll_timeout=timedelta(minutes=5))
        assert proof is not None
        assert (row["member_id"] in members, proof.ended) == (True, "left")
    [departure] = [row for row in history.of("rebalances", GROUP) if row["members_left"] == [members[1]]]
    as_ambiguous = {**departure, "at": EPOCH + timedelta(milliseconds=departure["at"])}
    as_ambiguous |= {"cause": "member_left_or_expired", "certainty": "ambiguous"}
    cause = prove_rebalance(as_ambiguous, found, polling=members)
    assert cause is not None
    assert (cause.cause, cause.certainty) == ("member_left", "likely")

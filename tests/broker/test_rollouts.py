"""The view `rollouts` on what real clients did: rolling restarts of every kind of group, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from kafka import KafkaAdminClient

from grouptrail.config import Config
from proof.recorded_runs import folded, group_records
from servers.kafka import Broker
from servers.offsets_topic import ensure_offsets_topic
from support.kafka_clients import await_that
from support.laid_history import lay_history
from support.observed_groups import ClientGroup, now_ms
from support.queries import asked

pytestmark = pytest.mark.full

TOPIC, PARTITIONS, MEMBERS = "orders", 8, 4
SHORT_PAUSE_SECONDS = 10
PAUSES = dict.fromkeys(("twice", "surge", "blue-green"), f"{SHORT_PAUSE_SECONDS} seconds")
PROPERTIES = {
    "offsets.topic.num.partitions": "4",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
}


@dataclass(frozen=True)
class Done:
    """What was done to a group: when it began and was over, and its generations or epochs then."""

    since_ms: int
    until_ms: int
    generation: int
    last_generation: int


def await_quiet() -> None:
    """Wait until what comes next does not follow within `SHORT_PAUSE`."""
    until_ms = now_ms() + 1000 * (SHORT_PAUSE_SECONDS + 1)
    await_that(lambda: now_ms() > until_ms)


def start(group: ClientGroup, count: int = MEMBERS, *, is_static: bool = False) -> None:
    """Start members, named and with instance ids by their number."""
    for number in range(count):
        group.join(client_id=f"client-{number}", instance_id=f"i-{number}" if is_static else None)


def restart(group: ClientGroup) -> None:
    """Restart every member, the next one when the group is stable again."""
    for member in list(group.running()):
        member.leave()
        group.join(client_id=member.spec.client_id, instance_id=member.spec.instance_id)
        group.await_stable()


def restart_slowly(group: ClientGroup) -> None:
    """Restart every member once the group is stable without it."""
    for member in list(group.running()):
        member.leave()
        group.await_stable()
        group.join(client_id=member.spec.client_id)
        group.await_stable()


def restart_twice(group: ClientGroup) -> None:
    restart_slowly(group)
    restart_slowly(group)


def surge(group: ClientGroup) -> None:
    """Start a new member before each old one is closed, long after the group's start."""
    await_quiet()
    for member in list(group.running()):
        group.join(client_id=member.spec.client_id)
        group.await_stable()
        member.leave()
        group.await_stable()


def recreate(group: ClientGroup) -> None:
    """Close all members, then start as many."""
    group.leave_all()
    group.await_empty()
    start(group)


def blue_green(group: ClientGroup) -> None:
    """Start all new members, then close all old ones, long after the group's start."""
    await_quiet()
    old = list(group.running())
    start(group)
    group.await_stable()
    for member in old:
        member.leave()


def scale_out(group: ClientGroup) -> None:
    start(group, 2)


def scale_in(group: ClientGroup) -> None:
    for member in group.running()[:2]:
        member.leave()


def crash_loop(group: ClientGroup) -> None:
    """Restart one member again and again."""
    member = group.running()[0]
    for _ in range(4):
        member.leave()
        member = group.join(client_id=member.spec.client_id)
        group.await_stable()


CLASSIC = {"client": "librdkafka"}
LIKELY = {"way": "rolling", "certainty": "likely", "evidence": "client_id_and_host", "is_static": False}
SCENARIOS: dict[str, tuple[dict[str, Any], Callable[[ClientGroup], None], list[dict[str, Any]]]] = {
    "eager": (CLASSIC, restart_slowly, [LIKELY]),
    "eager-fast": (CLASSIC, restart, [{"way": "rolling"}]),
    "eager-python": ({}, restart_slowly, [LIKELY]),
    "cooperative": (CLASSIC | {"assignor": "cooperative-sticky"}, restart_slowly, [LIKELY]),
    "kip-848": (
        {"client": "kip-848", "assignor": "uniform"},
        restart,
        [{"way": "rolling", "certainty": "ambiguous"}],
    ),
    "static": (
        CLASSIC,
        restart,
        [{"way": "rolling", "certainty": "ambiguous", "is_static": True, "evidence": "instance_id", "rebalances": 0}],
    ),
    "surge": (CLASSIC, surge, [{"way": "rolling"}]),
    "recreate": (CLASSIC, recreate, [{"way": "recreate"}]),
    "blue-green": (CLASSIC, blue_green, [{"way": "blue_green"}]),
    "twice": (CLASSIC, restart_twice, [{"way": "rolling"}] * 2),
    "scale-out": (CLASSIC, scale_out, []),
    "scale-in": (CLASSIC, scale_in, []),
    "crash-loop": (CLASSIC, crash_loop, []),
}


def run(group: ClientGroup, name: str) -> Done:
    """Start the members, do what the scenario does, and wait until the group is stable."""
    start(group, is_static=name == "static")
    before = group.await_stable()
    since_ms = now_ms()
    SCENARIOS[name][1](group)
    after = group.await_stable()
    assert before.group.generation is not None
    assert after.group.generation is not None
    return Done(since_ms, now_ms(), before.group.generation, after.group.generation)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, dict[str, Done]]:
    """A warehouse with all that was recorded before the members are closed, and what was done to each group."""
    config = Config(warehouse=str(tmp_path_factory.mktemp("lake")))
    with Broker(tmp_path_factory.mktemp("kafka"), properties=PROPERTIES) as broker, ExitStack() as stack:
        ensure_offsets_topic(broker.bootstrap)
        with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
            topics = {TOPIC: {"num_partitions": PARTITIONS, "replication_factor": 1}}
            admin.create_topics(topics, wait_for_metadata=True)
        groups = {
            name: stack.enter_context(ClientGroup(broker.bootstrap, name, {TOPIC: PARTITIONS}, **spec))
            for name, (spec, _, _) in SCENARIOS.items()
        }
        with ThreadPoolExecutor(len(groups)) as pool:
            running = {name: pool.submit(run, group, name) for name, group in groups.items()}
            done = {name: one.result() for name, one in running.items()}
        lay_history(config, folded(group_records(broker), {}))
        for group in groups.values():
            for member in group.members:
                member.request_leave()
    return config, done


@pytest.mark.parametrize("name", SCENARIOS)
def test_rollouts_of_real_clients_are_what_was_done(seen: tuple[Config, dict[str, Done]], name: str) -> None:
    """Members, rebalances by the generations that the members saw, and times."""
    config, did = seen
    done, wanted = did[name], SCENARIOS[name][2]
    rows = asked(
        config,
        f"SELECT * FROM rollouts('{PAUSES.get(name, '5 minutes')}') WHERE group_id = '{name}' ORDER BY started_at",
    )
    assert len(rows) == len(wanted), rows
    for row, expected in zip(rows, wanted, strict=True):
        assert {key: row[key] for key in expected} == expected
        assert (row["members"], row["of_members"]) == (MEMBERS, MEMBERS)
        assert done.since_ms <= _ms(row["started_at"]) <= _ms(row["ended_at"]) <= done.until_ms
        assert row["seconds_without_owner"] >= row["longest_without_owner_seconds"] >= 0
    if any(row["rebalances"] for row in rows):
        later = f"group_id = '{name}' AND to_generation > {done.generation}"
        [skipped] = asked(config, f"SELECT sum(skipped) AS generations FROM rebalances WHERE {later}")
        rebalances = sum(row["rebalances"] for row in rows)
        assert rebalances + skipped["generations"] == done.last_generation - done.generation
        assert rows[-1]["last_generation"] == done.last_generation


def _ms(time: str) -> float:
    return datetime.fromisoformat(time).timestamp() * 1000

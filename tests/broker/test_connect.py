"""The history of Connect's worker groups against what the workers themselves say, and what an admin client sees.

A group of the incremental protocol and one of the eager one are played at once, each with two real workers that lose
one another and come back. Then the pipeline runs, and must tell the same.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from clients import await_that
from command import Grouptrail
from connect_workers import Workers
from demo.kafka import Broker, ensure_offsets_topic
from grouptrail.config import load_config
from histories import History, Row, seats
from witness import Rest

pytestmark = pytest.mark.broker

PROTOCOLS = {"sessioned": "sessioned", "eager": "default"}
"""The protocols by their settings, and what their groups call them."""


# --- the scenes --------------------------------------------------------------------------------------------


def sessioned(group: Workers) -> None:
    """A worker is lost, and a connector is made before what it had is given away; one freezes and is thawed."""
    group.make("source", "Source")
    group.make("sink", "Sink", tasks=3)
    group.rest()
    lost, survivor = group.follower(), group.leader()
    lost.crash()
    await_that(lambda: survivor.told()[-1].delay_ms > 0)
    group.make("late", "Source")
    group.rest()
    lost.start()
    group.rest()
    group.delete("late")
    group.rest()
    frozen = group.leader()
    frozen.freeze()
    group.rest()
    frozen.thaw()
    group.rest()


def eager(group: Workers) -> None:
    """A worker is lost and comes back."""
    group.make("source", "Source")
    group.make("sink", "Sink", tasks=3)
    group.rest()
    lost = group.follower()
    lost.crash()
    group.rest()
    lost.start()
    group.rest()


SCENES: dict[str, Callable[[Workers], None]] = {"sessioned": sessioned, "eager": eager}


@dataclass(frozen=True)
class Played:
    """The groups by their protocols, and the history of them."""

    groups: dict[str, Workers]
    history: History

    def rests(self, protocol: str) -> list[Rest]:
        return self.groups[protocol].rests

    def rebalances(self, protocol: str, after: Rest, until: Rest) -> list[Row]:
        return self.history.rebalances(self.groups[protocol].group_id, after, until)


@pytest.fixture(scope="module")
def played(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("connect")
    ensure_offsets_topic(broker.bootstrap)
    groups = {protocol: Workers(folder, broker.bootstrap, f"connect-{protocol}", protocol) for protocol in SCENES}

    def play(protocol: str) -> None:
        with groups[protocol] as group:
            SCENES[protocol](group)

    with ThreadPoolExecutor(len(groups)) as pool:
        for playing in [pool.submit(play, protocol) for protocol in groups]:
            playing.result()
    settings = {"warehouse": str(folder / "warehouse"), "cluster": "test", "decode.trigger_seconds": "1"}
    config = load_config(None, {**settings, "kafka.bootstrap.servers": broker.bootstrap}, {})
    printed = (run := Grouptrail(config, "run", "--job", "decode", "--job", "history", "--once")).finished()
    assert run.process.returncode == 0, printed
    return Played(groups, History.read(config))


# --- the truth ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_at_rest_the_history_is_what_the_workers_rest_and_the_admin_client_say(played: Played, protocol: str) -> None:
    """State, generation, protocol, members, connectors and tasks."""
    for rest in played.rests(protocol):
        assert played.history.sight(played.groups[protocol].group_id, rest) == rest.sight
        assert rest.sight.protocol == PROTOCOLS[protocol]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_a_worker_was_told_is_in_its_generation(played: Played, protocol: str) -> None:
    """Its member id, who leads, and all that it has: of every generation, those between rests too."""
    group = played.groups[protocol]
    generations = {row["generation"]: row for row in played.history.of("generations", group.group_id)}
    for told in (told for worker in group.workers for told in worker.told()):
        row = generations[told.generation]
        assert (row["protocol_type"], row["leader"]) == ("connect", told.leader)
        assert seats(row)[told.member_id].partitions == told.has, told

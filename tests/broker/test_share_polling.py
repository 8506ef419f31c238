"""Share groups of a real broker whose state the principal may not read: lag by what their coordinators return."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grouptrail.config import Config, load_config
from servers.kafka import VERSIONS, Broker
from servers.offsets_topic import OFFSETS_TOPIC
from support import landed
from support.cli_in_process import Cli, succeeded
from support.kafka_clients import as_reader, make_orders
from support.share_consumers import HEARTBEATS, acknowledge_in_every_way, leave_some

GROUP, KEPT, SECRET = "queue", "kept", "secret"
NEWEST, *BEFORE = VERSIONS[:3]
STATE_TOPIC = "__share_group_state"
DENIED = f"does not let this principal see {STATE_TOPIC}"

Figures = dict[tuple[str, int], tuple[int, int]]
"""Start offset and lag by group and partition of orders."""


@pytest.fixture(scope="module", params=[NEWEST, *(pytest.param(one, marks=pytest.mark.full) for one in BEFORE)])
def queued(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with three share groups, of which the reader may DESCRIBE two."""
    properties = {
        **HEARTBEATS,
        "share.coordinator.state.topic.num.partitions": "1",
        "group.share.delivery.count.limit": "2",
    }
    folder = tmp_path_factory.mktemp("kafka")
    with Broker(folder, version=request.param, properties=properties, security="sasl") as broker:
        make_orders(broker.bootstrap)
        for group in (GROUP, KEPT, SECRET):
            acknowledge_in_every_way(broker, group)
        leave_some(broker, KEPT)
        broker.allow("reader", "READ", "TOPIC", OFFSETS_TOPIC)
        broker.allow("reader", "DESCRIBE", "GROUP", "grouptrail", "PREFIXED")
        broker.allow("reader", "DESCRIBE", "TOPIC", "orders")
        for group in (GROUP, KEPT):
            broker.allow("reader", "DESCRIBE", "GROUP", group)
        yield broker


def described(broker: Broker, *groups: str) -> Figures:
    """Return what Kafka's tool prints of groups."""
    figures: Figures = {}
    for group in groups:
        printed = broker.tool(
            "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
            *("--bootstrap-server", broker.bootstrap, "--describe", "--group", group, "--offsets"),
        )
        assert printed.returncode == 0, printed.stderr
        for line in printed.stdout.splitlines():
            if line.startswith(f"{group} ") and "-" not in line.split()[3:]:
                _, _, partition, start_offset, lag = line.split()
                figures[group, int(partition)] = int(start_offset), int(lag)
    return figures


def newest(config: Config) -> dict[tuple[str, int], dict[str, object]]:
    """Return the newest row of `consumer_lag` of each share group and partition."""
    rows = sorted(landed.rows(config, "consumer_lag"), key=lambda row: row["sampled_at"])
    return {(row["group_id"], row["partition"]): row for row in rows}


def figures(config: Config, *more: str) -> dict[tuple[str, int], tuple[object, ...]]:
    names = ("committed_offset", "lag", *more)
    return {place: tuple(row[name] for name in names) for place, row in newest(config).items()}


def outcomes(config: Config) -> list[str]:
    rows = sorted(landed.rows(config, "share_group_offsets"), key=lambda row: (row["polled_at"], row["group_id"]))
    return [f"{row['group_id']} {row['outcome']}" for row in rows]


def test_run_admin_source_lag_of_share_groups_is_that_of_kafkas_tool(
    queued: Broker, cli: Cli, tmp_path: Path
) -> None:
    environ = {**as_reader(queued), "GROUPTRAIL_SOURCE": "admin"}
    config = load_config(None, {"warehouse": str(tmp_path), "cluster": "test"}, environ)
    succeeded(cli(config, "run", "--once", environ=environ))
    assert figures(config) == described(queued, GROUP, KEPT)
    assert {row["lag_error"] for row in newest(config).values()} == {0}
    written = outcomes(config)
    assert "share-state" not in succeeded(cli(config, "run", "--once", environ=environ))
    assert outcomes(config) == written


def test_run_without_read_on_the_state_topic_polls_until_it_is_granted(
    queued: Broker, cli: Cli, tmp_path: Path
) -> None:
    """Lag is that of Kafka's tool, and of the topic's records, as a principal with all rights lands them."""
    environ = as_reader(queued)
    config = load_config(None, {"warehouse": str(tmp_path / "polled"), "cluster": "test"}, environ)
    reading = Config(kafka={"bootstrap.servers": queued.bootstrap}, warehouse=str(tmp_path / "read"))
    succeeded(cli(reading, "run", "--once"))
    recorded = {
        place: row
        for place, row in figures(reading, "delivery_complete_count", "readable_lag").items()
        if place[0] != SECRET
    }
    printed = succeeded(cli(config, "run", "--once", environ=environ))
    assert printed.count(DENIED) == 1
    assert figures(config) == described(queued, GROUP, KEPT)
    assert figures(config, "delivery_complete_count", "readable_lag") == recorded
    assert {(row["lag_error"], row["awaiting_redelivery"]) for row in newest(config).values()} == {(0, None)}
    assert landed.rows(config, "share_group_state") == []
    written = outcomes(config)

    again = succeeded(cli(config, "run", "--once", environ=environ))
    assert again.count(f"no offsets of share group '{SECRET}': the principal may not DESCRIBE it") == 1
    assert outcomes(config) == written
    assert set(newest(config)) == set(recorded)
    succeeded(cli(config, "check", "share_group_offsets", "consumer_lag", environ=environ))

    queued.allow("reader", "READ", "TOPIC", STATE_TOPIC)
    assert DENIED not in succeeded(cli(config, "run", "--once", environ=environ))
    assert outcomes(config) == [*written, *(line.replace("returned", "superseded") for line in written)]
    more = ("delivery_complete_count", "awaiting_redelivery", "most_delivered_offset", "lag_error")
    assert figures(config, *more) == figures(reading, *more)

"""What stops of brokers do to partitions: compared with a partition-by-partition model, and with the view."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grouptrail.config import Config
from grouptrail.query import broker_loss
from grouptrail.query.broker_loss import PARTITIONS, SETTINGS, loss_effects
from support.queries import asked
from support.small_tables import at, lay

Row = dict[str, Any]
NODES = (1, 2, 3, 4)
OF_TOPIC = ("topic", "min_insync_replicas", "problem")


def partition(leader: int | None, isr: Collection[int], least: int | None = 2, **more: Any) -> Row:
    replicas = more.pop("replicas", [1, 2, 3])
    known: Row = {"topic": "orders", "partition": 0, "leader": leader, "replicas": replicas, "isr": list(isr)}
    return known | {"offline": [], "min_insync_replicas": least, "problem": None, **more}


def effects(rows: list[Row], *stopped: int) -> list[Row]:
    of_topics = {row["topic"]: {name: row[name] for name in OF_TOPIC} for row in rows if row["problem"] != "no row"}
    partitions = pa.Table.from_pylist([{name: row[name] for name in PARTITIONS.names} for row in rows], PARTITIONS)
    return loss_effects(partitions, pa.Table.from_pylist(list(of_topics.values()), SETTINGS), stopped).to_pylist()


def effect(row: Row, *stopped: int) -> str:
    return str(effects([row], *stopped)[0]["effect"])


def modelled(row: Row, stopped: Collection[int]) -> str:
    """Return the effect as one would reason about a single partition."""
    leader, isr, least = row["leader"], set(row["isr"]), row["min_insync_replicas"]
    count = len(row["replicas"])
    need = 1 if count <= 1 else None if least is None else min(least, count)
    refuses_now = need is not None and len(isr) < need
    if leader is None or (leader not in stopped and not isr & set(stopped)):
        return "offline_already" if leader is None else "below_min_isr_already" if refuses_now else "none"
    left = isr - set(stopped) - set(row["offline"])
    if leader not in isr and leader not in stopped:
        return "unknown"
    if not left or (need is None and len(left) < count):
        return "unknown" if left else "offline"
    if need is not None and len(left) < need:
        return "below_min_isr_already" if refuses_now else "below_min_isr"
    return "leader_moves" if leader in stopped else "fewer_in_sync"


some_nodes = st.lists(st.sampled_from(NODES), unique=True, max_size=4)
any_partition = st.builds(
    partition,
    st.none() | st.sampled_from(NODES),
    some_nodes,
    st.none() | st.integers(1, 4),
    replicas=some_nodes.filter(bool),
    offline=some_nodes,
    problem=st.sampled_from([None, "DESCRIBE_CONFIGS is denied"]),
)


def numbered(rows: list[Row]) -> list[Row]:
    return [{**row, "topic": f"topic-{number}"} for number, row in enumerate(rows)]


@given(st.lists(any_partition, max_size=12).map(numbered), st.sets(st.sampled_from(NODES)))
def test_loss_effects_any_partitions_are_those_of_the_model(rows: list[Row], stopped: set[int]) -> None:
    got = effects(rows, *stopped)
    assert [row["effect"] for row in got] == [modelled(row, stopped) for row in rows]
    for one, row in zip(got, rows, strict=True):
        left = [node for node in row["isr"] if node not in stopped and node not in row["offline"]]
        assert one["isr_left"] == left
        assert one["is_led"] == (row["leader"] in stopped)
        assert one["has_replica"] == (one["is_led"] or bool(stopped & set(row["replicas"])))
        assert (one["problem"] is not None) == (one["effect"] == "unknown")


@given(any_partition, st.sets(st.sampled_from(NODES)), st.sampled_from(NODES))
def test_loss_effects_one_more_stopped_broker_is_never_better(row: Row, stopped: set[int], another: int) -> None:
    is_certain = row["leader"] is None or row["leader"] in row["isr"]
    order = ("offline", "below_min_isr") if is_certain else ("offline",)
    fewer, more = effect(row, *stopped), effect(row, *stopped, another)
    for known in order:
        if fewer == known:
            assert more in ("offline", known)


@pytest.mark.parametrize(
    ("row", "stopped", "expected"),
    [
        (partition(3, [1, 2, 3]), (3,), "leader_moves"),
        (partition(1, [1, 2, 3]), (3,), "fewer_in_sync"),
        (partition(1, [1, 2]), (3,), "none"),
        (partition(3, [1, 3]), (3,), "below_min_isr"),
        (partition(3, [1, 2, 3]), (3, 2), "below_min_isr"),
        (partition(3, [3]), (3,), "offline"),
        (partition(3, [1, 2, 3]), (1, 2, 3), "offline"),
        (partition(1, [1]), (3,), "below_min_isr_already"),
        (partition(1, [1, 3], least=3), (3,), "below_min_isr_already"),
        (partition(None, [3]), (3,), "offline_already"),
        (partition(3, [1, 3], least=None), (3,), "unknown"),
        (partition(3, [3], least=None), (3,), "offline"),
        (partition(1, [1, 2], least=None), (3,), "none"),
        (partition(3, [3], replicas=[3]), (3,), "offline"),
        (partition(3, [3], replicas=[3], least=None), (1,), "none"),
        (partition(3, [3], replicas=[3], least=2), (1,), "none"),
        (partition(1, [1, 3], replicas=[1, 3], least=5), (3,), "below_min_isr"),
        (partition(1, [2, 3]), (3,), "unknown"),
        (partition(1, [2, 3], least=1), (1,), "leader_moves"),
        (partition(3, [2, 3], offline=[2]), (3,), "offline"),
    ],
)
def test_loss_effects_of_a_partition(row: Row, stopped: tuple[int, ...], expected: str) -> None:
    assert effect(row, *stopped) == expected


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (partition(3, [1, 3], least=None, problem="DESCRIBE_CONFIGS is denied"), "DESCRIBE_CONFIGS is denied"),
        (partition(3, [1, 3], least=None, problem="no row"), broker_loss.NOT_READ),
        (partition(1, [2, 3]), broker_loss.NOT_IN_SYNC),
    ],
)
def test_loss_effects_unknown_has_its_reason(row: Row, problem: str) -> None:
    assert effects([row], 3)[0]["problem"] == problem


@settings(max_examples=10, deadline=None)
@given(rows=st.lists(any_partition, min_size=1, max_size=40).map(numbered), stopped=st.sampled_from(NODES))
def test_what_if_broker_view_agrees_with_loss_effects(
    rows: list[Row], stopped: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = Config(warehouse=str(tmp_path_factory.mktemp("lake")))
    since = {"valid_from": at(0)}
    lay(config, "topic_partitions", *({**{name: row[name] for name in PARTITIONS.names}, **since} for row in rows))
    lay(config, "topic_configs", *({**{name: row[name] for name in OF_TOPIC}, **since} for row in rows))
    columns = ("topic", "effect", "is_led", "isr", "isr_left", "min_insync_replicas", "problem")
    query = f"SELECT {', '.join(columns)} FROM what_if_broker({stopped}, now())"
    expected = [{name: one[name] for name in columns} for one in effects(rows, stopped) if one["has_replica"]]
    assert sorted(_comparable(row) for row in asked(config, query)) == sorted(map(_comparable, expected))


def _comparable(row: Row) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in row.items()]

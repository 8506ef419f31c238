"""The tables of a streams group."""

from __future__ import annotations

from grouptrail.config import Config
from support.small_tables import at, lay


def lay_unready_group(config: Config, fixed: int | None = 4) -> None:
    """Lay a group `app` that is not ready from minute 2 on; `fixed`: how many partitions `by-key` has to have."""
    group = {"group_id": "app", "is_open": True, "open_bucket": 0}
    generation = {"group_kind": "streams", "protocol_type": "streams", "generation": 4, "started_at": at(0)}
    lay(config, "generations", {**group, **generation, "member_count": 1, "partition_count": 0, "members": []})
    states = ({"state": "Stable", "started_at": at(0), "ended_at": at(2)}, {"state": "NotReady", "started_at": at(2)})
    lay(config, "group_states", *({**group, **one, "evidence": "recorded"} for one in states))
    lay(
        config,
        "memberships",
        {**group, "member_id": "a", "client_id": "thread-a", "joined_at": at(0), "began": "joined"},
    )
    lay(config, "ingest_progress", {"record_partition": 0})
    lay(config, "rebalances")
    lay(config, "partition_ownership")
    needed = [
        ("0", "orders", "source", None),
        ("0", "by-key", "repartition_sink", fixed),
        ("1", "counts", "changelog", None),
    ]
    lay(
        config,
        "streams_topology",
        *(
            {**group, "subtopology": name, "topic": topic, "usage": usage, "partitions": count, "known_from": at(0)}
            for name, topic, usage, count in (*needed, ("1", "by-key", "repartition_source", fixed))
        ),
    )


def lay_streams_group(config: Config, **standby: object) -> None:
    """Lay a group `app`: `a` has two active tasks, `b` one and a standby; the newest lag has two of the three.

    `standby` are columns of the standby's row.
    """
    group = {"group_id": "app", "is_open": True, "open_bucket": 0}
    generation = {"group_kind": "streams", "protocol_type": "streams", "generation": 4, "started_at": at(0)}
    lay(
        config,
        "generations",
        {**group, **generation, "member_count": 2, "partition_count": 3, "skew": 1, "members": []},
    )
    lay(config, "group_states", {**group, "state": "Stable", "started_at": at(0), "evidence": "recorded"})
    names = [{"member_id": name, "client_id": f"thread-{name}", "client_host": "/10.0.0.1"} for name in "ab"]
    lay(config, "memberships", *({**group, **name, "joined_at": at(0), "began": "joined"} for name in names))
    lay(config, "partition_ownership", {**group, "topic": "0", "partition": 0, "member_id": "a", "owned_from": at(0)})
    tasks = [("a", "0", 0, "active"), ("a", "1", 0, "active"), ("b", "0", 1, "active"), ("b", "1", 0, "standby")]
    lay(
        config,
        "task_assignments",
        *(
            {**group, **next(name for name in names if name["member_id"] == member), "endpoint": f"{member}:8080"}
            | {"subtopology": subtopology, "task": task, "role": role, "assigned_from": at(0)}
            | (standby if role == "standby" else {})
            for member, subtopology, task, role in tasks
        ),
    )
    uses = [("0", "orders", "source"), ("0", "by-key", "repartition_sink"), ("1", "by-key", "repartition_source")]
    lay(
        config,
        "streams_topology",
        *(
            {**group, "subtopology": name, "topic": topic, "usage": usage, "known_from": at(0)}
            for name, topic, usage in (*uses, ("1", "counts", "changelog"))
        ),
    )
    lag = {**group, "partition": 0, "sampled_at": at(1), "status": "OK"}
    lay(
        config,
        "consumer_lag",
        {**lag, "topic": "orders", "lag": 1_200, "lag_seconds": 4.0},
        {**lag, "topic": "by-key", "lag": 5, "lag_seconds": 0.5},
    )
    lay(config, "rebalances", {**group, "to_generation": 4, "cause": "topology_validated", "certainty": "recorded"})
    lay(config, "ingest_progress", {"record_partition": 0})

"""Simulated groups as rows of the tables, for comparison with their timelines."""

from __future__ import annotations

from datetime import timedelta

from bench.simulated_groups import Client, SimulatedGroup, lag_rows, lay_rows
from grouptrail.config import Config
from support.small_tables import at

KNOWN_UNTIL = at(90)


def billing(config: Config, *, group_id: str = "billing", suffix: str = "") -> SimulatedGroup:
    """Ninety minutes with joins, a crash that is detected late, a rebalance storm, a static restart and added
    partitions."""
    group = SimulatedGroup(group_id, {"orders": 6, "payments": 3}, cluster=config.cluster)
    first, second, third = (
        Client(f"billing-{name}{suffix}", f"billing-{name}{suffix}", f"/10.0.0.{index}")
        for index, name in enumerate(("anna", "boris", "chloe"), start=11)
    )
    group.rebalance(at(0), "group_started", joined=[first])
    group.rebalance(at(1), "member_joined", joined=[second])
    group.rebalance(at(6), "member_joined", joined=[third])
    crash = {second.member_id: ("left_or_expired", "gone 45 s after its last commit: session.timeout.ms has passed")}
    held = [key for key, owner in group.owners.items() if owner == second.member_id]
    place = {"at": at(22), "record_partition": 9, "record_offset": 1512}
    group.rebalance(
        at(22), "member_left_or_expired", left=crash, certainty="ambiguous", skipped=1,
        note="a clean leave, an expired session and a removal write the same records",
        proof={"rule": "GONE", "evidence": [{**place, "source": "record", "shows": "member ids are gone"}]},
    )  # fmt: skip
    again = Client(f"billing-boris-2{suffix}", f"billing-boris{suffix}", "/10.0.0.12")
    group.rebalance(at(24), "member_rejoined", joined=[again], certainty="likely")
    for minute in range(8):
        flapping = Client(f"billing-dora-{minute}{suffix}", f"billing-dora{suffix}", "/10.0.0.14")
        group.rebalance(at(40 + minute), "member_joined", joined=[flapping])
        group.rebalance(
            at(40.5 + minute), "member_left", left={flapping.member_id: ("left", "gone before its session could end")}
        )
    static = [Client(f"static-{n}{suffix}", f"billing-edge{suffix}", "/10.0.0.15", f"edge-1{suffix}") for n in (1, 2)]
    group.rebalance(at(55), "member_joined", joined=[static[0]])
    took = {static[0].member_id: ("replaced", "the same instance id joined under a new member id")}
    group.rebalance(at(65), "static_member_replaced", joined=[static[1]], left=took)
    group.topics["orders"] = 8
    group.rebalance(at(75), "partitions_added", certainty="likely", note="orders: 6 partitions before, 8 now")
    group.lay(config)
    silent = tuple((key, at(19), at(22)) for key in held)
    lay_rows(
        config, "consumer_lag", lag_rows(group, begins=at(2), ends=KNOWN_UNTIL, silent=silent, unread_at_start=9000)
    )
    return group


def crowd(config: Config, *, members: int, generations: int, group_id: str = "crowd") -> SimulatedGroup:
    """A group with many members on one large topic, of which some leave and others join in every generation."""
    group = SimulatedGroup(group_id, {"clicks": members}, cluster=config.cluster)
    clients = [Client(f"crowd-{n:03d}", f"crowd-{n:03d}", f"/10.0.{n // 250}.{n % 250}") for n in range(members)]
    begins = 90 - generations * 3
    group.rebalance(at(begins), "group_started", joined=clients)
    for number in range(1, generations):
        leaver = next(iter(group.members))
        joiner = Client(f"crowd-{members + number:03d}", f"crowd-{members + number:03d}", "/10.0.9.9")
        cause = "members_joined_and_left"
        group.rebalance(
            at(begins + number * 3), cause, joined=[joiner], left={leaver: ("left", "left before its time")}
        )
    group.lay(config)
    lag = lag_rows(group, begins=at(begins), ends=KNOWN_UNTIL + timedelta(seconds=1), every=timedelta(seconds=60))
    lay_rows(config, "consumer_lag", lag)
    return group


def deployed(config: Config, *, group_id: str = "deployed", since: float = 30) -> SimulatedGroup:
    """Four members, which a deploy replaces one after another by new ones on the same hosts, half a minute apart."""
    group = SimulatedGroup(group_id, {"orders": 8}, cluster=config.cluster)
    pods = [(f"{group_id}-{name}", f"/10.0.5.{number}") for number, name in enumerate("abcd")]
    group.rebalance(at(0), "group_started", joined=[Client(f"{name}-1", name, host) for name, host in pods])
    for number, (name, host) in enumerate(pods):
        left = {f"{name}-1": ("left", "left before its time")}
        group.rebalance(at(since + number), "member_left", left=left)
        group.rebalance(at(since + number + 0.5), "member_joined", joined=[Client(f"{name}-2", name, host)])
    group.lay(config)
    return group


def groups_of_other_kinds(config: Config) -> None:
    """A KIP-848 group, a stopped group, one that has been empty for days, and one that only commits."""
    group = SimulatedGroup("audit", {"audit-log": 4}, cluster=config.cluster, kind="consumer", protocol="uniform")
    clients = [Client(f"audit-{n}", f"audit-{n}", f"/10.0.1.{n}") for n in range(2)]
    group.rebalance(at(-200), "member_joined", joined=clients[:1])
    group.rebalance(at(-30), "member_joined", joined=clients[1:])
    group.lay(config)
    stopped = SimulatedGroup("ledger", {"orders": 2}, cluster=config.cluster)
    stopped.rebalance(at(-600), "group_started", joined=[Client("ledger-1", "ledger", "/10.0.2.1")])
    stopped.lay(config)
    stop = {
        "status": "STOP",
        "status_reason": "no commit for 5400 s with 1200 unread",
        "lag_seconds_method": "bounded",
    }
    sampled = {"cluster": config.cluster, "group_id": "ledger", "topic": "orders", "sampled_at": KNOWN_UNTIL}
    numbers = [{"partition": number, "lag": 1200 + number, "lag_seconds": 5400.0 + number} for number in range(2)]
    lay_rows(config, "consumer_lag", [{**sampled, **stop, **number} for number in numbers])
    empty = SimulatedGroup("campaign-2025", {"clicks": 1}, cluster=config.cluster)
    only = Client("campaign-1", "campaign", "/10.0.3.1")
    empty.rebalance(at(-5 * 1440), "group_started", joined=[only])
    empty.rebalance(at(-4 * 1440), "group_emptied", left={only.member_id: ("left", "left by itself")})
    empty.lay(config)
    # A group that becomes empty has a PreparingRebalance at the same time.
    instant = {"started_at": at(-4 * 1440), "ended_at": at(-4 * 1440), "record_offset": 2, "group_kind": "classic"}
    of_group = {"cluster": config.cluster, "group_id": "campaign-2025", "incarnation": 1, "record_partition": 9}
    lay_rows(config, "group_states", [{**of_group, **instant, "state": "PreparingRebalance", "evidence": "inferred"}])
    commit = {"cluster": config.cluster, "topic": "clicks", "partition": 0, "committed_offset": 7}
    commits = [("campaign-2025", at(-4 * 1440)), ("mirror", at(-3 * 1440)), ("billing", at(89))]
    rows = [{**commit, "group_id": name, "commit_at": moment, "record_at": moment} for name, moment in commits]
    lay_rows(config, "committed_offsets", rows)


def shared(config: Config, *, members: int = 3) -> None:
    """A share group: every member owns every partition."""
    of_group = {"cluster": config.cluster, "group_id": "notifications", "incarnation": 1, "record_partition": 4}
    epoch = {"generation": 1, "group_kind": "share", "protocol_type": "share", "started_at": at(0)}
    lay_rows(config, "generations", [{**of_group, **epoch, "record_offset": 1, "member_count": members}])
    state = {"group_kind": "share", "state": "Stable", "evidence": "recorded", "started_at": at(0)}
    lay_rows(config, "group_states", [{**of_group, **state, "record_offset": 1}])
    names = [f"share-{number}" for number in range(members)]
    lives = [
        {**of_group, "member_id": name, "client_id": name, "joined_at": at(0), "began": "joined"} for name in names
    ]
    lay_rows(config, "memberships", lives)
    owned = [
        {**of_group, "topic": "mails", "partition": partition, "member_id": name, "client_id": name}
        | {"owned_from": at(number), "from_generation": 1}
        for partition in range(2)
        for number, name in enumerate(names)
    ]
    lay_rows(config, "partition_ownership", owned)
    lay_rows(config, "rebalances", [])
    lay_rows(config, "ingest_progress", [{"cluster": config.cluster, "landed_at": KNOWN_UNTIL}])


def hostile(config: Config) -> str:
    """A group whose names all contain markup or control characters; returns its name."""
    bad = "</script><script>window.taken=1</script><img src=x onerror='window.taken=2'>\u202e\x1b[31m${taken}"
    group = SimulatedGroup(f"g{bad}", {f"t{bad}": 2}, cluster=config.cluster)
    group.rebalance(at(0), "group_started", joined=[Client(f"m{bad}", f"c{bad}", f"/h{bad}", f"i{bad}")], note=bad)
    group.lay(config)
    lag = lag_rows(group, begins=at(0), ends=at(5))
    lay_rows(config, "consumer_lag", [{**row, "status": "WARN", "status_reason": bad} for row in lag])
    return group.group_id


def memberless(config: Config, *, group_id: str = "standalone") -> None:
    """Twenty minutes of commits by a client that assigns itself partitions, with a pause and one deleted offset.

    The tables of the history have to exist."""
    commits = [
        {"group_id": group_id, "topic": "orders", "partition": partition, "record_at": at(minute), "metadata": ""}
        | {"committed_offset": int(100 * minute), "record_offset": 10 * index + partition, "is_tombstone": False}
        for index, minute in enumerate([0, 0.5, 1, 1.5, 18, 18.5, 19, 19.5])
        for partition in (0, 1, 2)
    ]
    gone = {**commits[-1], "record_at": at(20), "record_offset": 999, "is_tombstone": True, "committed_offset": None}
    lay_rows(config, "offset_commits", [{"cluster": config.cluster, **row} for row in [*commits, gone]], moment=at(0))

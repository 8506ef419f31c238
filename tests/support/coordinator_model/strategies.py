"""Hypothesis strategies for schedules: a handful of clients, and whatever may happen to their group."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from support.coordinator_model.schedule import (
    Action,
    AddPartitions,
    Commit,
    Crash,
    CreateTopic,
    DeleteGroup,
    DeleteOffsets,
    DeleteTopic,
    Join,
    Leave,
    MoveCoordinator,
    Protocol,
    Rejoin,
    RemoveAllMembers,
    RemoveMember,
    ResetOffsets,
    Resume,
    Schedule,
    Stall,
    Subscribe,
    UpgradeBroker,
    Version,
    Wait,
)

_CLIENTS = st.sampled_from("abcd")
_TOPICS = st.sampled_from(("orders", "other", "extra"))
_SUBSCRIPTIONS = st.sampled_from((("orders",), ("orders",), ("other",), ("orders", "other"), ("extra", "orders")))
_WAITS = st.sampled_from((0, 0, 1, 50, 3_000, 3_500, 8_000, 10_000, 20_000, 60_000, 400_000))
_DAYS_MS = 8 * 24 * 3_600_000
_ASSIGNORS = (
    ("range",),
    ("roundrobin",),
    ("sticky",),
    ("cooperative-sticky",),
    ("cooperative-sticky", "range"),
    ("range", "cooperative-sticky"),
)
_TIMEOUTS = ((45_000, 300_000), (10_000, 60_000), (45_000, 10_000), (45_000, 3_000))
_VERSIONS: tuple[Version, ...] = ("3.9", "4.0", "4.1", "4.3", "4.3")
_PROTOCOLS: tuple[Protocol, ...] = ("classic", "consumer")


@st.composite
def _joins(draw: DrawFn, version: Version) -> SearchStrategy[Join]:
    """How the clients of one group join: most of them alike."""
    usual: Protocol = "classic" if version == "3.9" else draw(st.sampled_from(_PROTOCOLS))
    assignors = draw(st.sampled_from(_ASSIGNORS))
    session_ms, rebalance_ms = draw(st.sampled_from(_TIMEOUTS))
    client_id = draw(st.sampled_from((None, None, "app")))
    static = draw(st.sampled_from(("", "", "a", "ab", "abcd")))

    def join(client: str, topics: tuple[str, ...], oddity: int, pattern: str | None, *, is_other: bool) -> Join:
        protocol = usual if oddity != 1 else _PROTOCOLS[usual == "classic"]
        return Join(
            client,
            topics,
            protocol,
            assignors if oddity != 2 else _ASSIGNORS[4],
            f"static-{'a' if is_other else client}" if client in static else None,
            pattern if protocol == "consumer" else None,
            client_id,
            session_ms,
            rebalance_ms,
        )

    return st.builds(
        join,
        _CLIENTS,
        _SUBSCRIPTIONS,
        st.integers(0, 20),
        st.sampled_from((None, None, None, "^o.*")),
        is_other=st.sampled_from((False,) * 9 + (True,)),
    )


def _others() -> SearchStrategy[Action]:
    often: list[SearchStrategy[Action]] = [
        st.builds(Leave, _CLIENTS, st.sampled_from((False, False, False, True))),
        st.builds(Crash, _CLIENTS),
        st.builds(Stall, _CLIENTS, st.sampled_from(("slow", "stuck", "frozen"))),
        st.builds(Resume, _CLIENTS),
        st.builds(Subscribe, _CLIENTS, _SUBSCRIPTIONS),
        st.builds(AddPartitions, _TOPICS, st.integers(1, 2)),
        st.builds(MoveCoordinator, st.sampled_from(("moved", "killed"))),
    ]
    seldom: list[SearchStrategy[Action]] = [
        st.builds(Rejoin, _CLIENTS),
        st.builds(RemoveMember, _CLIENTS),
        st.builds(RemoveAllMembers),
        st.builds(CreateTopic, _TOPICS, st.integers(1, 3)),
        st.builds(DeleteTopic, _TOPICS),
        st.builds(Commit, _CLIENTS),
        st.builds(ResetOffsets, _TOPICS),
        st.builds(DeleteOffsets, _TOPICS),
        st.builds(DeleteGroup),
        st.builds(UpgradeBroker, st.sampled_from(("4.0", "4.1", "4.3"))),
        st.just(Wait(_DAYS_MS)),
    ]
    return st.one_of(*often, *often, *seldom)


@st.composite
def schedules(draw: DrawFn) -> Schedule:
    """Schedules that begin with a join, and wait between most actions."""
    version = draw(st.sampled_from(_VERSIONS))
    joins = draw(_joins(version))
    steps = draw(st.lists(st.tuples(st.one_of(joins, _others(), _others()), _WAITS), min_size=3, max_size=30))
    actions: list[Action] = [draw(joins), Wait(draw(_WAITS))]
    for action, wait_ms in steps:
        actions += [action, Wait(wait_ms)] if wait_ms else [action]
    topics = (("orders", draw(st.integers(1, 4))), ("other", 2))
    return Schedule(tuple(actions), version, topics, draw(st.integers(0, 2**32 - 1)))

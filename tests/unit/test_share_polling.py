"""Share groups that are polled, as their state may not be read: what polls show, what is written, until when."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.config.model import AdminConfig
from grouptrail.jobs import SHARE_STATE
from grouptrail.kafka.cluster import DESCRIBE_DENIED
from grouptrail.kafka.errors import ClusterError, KafkaDeniedError, KafkaLoginError, KafkaUnreachableError
from grouptrail.kafka.group import PolledGroup, ShareOffset, ShareOffsets
from grouptrail.kafka.log import LogBounds, PartitionMetadata
from grouptrail.share_state.job import Landing
from grouptrail.share_state.polled import LogEnds, Progress, progress
from grouptrail.share_state.poller import Place, PolledShareGroup, SharePoll, SharePoller
from grouptrail.share_state.polling import SharePolling
from grouptrail.storage.warehouse import Warehouse
from support.sample_history import at

ORDERS, ORDERS_AGAIN = "b3JkZXJzb3JkZXJzb3JkZQ", "YWdhaW5hZ2FpbmFnYWluYQ"
AT = ("orders", 0)


# --- what a poll shows -------------------------------------------------------------------------------------------


def shown(*polls: tuple[int, int | None, LogEnds], topic_ids: Sequence[str] = ()) -> Progress | None:
    """Return what is known after polls, one a minute, that returned start offset and lag between two log ends."""
    known = None
    for minute, (start_offset, lag, log_ends) in enumerate(polls):
        topic_id = topic_ids[minute] if topic_ids else ORDERS
        known = progress(known, ShareOffset(topic_id, start_offset, lag), log_ends, at(minute))
    return known


def complete(known: Progress | None) -> tuple[int, int, int] | None:
    """Return start offset and what is complete after it, at least and at most."""
    columns = known.columns() if known else None
    names = ("start_offset", "delivery_complete_count", "delivery_complete_most")
    return columns and tuple(columns[name] for name in names)  # type: ignore[return-value]


def test_progress_is_exact_where_the_log_did_not_grow_and_within_bounds_where_it_did() -> None:
    assert complete(shown((50, 30, (100, 100)))) == (50, 20, 20)
    assert complete(shown((50, 30, (90, 100)))) == (50, 10, 20)
    assert complete(shown((50, 30, (70, 100)))) == (50, 0, 20)  # and not below the start offset


def test_progress_keeps_what_was_complete_before() -> None:
    assert complete(shown((50, 30, (100, 100)), (50, 35, (100, 110)))) == (50, 20, 25)
    assert complete(shown((50, 30, (100, 100)), (60, 40, (100, 115)))) == (60, 10, 15)


@pytest.mark.parametrize("log_ends", [(None, 100), (100, None), (100, 90), (60, 70)])
def test_progress_is_what_it_was_where_the_log_ends_are_not_known_or_contradict_the_lag(log_ends: LogEnds) -> None:
    assert shown((50, 30, log_ends)) is None
    assert complete(shown((50, 30, (100, 100)), (50, 30, log_ends))) == (50, 20, 20)


def test_progress_is_what_it_was_where_no_start_offset_is_returned() -> None:
    assert shown((-1, None, (100, 100))) is None
    assert complete(shown((50, 30, (100, 100)), (-1, None, (100, 100)))) == (50, 20, 20)


def test_progress_begins_anew_after_a_reset_and_with_a_new_topic() -> None:
    assert complete(shown((50, 30, (100, 100)), (20, 80, (100, 110)))) == (20, 0, 10)
    assert complete(shown((50, 30, (100, 100)), (50, 50, (100, 105)))) == (50, 0, 5)
    recreated = shown((50, 30, (100, 100)), (60, 30, (90, 100)), topic_ids=(ORDERS, ORDERS_AGAIN))
    assert complete(recreated) == (60, 0, 10)


def test_progress_without_lag_has_the_start_offset_alone() -> None:
    known = shown((50, None, (None, None)), (50, None, (100, 100)))
    assert known == Progress(ORDERS, 50, None, None, at(0), None)
    counted = shown((50, None, (None, None)), (50, 30, (100, 100)))
    assert counted is not None
    assert (complete(counted), counted.changed_at) == ((50, 20, 20), at(0))


def test_progress_is_dated_by_the_first_poll_that_shows_it_beyond_doubt() -> None:
    stands = [(50, 30 + grown, (100 + grown - 3, 100 + grown + 2)) for grown in (0, 50, 100, 150)]
    assert [known.changed_at for n in range(1, 5) if (known := shown(*stands[:n]))] == [at(0)] * 4
    slowly = [(50, 30 + 48 * n, (100 + 50 * n - 3, 100 + 50 * n + 2)) for n in range(1, 7)]
    dates = [known.changed_at for n in range(1, 7) if (known := shown(*slowly[:n]))]
    assert dates == [at(0), at(0), at(0), at(3), at(3), at(3)]
    moved = shown(stands[0], (51, 79, (147, 152)))
    assert moved is not None
    assert moved.changed_at == at(1)


@given(
    st.lists(
        st.tuples(*[st.integers(0, 9)] * 5),  # done and started since, written before, during and after the request
        min_size=1,
    )
)
def test_progress_of_any_polls_is_never_wrong_and_never_goes_back(steps: list[tuple[int, ...]]) -> None:
    """Compared with how many offsets were done with; whatever is written and acknowledged between the requests."""
    before = None
    start = done = end = 0
    history = list[tuple[datetime, int]]()
    for minute, (more, start_by, *written) in enumerate(steps):
        first = end + written[0]
        done = min(done + more, first)
        start = min(start + start_by, done)
        end = first + written[1]
        last = end + written[2]
        history.append((at(minute), done))
        known = progress(before, ShareOffset(ORDERS, start, end - done), (first, last), at(minute))
        assert known is not None
        assert known.start_offset == start
        assert known.done_least is not None
        assert known.done_most is not None
        assert known.done_least <= done <= known.done_most
        assert before is None or before.done_least is None or known.done_least >= before.done_least
        assert known.done_most - known.done_least <= last - first
        if before is not None and known.changed_at != before.changed_at:
            assert start > before.start_offset or done > dict(history)[before.changed_at]
        before = known
        end = last


# --- what is written ---------------------------------------------------------------------------------------------


class Coordinators:
    """What coordinators return next: start offset and lag by group, all of orders-0; the log ends at 100."""

    def __init__(self, **groups: tuple[int, int | None] | None) -> None:
        self.groups, self.refused = groups, dict[str, str]()
        self.known: Mapping[str, Collection[Place]] = {}
        self.error: ClusterError | None = None
        self.at = at(0).timestamp()

    def poll(self, known: Mapping[str, Collection[Place]]) -> SharePoll:
        if self.error is not None:
            raise self.error
        self.known, self.at = known, self.at + 10
        poll = SharePoll(self.at, refused=self.refused)
        for group, returned in self.groups.items():
            offsets = {} if returned is None else {AT: ShareOffset(ORDERS, *returned)}
            gone = frozenset(set(known.get(group, ())) - offsets.keys())
            poll.groups[group] = PolledShareGroup(offsets, dict.fromkeys(offsets, (100, 100)), gone)
        return poll


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    warehouse = Warehouse(str(tmp_path), "east")
    warehouse.ensure((*SHARE_STATE.writes, "group_states"))
    return warehouse


def polling(warehouse: Warehouse, coordinators: Coordinators, printed: list[str] | None = None) -> SharePolling:
    return SharePolling(warehouse, coordinators, [].append if printed is None else printed.append)  # type: ignore[arg-type]


def written(warehouse: Warehouse) -> list[tuple[Any, ...]]:
    columns = ("group_id", "outcome", "start_offset", "delivery_complete_count")
    rows = warehouse.table("share_group_offsets").select("*", "ORDER BY polled_at, group_id")
    return [tuple(row[name] for name in columns) for row in rows]


def test_polling_writes_only_changes_also_after_a_restart(warehouse: Warehouse) -> None:
    coordinators = Coordinators(queue=(50, 30), other=(0, None))
    first = polling(warehouse, coordinators)
    first.process(0)
    first.process(1)
    polling(warehouse, coordinators).process(0)
    both = [("other", "returned", 0, None), ("queue", "returned", 50, 20)]
    assert written(warehouse) == both
    assert coordinators.known == {"queue": (AT,), "other": (AT,)}
    coordinators.groups["queue"] = (60, 30)
    first.process(2)
    assert written(warehouse) == [*both, ("queue", "returned", 60, 10)]
    rows = warehouse.table("share_group_offsets").select("*", "AND start_offset = 60")
    assert [(row["not_before"], row["polled_at"]) for row in rows] == [(at(20 / 60), at(40 / 60))]
    assert written(Warehouse(warehouse.location, "west")) == []


def test_polling_of_an_earlier_time_writes_rows_after_those_that_are_there(warehouse: Warehouse) -> None:
    """As after the clock was set back."""
    coordinators = Coordinators(queue=(50, 30))
    polling(warehouse, coordinators).process(0)
    coordinators.at -= 60
    coordinators.groups["queue"] = (60, 30)
    polling(warehouse, coordinators).process(0)
    assert [row[2] for row in written(warehouse)] == [50, 60]


def test_polling_writes_each_change_once_if_an_append_fails(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinators = Coordinators(queue=(50, 30))
    failing = polling(warehouse, coordinators)
    append = failing._table.append

    def written_but_not_known(*args: Any, **more: Any) -> None:
        append(*args, **more)
        raise OSError("the connection was lost")

    def not_written(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    for fault in (not_written, written_but_not_known):
        monkeypatch.setattr(failing._table, "append", fault)
        with pytest.raises(OSError, match=r"lost|space"):
            failing.process(0)
    monkeypatch.setattr(failing._table, "append", append)
    failing.process(0)
    assert written(warehouse) == [("queue", "returned", 50, 20)]


def test_polling_of_a_group_that_is_gone_writes_that_once_and_its_return(warehouse: Warehouse) -> None:
    coordinators = Coordinators(queue=(50, 30))
    first = polling(warehouse, coordinators)
    first.process(0)
    coordinators.groups["queue"] = None
    first.process(1)
    first.process(2)
    polling(warehouse, coordinators).process(0)
    assert written(warehouse)[1:] == [("queue", "gone", None, None)]
    assert coordinators.known == {"queue": ()}
    coordinators.groups["queue"] = (50, 30)
    first.process(3)
    assert written(warehouse)[2:] == [("queue", "returned", 50, 20)]


def test_polling_keeps_what_was_known_of_a_group_that_is_not_answered_and_says_why_once(warehouse: Warehouse) -> None:
    printed = list[str]()
    coordinators = Coordinators(queue=(50, 30))
    first = polling(warehouse, coordinators, printed)
    first.process(0)
    coordinators.groups, coordinators.refused = (
        {},
        dict.fromkeys(("queue", "other"), "the principal may not DESCRIBE it"),
    )
    first.process(1)
    first.process(2)
    coordinators.error = KafkaUnreachableError("no Kafka broker answers")
    first.process(3)
    first.process(4)
    assert written(warehouse) == [("queue", "returned", 50, 20)]
    assert printed[1:] == [
        "share-state: no offsets of share group 'other' and 1 more: the principal may not DESCRIBE it",
        "share-state: no Kafka broker answers",
    ]


def test_polling_asks_about_share_groups_of_the_history(warehouse: Warehouse) -> None:
    """No broker lists those that the principal may not DESCRIBE."""
    state = {"generation": 1, "state": "Stable", "started_at": at(0), "evidence": "recorded", "record_offset": 1}
    state |= {"is_open": True, "open_bucket": 0}
    named = [("queue", "share", None, "Stable"), ("old", "share", at(1), "Stable"), ("dead", "share", None, "Dead")]
    warehouse.table("group_states").append_rows(
        {**state, "group_id": group, "group_kind": kind, "ended_at": ended, "state": name}
        for group, kind, ended, name in [*named, ("billing", "classic", None, "Stable")]
    )
    coordinators = Coordinators()
    polling(warehouse, coordinators).process(0)
    assert coordinators.known == {"queue": ()}


# --- until when --------------------------------------------------------------------------------------------------


class Topic:
    """The empty topic `__share_group_state`; `error` is what the brokers answer."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def bounds(self) -> dict[int, LogBounds]:
        if self.error is not None:
            raise self.error
        return {0: LogBounds(0, 0, 0)}


def landing(warehouse: Warehouse, topic: Topic, coordinators: Coordinators, printed: list[str]) -> Landing:
    polls = polling(warehouse, coordinators, printed)
    return Landing(warehouse, topic, polls, max_record_bytes=1000, log=printed.append)  # type: ignore[arg-type]


def test_landing_polls_while_the_topic_may_not_be_read_and_supersedes_that_afterwards(warehouse: Warehouse) -> None:
    printed = list[str]()
    topic, coordinators = Topic(), Coordinators(queue=(50, 30))
    job = landing(warehouse, topic, coordinators, printed)
    job.process(0)
    assert written(warehouse) == []
    topic.error = KafkaDeniedError("the principal may not read it")
    job.process(1)
    job.process(2)
    assert printed[0].startswith("share-state: the principal may not read it; until then")
    assert [line.partition(" in ")[0] for line in printed[1:]] == ["share-state batch 1: 1 changes polled"]
    topic.error = ClusterError("broker 2 did not answer")  # which says nothing of the right
    job.process(3)
    assert written(warehouse) == [("queue", "returned", 50, 20)]
    topic.error = None
    job = landing(warehouse, topic, coordinators, printed)
    job.process(0)
    job.process(1)
    assert written(warehouse)[1:] == [("queue", "superseded", None, None)]
    topic.error = KafkaDeniedError("the principal may not read it")
    job.process(2)
    assert written(warehouse)[2:] == [("queue", "returned", 50, 20)]


def test_landing_does_not_poll_with_a_login_that_is_refused(warehouse: Warehouse) -> None:
    topic, coordinators = Topic(), Coordinators(queue=(50, 30))
    topic.error = KafkaLoginError("the password is wrong")
    landing(warehouse, topic, coordinators, []).process(0)
    assert written(warehouse) == []


# --- which brokers a poll queries ----------------------------------------------------------------------------------


class FakeBroker:
    """A broker that lists and coordinates `groups`; the principal may not DESCRIBE those of `denied`."""

    def __init__(self, node: int, groups: Mapping[str, ShareOffsets], denied: Collection[str] = ()) -> None:
        self.node, self.groups, self.denied = node, groups, denied
        self.asked = list[list[str]]()

    def listed_share_groups(self) -> list[PolledGroup]:
        return [PolledGroup(group, "share", "share", "Stable") for group in self.groups]

    def share_offsets(self, groups: Collection[str], log_ends: Any) -> Any:
        self.asked.append(list(groups))
        before = log_ends()
        refused = {group: "denied" if group in self.denied else "" for group in groups}
        answers = {group: self.groups.get(group, reason) for group, reason in refused.items()}
        return answers, (before, log_ends())


class DeadBroker(FakeBroker):
    def listed_share_groups(self) -> list[PolledGroup]:
        raise KafkaUnreachableError("it does not answer")


class Logs:
    """The leaders of all partitions, and ends of logs that grow by one with each request."""

    def __init__(self, hidden: Collection[str] = ()) -> None:
        self.hidden, self.end = hidden, 100

    def partition_metadata(self, wanted: Mapping[str, Sequence[int]]) -> list[PartitionMetadata]:
        return [
            PartitionMetadata(topic, one, error=DESCRIBE_DENIED)
            if topic in self.hidden
            else PartitionMetadata(topic, one, ORDERS, 1, "a:1")
            for topic, some in wanted.items()
            for one in some
        ]

    def log_ends(self, _leader: int, places: Sequence[Place]) -> dict[Place, int]:
        self.end += 1
        return dict.fromkeys(places, self.end)


def poller(*brokers: FakeBroker, logs: Logs | None = None, **rules: Any) -> SharePoller:
    asking: Any = SharePoller(AdminConfig(**rules), {"bootstrap.servers": "127.0.0.1:1"})
    by_node = {broker.node: broker for broker in brokers}
    asking._coordinators.nodes = lambda: dict.fromkeys(by_node, "a:1")
    asking._brokers.groups = lambda node, _server: by_node[node]
    asking._logs = logs or Logs()
    return asking  # type: ignore[no-any-return]


def offsets(*places: Place) -> ShareOffsets:
    return ShareOffsets({place: ShareOffset(ORDERS, 50, 30) for place in places}, {})


def test_poll_reads_log_ends_around_the_request_also_of_partitions_that_are_new() -> None:
    broker = FakeBroker(1, {"queue": offsets(AT)})
    poll = poller(broker).poll({})
    assert poll.groups["queue"].log_ends == {AT: (101, 102)}
    assert len(broker.asked) == 2
    assert poller(broker).poll({"queue": [AT]}).groups["queue"].log_ends == {AT: (101, 102)}
    assert len(broker.asked) == 3


def test_poll_asks_every_broker_about_known_groups_that_none_lists() -> None:
    one, other = FakeBroker(1, {"queue": offsets()}, denied=["secret"]), FakeBroker(2, {}, denied=["secret"])
    poll = poller(one, other).poll({"queue": [], "secret": [AT], "moving": [AT]})
    assert (one.asked, other.asked) == ([["queue", "moving", "secret"]], [["moving", "secret"]])
    assert (set(poll.groups), poll.refused, poll.problems) == ({"queue"}, {"secret": "denied"}, [])


def test_poll_partition_without_offset_is_gone_unless_its_topic_is_hidden_or_it_has_an_error() -> None:
    answer = ShareOffsets(offsets(("orders", 1)).offsets, {("orders", 2): "KafkaStorageError"})
    broker = FakeBroker(1, {"queue": answer})
    known = {"queue": [AT, ("orders", 1), ("orders", 2), ("secrets", 0)]}
    poll = poller(broker, logs=Logs(hidden=["secrets"])).poll(known)
    assert poll.groups["queue"].gone == {AT}
    assert poll.problems == ["'queue': the coordinator returns no offsets of orders-2 (KafkaStorageError)"]


def test_poll_broker_that_does_not_answer_leaves_the_others_as_they_are() -> None:
    poll = poller(DeadBroker(1, {}), FakeBroker(2, {"queue": offsets(AT)})).poll({"other": [AT]})
    assert list(poll.groups) == ["queue"]
    assert poll.problems == ["broker 1: it does not answer"]


def test_poll_asks_only_about_groups_that_the_settings_allow_so_many_a_request() -> None:
    broker = FakeBroker(1, {f"queue-{n}": offsets(AT) for n in range(60)} | {"tmp-1": offsets(AT)})
    poll = poller(broker, deny_groups=["tmp-*"]).poll({"tmp-2": [AT]} | {f"queue-{n}": [AT] for n in range(60)})
    assert [len(groups) for groups in broker.asked] == [50, 10]
    assert len(poll.groups) == 60

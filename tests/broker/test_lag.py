"""Lag on a real Kafka broker, compared with kafka-consumer-groups and with the records themselves."""

from __future__ import annotations

import itertools
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, KafkaConsumer, OffsetAndMetadata
from kafka import TopicPartition as Partition

from grouptrail.config import Config, load_config
from grouptrail.exporter.families import group_families, pipeline_families
from grouptrail.kafka.groups import Coordinators
from grouptrail.lag.offsets import CLOCKS_DIFFER_SECONDS
from servers.kafka import Broker
from servers.offsets_topic import OFFSETS_TOPIC, ensure_offsets_topic, hanging_transaction
from support import landed
from support.cli_in_process import Cli, succeeded
from support.cli_process import Grouptrail
from support.deadlines import scaled
from support.exporter_tables import figures as figures_of
from support.from_config import snapshot_reader
from support.kafka_clients import PATIENCE_SECONDS, as_reader, await_that, commit_all, producer
from support.lag_figures import (
    PARTITIONS,
    classic_member,
    described,
    figures,
    groups_around_a_transaction,
    kip848_member,
    newest,
)

MILLISECOND = 0.0015  # record timestamps are whole milliseconds, and lag is rounded to one
OLDER = ("bounded", "dated")
_GROUP = "kafka_consumer_group"
TRANSACTED, COMPACTED, PLAIN = "transacted", "compacted", "plain"
SETTINGS = {COMPACTED: {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}}


@pytest.fixture(scope="module")
def topics(broker: Broker) -> dict[str, str]:
    """Create a plain, a transacted and a compacted topic with records; the last partition of each is empty."""
    names = {kind: f"{kind}-{uuid.uuid4().hex[:8]}" for kind in (PLAIN, TRANSACTED, COMPACTED)}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for kind, name in names.items():
        new = NewTopic(name, PARTITIONS, 1, config=SETTINGS.get(kind, {}))
        admin.create_topics([new])[name].result(PATIENCE_SECONDS)
    ensure_offsets_topic(broker.bootstrap)
    await_that(lambda: set(names.values()) <= set(admin.list_topics(timeout=PATIENCE_SECONDS).topics))
    for kind in (PLAIN, COMPACTED):
        with producer(broker) as producing:
            for number in range(40):
                producing.produce(names[kind], b"x", key=str(number % 4), partition=number % 2)
    with producer(broker, **{"transactional.id": names[TRANSACTED]}) as producing:
        producing.init_transactions(PATIENCE_SECONDS)
        for number, end in enumerate((producing.commit_transaction, producing.abort_transaction) * 3):
            producing.begin_transaction()
            for partition in (0, 1):
                producing.produce(names[TRANSACTED], str(number), partition=partition)
            assert producing.flush(PATIENCE_SECONDS) == 0  # an abort takes back what was not sent
            end(PATIENCE_SECONDS)
    return names


def test_consumer_lag_idle_groups_match_kafka_consumer_groups_describe(
    broker: Broker, config: Config, topics: dict[str, str], cli: Cli
) -> None:
    """At rest, for every partition of classic and KIP-848 groups on plain, transacted and compacted topics."""
    groups = [f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("classic", "kip848", "alone")]
    names = list(topics.values())
    with ExitStack() as members:
        members.enter_context(classic_member(broker, groups[0], names))
        members.enter_context(kip848_member(broker, groups[1], names))
        commit_all(broker.bootstrap, groups[2], {(names[0], 0): 1})
        printed = succeeded(cli(config, "run", "--once"))
        rows = newest(config, *groups)
        truth = described(broker, *groups)
    assert "lag batch 0: " in printed
    assert len(truth) == 2 * 3 * PARTITIONS + 1
    with_commit = {place: offsets for place, offsets in truth.items() if offsets[0] is not None}
    assert len(with_commit) == 2 * 3 * 2 + 1
    mine = figures(rows)
    assert {place: mine[place] for place in with_commit} == with_commit
    # The others are assigned to a member, and their logs are empty.
    without = {place: row for place, row in rows.items() if place not in with_commit}
    assert {row["lag"] for row in without.values()} == {0}
    assert {row["status"] for row in without.values()} == {"OK"}
    assert {row["group_state"] for row in rows.values() if row["group_id"] in groups[:2]} == {"Stable"}


@pytest.mark.parametrize("protocol", ["consumer", pytest.param("classic", marks=pytest.mark.full)])
def test_lag_of_partitions_without_records_or_commits_is_zero_or_uncommitted_and_the_group_ok(
    broker: Broker, config: Config, cli: Cli, protocol: str
) -> None:
    """Of a real consumer that begins at the end of its logs. A topic to which nobody commits is sampled, too."""
    old, empty, consumed = range(PARTITIONS)
    busy, idle = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("busy", "idle"))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (busy, idle)]).values():
        created.result(PATIENCE_SECONDS)
    ensure_offsets_topic(broker.bootstrap)
    with producer(broker) as producing:
        for name in (busy, idle):
            for _ in range(7):
                producing.produce(name, b"x", partition=old)
    settings = {"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "latest", "group.protocol": protocol}
    with ExitStack() as members:
        for name in (busy, idle):
            consumer = members.enter_context(closing(Consumer(settings | {"group.id": name})))
            consumer.subscribe([name])
            await_that(lambda one=consumer: one.poll(0.1) is None and len(one.assignment()) == PARTITIONS)
            if name == busy:
                # The consumer has found the ends of its logs once it gets a record.
                def gets_one(one: Consumer = consumer) -> bool:
                    with producer(broker) as producing:
                        producing.produce(busy, b"x", partition=consumed)
                    return one.poll(1) is not None

                await_that(gets_one)
                consumer.commit(asynchronous=False)
        succeeded(cli(config, "run", "--once"))
        rows = newest(config, busy, idle)
        truth = described(broker, busy, idle)
    for name in (busy, idle):
        without = rows[name, name, old]
        assert (without["status"], without["lag"], truth[name, name, old][0]) == ("UNCOMMITTED", None, None)
        assert "between 0 and 7 records" in without["status_reason"]
        assert (rows[name, name, empty]["status"], rows[name, name, empty]["lag"]) == ("OK", 0)
    assert rows[busy, busy, consumed]["status"] == "OK"
    assert rows[busy, busy, consumed]["committed_offset"] == truth[busy, busy, consumed][0]
    assert rows[idle, idle, consumed]["status"] == "OK"
    families = group_families(snapshot_reader(config).read())
    groups = {
        labels[0]: labels[1] for labels, value in figures_of(families, f"{_GROUP}_group_status").items() if value
    }
    assert {name: groups[name] for name in (busy, idle)} == {busy: "OK", idle: "OK"}


def test_consumer_lag_skips_aborted_records_counts_lost_and_rejects_commit_above_log_end(
    broker: Broker, config: Config, topics: dict[str, str], cli: Cli
) -> None:
    """A transaction marker follows the last record, and the group's lag is computed from the records themselves;
    records that were deleted unread are counted, and a commit above the log end has no lag."""
    transacted, plain = topics[TRANSACTED], topics[PLAIN]
    exact, plainly, ahead = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("exact", "plainly", "ahead"))
    ends = {at.partition: end for at, end in last_offsets(broker, transacted).items()}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    deleted = admin.delete_records([TopicPartition(plain, 0, 15)])
    assert [answer.result(PATIENCE_SECONDS).low_watermark for answer in deleted.values()] == [15]
    for group in (exact, plainly):
        # The last transaction was aborted: an aborted record and two markers follow the last committed record.
        behind = {(transacted, at): ends[at] - 3 for at in (0, 1)}
        commit_all(broker.bootstrap, group, behind | {(plain, 0): 10})
    commit_all(broker.bootstrap, ahead, {(plain, 1): 999})
    committed_at = time.monotonic()
    # Until then a commit above the log's end may be newer than the sample.
    await_that(lambda: time.monotonic() > committed_at + CLOCKS_DIFFER_SECONDS)
    environ = {f"GROUPTRAIL_LAG__{name}_GROUPS": "exact-*" for name in ("EXACT", "READ_COMMITTED")}
    succeeded(cli(config, "run", "--once", environ=environ))
    rows = newest(config, exact, plainly, ahead)
    for at in (0, 1):
        idle = rows[exact, transacted, at]
        assert (idle["lag"], idle["lag_seconds"], idle["lag_seconds_method"], idle["status"]) == (0, 0, "exact", "OK")
        assert rows[plainly, transacted, at]["lag"] == 3
    lost = rows[plainly, plain, 0]
    assert (lost["lag"], lost["lost_records"], lost["log_start_offset"]) == (10, 5, 15)
    beyond = rows[ahead, plain, 1]
    assert (beyond["lag"], beyond["problem"]) == (
        None,
        "committed 999 above the log's end 20: the log was truncated or recreated, "
        "or the offset was copied from another cluster or committed too far",
    )


def test_lag_behind_a_hanging_transaction_is_the_coordinators_and_lands_once_after_the_abort(
    broker: Broker, config: Config, cli: Cli
) -> None:
    """For a group in the same offsets partition as the transaction; the status of a group elsewhere is not
    affected."""
    # Coordinators are queried only for samples of the last two intervals: with --once, other jobs run after it.
    patient = {"GROUPTRAIL_LOG_OFFSETS__INTERVAL_SECONDS": f"{scaled(60):.0f}"}
    ensure_offsets_topic(broker.bootstrap)
    topic = f"held-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_SECONDS)
    with producer(broker) as producing:
        for _ in range(40):
            producing.produce(topic, b"x", partition=0)
    held, transactional, elsewhere, partition = groups_around_a_transaction(config, topic)

    def commit_both(offset: int) -> None:
        for group in (held, elsewhere):
            commit_all(broker.bootstrap, group, {(topic, 0): offset})

    def run_once() -> tuple[dict[str, dict[str, Any]], float]:
        succeeded(cli(config, "run", "--once", environ=patient))
        rows = {group: row for (group, _, _), row in newest(config, held, elsewhere).items()}
        families = pipeline_families(snapshot_reader(config).read(), dropped={})
        return rows, figures_of(families, "grouptrail_last_stable_offset_lag")[(str(partition),)]

    commit_both(1)
    with hanging_transaction(broker.bootstrap, transactional, topic, 0, patience_seconds=PATIENCE_SECONDS):
        commit_both(38)
        rows, held_back = run_once()
        truth = described(broker, held)
        denied = asked_as_reader(broker, held, partition)
        for right in (("GROUP", held), ("TOPIC", topic)):
            broker.allow("reader", "DESCRIBE", *right)
        allowed = asked_as_reader(broker, held, partition)
    after, held_back_after = run_once()
    why = (
        f"an open transaction holds back __consumer_offsets-{partition}: this offset is from the group's coordinator"
    )
    assert (rows[held]["status"], rows[held]["status_reason"], rows[held]["problem"]) == ("UNKNOWN", why, why)
    assert (rows[held]["committed_offset"], rows[held]["log_end_offset"], rows[held]["lag"]) == (38, 40, 2)
    assert truth[held, topic, 0] == (38, 40, 2)
    assert (rows[elsewhere]["lag"], rows[elsewhere]["problem"]) == (2, None)
    # The transaction's own commit and the one after it.
    assert held_back == 2
    assert denied == "the principal may not DESCRIBE it"
    assert allowed == {(topic, 0): 38}
    assert {(row["lag"], row["problem"]) for row in after.values()} == {(2, None)}
    assert "UNKNOWN" not in {row["status"] for row in after.values()}
    assert held_back_after == 0
    commits = [row for row in landed.rows(config, "offset_commits") if row["topic"] == topic]
    assert Counter((row["group_id"], row["committed_offset"]) for row in commits) == {
        (group, offset): 1 for group in (held, elsewhere) for offset in (1, 38)
    }
    landed.assert_progress_adds_up(config)


def asked_as_reader(broker: Broker, group: str, partition: int) -> Mapping[tuple[str, int], int] | str:
    """Return the coordinator's answer to a principal with DESCRIBE on the offsets topic and the ACLs of the test."""
    broker.allow("reader", "DESCRIBE", "TOPIC", OFFSETS_TOPIC)
    config = load_config(None, {}, as_reader(broker))
    with closing(Coordinators(config.kafka_settings(), requests_per_second=10)) as coordinators:
        return coordinators.offsets({group: partition}, seconds=PATIENCE_SECONDS)[group]


def last_offsets(broker: Broker, topic: str) -> dict[Partition, int]:
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap)) as consumer:
        return dict(consumer.end_offsets([Partition(topic, at) for at in range(PARTITIONS)]))


def written(broker: Broker, topic: str) -> dict[int, float]:
    """Return the time at which each record of partition 0 was written, in seconds."""
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")) as consumer:
        partition = Partition(topic, 0)
        consumer.assign([partition])
        [end] = consumer.end_offsets([partition]).values()
        times: dict[int, float] = {}
        while consumer.position(partition) < end:
            for record in consumer.poll(timeout_ms=500).get(partition, ()):
                times[record.offset] = record.timestamp / 1000
    return times


class Traffic:
    """Write some twenty records a second, and commit for two groups that lag behind and sometimes catch up."""

    def __init__(self, broker: Broker, topic: str, groups: list[str]) -> None:
        self._broker = broker
        self._topic = topic
        self._groups = groups
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _go(self) -> None:
        behind = itertools.cycle([0, 3, 40, 40, 150, 10])
        with (
            producer(self._broker) as producing,
            closing(KafkaAdminClient(bootstrap_servers=self._broker.bootstrap)) as admin,
        ):
            for number in itertools.count(1):
                producing.produce(self._topic, b"x", partition=0)
                if number % 40 == 0:
                    offset = OffsetAndMetadata(max(number - next(behind), 0), "", -1)
                    for group in self._groups:
                        admin.alter_group_offsets(group, {Partition(self._topic, 0): offset})
                producing.poll(0)
                if self._ended.wait(0.05):
                    return


@pytest.mark.full
def test_lag_seconds_live_traffic_and_driver_kill_match_record_age_within_error_bound(
    broker: Broker, config: Config
) -> None:
    """Observed ages are always within their error bound, exact ones to the millisecond, also after kill -9 and a
    restart."""
    ensure_offsets_topic(broker.bootstrap)
    topic = f"live-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    appended = {"message.timestamp.type": "LogAppendTime"}
    admin.create_topics([NewTopic(topic, 1, 1, config=appended)])[topic].result(PATIENCE_SECONDS)
    groups = [f"exact-{topic}", f"sampled-{topic}"]
    environ = {"GROUPTRAIL_LOG_OFFSETS__INTERVAL_SECONDS": "1", "GROUPTRAIL_LAG__EXACT_GROUPS": "exact-*"}

    def samples() -> int:
        """Return the number of samples with exact lag: not every sample has it, if several are processed together."""
        of_group = [row for row in landed.rows(config, "consumer_lag") if row["group_id"] == groups[0]]
        return sum(row["lag_seconds_method"] == "exact" for row in of_group)

    with Traffic(broker, topic, groups):
        for wanted, end in ((5, signal.SIGKILL), (15, signal.SIGTERM)):
            run = Grouptrail(config, "run", environ=environ)
            try:
                await_that(lambda run=run, wanted=wanted: run.process.poll() is not None or samples() >= wanted, 240)
                assert run.process.poll() is None, run.finished()
                if end == signal.SIGTERM:
                    run.process.send_signal(end)
                    run.finished()
            finally:
                run.kill()
    rows = [row for row in landed.rows(config, "consumer_lag") if row["topic"] == topic]
    assert len({(row["group_id"], row["sampled_at"]) for row in rows}) == len(rows)
    assert {row["problem"] for row in rows} == {None}
    times, methods = written(broker, topic), Counter()
    for row in rows:
        assert row["lag"] == max(row["log_end_offset"] - row["committed_offset"], 0)
        methods[row["group_id"], row["lag_seconds_method"]] += 1
        if not row["lag"]:
            assert row["lag_seconds"] == row["lag_seconds_error"] == 0
            continue
        truth = max(row["sampled_at"].timestamp() - times[row["committed_offset"]], 0)
        if row["lag_seconds_error"] is None:
            assert truth >= row["lag_seconds"] - MILLISECOND, row
        else:
            assert abs(truth - row["lag_seconds"]) <= row["lag_seconds_error"] + MILLISECOND, row
    assert methods[groups[0], "exact"] >= 10
    assert methods[groups[1], "observed"] >= 10
    # The restarted job used the earlier samples: no record was older than those.
    restarted = sorted(row["sampled_at"] for row in rows if row["lag_seconds_method"] in OLDER)
    begun = sorted(row["sampled_at"] for row in rows)[0]
    assert not restarted or (restarted[-1] - begun).total_seconds() < 10

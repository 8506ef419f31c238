"""The demo's groups, one scenario each: what its members and administrators do, and when."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata

from demo.groups import TOPICS, Context, LocalChannel, Slot, TimedChannel, WorkloadError
from demo.ledger import Kind, Offsets
from demo.members import (
    CLOSE_MS,
    POLL_SECONDS,
    MemberSpec,
    Order,
    Serve,
    as_confluent,
    classic_consumer,
    commit_classic,
    confluent_consumer,
    ends_of,
    pairs,
    position,
    received,
    serve_classic,
    serve_consumer_protocol,
    serve_share,
)

if TYPE_CHECKING:
    from confluent_kafka import Message

LATE_TOPIC, LATE_PARTITIONS = "clicks-mobile", 4
SHARES = {"orders": 40, "clicks": 35, "payments": 20, "audit": 5}
TRANSACTION_SECONDS, TRANSACTION_PATIENCE = 3, 30


@dataclass(order=True)
class Step:
    """Something that happens at a second of the run, and again `every` so many seconds if that is not 0."""

    at: float
    every: float = field(compare=False)
    act: Callable[[], object] = field(compare=False)


def _slots(
    context: Context,
    group: str,
    kind: Kind,
    serve: Serve,
    topics: Sequence[Sequence[str]],
    *,
    apart: int = 0,
    **spec: Any,
) -> list[Slot]:
    """One slot for each entry of `topics`; the one numbered `apart` runs in a separate process."""
    name = context.name(group)
    context.ledger.opened(name, kind)
    members = [
        MemberSpec(context.bootstrap, name, f"{name}-{number}", tuple(wanted), **spec)
        for number, wanted in enumerate(topics, 1)
    ]
    if kind == "static":
        members = [replace(member, instance=member.client) for member in members]
        context.statics.update((name, member.client) for member in members)
    return [Slot(context, member, number, serve, apart=number == apart) for number, member in enumerate(members, 1)]


def _one_by_one(slots: Iterable[Slot], gap: float = 0.4) -> list[Step]:
    return [Step(round(number * gap, 1), 0, slot.take) for number, slot in enumerate(slots)]


def billing(context: Context) -> list[Step]:
    """Range assignment; the third member crashes, which the group notices after 6 s, and comes back."""
    topics = [context.name("orders"), context.name("payments")]
    slots = _slots(context, "billing", "range", serve_classic, [topics] * 3, apart=3, assignor="range")
    return [*_one_by_one(slots), Step(6, 30, slots[2].crash), Step(15, 30, slots[2].take)]


def shipping(context: Context) -> list[Step]:
    """Round robin assignment; a third member keeps coming and going."""
    topics = [context.name("orders")]
    slots = _slots(context, "shipping", "roundrobin", serve_classic, [topics] * 3, assignor="roundrobin")
    return [*_one_by_one(slots[:2]), Step(5, 14, slots[2].take), Step(11, 14, slots[2].leave)]


def fraud(context: Context) -> list[Step]:
    """Sticky assignment; a fourth member comes, the first leaves and returns, the fourth goes."""
    topics = [context.name("payments"), context.name("clicks")]
    first, second, third, fourth = _slots(context, "fraud", "sticky", serve_classic, [topics] * 4, assignor="sticky")
    coming = [Step(9, 40, fourth.take), Step(17, 40, first.leave)]
    return [
        *_one_by_one([first, second, third]),
        *coming,
        Step(25, 40, first.take),
        Step(33, 40, fourth.leave),
    ]


def search(context: Context) -> list[Step]:
    """Static members; the second restarts within its session timeout, which is no rebalance."""
    topics = [context.name("clicks")]
    slots = _slots(context, "search", "static", serve_classic, [topics] * 2, session_ms=15_000)
    return [*_one_by_one(slots), Step(8, 25, slots[1].restart)]


def insights(context: Context) -> list[Step]:
    """The new protocol; the second member comes and goes, the third's pattern fits a topic created later."""
    named = [context.name("orders"), context.name("invoices")]
    pattern = [f"^{re.escape(context.name('clicks'))}.*"]
    slots = _slots(context, "insights", "consumer", serve_consumer_protocol, [named, named, pattern])
    new_topic = Step(20, 0, lambda: _add_late_topic(context))
    return [*_one_by_one(slots), Step(16, 40, slots[1].leave), new_topic, Step(26, 40, slots[1].take)]


def notifications(context: Context) -> list[Step]:
    """A share group, whose offsets live elsewhere; the second member comes and goes."""
    topics = [context.name("payments")]
    slots = _slots(context, "notifications", "share", serve_share, [topics] * 2)
    return [*_one_by_one(slots), Step(14, 36, slots[1].leave), Step(22, 36, slots[1].take)]


def _add_late_topic(context: Context) -> None:
    context.create_topics({LATE_TOPIC: LATE_PARTITIONS})
    context.late_topic.set()
    context.say("administrator", f"created topic {LATE_TOPIC}")


def _alone(actor: str, act: Callable[[Context], None]) -> Callable[[Context], list[Step]]:
    def scenario(context: Context) -> list[Step]:
        return [Step(0, 0, lambda: context.spawn(actor, lambda: act(context)))]

    return scenario


def produce(context: Context) -> None:
    """Write to the topics at a steady rate, in a few small bursts a second."""
    producer = Producer({"bootstrap.servers": context.bootstrap, "linger.ms": 50, "log_level": 2})
    chance = context.random("producer")
    errors: list[KafkaError] = []
    ticks, numbers = 4, itertools.count()
    while not context.stopping.is_set():
        for _ in range(max(context.rate // ticks, 1)):
            topic = chance.choices(list(SHARES), list(SHARES.values()))[0]
            if topic == "clicks" and context.late_topic.is_set() and chance.random() < 0.3:
                topic = LATE_TOPIC
            value = json.dumps({"n": next(numbers), "amount": chance.randrange(10_000)})
            producer.produce(context.name(topic), value, f"key-{chance.randrange(500)}", on_delivery=_keep(errors))
        producer.poll(0)
        if errors:
            raise KafkaException(errors[0])
        context.pause(1 / ticks)
    producer.flush(5)


def _keep(errors: list[KafkaError]) -> Callable[[KafkaError | None, Message[Any, Any]], None]:
    return lambda error, _message: errors.append(error) if error is not None else None


class Settlement:
    """Reads payments and writes invoices, the offsets in the same transaction; one in four is aborted."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._group = context.name("settlement")
        self._chance = context.random("settlement")
        self._fates: list[bool] = []
        spec = MemberSpec(context.bootstrap, self._group, f"{self._group}-1", (context.name("payments"),))
        context.ledger.opened(self._group, "transactional")
        self._consumer = confluent_consumer(spec, **{"fetch.wait.max.ms": 500, "session.timeout.ms": 10_000})
        self._producer = Producer(
            {
                "bootstrap.servers": context.bootstrap,
                "transactional.id": f"{self._group}-writer",
                "transaction.timeout.ms": 15_000,
                "log_level": 2,
            }
        )
        self._consumer.subscribe(list(spec.topics))

    def run(self) -> None:
        try:
            self._patiently(self._producer.init_transactions)
            while not self._context.stopping.is_set():
                if messages := received(self._consumer, 100):
                    self._settle(messages)
        finally:
            self._consumer.close()

    def _settle(self, messages: Sequence[Message[Any, Any]]) -> None:
        ledger, offsets = self._context.ledger, ends_of(messages)
        try:
            self._write(messages, offsets)
            if self._aborts():
                return self._abort(messages, "aborted a transaction on purpose")
            self._patiently(self._producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                ledger.doubt(self._group, offsets)
                raise
            return self._abort(messages, f"had to abort a transaction: {error.args[0].str()}")
        ledger.acknowledge(self._group, offsets)
        ledger.transaction("committed")
        if ledger.transactions_committed % 10 == 0:
            self._context.say("settlement", f"committed its transaction {ledger.transactions_committed}")
        return None

    def _write(self, messages: Sequence[Message[Any, Any]], offsets: Offsets) -> None:
        self._producer.begin_transaction()
        for message in messages:
            self._producer.produce(self._context.name("invoices"), message.value(), message.key())
        # An abort with records still under way makes librdkafka abort the next transaction as well.
        self._producer.flush(TRANSACTION_SECONDS)
        membership = self._consumer.consumer_group_metadata()
        ends = as_confluent(offsets)
        self._patiently(lambda wait: self._producer.send_offsets_to_transaction(ends, membership, wait))

    def _patiently(self, act: Callable[[float], object]) -> None:
        """Waits in short turns, so that a broker that is gone cannot hold up `stop`."""
        deadline = time.monotonic() + TRANSACTION_PATIENCE
        while True:
            try:
                act(TRANSACTION_SECONDS)
            except KafkaException as error:
                late = self._context.stopping.is_set() or time.monotonic() > deadline
                if late or not error.args[0].retriable():
                    raise
            else:
                return

    def _aborts(self) -> bool:
        if not self._fates:
            self._fates = [True, False, False, False]
            self._chance.shuffle(self._fates)
        return self._fates.pop()

    def _abort(self, messages: Sequence[Message[Any, Any]], line: str) -> None:
        self._patiently(self._producer.abort_transaction)
        assigned = set(pairs(self._consumer.assignment()))
        for (topic, partition), offset in _starts(messages).items():
            if (topic, partition) in assigned:
                self._consumer.seek(ConfluentPartition(topic, partition, offset))
        self._context.ledger.transaction("aborted")
        self._context.say("settlement", line)


def _starts(messages: Iterable[Message[Any, Any]]) -> Offsets:
    starts: Offsets = {}
    for topic, partition, offset in map(position, messages):
        starts.setdefault((topic, partition), offset)
    return starts


def export(context: Context) -> None:
    """A standalone consumer: no subscription, so no membership, only commits; it falls further behind."""
    group, topic = context.name("export"), context.name("audit")
    spec = MemberSpec(context.bootstrap, group, f"{group}-1", (topic,), batch=2)
    channel = LocalChannel(context, spec, "standalone consumer")
    context.ledger.opened(group, "simple")
    consumer = classic_consumer(spec)
    try:
        consumer.assign([TopicPartition(topic, number) for number in range(TOPICS["audit"])])
        channel.did("started", "reads audit without joining a group")
        while channel.order() is Order.WORK:
            commit_classic(consumer, consumer.poll(timeout_ms=int(POLL_SECONDS * 1000)), spec, channel)
            context.pause(1)
    finally:
        consumer.close(timeout_ms=CLOSE_MS)


def nightly_report(context: Context) -> None:
    """A job that forms a group, reads for a while and has the group deleted; its name returns next time."""
    group = context.name("nightly-report")
    spec = MemberSpec(context.bootstrap, group, f"{group}-1", (context.name("orders"),), batch=200)
    while not context.stopping.is_set():
        _run_briefly(context, spec, "deleted", 5)
        if context.stopping.is_set():
            return
        _delete(context, group)
        context.pause(10)


def _run_briefly(context: Context, spec: MemberSpec, kind: Kind, seconds: float) -> None:
    channel = TimedChannel(context, spec, "the only member", seconds)
    context.ledger.opened(spec.group, kind)
    channel.did("started", "starts")
    serve_classic(spec, channel)
    channel.did("left", "left")


def _delete(context: Context, group: str) -> None:
    deadline = time.monotonic() + 10
    with context.admin() as admin:
        while (answer := admin.delete_groups([group])[group]) != "OK":
            if answer != "NonEmptyGroupError" or time.monotonic() > deadline:
                raise WorkloadError(f"group {group} could not be deleted: {answer}")
            context.pause(0.2)
    context.ledger.forget(group)
    context.ledger.did("deleted")
    context.say(context.plain(group), "group deleted by the administrator")


def replay(context: Context) -> None:
    """A group that is emptied, rewound by an administrator and set to work again."""
    group = context.name("replay")
    spec = MemberSpec(context.bootstrap, group, f"{group}-1", (context.name("payments"),))
    while not context.stopping.is_set():
        _run_briefly(context, spec, "reset", 7)
        if context.stopping.is_set():
            return
        _rewind(context, group, 20)
        context.pause(4)


def _rewind(context: Context, group: str, records: int) -> None:
    ours = {key: offset for key, offset in context.ledger.committed().items() if key[0] == group}
    targets = {
        TopicPartition(topic, partition): max(offset - records, 0) for (_, topic, partition), offset in ours.items()
    }
    if not targets:
        return
    with context.admin() as admin:
        answers = admin.alter_group_offsets(
            group, {place: OffsetAndMetadata(offset, "rewound", -1) for place, offset in targets.items()}
        )
    errors = {answer.__name__ for answer in answers.values()} - {"NoError"}
    if errors:
        raise WorkloadError(f"the offsets of group {group} could not be reset: {', '.join(sorted(errors))}")
    context.ledger.acknowledge(group, {(place.topic, place.partition): at for place, at in targets.items()})
    context.ledger.did("reset")
    context.say(context.plain(group), f"offsets of {len(targets)} partitions set back by the administrator")


SCENARIOS: dict[str, Callable[[Context], list[Step]]] = {
    "producer": _alone("producer", produce),
    "billing": billing,
    "shipping": shipping,
    "fraud": fraud,
    "search": search,
    "insights": insights,
    "notifications": notifications,
    "settlement": _alone("settlement", lambda context: Settlement(context).run()),
    "export": _alone("export", export),
    "nightly-report": _alone("nightly-report", nightly_report),
    "replay": _alone("replay", replay),
}

"""Run schedules with real clients on a real broker; record the actions, what each client received, and how an admin
client described the group whenever it was stable."""

from __future__ import annotations

import contextlib
import json
import threading
from base64 import urlsafe_b64encode
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient, NewTopic

from grouptrail.decode.rows import decode_row
from grouptrail.history.fold import fold_group
from grouptrail.history.operations import CLASSIC, COMMIT_TOMBSTONE, Record
from grouptrail.history.rows import TABLES
from grouptrail.history.state import FoldState
from proof.coordinator_model import schedule as actions
from proof.coordinator_model.schedule import Action, Join, Schedule
from proof.recorded_schedules import METADATA_AGE_MS, SESSION_MS, STATIC_SESSION_MS
from servers.kafka import Broker
from servers.kafka_cluster import KafkaCluster
from servers.offsets_topic import read_records
from support.history_tables import History
from support.kafka_clients import await_that, commit_all
from support.observed_groups import (
    PATIENCE_SECONDS,
    Client,
    ClientGroup,
    GroupDescription,
    Member,
    MemberProcess,
    MemberSpec,
    StableState,
    await_stable,
    now_ms,
)


@dataclass(frozen=True)
class Step:
    """An action, its time, and the stable state that the group reached after it; None for several actions at once.

    `member` is the one that a join started, or that the action was about; `returned` of a join the one whose instance
    id it has, as long as the group kept its place.
    """

    action: Action | None
    began_ms: int
    stable: StableState
    member: Member | None = None
    returned: Member | None = None


@dataclass
class Run:
    """One recorded run of a schedule; topic names begin with the group id. `schedule` is set for random ones."""

    group_id: str
    library: Client
    steps: list[Step] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    schedule: Schedule | None = None

    def records(self, of_groups: Mapping[str, tuple[int, list[Record]]]) -> list[Record]:
        """Return the group's records up to its last stable state: what follows is the cleanup."""
        _, listed = of_groups[self.group_id]
        return [record for record in listed if record.at <= self.steps[-1].stable.at_ms]

    def steps_after(self) -> Iterator[tuple[StableState | None, Step]]:
        """Yield each step after the stable state that precedes it."""
        before = None
        for step in self.steps:
            yield before, step
            before = step.stable


@dataclass(frozen=True)
class Environment:
    """The broker that runs use; `names` has topics by id, `move` is called where a coordinator moves."""

    broker: Broker
    names: dict[str, str]
    move: Callable[[], object]


class ScheduleRunner:
    """Runs one schedule; `crashing` are the clients that it kills, which need their own process."""

    def __init__(
        self, environment: Environment, run: Run, topics: Mapping[str, int], crashing: frozenset[str]
    ) -> None:
        self._environment = environment
        self._run = run
        self._crashing = crashing
        self._clients: dict[str, Member] = {}
        self._away: dict[str, Member] = {}
        self._bootstrap = environment.broker.bootstrap
        self._admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 2})
        self._group = MixedClientGroup(self._bootstrap, run.group_id)
        for topic, partitions in topics.items():
            self._create(topic, partitions)

    def run(self, schedule: Sequence[Action]) -> None:
        """Run all actions, then close all members."""
        try:
            for action in schedule:
                self._step(action)
        finally:
            for member in self._run.members:
                member.request_leave()
            self._group.close()

    def _step(self, action: Action) -> None:
        began = now_ms()
        if isinstance(action, Join):
            returned = self._away.pop(action.instance_id or "", None) or self._replaced(action)
            member: Member | None = self._join(action)
        else:
            returned, member = None, self._clients.get(getattr(action, "client", ""))
            self._do(action, member)
        generation = self._run.steps[-1].stable.group.generation if isinstance(action, actions.Subscribe) else None
        stable = self._group.await_agreement(
            list(self._clients.values()), list(self._away.values()), after=generation
        )
        self._run.steps.append(Step(action, began, stable, member, returned))

    def _replaced(self, join: Join) -> Member | None:
        if join.instance_id is None:
            return None
        others = [one for one in self._clients.values() if one.spec.instance_id == join.instance_id]
        for other in others:
            self._forget(other)
        return others[0] if others else None

    def _forget(self, member: Member) -> None:
        self._clients = {name: one for name, one in self._clients.items() if one is not member}

    def _join(self, join: Join) -> Member:
        member = (MemberProcess if join.client in self._crashing else Member)(self._spec(join))
        self._clients[join.client] = member
        self._run.members.append(member)
        return member

    def _spec(self, join: Join) -> MemberSpec:
        is_new_protocol = join.protocol == "consumer"
        cooperative = join.assignors == ("cooperative-sticky",)
        return MemberSpec(
            self._bootstrap,
            self._run.group_id,
            join.client_id or f"{self._run.group_id}-{join.client}",
            tuple(map(self._topic, join.topics)) if join.pattern is None else (self._pattern(join.pattern),),
            client="kip-848" if is_new_protocol else "librdkafka" if cooperative else self._run.library,
            assignor="uniform" if is_new_protocol else join.assignors[0],
            instance_id=join.instance_id,
            session_ms=SESSION_MS if join.instance_id is None else STATIC_SESSION_MS,
            metadata_age_ms=METADATA_AGE_MS,
        )

    def _topic(self, topic: str) -> str:
        return f"{self._run.group_id}.{topic}"

    def _pattern(self, pattern: str) -> str:
        return f"^{self._run.group_id}[.]{pattern.removeprefix('^')}"

    def _do(self, action: Action, member: Member | None) -> None:
        if member is not None:
            self._do_with(member, action)
            return
        match action:
            case actions.CreateTopic(topic=topic, partitions=partitions):
                self._create(topic, partitions)
            case actions.AddPartitions(topic=topic, more=more):
                name = self._topic(topic)
                self._group.add_partitions(name, self._group.topics[name] + more)
            case actions.DeleteTopic(topic=topic):
                self._admin.delete_topics([self._topic(topic)])[self._topic(topic)].result(PATIENCE_SECONDS)
                del self._group.topics[self._topic(topic)]
            case actions.ResetOffsets(topic=topic):
                self._group.reset(self._topic(topic))
            case actions.DeleteGroup():
                self._group.delete()
            case actions.MoveCoordinator():
                self._environment.move()
            case actions.Wait(ms=ms):
                threading.Event().wait(ms / 1_000)
                self._away.clear()
            case _:
                raise ValueError(f"no real client can {action}")

    def _do_with(self, member: Member, action: Action) -> None:
        match action:
            case actions.Leave() | actions.Crash():
                self._forget(member)
                if member.spec.instance_id:
                    self._away[member.spec.instance_id] = member
                if isinstance(action, actions.Crash) and isinstance(member, MemberProcess):
                    member.crash()
                else:
                    member.leave()
            case actions.Subscribe(topics=topics):
                wanted = tuple(map(self._topic, topics))
                member.spec = replace(member.spec, topics=wanted)
                member.command(wanted)
            case actions.Commit():
                member.command("commit")
            case _:
                raise ValueError(f"no real client can {action}")

    def _create(self, topic: str, partitions: int) -> None:
        name = self._topic(topic)

        def is_created() -> bool:
            made = self._admin.create_topics([NewTopic(name, partitions)])[name]
            return made.exception(PATIENCE_SECONDS) is None

        def is_described() -> bool:
            with contextlib.suppress(KafkaException):
                described = self._admin.describe_topics(TopicCollection([name]))[name].result(PATIENCE_SECONDS)
                self._environment.names[id_text(described.topic_id)] = name
                return True
            return False

        await_that(is_created)  # what was deleted just before may still be there
        await_that(is_described)
        self._group.topics[name] = partitions


class MixedClientGroup(ClientGroup):
    """A group whose members may be of either protocol, and change it."""

    def __init__(self, bootstrap: str, group_id: str) -> None:
        super().__init__(bootstrap, group_id, {})
        self._bootstrap = bootstrap

    def await_agreement(self, running: list[Member], away: list[Member], *, after: int | None) -> StableState:
        """Wait until the admin client and all members agree, in a generation later than `after`."""

        def later() -> GroupDescription | None:
            group = self._settled(running, away)
            return None if group is not None and after is not None and group.generation == after else group

        return await_stable(
            later,
            lambda: (self.group_id, self._described(), [member.last_event for member in running]),
        )

    def close(self) -> None:
        self._admin.close()

    def reset(self, topic: str) -> None:
        """Set the empty group's offsets, as an operator does."""
        commit_all(self._bootstrap, self.group_id, {(topic, number): 7 for number in range(self.topics[topic])})

    def _settled(self, running: list[Member], away: list[Member]) -> GroupDescription | None:
        group = self._described()
        if not running and not away:
            return group if group.state in ("Empty", "Dead") and not group.members else None
        events = [event for member in running if (event := member.last_event) is not None]
        patterns = {topic for member in running for topic in member.spec.topics if topic.startswith("^")}
        wanted = {topic for member in (*running, *away) for topic in member.spec.topics}
        wanted |= {topic for topic in self.topics if patterns}
        every = {(topic, number) for topic in wanted & self.topics.keys() for number in range(self.topics[topic])}
        is_settled = (
            (group.state == "Stable" or bool(away))
            and len(events) == len(running)
            and len(group.members) == len(running) + len(away)
            and len({event.generation for event in events}) <= 1
            and frozenset().union(*(described.partitions for described in group.members.values())) == every
            and all(
                event.member_id in group.members and group.members[event.member_id].partitions == event.holds
                for event in events
            )
        )
        return replace(group, generation=events[0].generation if events else None) if is_settled else None

    def _described(self) -> GroupDescription:
        """By the request of the group's own protocol."""
        classic = self._described_classic()
        if classic.state == "Dead":
            try:
                return self._described_consumer()
            except KafkaException:
                # There is no such group, or the broker knows no such request; after its restart the client hangs.
                self._consumer_admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 2})
        return classic


def id_text(topic_id: Uuid) -> str:
    """As records hold it."""
    halves = (topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    return urlsafe_b64encode(b"".join((half % (1 << 64)).to_bytes(8, "big") for half in halves))[:22].decode()


def crashing(schedule: Sequence[Action]) -> frozenset[str]:
    """The clients that are killed: they need a process of their own."""
    return frozenset(one.client for one in schedule if isinstance(one, actions.Crash))


# --- the log -----------------------------------------------------------------------------------------------


def group_records(broker: Broker | KafkaCluster) -> dict[str, tuple[int, list[Record]]]:
    """Every group's records, as the history job reads them from the decoded tables, and their partition."""
    found: dict[str, tuple[int, list[Record]]] = {}
    for one in read_records(broker.bootstrap):
        table, row = decode_row(one.key, one.value)
        record = _record(one.offset, one.timestamp_ms, table, row)
        if record is not None:
            record = record._replace(leader_epoch=one.leader_epoch)
            found.setdefault(row["group_id"], (one.partition, []))[1].append(record)
    return found


def _record(offset: int, at: int, table: str, row: Mapping[str, Any]) -> Record | None:
    if table == "offset_commits":
        return Record(offset, at, COMMIT_TOMBSTONE, None, None) if row["is_tombstone"] else None
    if table == "group_metadata":
        return Record(offset, at, CLASSIC, None, None if row["is_tombstone"] else _classic_body(row))
    name = row["member_id"] or json.loads(row["key_json"]).get("regularExpression")
    body = None if row["value_json"] is None else json.loads(row["value_json"])
    return Record(offset, at, row["record_type"], name, body)


def _classic_body(row: Mapping[str, Any]) -> dict[str, Any]:
    state_at = row["state_at"]
    return {
        **{name: row[name] for name in ("protocol_type", "generation", "protocol", "leader")},
        "state_at": None if state_at is None else round(state_at.timestamp() * 1000),
        "members": [
            {**member, **{part: _without_nulls(member[part]) for part in ("subscription", "assignment")}}
            for member in row["members"]
        ],
    }


def _without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    """As `to_json` leaves them out."""
    return {name: value for name, value in values.items() if value is not None}


def folded(records: Mapping[str, tuple[int, list[Record]]], names: Mapping[str, str]) -> History:
    """The history of all groups."""
    tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for group_id, (partition, listed) in records.items():
        state = FoldState(group_id, partition)
        for row in fold_group(state, listed, complete_to=listed[-1].offset + 2, names=names).rows:
            tables[row.table].append(row.values())
    return History({table: tables[table] for table in TABLES})

"""Run random schedules of the coordinator model with real clients on a real broker, many groups at once.

`playable` turns a schedule of `strategies.random_schedule` into one that both the model and real clients can play, as
it is and in the same order:

- Kafka 4.3 or later; classic members are librdkafka or kafka-python: there is no Java client here. librdkafka has no
  `sticky`, kafka-python is not asked for `cooperative-sticky`.
- One assignor for all members of a group: librdkafka does not mix cooperative and eager ones.
- A wait of `STABLE_WAIT_MS` or longer lasts until the group is stable; a shorter one lasts as long as it says, so
  that actions overlap with the rebalances that earlier ones began.
- Where the coordinator moves, the broker is killed and restarted once all groups are stable.
- A static member has a different instance id for each protocol: the model has none that changes its protocol.
- A stalled client is frozen (SIGSTOP). Dropped are `Rejoin` and `UpgradeBroker`, which neither of these clients nor
  one broker can do, CloseOptions.LEAVE_GROUP, and other topics for a client that subscribes to a pattern.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

from kafka import OffsetAndMetadata, TopicPartition
from kafka.admin import MemberToRemove
from kafka.errors import KafkaError

from proof.coordinator_model import schedule as actions
from proof.coordinator_model.schedule import Action, Join, Schedule
from proof.coordinator_model.strategies import random_schedule
from proof.model_calibration import version_of
from proof.recorded_runs import Environment, MixedClientGroup, Run, ScheduleRunner, Step
from support.observed_groups import (
    PATIENCE_SECONDS,
    GroupDescription,
    Member,
    MemberProcess,
    MemberSpec,
    NotStableError,
    StableState,
    await_stable,
    now_ms,
)

STABLE_WAIT_MS = 8_000
SESSION_MS = 10_000
HEARTBEAT_MS = 3_000
METADATA_AGE_MS = 1_000
NEW_TOPICS_MS = 5_000
"""How long it takes clients to learn of topics, although they refresh their metadata each second."""
UNCHANGED_MS = 20_000
"""A group that does not change for so long is stable, although its members do not have what they subscribe to: a
static member that comes back with other topics keeps what it had."""
_DESCRIBE_SECONDS = 0.5
_YEAR_MS = 365 * 24 * 3_600_000

PROPERTIES = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "3000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.min.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "offsets.topic.num.partitions": "4",
    "offsets.retention.check.interval.ms": str(24 * 3_600_000),
}
"""The broker's settings; those of the model are in `playable`."""


def schedules(count: int, release: str) -> dict[str, Schedule]:
    """Return the generator's first schedules for Kafka 4.3 or later, as they can be played on a release, by group."""
    found: dict[str, Schedule] = {}
    seed = 0
    while len(found) < count:
        schedule = random_schedule(Random(seed))
        if schedule.version >= "4.3":
            found[f"random-{seed}"] = replace(playable(schedule), version=version_of(release))
        seed += 1
    return found


def playable(schedule: Schedule) -> Schedule:
    """Return the part of a schedule that both real clients and the model can run."""
    first = next(one for one in schedule.actions if isinstance(one, Join))
    assignor = first.assignors[0]
    library = "librdkafka" if first.library == "java" or assignor == "cooperative-sticky" else first.library
    library = "kafka-python" if assignor == "sticky" else library
    by_pattern = {one.client for one in schedule.actions if isinstance(one, Join) and one.pattern}
    stalled: set[str] = set()
    found: list[Action] = []
    for action in schedule.actions:
        client = getattr(action, "client", "")
        match action:
            case Join():
                found.append(
                    replace(
                        action,
                        assignors=(assignor,),
                        library=library,
                        instance_id=action.instance_id and f"{action.instance_id}-{action.protocol}",
                        session_ms=SESSION_MS,
                        rebalance_ms=300_000,
                        metadata_age_ms=NEW_TOPICS_MS,
                    )
                )
            case actions.Rejoin() | actions.UpgradeBroker():
                pass
            case actions.Subscribe() | actions.Commit() if client in stalled | by_pattern:
                pass
            case actions.Leave():
                found.append(actions.Crash(client) if client in stalled else actions.Leave(client))
                stalled.discard(client)
            case actions.Stall():
                stalled.add(client)
                found.append(actions.Stall(client, "frozen"))
            case actions.MoveCoordinator():
                found += [actions.Wait(STABLE_WAIT_MS), actions.MoveCoordinator("killed")]
            case _:
                if isinstance(action, actions.Resume | actions.Crash):
                    stalled.discard(client)
                found.append(action)
    return replace(
        schedule,
        actions=tuple(found),
        consumer_session_ms=SESSION_MS,
        retention_check_ms=_YEAR_MS,
    )


def run_all(
    environment: Environment, played: Mapping[str, Schedule], barrier: Barrier
) -> tuple[list[Run], list[NotStableError]]:
    """Run one schedule per group, all at once; return the complete runs, and why others were given up.

    A client may hang for ever: kafka-python's round robin, for one, fails with static members of some names.
    """
    runs = {group_id: Run(group_id, "librdkafka", schedule=one) for group_id, one in played.items()}

    given_up: dict[str, NotStableError] = {}

    def run_schedule(group_id: str) -> None:
        try:
            RandomScheduleRunner(environment, runs[group_id], played[group_id]).run(played[group_id].actions)
        except NotStableError as error:
            given_up[group_id] = error
        finally:
            barrier.finish()

    with ThreadPoolExecutor(len(runs)) as pool:
        for running in [pool.submit(run_schedule, group_id) for group_id in runs]:
            running.result()
    return [run for group_id, run in runs.items() if group_id not in given_up], list(given_up.values())


def waits_until_stable(action: Action) -> bool:
    """Whether an action waits until the group is stable."""
    return isinstance(action, actions.Wait) and action.ms >= STABLE_WAIT_MS


class Barrier:
    """A barrier that parties may leave: when all that remain wait, it runs an action once and releases them."""

    def __init__(self, parties: int, action: Callable[[], object]) -> None:
        self._parties = parties
        self._action = action
        self._waiting = 0
        self._round = 0
        self._condition = threading.Condition()

    def wait(self) -> None:
        """Wait until the action has been done."""
        with self._condition:
            self._waiting += 1
            now = self._round
            self._act_if_all_wait()
            is_done = self._condition.wait_for(lambda: self._round != now, 10 * PATIENCE_SECONDS)
            assert is_done, "the others did not come in time"

    def finish(self) -> None:
        """Leave: the others do not wait for this party any more."""
        with self._condition:
            self._parties -= 1
            self._act_if_all_wait()

    def _act_if_all_wait(self) -> None:
        if self._waiting and self._waiting == self._parties:
            self._action()
            self._waiting = 0
            self._round += 1
            self._condition.notify_all()


class RandomScheduleRunner(ScheduleRunner):
    """Runs one schedule; skips actions that are impossible at that time, as the model does."""

    def __init__(self, environment: Environment, run: Run, schedule: Schedule) -> None:
        own_process = {one.client for one in schedule.actions if isinstance(one, actions.Crash | actions.Stall)}
        super().__init__(environment, run, dict(schedule.topics), frozenset(own_process))
        self._group = _RandomClientGroup(self._bootstrap, run.group_id)
        self._group.topics = {f"{run.group_id}.{topic}": count for topic, count in schedule.topics}
        self._frozen: dict[str, MemberProcess] = {}
        self._done: list[Step] = []

    def run(self, schedule: Sequence[Action]) -> None:
        try:
            for action in schedule:
                if waits_until_stable(action):
                    self._await_stable()
                elif isinstance(action, actions.Wait):
                    threading.Event().wait(action.ms / 1_000)
                else:
                    self._act(action)
            self._await_stable()
        finally:
            for member in self._frozen.values():
                member.crash()
            for member in self._run.members:
                member.request_leave()
            self._group.close()

    def _await_stable(self) -> None:
        if not self._done:
            return
        running = [one for name, one in self._clients.items() if name not in self._frozen]
        stable = self._group.await_running_clients(running)
        first = self._done[0]
        failed = [member for member in self._clients.values() if member.has_ended]  # fenced, or by a fault of its own
        for member in failed:
            self._forget(member)
        is_known = len(self._done) == 1 and not failed
        step = replace(first, stable=stable) if is_known else Step(None, first.began_ms, stable)
        self._run.steps.append(step)
        self._done = []

    def _act(self, action: Action) -> None:
        began = now_ms()
        member = self._running(getattr(action, "client", ""))
        if isinstance(action, Join):
            if member is not None:
                return
            self._frozen.pop(action.client, None)
            for other in list(self._clients.values()):
                is_static = action.instance_id and other.spec.instance_id == action.instance_id
                if is_static and other.spec.client != "kip-848":
                    other.mark_gone()  # it learns later that it has been fenced
            member = self._join(action)
        elif hasattr(action, "client"):
            if member is None:
                return
            self._act_on(member, action)
        elif not self._change(action):
            return
        # Static members come and go in ways whose causes are not known from one action alone.
        is_plain = isinstance(action, _PLAIN) and (member is None or member.spec.instance_id is None)
        stable = StableState(began, GroupDescription("", None, None, {}))  # the one that follows takes its place
        self._done.append(Step(action if is_plain else None, began, stable, member))

    def _running(self, client: str) -> Member | None:
        member = self._clients.get(client)
        return None if member is None or member.has_ended else member

    def _spec(self, join: Join) -> MemberSpec:
        spec = super()._spec(join)
        client = spec.client if spec.client == "kip-848" else join.library
        assert client != "java"
        return replace(
            spec, client=client, session_ms=SESSION_MS, heartbeat_ms=HEARTBEAT_MS, metadata_age_ms=METADATA_AGE_MS
        )

    def _act_on(self, member: Member, action: Action) -> None:
        name: str = getattr(action, "client", "")
        match action:
            case actions.Stall():
                assert isinstance(member, MemberProcess)
                if name not in self._frozen:
                    self._frozen[name] = member
                    member.freeze()
            case actions.Resume():
                if name in self._frozen:
                    self._frozen.pop(name).thaw()
            case actions.RemoveMember():
                if member.spec.instance_id is not None:
                    member.mark_gone()
                    self._group.remove([MemberToRemove(group_instance_id=member.spec.instance_id)])
            case actions.Commit():
                if name not in self._frozen and member.last_event is not None and member.last_event.holds:
                    member.command("commit")
            case actions.Crash() if name in self._frozen:
                self._forget(member)
                self._frozen.pop(name).crash()
            case _:
                self._do_with(member, action)

    def _change(self, action: Action) -> bool:
        """Change topics, offsets or the group; return whether anything was tried."""
        topics = self._group.topics
        name = self._topic(getattr(action, "topic", ""))
        if isinstance(action, actions.CreateTopic) and name in topics:
            return False
        if isinstance(action, _NEED_A_TOPIC) and name not in topics:
            return False
        match action:
            case actions.ResetOffsets():
                self._group.reset_once(name)
            case actions.DeleteOffsets():
                self._group.delete_offsets(name)
            case actions.DeleteGroup():
                self._group.delete_group()
            case actions.RemoveAllMembers():
                for one in self._clients.values():
                    if one.spec.client != "kip-848":
                        one.mark_gone()
                self._group.remove_all()
            case _:
                self._do(action, None)
        return True


# Actions whose rebalance has a known cause if nothing else was done since the previous stable state.
_PLAIN = (
    *(Join, actions.Leave, actions.Crash, actions.Subscribe, actions.MoveCoordinator),
    *(actions.CreateTopic, actions.AddPartitions, actions.DeleteTopic),
)
_NEED_A_TOPIC = (actions.AddPartitions, actions.DeleteTopic, actions.ResetOffsets, actions.DeleteOffsets)


class _RandomClientGroup(MixedClientGroup):
    """A group that is stable only when its members are exactly the running clients."""

    _unchanged: tuple[int, GroupDescription] | None = None

    def await_running_clients(self, clients: list[Member]) -> StableState:
        """Wait until the admin client and all running clients agree, and ended clients are out of the group."""

        def running() -> list[Member]:
            return [one for one in clients if not one.has_ended and self._joins(one)]

        return await_stable(
            lambda: self._agreed_by(running()),
            lambda: (self.group_id, self._described(), [(one.spec.client_id, one.last_event) for one in running()]),
            pause_seconds=_DESCRIBE_SECONDS,
        )

    def _agreed_by(self, running: list[Member]) -> GroupDescription | None:
        group = self._described()
        if not running:
            return group if group.state in ("Empty", "Dead") and not group.members else None
        events = [(member, event) for member in running if (event := member.last_event) is not None]
        given = {name: described.partitions for name, described in group.members.items()}
        is_settled = (
            group.state == "Stable"
            and len(events) == len(running)
            and given == {event.member_id: event.holds for _, event in events}
            and len({event.generation for _, event in events}) == 1
        )
        if not is_settled:
            self._unchanged = None
            return None
        settled = replace(group, generation=events[0][1].generation)
        is_covered = all(
            {topic for topic, _ in event.holds} <= self._wanted(member) for member, event in events
        ) and frozenset[tuple[str, int]]().union(*given.values()) == self._all_wanted(running)
        if self._unchanged is None or self._unchanged[1] != settled:
            self._unchanged = (now_ms(), settled)
        return settled if is_covered or now_ms() - self._unchanged[0] >= UNCHANGED_MS else None

    def _joins(self, member: Member) -> bool:
        """Whether it is a member: in the classic protocol, librdkafka does not join while it has no topics."""
        return member.spec.client != "librdkafka" or bool(self._wanted(member))

    def _wanted(self, member: Member) -> set[str]:
        """The topics that are there and that a member subscribes to."""
        [*names] = member.spec.topics
        if names[0].startswith("^"):
            return {topic for topic in self.topics if re.match(names[0], topic)}
        return self.topics.keys() & set(names)

    def _all_wanted(self, running: list[Member]) -> frozenset[tuple[str, int]]:
        topics = {topic for member in running for topic in self._wanted(member)}
        return frozenset((topic, number) for topic in topics for number in range(self.topics[topic]))

    # What the broker refuses, as it should, is passed over

    def reset_once(self, topic: str) -> None:
        """Set the offsets of a topic, unless the group has members."""
        wanted = {TopicPartition(topic, n): OffsetAndMetadata(7, "", -1) for n in range(self.topics[topic])}
        with contextlib.suppress(KafkaError):
            self._admin.alter_group_offsets(self.group_id, wanted)

    def delete_offsets(self, topic: str) -> None:
        """Delete the offsets of a topic, unless the group subscribes to it."""
        with contextlib.suppress(KafkaError):
            self._admin.delete_group_offsets(
                self.group_id, [TopicPartition(topic, n) for n in range(self.topics[topic])]
            )

    def delete_group(self) -> None:
        """Delete the group, unless it has members."""
        with contextlib.suppress(KafkaError):
            self._admin.delete_groups([self.group_id])

    def remove(self, members: list[MemberToRemove]) -> None:
        """Remove members, as an administrator."""
        with contextlib.suppress(KafkaError):
            self._admin.remove_group_members(self.group_id, members)

    def remove_all(self) -> None:
        """Remove all members of a classic group."""
        self.remove([MemberToRemove(member_id=name) for name in self._described_classic().members])

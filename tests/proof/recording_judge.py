"""Compare the history with the facts of a run that are known without the log.

A fact is `right` if the history says the same, `admitted` if the history says that it does not know or names the
truth among alternatives, else `wrong`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from proof.coordinator_model import schedule as actions
from proof.recorded_runs import Run, Step, folded
from proof.recordings import Recording
from support.history_tables import History, Row, partitions_of
from support.observed_groups import Member, Partition, StableState, held_intervals

Verdict = Literal["right", "admitted", "wrong"]


@dataclass(frozen=True)
class Fact:
    """A known fact, its source, and what the history says."""

    group_id: str
    about: str
    truth: object
    said: object
    verdict: Verdict


MEMBER_GONE = "member_left_or_expired"
LEADER = "leader_rejoined_or_coordinator_moved"
REJOINED = "leader_rejoined"
MOVED = "coordinator_moved"
METADATA = "topic_metadata_changed"

# What an ambiguous or likely cause names besides itself, in its note: see `grouptrail.history.evidence`.
ALTERNATIVES = {
    MEMBER_GONE: {"member_left", "member_expired"},
    METADATA: {"partitions_added", "topic_created", "topic_deleted", "topic_remade"},
    LEADER: {"topic_created", MOVED},
    REJOINED: {"topic_created", MOVED},
    "static_member_expired_or_removed": {"member_expired"},
    "cooperative_follow_up": {"topic_remade"},
    "member_rejoined": {"member_left", "member_joined"},
    "topic_created": {"topic_remade"},
    "partitions_added": {"topic_remade"},
    "subscription_changed": {"topic_created", "topic_deleted"},
}

# How a membership may end, by what was done.
ENDINGS = {
    "left": {"left"},
    "expired": {"expired"},
    "left_or_poll_timeout": {"left", "poll_timeout"},
    "left_or_expired": {"left", "expired"},
    "expired_or_removed": {"expired"},
}


def facts_of(run: Run, history: History) -> Iterator[Fact]:
    """Every fact of one run."""
    last_owners: dict[Partition, str] = {}
    for before, step in run.steps_after():
        yield from _while_stable(run, step.stable, history)
        yield from _of_action(run, before, step, last_owners, history)
        from_ms = before.at_ms if before else 0
        last_owners |= _assigned(run, from_ms, step.stable.at_ms) | _owners(step.stable)
        if step.stable.group.state == "Dead":
            last_owners = {}
    for member in run.members:
        yield from _received(run, member, history)
        yield from held_facts(run.group_id, member, history)
    for row in history.of("generations", run.group_id):
        if row["member_count"]:
            verdict = _judged(True, row["is_assignors_own"])
            yield Fact(run.group_id, "assignor", True, (row["is_assignors_own"], row["assignment_note"]), verdict)


def _judged(truth: object, said: object) -> Verdict:
    return "admitted" if said is None else "right" if said == truth else "wrong"


# Stable states: what the admin client and the members agree upon


def _while_stable(run: Run, stable: StableState, history: History) -> Iterator[Fact]:
    group_id, group, at_ms = run.group_id, stable.group, stable.at_ms

    def fact(about: str, truth: object, said: object) -> Fact:
        return Fact(group_id, about, truth, said, _judged(truth, said))

    if group.state == "Unknown":  # what librdkafka calls Reconciling
        group = replace(group, state="Reconciling")
    states = history.at("group_states", group_id, at_ms, "started_at", "ended_at")
    yield fact("state", [group.state], [row["state"] for row in states] or None)
    if group.state == "Dead":
        return
    generations = history.at("generations", group_id, at_ms, "started_at", "ended_at")
    if group.generation is not None:
        said = [row["generation"] for row in generations] or None
        truth = said if said in ([one] for one in _learned_just_after(run, at_ms)) else [group.generation]
        yield fact("generation", truth, said)
    if group.members:
        yield fact("protocol", [group.protocol], [row["protocol"] for row in generations] or None)
    memberships = history.at("memberships", group_id, at_ms, "joined_at", "left_at")
    by_member = {row["member_id"]: row for row in memberships}
    yield fact("members", sorted(group.members), sorted(by_member))
    listed = {one["member_id"]: one for row in generations for one in row["members"] or ()}
    for member_id, described in group.members.items():
        row = by_member.get(member_id)
        identity = (described.instance_id, described.client_id, described.host)
        said = row and (row["instance_id"], row["client_id"], row["client_host"])
        yield fact("member", (member_id, *identity), (member_id, *(said or ())))
        in_generation = listed.get(member_id)
        if in_generation is not None and in_generation["partitions"] is not None:
            yield fact("assignment", described.partitions, partitions_of(in_generation["partitions"]))
    owners = {
        partition: member_id for member_id, described in group.members.items() for partition in described.partitions
    }
    owned: dict[Partition, list[str]] = {}
    for row in history.at("partition_ownership", group_id, at_ms, "owned_from", "owned_until"):
        owned.setdefault((row["topic"], row["partition"]), []).append(row["member_id"])
    for partition in sorted(owners.keys() | owned.keys()):
        yield fact("owner", (partition, [owners.get(partition)]), (partition, owned.get(partition)))


def _learned_just_after(run: Run, at_ms: int) -> set[int]:
    """The epochs that KIP-848 members report after a stable state: the answer to a heartbeat had not been polled yet,
    while the admin client already described the group in its new epoch."""
    return {
        event.generation
        for member in run.members
        if member.spec.client == "kip-848"
        for event in member.events
        if event.kind == "joined" and at_ms < event.at_ms <= at_ms + _UNTIL_POLLED_MS
    }


_UNTIL_POLLED_MS = 500


# Of an action: what happened between two stable states


def _of_action(
    run: Run, before: StableState | None, step: Step, last_owners: Mapping[Partition, str], history: History
) -> Iterator[Fact]:
    from_ms = before.at_ms if before else 0
    rows = [row for row in history.of("rebalances", run.group_id) if from_ms < row["at"] <= step.stable.at_ms]
    rows.sort(key=lambda row: (row["at"], row["record_offset"]))
    yield from _cause(run, before, step, rows)
    yield from _memberships(run, before, step, history, from_ms)
    yield from _moves(run, before, step, rows, last_owners)


def _members(stable: StableState | None) -> set[str]:
    return set(stable.group.members) if stable else set()


def _cause(run: Run, before: StableState | None, step: Step, rows: list[Row]) -> Iterator[Fact]:
    """What was done is a cause, or an alternative, of a rebalance; and no rebalance has a cause that cannot be."""
    if step.action is None:
        return
    truths = causes_of(step, before)
    said = [(row["cause"], row["certainty"], row["cause_note"]) for row in rows]
    if not truths:
        unmoved = before is not None and before.group == step.stable.group
        if unmoved:
            yield Fact(run.group_id, "no rebalance", [], said, "wrong" if rows else "right")
        return
    if step.stable.group.generation == (before and before.group.generation) and not rows:
        return  # the coordinator needed no rebalance
    exact = [row for row in rows if row["cause"] in truths]
    unsure = [row for row in rows if row["certainty"] == "likely" or row["cause"] == "unknown"]
    named = [row for row in rows if row["certainty"] == "ambiguous" and truths & _alternatives(row)]
    verdict: Verdict = "right" if exact else "admitted" if named or unsure else "wrong"
    yield Fact(run.group_id, f"cause of {type(step.action).__name__}", truths, said, verdict)
    # A client that was away for longer than its session may come back, under another id, in the next step.
    came_and_went = {"members_joined_and_left", "member_rejoined"} if _are_exchanged(before, step.stable) else set()
    for row in rows:
        possible = truths | FOLLOW_UPS | came_and_went
        if row["certainty"] == "recorded" and row["cause"] not in possible:
            yield Fact(run.group_id, "recorded cause", possible, said, "wrong")


def _are_exchanged(before: StableState | None, stable: StableState) -> bool:
    had, has = _members(before), _members(stable)
    return bool(had - has) and bool(has - had)


def _alternatives(row: Row) -> set[str]:
    return {row["cause"], *ALTERNATIVES.get(row["cause"], ())}


# What may follow any rebalance, and why.
FOLLOW_UPS = {"cooperative_follow_up", LEADER, REJOINED, METADATA}


# What actions show by that do not change who belongs to the group.
_CAUSES: dict[type[Any], set[str]] = {
    actions.Subscribe: {"subscription_changed"},
    actions.AddPartitions: {"partitions_added"},
    actions.CreateTopic: {"topic_created", METADATA},
    actions.DeleteTopic: {"topic_deleted"},
}


def causes_of(step: Step, before: StableState | None) -> set[str]:
    """Return the causes by which the action may rightly be known, none for one that causes no rebalance."""
    members, now = _members(before), _members(step.stable)
    if isinstance(step.action, actions.Join):
        if _came_back(step):
            return {"static_member_replaced"}
        # Before 4.3 the first member of a group begins an epoch, and another one when its pattern is resolved.
        resolved = {"member_joined"} if step.action.pattern else set()
        return resolved | ({"member_joined", "protocol_migrated"} if members else {"group_started"})
    if isinstance(step.action, actions.Leave | actions.Crash | actions.Wait) and members != now:
        if not now:
            return {"group_emptied"}
        return {"member_left" if isinstance(step.action, actions.Leave) else "member_expired", "protocol_migrated"}
    if isinstance(step.action, actions.MoveCoordinator):
        # A client that finds no coordinator for longer than its session joins as a new member; if all do, the group
        # may be empty meanwhile.
        new = set() if members == now else {"member_joined", "member_rejoined", "member_expired"}
        if new and not members & now:
            new |= {"group_emptied", "group_started"}
        return {LEADER, MOVED} | new if before is not None and before.group != step.stable.group else set()
    causes = _CAUSES.get(type(step.action), set())
    if isinstance(step.action, actions.CreateTopic | actions.DeleteTopic):
        # librdkafka is a member only while there is one of its topics.
        causes = causes | ({"member_joined", "group_started"} if now - members else set())
        causes = causes | ({"member_expired", "group_emptied"} if members - now else set())
    return causes


def _memberships(run: Run, before: StableState | None, step: Step, history: History, from_ms: int) -> Iterator[Fact]:
    """Which members joined and left, when, and how; of several actions at once, which and when."""
    had, has = _members(before), _members(step.stable)
    until_ms = step.stable.at_ms
    # After a stable state, earlier actions may still have effects, as on a client that was away and has not noticed
    # it yet. A broker is killed when all groups are stable; until then the members of one may join again.
    is_moved = isinstance(step.action, actions.MoveCoordinator)
    began_ms = from_ms if step.action is None or is_moved else step.began_ms
    rows: dict[str, list[Row]] = {}
    for row in history.of("memberships", run.group_id):
        rows.setdefault(row["member_id"], []).append(row)
    for member_id in sorted(has - had):
        said = [(row["began"], row["joined_at"]) for row in rows.get(member_id, ())]
        truth = "replaced" if _came_back(step) else "joined"
        window = (truth, began_ms, until_ms)
        times = any(began_ms <= at <= until_ms for _, at in said)
        began = {began for began, _ in said}
        verdict: Verdict = "wrong"
        if times and (truth in began or is_moved or step.action is None):
            verdict = "right"
        elif times and began & {"there", "rejoined"}:
            verdict = "admitted"
        yield Fact(run.group_id, "joined", window, said, verdict)
    rejoined = _rejoined(run, until_ms)
    for member_id in sorted(had - has):
        ended = [(row["ended"], row["left_at"]) for row in rows.get(member_id, ()) if row["left_at"] is not None]
        truth = {_departure(step), *({"rejoined"} if member_id in rejoined else ())}
        times = any(began_ms - 1 <= at <= until_ms for _, at in ended)
        possible = {one for said, _ in ended for one in ENDINGS.get(said, {said})}
        verdict = "wrong"
        if times and ((len(possible) == 1 and possible <= truth) or step.action is None):
            verdict = "right"
        elif times and (truth & possible or is_moved):
            verdict = "admitted"
        yield Fact(run.group_id, "left", (member_id, truth, began_ms, until_ms), ended, verdict)


def _rejoined(run: Run, until_ms: int) -> set[str]:
    """Return the ids of dynamic members that their clients had before other ones, as the clients say.

    On a busy machine a client may lose its session, and join again, whatever the action.
    """
    found: set[str] = set()
    for member in run.members:
        if member.spec.instance_id is None:
            ids = [event.member_id for event in member.events if event.at_ms <= until_ms and event.member_id]
            found |= set(ids) - set(ids[-1:])
    return found


def _came_back(step: Step) -> bool:
    """Whether a static member returned before its session could end: how soon a process starts is not ours to say."""
    if step.returned is None or step.member is None:
        return False
    last = step.returned.events[-1]
    back = next((event.at_ms for event in step.member.events if event.kind == "assigned"), step.stable.at_ms)
    is_classic = step.returned.spec.client != "kip-848"
    return last.kind != "gone" or not is_classic or back - last.at_ms < step.returned.spec.session_ms


def _departure(step: Step) -> str:
    if isinstance(step.action, actions.Join):
        return "replaced" if _came_back(step) else "expired"
    return "left" if isinstance(step.action, actions.Leave) and not _is_static(step.member) else "expired"


def _is_static(member: Member | None) -> bool:
    return member is not None and member.spec.instance_id is not None


def _moves(
    run: Run, before: StableState | None, step: Step, rows: list[Row], last_owners: Mapping[Partition, str]
) -> Iterator[Fact]:
    """What a single rebalance moved, by the assignments before and after it; who had a partition last may have given
    it up earlier."""
    if before is None or len(rows) != 1 or not before.group.members or not step.stable.group.members:
        return
    [row] = rows
    had, has = last_owners, _owners(step.stable)
    moved = {partition for partition in had.keys() & has.keys() if had[partition] != has[partition]}
    handed_over = {(one["topic"], one["partition"]) for one in row["handed_over"]}
    yield Fact(run.group_id, "handed over", moved, handed_over, _judged(moved, handed_over))
    counts = [len(moved), len(has.keys() - had.keys()), len(_owners(before).items() & has.items())]
    said = [row["partitions_moved"], row["partitions_added"], row["partitions_kept"]]
    ids = _ids(step.stable)
    if any(
        ids.get(one, had_id) != had_id for one, had_id in _ids(before).items()
    ):  # it came back before the rebalance and kept, or with it and did not
        del counts[2], said[2]
    yield Fact(run.group_id, "moved, added, kept", counts, said, _judged(counts, said))


def _owners(stable: StableState) -> dict[Partition, str]:
    return {
        partition: described.instance_id or member_id
        for member_id, described in stable.group.members.items()
        for partition in described.partitions
    }


def _assigned(run: Run, from_ms: int, until_ms: int) -> dict[Partition, str]:
    """Return the last member that was given each partition between two stable states, as the clients say: several
    rebalances may follow one action."""
    given = [
        (event.at_ms, partition, member.spec.instance_id or event.member_id)
        for member in run.members
        for event in member.events
        if event.kind == "assigned" and from_ms < event.at_ms <= until_ms
        for partition in event.partitions
    ]
    return {partition: owner for _, partition, owner in sorted(given)}


def _ids(stable: StableState) -> dict[str, str]:
    """The member ids of static members that are there, by instance id."""
    return {
        described.instance_id: name
        for name, described in stable.group.members.items()
        if described.instance_id is not None
    }


# What each client received


def _received(run: Run, member: Member, history: History) -> Iterator[Fact]:
    """Every assignment that a member of an eager group was given is in the row of its generation."""
    if member.spec.client == "kip-848" or member.spec.assignor == "cooperative-sticky":
        return
    rows = [row for row in history.of("generations", run.group_id) if row["group_kind"] == "classic"]
    for event in member.events:
        if event.kind != "assigned":
            continue
        said = [
            partitions_of(other["partitions"])
            for row in rows
            if row["generation"] == event.generation and row["started_at"] <= event.at_ms
            for other in row["members"] or ()
            if other["member_id"] == event.member_id
            or (member.spec.instance_id and other["instance_id"] == member.spec.instance_id)
        ]
        if said:
            verdict: Verdict = "right" if event.partitions in said else "wrong"
            yield Fact(run.group_id, "received", (event.generation, event.member_id, event.partitions), said, verdict)


def held_facts(group_id: str, member: Member, history: History) -> Iterator[Fact]:
    """A partition is owned for as long as its member had it."""
    rows = history.of("partition_ownership", group_id)
    # A cooperative member gives up partitions when it receives the generation, a moment after its record; librdkafka
    # joins again before it has called its user back, which it may do only after the next generation. The broker takes
    # the partitions of a KIP-848 member that unsubscribes from a topic at once, and the answer tells the member.
    is_called_back_later = member.spec.client in ("librdkafka", "kip-848")
    delay_ms = 2_000 + member.spec.heartbeat_ms if is_called_back_later else 0
    for partition, member_id, since, until in held_intervals(member.events):
        owned = [
            (row["owned_from"], row["owned_until"])
            for row in rows
            if (row["topic"], row["partition"], row["member_id"]) == (*partition, member_id)
        ]
        covered = any(start <= since and (end is None or until <= end + delay_ms) for start, end in owned)
        verdict: Verdict = "right" if covered else "wrong"
        yield Fact(group_id, "held", (partition, member_id, since, until), owned, verdict)


# All facts of a recording


def facts_of_recording(recording: Recording) -> list[Fact]:
    """Every fact of all its runs."""
    history = folded(recording.records, recording.names)
    return [fact for run in recording.runs for fact in facts_of(run, history)]


def check_facts(recording: Recording, wanted: int) -> str:
    """Return the table of a recording's facts; an AssertionError if one is wrong or there are fewer than wanted."""
    facts = facts_of_recording(recording)
    shown = f"\nKafka {recording.version}: {len(recording.runs)} runs\n\n{table(facts)}\n"
    wrong = [fact for fact in facts if fact.verdict == "wrong"]
    if wrong or len(facts) < wanted:
        raise AssertionError("\n".join([shown, *map(str, wrong)]))
    return shown


def counted(facts: Iterable[Fact]) -> Counter[Verdict]:
    return Counter(fact.verdict for fact in facts)


def table(facts: Iterable[Fact]) -> str:
    """Right, admitted and wrong of each kind of fact, as a table of Markdown."""
    by_kind: dict[str, Counter[Verdict]] = {}
    for fact in facts:
        by_kind.setdefault(fact.about, Counter())[fact.verdict] += 1
    by_kind["all"] = sum(by_kind.values(), Counter())
    lines = [
        f"| {kind} | {found['right']} | {found['admitted']} | {found['wrong']} |" for kind, found in by_kind.items()
    ]
    return "\n".join(["| fact | right | admitted | wrong |", "| --- | --- | --- | --- |", *lines])

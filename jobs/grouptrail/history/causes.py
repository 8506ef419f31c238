"""Find the evidence for the cause of a rebalance; the table in `evidence` maps it to a cause."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from grouptrail.history.changes import LATEST_FIRST_EPOCH, Change
from grouptrail.history.endings import ending
from grouptrail.history.evidence import COMPACTED_NOTE, IN_ONE_EPOCH, POLLED_NOTE, UNREADABLE_NOTE, Evidence
from grouptrail.history.group import Group, Member, Partition, PartitionCount, owned_by_anyone, targeted
from grouptrail.history.operations import CLASSIC
from grouptrail.history.reading import assignor_error
from grouptrail.history.rows import Values
from grouptrail.history.state import FoldState, TargetBaseline

# A leader asks for the metadata of topics that are new to its group at once (ConsumerCoordinator.onLeaderElected).
_RECENT_MS = 60_000

_WITHOUT_USER_DATA = ("range", "roundrobin")

# Until a coordinator answers again after a move, or a restart of its broker.
_LONGEST_MOVE_MS = 60_000


class Finding(NamedTuple):
    """A kind of evidence and its details."""

    evidence: Evidence
    detail: str | None = None


class Cause(NamedTuple):
    """A cause, its certainty (recorded, likely, ambiguous), a note on the alternatives, and the evidence for it."""

    name: str
    certainty: str
    note: str | None
    evidence: Evidence

    @property
    def columns(self) -> Values:
        """The columns of `rebalances` that say it."""
        proof = {"rule": self.evidence.name, "ruled_out": self.evidence.value.rules_out}
        return {"cause": self.name, "certainty": self.certainty, "cause_note": self.note, **proof}


@dataclass(frozen=True)
class Rebalance:
    """A new generation and what led to it.

    `joined`: the members that are new since the previous generation; `causing`: those among all members whose joining
    can have begun this one. `left_over`: partitions without an owner since an earlier rebalance. `recent_topics`:
    topics that members had subscribed to so recently that their leader may not have known them. `is_beginning`: the
    group's first generation, as far as the log shows. `is_after_revocation`: the previous generation took partitions
    from members. `is_joined_at_once`: they joined in the millisecond in which the previous generation began.
    `waiting`: the members whose patterns had not been resolved (`FoldState.waiting`). `last_at`: when (ms) the record
    before was written. `is_doubtful`: compaction may have taken records that show another cause.
    """

    change: Change
    joined: tuple[Member, ...]
    causing: tuple[Member, ...]
    left_over: Collection[Partition]
    recent_topics: Collection[str]
    is_first: bool
    is_beginning: bool
    is_after_downgrade: bool
    is_after_revocation: bool
    is_joined_at_once: bool
    waiting: Mapping[str, str]
    last_at: int | None
    is_doubtful: bool

    @classmethod
    def of(cls, state: FoldState, change: Change) -> Rebalance:
        """Return the rebalance of a change that begins a generation; `state` is the one before it."""
        earlier = [
            change.after.members[name] for name in sorted(state.joined_before_epoch & change.after.members.keys())
        ]
        joined = (*(member for member in earlier if member not in change.joined), *change.joined)
        causing = (*_resolved_joins(state, change), *(one for one in change.joined if _bumps_epoch(one, change)))
        is_first = change.before.generation is None
        is_revoking = any(one.claimed - (one.owned or frozenset()) for one in change.before.members.values())
        return cls(
            change,
            joined,
            causing,
            left_over=(state.given_up | state.kept_back) - state.withdrawn,
            recent_topics=recent_topics(state, change.at),
            is_first=is_first,
            is_beginning=is_first and is_beginning(change, state.joined_before_epoch),
            is_after_downgrade=state.is_converted and change.after.kind == "classic",
            is_after_revocation=bool(state.given_up) or is_revoking,
            is_joined_at_once=bool(earlier) and not change.joined and _are_joined_at_once(state, earlier),
            waiting=dict(state.waiting),
            last_at=state.last_at,
            is_doubtful=change.may_hide_another_group or state.unsure_from is not None,
        )


def _bumps_epoch(joined: Member, change: Change) -> bool:
    """Return whether a member's first request begins an epoch by itself.

    In a consumer or share group it does if it names topics, or a pattern that is already resolved for others
    (GMM.hasMemberSubscriptionChanged, maybeUpdateRegularExpressions).
    """
    if change.after.kind not in ("consumer", "share") or change.after.is_polled:
        return True
    return bool(joined.topics) or joined.topic_regex in change.before.regexes


def _resolved_joins(state: FoldState, change: Change) -> list[Member]:
    """Return the members that joined with a pattern which this operation resolves to topics."""
    members, known = change.after.members, change.before.regexes
    matched = {regex for regex, topics in change.after.regexes.items() if topics and regex not in known}
    return [
        members[name]
        for name, how in sorted(state.waiting.items())
        if how == "joined" and name in members and members[name].topic_regex in matched
    ]


def _are_joined_at_once(state: FoldState, members: Iterable[Member]) -> bool:
    previous, rows = state.rows.rebalance, state.rows.memberships
    return previous is not None and all(rows[one.member_id].joined_at == previous.at for one in members)


def recent_topics(state: FoldState, at: int) -> list[str]:
    """Return the topics that members first subscribed to shortly before a time (ms)."""
    return [topic for topic, since in state.subscribed_since.items() if at - since < _RECENT_MS]


def is_beginning(change: Change, joined_before: Collection[str] = ()) -> bool:
    """Return whether the first record that was read of a group can be its first one."""
    after = change.after
    if after.is_polled or after.generation is None:
        return False
    if after.kind == "classic":
        return after.generation <= 1
    if after.generation > LATEST_FIRST_EPOCH or not after.members:
        return False  # the first epoch is that of the first member
    if any(member.session_timeout_ms for member in after.members.values()):
        return False  # members of the classic protocol: the group was a classic one before
    described = {record.name for record in change.operation if record.type.endswith("MemberMetadata")}
    # A consumer group's first member gets its assignment at once: without one, compaction took earlier records.
    first = (0,) if after.kind == "consumer" else (None, 0)
    return all(
        name in joined_before
        or (name in described and (member.previous_epoch in first or _is_in_first_epoch(member, after)))
        for name, member in after.members.items()
    )


def _is_in_first_epoch(member: Member, group: Group) -> bool:
    """Return whether a member's records show no epoch before the group's.

    A member that still has partitions to revoke stays in an earlier epoch, so it joined before this one.
    """
    return member.previous_epoch == member.epoch == group.generation


def cause_of(rebalance: Rebalance) -> Cause:
    """Return the cause of a rebalance, as far as its records show."""
    cause = concluded_cause(_find(rebalance))
    if rebalance.change.after.is_polled:
        return with_doubt(cause, POLLED_NOTE)
    if rebalance.change.before.lacks_records or rebalance.change.after.lacks_records:
        return with_doubt(cause, UNREADABLE_NOTE)
    return with_doubt(cause, COMPACTED_NOTE) if rebalance.is_doubtful else cause


def with_doubt(cause: Cause, note: str) -> Cause:
    """Return the cause with a reason why it is not certain."""
    certainty = "likely" if cause.certainty == "recorded" else cause.certainty
    return cause._replace(certainty=certainty, note=f"{cause.note}; {note}" if cause.note else note)


def concluded_cause(finding: Finding) -> Cause:
    """Return the cause that evidence proves; the note names the alternatives."""
    conclusion = finding.evidence.value
    parts = [part for part in (finding.detail, conclusion.otherwise) if part]
    return Cause(conclusion.cause, conclusion.certainty, ", ".join(parts) or None, finding.evidence)


def _find(rebalance: Rebalance) -> Finding:
    change = rebalance.change
    if rebalance.is_first and not rebalance.is_beginning:
        return Finding(Evidence.FIRST_RECORD, "history begins here")
    if change.is_conversion:
        return Finding(_by_conversion(change), f"from {change.before.kind} to {change.after.kind}")
    if change.after.kind != "classic" and change.skipped and change.after.members:
        return Finding(Evidence.EPOCHS_MISSING, f"epochs missing before it: {change.skipped}")
    if (by_members := _by_members(rebalance)) is not None:
        return by_members
    return _classic(rebalance) if change.after.kind == "classic" else _of_epoch(rebalance)


def _by_conversion(change: Change) -> Evidence:
    if not change.before.members:
        return Evidence.EMPTY_GROUP_REPLACED
    removed = (
        CLASSIC if change.before.kind == "classic" else f"{(change.before.kind or '').capitalize()}GroupMetadata"
    )
    is_removed = any(record.type == removed and record.body is None for record in change.operation)
    is_next = change.after.generation == (change.before.generation or 0) + 1
    return Evidence.PROTOCOL_CONVERTED if is_removed and is_next else Evidence.OTHER_PROTOCOL


# Evidence in the members that joined and left


def _by_members(rebalance: Rebalance) -> Finding | None:
    """Return the first evidence that applies."""
    change = rebalance.change
    if change.after.lacks_members:
        return Finding(Evidence.MEMBERS_UNREADABLE)
    if not change.after.members:
        return Finding(Evidence.NO_MEMBERS, _endings(change.left, change))
    if rebalance.is_first or not change.before.members:
        is_shown = change.skipped == 0 or change.after.is_polled
        return Finding(Evidence.FIRST_MEMBERS if is_shown else Evidence.FIRST_MEMBERS_READ, "the first members")
    if rebalance.causing:
        waited = _listed({one.topic_regex or "" for one in rebalance.causing if one not in rebalance.joined})
        return Finding(
            _by_joined(rebalance), f"the pattern {waited} of earlier members was resolved" if waited else None
        )
    if change.left:
        shown = {ending(member, change).evidence.value.shows for member in change.left}
        return Finding(shown.pop() if len(shown) == 1 else Evidence.GONE, _endings(change.left, change))
    return next((finding for members, finding in _by_staying_members(change) if members), None)


def _by_joined(rebalance: Rebalance) -> Evidence:
    change = rebalance.change
    is_any_gone = bool(change.left or change.rejoined)
    if rebalance.is_joined_at_once:
        return Evidence.MEMBERS_ADDED_AT_ONCE_AND_GONE if is_any_gone else Evidence.MEMBERS_ADDED_AT_ONCE
    if is_any_gone:
        return Evidence.MEMBERS_ADDED_AND_GONE if change.left else Evidence.MEMBERS_ADDED_AND_RENEWED
    return Evidence.MEMBERS_ADDED


def _by_staying_members(change: Change) -> Iterator[tuple[object, Finding]]:
    is_classic = change.after.kind == "classic"
    came_back_with_others = [
        new for old, new in change.replaced if not is_classic and old.subscription != new.subscription
    ]
    before = change.before.members
    patterns = [one for one in change.resubscribed if one.topic_regex != before[one.member_id].topic_regex]
    yield [one for one in patterns if one.topic_regex in change.before.regexes], Finding(Evidence.PATTERN_DIFFERS)
    yield patterns, Finding(Evidence.UNRESOLVED_PATTERN_DIFFERS)
    yield change.resubscribed or came_back_with_others, Finding(Evidence.SUBSCRIPTIONS_DIFFER)
    yield change.rejoined, Finding(Evidence.MEMBERS_RENEWED, "same client id and host under a new id")
    yield is_classic and change.replaced, Finding(Evidence.STATIC_MEMBER_REPLACED)


def _endings(members: Iterable[Member], change: Change) -> str | None:
    return "; ".join(dict.fromkeys(ending(member, change).because for member in members)) or None


# Classic groups: evidence in the assignments


def _classic(rebalance: Rebalance) -> Finding:
    before, after = rebalance.change.before, rebalance.change.after
    if before.protocol != after.protocol:
        return Finding(Evidence.ASSIGNOR_DIFFERS, f"from {before.protocol} to {after.protocol}")
    if any(member.topics is None for group in (before, after) for member in group.members.values()):
        return Finding(Evidence.SUBSCRIPTIONS_UNREADABLE, "subscriptions could not be read")
    had, has = owned_by_anyone(before), owned_by_anyone(after)
    if had is None or has is None:
        return Finding(Evidence.ASSIGNMENTS_UNREADABLE, "assignments could not be read")
    if rebalance.is_after_downgrade:
        return Finding(Evidence.FIRST_AFTER_DOWNGRADE, "the first assignment by the classic members")
    if (error := assignor_error(rebalance.change.operation)) is not None:
        return Finding(Evidence.ASSIGNOR_ERROR, f"the application's leader assigned nothing: {error}")
    finding = _by_assignment(rebalance, had, has)
    return _by_probing_time(rebalance.change, finding) or _by_leader_epochs(rebalance, finding)


def _by_probing_time(change: Change, finding: Finding) -> Finding | None:
    """Return that a member was to join again when nothing else shows why, and it cannot have been long before.

    It polls, and the others join after it, within their poll timeouts.
    """
    if finding.evidence not in (Evidence.NOTHING_DIFFERS, Evidence.PARTITIONS_TAKEN_AWAY) or change.skipped:
        return None
    for member in change.before.members.values():
        due_at = member.rejoins_at
        if due_at is not None and 0 <= change.at - due_at <= 2 * (member.rebalance_timeout_ms or 0):
            due = f"{datetime.fromtimestamp(due_at / 1000, UTC):%F %T} UTC"
            return Finding(
                Evidence.PROBING_TIME_PASSED, f"{finding.detail}; {member.member_id} was to join again at {due}"
            )
    return None


def _by_assignment(rebalance: Rebalance, had: frozenset[Partition], has: frozenset[Partition]) -> Finding:
    after, left_over, new = rebalance.change.after, frozenset(rebalance.left_over), has - had
    back = has & left_over if after.is_cooperative else frozenset[Partition]()
    if new and new <= back:
        return Finding(Evidence.WITHHELD_PARTITIONS_ASSIGNED, "assigns partitions that members gave up before")
    if new and not had and (after.protocol_type != "connect" or new <= left_over):
        return Finding(
            Evidence.NOTHING_ASSIGNED_BEFORE,
            "nothing was assigned before: the leader knew no partitions of its topics",
        )
    return _by_partitions(had | back, has, rebalance.recent_topics) or _by_partitions_gone(
        had, has, after, is_after_revocation=after.is_cooperative and rebalance.is_after_revocation
    )


def _by_leader_epochs(rebalance: Rebalance, finding: Finding) -> Finding:
    """Return the finding with what the leader epochs add in which the two generations were written."""
    before, after = rebalance.change.before.leader_epoch, rebalance.change.after.leader_epoch
    if before is None or after is None:
        return finding
    if before == after:
        return _in_one_epoch(rebalance, finding)
    if before < after and finding.evidence == Evidence.NOTHING_DIFFERS:
        return _in_new_epoch(rebalance, finding)
    return finding


def _in_one_epoch(rebalance: Rebalance, finding: Finding) -> Finding:
    before, after = rebalance.change.before, rebalance.change.after
    evidence = IN_ONE_EPOCH.get(finding.evidence)
    if evidence is None:
        return finding
    if evidence is not Evidence.NOTHING_DIFFERS_IN_EPOCH:
        return finding._replace(evidence=evidence)
    if _can_only_the_leader_rejoin(before, after):
        evidence = Evidence.NOTHING_BUT_LEADER_IN_EPOCH
    return Finding(evidence, f"{finding.detail}; both in leader epoch {after.leader_epoch}: the leader joined again")


def _in_new_epoch(rebalance: Rebalance, finding: Finding) -> Finding:
    before, after = rebalance.change.before, rebalance.change.after
    # States of earlier releases have no offset.
    where = "before offset " if before.record_offset is None else f"between offsets {before.record_offset} and "
    moved = (
        f"the leader epoch of the coordinator's partition rose from {before.leader_epoch} to {after.leader_epoch} "
        f"{where}{after.record_offset}"
    )
    if not _is_soon(rebalance):
        return finding._replace(detail=f"{finding.detail}; {moved}, which may have been long before")
    if _can_only_the_leader_rejoin(before, after):
        return Finding(Evidence.NOTHING_BUT_LEADER_IN_NEW_EPOCH, f"{finding.detail}; {moved}: the coordinator moved")
    return finding._replace(detail=f"{finding.detail}; {moved}")


def _can_only_the_leader_rejoin(before: Group, after: Group) -> bool:
    """Return whether the others sent what they had sent before: a coordinator answers that without a rebalance.

    User data and the list of protocols are not known here; protocols that have user data are left out.
    """
    return after.protocol in _WITHOUT_USER_DATA and all(
        (one.topics, one.claimed, one.claimed_generation, one.rack)
        == (other.topics, other.claimed, other.claimed_generation, other.rack)
        for name, one in after.members.items()
        if name != after.leader and (other := before.members.get(name)) is not None
    )


def _is_soon(rebalance: Rebalance) -> bool:
    """Return whether a move since the record before must have been shortly before this generation.

    Members join the new coordinator within their rebalance timeout, or are removed.
    """
    timeouts = (member.rebalance_timeout_ms or 0 for member in rebalance.change.after.members.values())
    last_at = rebalance.last_at
    return last_at is not None and rebalance.change.at - last_at <= max(timeouts, default=0) + _LONGEST_MOVE_MS


def _by_partitions(
    had: frozenset[Partition], has: frozenset[Partition], recent_topics: Collection[str]
) -> Finding | None:
    """Compare the sets of all partitions that are assigned before and after."""
    topics_before, topics_now = {topic for topic, _ in had}, {topic for topic, _ in has}
    if created := topics_now - topics_before:
        if created & set(recent_topics):
            return Finding(
                Evidence.RECENTLY_SUBSCRIBED_TOPICS_ASSIGNED,
                f"{_listed(created)}: subscribed to just before, and assigned now that its partitions are known",
            )
        return Finding(Evidence.TOPICS_ASSIGNED, f"{_listed(created)}: created, or assigned for the first time")
    if deleted := topics_before - topics_now:
        return Finding(Evidence.TOPICS_NOT_ASSIGNED, f"{_listed(deleted)}: deleted, or no longer assigned")
    if has - had:
        return Finding(Evidence.PARTITIONS_ASSIGNED, f"of {_listed({topic for topic, _ in has - had})}")
    return None


def _by_partitions_gone(
    had: frozenset[Partition], has: frozenset[Partition], after: Group, *, is_after_revocation: bool
) -> Finding:
    gone = had - has
    if not gone and is_after_revocation:
        return Finding(
            Evidence.NOTHING_DIFFERS_AFTER_REVOCATION,
            "nothing visible changed; members that gave partitions up join again",
        )
    if not gone:
        return Finding(Evidence.NOTHING_DIFFERS, "nothing visible changed")
    topics = _listed({topic for topic, _ in gone})
    if after.is_cooperative:
        return Finding(Evidence.PARTITIONS_TAKEN_AWAY, f"{len(gone)} partitions of {topics} have no owner for now")
    return Finding(Evidence.PARTITIONS_NOT_ASSIGNED, f"{len(gone)} partitions of {topics} no longer assigned")


# Broker-assigned groups: evidence in the other records of the epoch's operation


def _of_epoch(rebalance: Rebalance) -> Finding:
    change = rebalance.change
    if (by_regexes := _by_regexes(rebalance)) is not None:
        return by_regexes
    before, after = change.before, change.after
    if after.kind == "streams":
        return _of_streams_epoch(change)
    if before.metadata_hash != after.metadata_hash or before.partition_counts != after.partition_counts:
        return _by_metadata(before, after)
    if after.kind == "share":
        return Finding(Evidence.SHARE_EPOCH_ALONE, "the share state of its partitions was initialized")
    return Finding(Evidence.MEMBERS_ADDED_WITHOUT_TOPICS if rebalance.joined else Evidence.EPOCH_ALONE)


def _by_regexes(rebalance: Rebalance) -> Finding | None:
    """Return the first evidence; a pattern that matches nothing at first begins no epoch."""
    before, after = rebalance.change.before.regexes, rebalance.change.after.regexes
    for regex, topics in after.items():
        if regex not in before:
            if topics:
                return _by_resolved(rebalance, regex)
            continue
        gained, lost = set(topics) - set(before[regex]), set(before[regex]) - set(topics)
        if gained:
            return Finding(Evidence.REGEX_MATCHES_MORE, f"{_listed(gained)} matched by the pattern {regex}")
        if lost:
            return Finding(Evidence.REGEX_MATCHES_LESS, f"{_listed(lost)} no longer matched by the pattern {regex}")
    if before.keys() - after.keys():
        return Finding(Evidence.REGEX_DROPPED, "a pattern is no longer used")
    return None


def _by_resolved(rebalance: Rebalance, regex: str) -> Finding:
    group = rebalance.change.after
    subscribed = {rebalance.waiting.get(one.member_id) for one in group.members.values() if one.topic_regex == regex}
    is_known = subscribed == {"resubscribed"}
    return Finding(
        Evidence.REGEX_RESOLVED if is_known else Evidence.REGEX_OF_UNKNOWN_MEMBERS_RESOLVED,
        f"the pattern {regex} was resolved to {len(group.regexes[regex])} topics",
    )


def _by_metadata(before: Group, after: Group) -> Finding:
    had, has = before.partition_counts, after.partition_counts
    if had is not None and has is None:
        return Finding(Evidence.METADATA_HASH_INTRODUCED, "the first since the broker was upgraded to 4.1 or newer")
    by_counts = None if had is None or has is None else _by_counts(had, has)
    return by_counts or Finding(
        Evidence.METADATA_DIFFERS, "partitions, topics or racks changed: the next assignment shows which"
    )


def _by_counts(had: Mapping[str, PartitionCount], has: Mapping[str, PartitionCount]) -> Finding | None:
    """Compare topics by id."""
    added = {has[topic_id].topic for topic_id in has.keys() - had.keys()}
    gone = {had[topic_id].topic for topic_id in had.keys() - has.keys()}
    if remade := added & gone:
        return Finding(Evidence.TOPIC_IDS_DIFFER, f"{_listed(remade)}: deleted and recreated")
    if added:
        return Finding(Evidence.COUNTED_TOPICS_ADDED, _listed(added))
    if gone:
        return Finding(Evidence.COUNTED_TOPICS_GONE, _listed(gone))
    if grown := [one.topic for topic_id, one in has.items() if one.partitions > had[topic_id].partitions]:
        return Finding(Evidence.PARTITION_COUNTS_GREW, f"of {_listed(grown)}")
    others = [one.topic for topic_id, one in has.items() if one == had[topic_id]._replace(racks=one.racks)]
    if len(others) == len(has):
        moved = [one.topic for topic_id, one in has.items() if one.racks != had[topic_id].racks]
        return Finding(Evidence.RACKS_DIFFER, f"of the replicas of {_listed(moved)}")
    return None


def _of_streams_epoch(change: Change) -> Finding:
    """Return the first evidence, with what else differs: each alone bumps the epoch (GMM.streamsGroupHeartbeat)."""
    first, *others = (finding for finding in _streams_findings(change) if finding is not None)
    also = [other.detail or other.evidence.value.cause for other in others if other.evidence not in _EXPLAINED]
    details = [part for part in (first.detail, *also) if part]
    return first._replace(detail="; ".join(details) or None)


# What adds nothing to other evidence: other topics make a topology valid or invalid.
_EXPLAINED = (Evidence.METADATA_DIFFERS, Evidence.STREAMS_TASKS_WARMED_UP, Evidence.STREAMS_EPOCH_ALONE)


def _streams_findings(change: Change) -> Iterator[Finding | None]:
    before, after = change.before, change.after
    yield _by_topology(before, after)
    if before.metadata_hash != after.metadata_hash:
        yield _by_metadata(before, after)
    if before.settings and before.settings != after.settings:
        had, has = (dict(group.settings) for group in (before, after))
        changed = [name for name in sorted(had.keys() | has.keys()) if had.get(name) != has.get(name)]
        yield Finding(
            Evidence.STREAMS_SETTINGS_DIFFER,
            ", ".join(f"{name} from {had.get(name, 'none')} to {has.get(name, 'none')}" for name in changed),
        )
    if change.replaced:
        yield Finding(
            Evidence.STREAMS_MEMBER_REPLACED, f"of {_listed(new.instance_id or '' for _, new in change.replaced)}"
        )
    described = [
        record.name or ""
        for record in change.operation
        if record.type == "StreamsGroupMemberMetadata" and record.body is not None and record.name in before.members
    ]
    if described:
        yield Finding(Evidence.STREAMS_MEMBER_DIFFERS, f"of {_listed(described)}")
    has_warmups = any(task.role == "warmup" for member in before.members.values() for task in member.tasks or ())
    yield Finding(Evidence.STREAMS_TASKS_WARMED_UP if has_warmups else Evidence.STREAMS_EPOCH_ALONE)


def _by_topology(before: Group, after: Group) -> Finding | None:
    if before.topology_epoch != after.topology_epoch:
        return Finding(Evidence.STREAMS_TOPOLOGY_DIFFERS)
    if before.validated_topology_epoch == after.validated_topology_epoch:
        return None
    if not before.settings:
        # 4.1 wrote neither them nor which topology is valid: the first epoch on 4.2 shows what was true before.
        was_valid = (before.validated_topology_epoch or 0) < 0 and before.has_tasks
        return None if was_valid else Finding(Evidence.STREAMS_TOPOLOGY_DIFFERS)
    detail = f"topology epoch {after.topology_epoch}"
    if after.validated_topology_epoch == after.topology_epoch:
        return Finding(Evidence.STREAMS_TOPOLOGY_VALIDATED, detail)
    return Finding(Evidence.STREAMS_TOPOLOGY_INVALID, detail)


def cause_by_targets(baseline: TargetBaseline, after: Group, recent_topics: Collection[str]) -> Cause:
    """Return the cause behind a change of topic metadata, from the members' targets after it."""
    has = targeted(after)
    if after.kind == "streams":
        return concluded_cause(_by_tasks(baseline.partitions, has))
    ids = baseline.topic_ids
    remade = {topic for topic, topic_id in after.topic_ids.items() if ids.get(topic, topic_id) != topic_id}
    if remade & {topic for topic, _ in has}:
        return concluded_cause(Finding(Evidence.TOPIC_IDS_DIFFER, f"{_listed(remade)}: deleted and recreated"))
    finding = _by_partitions(baseline.partitions, has, recent_topics)
    if finding is not None and finding.evidence == Evidence.RECENTLY_SUBSCRIBED_TOPICS_ASSIGNED:
        finding = Finding(Evidence.RECENTLY_SUBSCRIBED_TOPICS_TARGETED, finding.detail)
    if finding is None and baseline.partitions - has:
        finding = Finding(
            Evidence.TARGETS_SAME, f"{len(baseline.partitions - has)} partitions are no longer assigned"
        )
    return concluded_cause(
        finding
        or Finding(Evidence.TARGETS_SAME, "the same partitions are assigned: racks or an unassigned topic changed")
    )


def _by_tasks(had: frozenset[Partition], has: frozenset[Partition]) -> Finding:
    if has and not had:
        return Finding(Evidence.STREAMS_FIRST_TASKS)
    if had < has:
        return Finding(Evidence.STREAMS_TASKS_ADDED, f"{len(has - had)} tasks more")
    gone = len(had - has)
    if gone:
        return Finding(Evidence.TARGETS_SAME, f"{gone} tasks are no longer assigned")
    return Finding(
        Evidence.TARGETS_SAME, "the same tasks are assigned: a topic that gives no task, or a rack, changed"
    )


def cause_superseded() -> Cause:
    """Return the cause for a change of topic metadata whose targets were never computed."""
    return concluded_cause(
        Finding(Evidence.TARGETS_SUPERSEDED, "the next epoch came before an assignment was computed")
    )


def _listed(topics: Iterable[str]) -> str:
    names = sorted(topics)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

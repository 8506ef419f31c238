"""What a group coordinator's messages say about a group: one or more events, or nothing.

The formats are those of Kafka 3.9.1, 4.1.1, 4.3.0 and 4.4.0 (GroupMetadataManager, GroupCoordinatorShard, and the
GroupCoordinator in Scala of releases before 4.0). Names of groups, members and instances and the reasons of
JoinGroup and LeaveGroup requests are written by clients and may be any text: a message that can be taken apart in two
ways gives no event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

_LOGGERS = frozenset({"GroupMetadataManager", "GroupCoordinator", "GroupCoordinatorShard"})
_PACKAGES = ("", "org.apache.kafka.coordinator.group", "kafka.coordinator.group")
_CONTEXT = re.compile(
    r"\[Group(?:Coordinator|MetadataManager) (?:(?:id|brokerId)=)?(?P<broker>\d{1,9})"
    r"(?: topic=__consumer_offsets partition=(?P<partition>\d{1,9}))?\]:? (?P<text>.*)",
    re.DOTALL,
)
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# Of classic members by the coordinator, and of others by Kafka's own clients.
_MEMBER = re.compile(rf"(?:.*-)?{_UUID}|[\w+/-]{{22}}", re.DOTALL | re.ASCII)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a group.

    `event` is one of those in `schemas/tables/broker_log_events.yaml`, `trigger` why a rebalance began. `reason` is
    as logged, with the words of the client. `takes_text`: a client's text ends the message.
    """

    group_id: str
    event: str
    generation_before: int | None = None
    generation: int | None = None
    member_id: str | None = None
    trigger: str | None = None
    reason: str | None = None
    broker_id: int | None = None
    record_partition: int | None = None
    takes_text: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """What a message of a coordinator's logger is: its events, or `is_known` without any."""

    events: tuple[Event, ...] = ()
    is_known: bool = True


_UNKNOWN = Message(is_known=False)
_Fields = Mapping[str, str]

_FENCED = (
    r"the member session expired\.?|the member failed to sync within timeout\.?|the classic member failed to join "
    r"within the rebalance timeout\.?|it failed to transition from epoch -?\d+ within \d+ms"
)
_FREE = frozenset({"group", "member", "instance", "other", "reason", "members", "leaving"})
_MAY_BE_EMPTY = frozenset({"reason", "leaving"})
_KINDS = {
    "state": r"\w+",
    "old": r"\d{1,10}",
    "new": r"\d{1,10}",
    "n": r"-?\d+",
    "word": r"\w+",
    "tail": r"[\w ]*",
    "fenced": _FENCED,
}


class _Template:
    """A format of Kafka's, as a pattern that takes a message apart in exactly one way."""

    def __init__(self, text: str) -> None:
        parts = re.split(r"\{(\w+)\}", text)
        lazy, greedy = [], []
        for number, part in enumerate(parts):
            if number % 2 == 0:
                lazy.append(re.escape(part))
                greedy.append(re.escape(part))
            elif part in _FREE:
                some = "*" if part in _MAY_BE_EMPTY else "+"
                lazy.append(f"(?P<{part}>.{some}?)")
                greedy.append(f"(?P<{part}>.{some})")
            else:
                is_kept = part in ("old", "new", "fenced")
                name = f"(?P<{part}>{_KINDS[part]})" if is_kept else f"(?:{_KINDS[part]})"
                lazy.append(name)
                greedy.append(name)
        self._lazy = re.compile("".join(lazy), re.DOTALL)
        self._greedy = re.compile("".join(greedy), re.DOTALL)

    def fields(self, text: str) -> _Fields | None:
        """Return the fields of a text; None if it is another, {} if it can be taken apart in two ways."""
        lazy = self._lazy.fullmatch(text)
        if lazy is None:
            return None
        greedy = self._greedy.fullmatch(text)
        found = lazy.groupdict()
        return found if greedy is not None and found == greedy.groupdict() else {}


def is_coordinator(logger: str) -> bool:
    """Return whether a logger is one of a group coordinator's, by its full or its last name."""
    package, _, name = logger.rpartition(".")
    return name in _LOGGERS and package in _PACKAGES


def parse_message(message: str) -> Message:
    """Return the events of a message of a coordinator's logger."""
    context = _CONTEXT.fullmatch(message)
    if context is None:
        return _UNKNOWN
    text = context["text"]
    partition = None if context["partition"] is None else int(context["partition"])
    if any(template.fields(text) is not None for template in _SILENT):
        return Message()
    matching = [(fields, events) for template, events in _TEMPLATES if (fields := template.fields(text)) is not None]
    if not matching:
        return Message(is_known=_is_uninteresting(text))
    fields, events = matching[0]
    found = events(fields) if fields and len(matching) == 1 else None
    if found is None:
        return _UNKNOWN
    of = {"broker_id": int(context["broker"]), "record_partition": partition}
    return Message(tuple(replace(event, **of) for event in found))  # type: ignore[arg-type]


def _event(name: str) -> Callable[[_Fields], list[Event]]:
    def events(fields: _Fields) -> list[Event]:
        return [
            Event(
                fields["group"],
                name,
                _number(fields.get("old")),
                _number(fields.get("new")),
                fields.get("member"),
                reason=fields.get("reason", fields.get("fenced")),
                takes_text="reason" in fields,
            )
        ]

    return events


def _number(text: str | None) -> int | None:
    return None if text is None or int(text) > 0x7FFFFFFF else int(text)


def _members(text: str) -> list[str] | None:
    """Return the ids in a list of members; None if it can be divided in more than one way."""
    listed = re.fullmatch(r"(?:\[|\(|Set\(|HashSet\()(.*)[\])]", text, re.DOTALL)
    names = (text if listed is None else listed[1]).split(", ")
    return names if all(_MEMBER.fullmatch(name) for name in names) else None


def _missed_join(fields: _Fields) -> list[Event] | None:
    members = _members(fields["members"])
    if members is None:
        return None
    return [Event(fields["group"], "member_expired", member_id=one, reason="did not join in time") for one in members]


def _rebalance(fields: _Fields) -> list[Event] | None:
    group, reason, old = fields["group"], fields["reason"], _number(fields["old"])
    matching = [(named, trigger) for template, trigger in _TRIGGERS if (named := template.fields(reason)) is not None]
    if not matching:
        return [Event(group, "rebalance_started", old, None, None, "unknown", reason, takes_text=True)]
    named, trigger = matching[0]
    # A member that is removed by its instance id has no id in the request.
    listed = (
        named.get("members") or named.get("member") or ", ".join(filter(None, named.get("leaving", "").split(", ")))
    )
    members = _members(listed) if listed else []
    if members is None or not named or len(matching) > 1:
        return None
    only = members[0] if len(members) == 1 else None
    begun = Event(group, "rebalance_started", old, None, only, trigger, reason, takes_text="reason" in named)
    if trigger != "sync_expired":
        return [begun]
    late = [Event(group, "member_expired", member_id=one, reason="did not sync in time") for one in members]
    return [begun, *late]


# GroupMetadataManager.prepareRebalance, and GroupCoordinator.prepareRebalance in Scala.
_TRIGGERS = tuple(
    (_Template(text), trigger)
    for text, trigger in (
        ("Adding new member {member} with group instance id {instance}; client reason: {reason}", "member_joined"),
        ("explicit `LeaveGroup` request for ({leaving}) members.", "member_left"),
        ("Removing member {member} on LeaveGroup; client reason: {reason}", "member_left"),
        ("removing member {member} on heartbeat expiration.", "member_expired"),
        ("removing member {member} on heartbeat expiration", "member_expired"),
        ("Removing {members} on pending sync request expiration", "sync_expired"),
        ("Leader {member} re-joining group during {state}; client reason: {reason}", "leader_rejoined"),
        ("leader {member} re-joining group during {state}; client reason: {reason}", "leader_rejoined"),
        ("Updating metadata for member {member} during {state}; client reason: {reason}", "member_metadata_changed"),
        (
            "Updating metadata for static member {member} with instance id {instance}; client reason: {reason}",
            "static_member_replaced",
        ),
        (
            "Group's selectedProtocol will change because static member {member} with instance id {instance} joined "
            "with change of protocol; client reason: {reason}",
            "assignor_changed",
        ),
        ("Downgrade group {other} from consumer to classic{tail}.", "protocol_migrated"),
        ("Error {word} when storing group assignmentduring SyncGroup (member: {member}).", "assignment_not_stored"),
        ("Error {word} when storing group assignment during SyncGroup (member: {member})", "assignment_not_stored"),
    )
)

# An instance id could end in "temporarily", and a group be named "g][MemberId m": these prove nothing, and leave
# alone what would.
_SILENT = (
    *(
        _Template(
            f"[GroupId {{group}}] Static {member} {{member}} with instance id {{instance}} temporarily left the "
            f"{kind} group."
        )
        for member in ("member", "Member")
        for kind in ("consumer", "streams")
    ),
    _Template("[GroupId {group}][MemberId {member}] Computed new metadata hash: {n}."),
)

_TEMPLATES = tuple(
    (_Template(text), events)
    for text, events in (
        (
            "Preparing to rebalance group {group} in state {state} with old generation {old} (reason: {reason}).",
            _rebalance,
        ),
        (
            "Preparing to rebalance group {group} in state {state} with old generation {old} "
            "(__consumer_offsets-{n}) (reason: {reason})",
            _rebalance,
        ),
        ("Stabilized group {group} generation {new} with {n} members.", _event("join_completed")),
        (
            "Stabilized group {group} generation {new} (__consumer_offsets-{n}) with {n} members",
            _event("join_completed"),
        ),
        (
            "Assignment received from leader {member} for group {group} for generation {new}. The group has {n} "
            "members, {n} of which are static.",
            _event("assignment_received"),
        ),
        ("Group {group} with generation {new} is now empty.", _event("group_emptied")),
        ("Group {group} with generation {new} is now empty (__consumer_offsets-{n})", _event("group_emptied")),
        (
            "[Group {group}] Member {member} has left group through explicit `LeaveGroup` request; "
            "client reason: {reason}",
            _event("member_left"),
        ),
        (
            "[GroupId {group}] Dynamic member {member} has left group through explicit `LeaveGroup` request; client "
            "reason: {reason}",
            _event("member_left"),
        ),
        (
            "[Group {group}] Dynamic Member {member} has left group through explicit `LeaveGroup` request; client "
            "reason: {reason}",
            _event("member_left"),
        ),
        (
            "[GroupId {group}] Static member {member} with instance id {instance} has left group through explicit "
            "`LeaveGroup` request; client reason: {reason}",
            _event("member_left"),
        ),
        (
            "[Group {group}] Static Member {member} with instance id {instance} has left group through explicit "
            "`LeaveGroup` request; client reason: {reason}",
            _event("member_left"),
        ),
        (
            "Member MemberMetadata(memberId={member}, groupInstanceId={instance}, clientId={other}) has left group "
            "{group} through explicit `LeaveGroup`; client reason: {reason}",
            _event("member_left"),
        ),
        ("Member {member} in group {group} has failed, removing it from the group.", _event("member_expired")),
        ("Member {member} in group {group} has failed, removing it from the group", _event("member_expired")),
        ("Group {group} removed dynamic members who haven't joined: {members}", _missed_join),
        ("Loaded classic group {group} with {n} members.", _event("group_loaded")),
        ("Loaded consumer group {group} with {n} members.", _event("group_loaded")),
        ("Loaded share group {group} with {n} members.", _event("group_loaded")),
        ("Loaded streams group {group} with {n} members.", _event("group_loaded")),
        ("Loading group metadata for {group} with generation {new}", _event("group_loaded")),
        ("[GroupId={group}] Unloaded group metadata for group epoch {new}.", _event("group_unloaded")),
        ("[GroupId={group}] Unloading group metadata for generation {new}.", _event("group_unloaded")),
        ("Unloading group metadata for {group} with generation {new}", _event("group_unloaded")),
        (
            "[GroupId {group}] Member {member} joins the consumer group using the {word} protocol.",
            _event("member_joined"),
        ),
        (
            "[GroupId {group}] Static member {member} with instance id {instance} joins the consumer group using the "
            "{word} protocol.",
            _event("member_joined"),
        ),
        (
            "[GroupId {group}] Member {member} joins the share group using the share protocol.",
            _event("member_joined"),
        ),
        ("[GroupId {group}][MemberId {member}] Member joins the streams group.", _event("member_joined")),
        (
            "[GroupId {group}][MemberId {member}] Static member {other} with instance id {instance} joins the "
            "streams group.",
            _event("member_joined"),
        ),
        (
            "[GroupId {group}][MemberId {member}] Static member with instance id {instance} re-joins the streams "
            "group using the streams protocol. Created a new member {other} to replace the existing member "
            "{members}.",
            _event("member_replaced"),
        ),
        (
            "[GroupId {group}] Static member with instance id {instance} re-joins the consumer group using the "
            "{word} protocol. Created a new member {member} to replace the existing member {other}.",
            _event("member_replaced"),
        ),
        ("[GroupId {group}] Member {member} left the consumer group.", _event("member_left")),
        ("[GroupId {group}] Member {member} left the share group.", _event("member_left")),
        ("[GroupId {group}][MemberId {member}] Member {other} left the streams group.", _event("member_left")),
        (
            "[GroupId {group}][MemberId {member}] Static member {other} with instance id {instance} left the streams "
            "group.",
            _event("member_left"),
        ),
        (
            "[GroupId {group}] Static member {member} with instance id {instance} left the consumer group.",
            _event("member_left"),
        ),
        (
            "[GroupId {group}] Static Member {member} with instance id {instance} left the consumer group.",
            _event("member_left"),
        ),
        ("[GroupId {group}] Member {member} fenced from the group because {fenced}.", _event("member_expired")),
        (
            "[GroupId {group}] Streams member {member} fenced from the group because {fenced}.",
            _event("member_expired"),
        ),
        ("[GroupId {group}] Bumped group epoch to {new}.", _event("epoch_bumped")),
        ("[GroupId {group}] Bumped group epoch to {new} with metadata hash {n}.", _event("epoch_bumped")),
        (
            "[GroupId {group}][MemberId {member}] Bumped streams group epoch to {new} with metadata hash {n}.",
            _event("epoch_bumped"),
        ),
        (
            "[GroupId {group}][MemberId {member}] Bumped streams group epoch to {new} with metadata hash {n} and "
            "validated topic epoch {n}.",
            _event("epoch_bumped"),
        ),
        ("[GroupId {group}] Computed new metadata hash: {n}.", _event("metadata_changed")),
        ("[GroupId {group}] Computed new subscription metadata: {reason}.", _event("metadata_changed")),
        (
            "[GroupId {group}] Member {member} updated its subscribed topics to: {reason}.",
            _event("subscription_changed"),
        ),
        (
            "[GroupId {group}] Member {member} updated its subscribed regex to: {reason}.",
            _event("subscription_changed"),
        ),
    )
)

_UNINTERESTING = re.compile(
    r"""
      (?:Dynamic|Static)\ [Mm]ember\ with\ |Pending\ (?:dynamic\ )?member\ |Static\ member\ which\ joins
    | Group\ leader\ \[|The\ following\ groups\ were\ deleted:|Generated\ \d+\ |Starting\ up|Startup\ |Shut|Elected
    | Resigned|Scheduling|Finished|Removed\ \d+|Group\ .*\ transitioned\ to\ Dead|Group\ .*\ is\ dead|Loaded\ member
    | Cannot\ (?:up|down)grade|Skip\ downgrading|Request\ member|Received\ notification|Already\ loading|Not\ loading
    | \[GroupId\ .*\]\ (?:Computed\ a\ new\ target|Converted\ the|Dynamic\ member\ with|Could|Skipping|Received
    | Scanned|Refreshing|Ignoring|Static\ member\ .*(?:fenced|cannot\ join)|Member\ .*\ new\ assignment\ state
    | Cannot\ compute|Group\ not\ found|Assignment\ conf|Creating\ a\ simple|Configuring|The\ )
    | \[GroupId\ .*\]\[MemberId\ .*\]\ (?:Member\ initialized|Member\ joined|Member\ updated|Member's\ new\ assignment
    | Configuring|Valid\ topic|Assignment\ conf|Static\ member\ with)
    """,
    re.VERBOSE | re.DOTALL,
)


def _is_uninteresting(text: str) -> bool:
    return _UNINTERESTING.match(text) is not None

"""Tables of the evidence for the cause of a rebalance, the end of a membership and the removal of a group.

Each entry names the records and the brokers that write them, the conclusion with its certainty, and the alternatives
that write the same records. The certainty is `recorded` only if there is no alternative. `causes` and `endings` find
the evidence. GMM is Kafka's GroupMetadataManager.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, unique
from typing import Literal

Certainty = Literal["recorded", "likely", "ambiguous"]

LEADER = "leader_rejoined_or_coordinator_moved"
REJOINED = "leader_rejoined"
MOVED = "coordinator_moved"
PROBING = "probing_rebalance"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A cause, its certainty, and in `otherwise` the alternatives that write the same records.

    `recorded` describes the records, `brokers` the releases that write them, and `rules_out` which alternatives
    cannot have been, and why.
    """

    cause: str
    certainty: Certainty
    recorded: str
    otherwise: str | None = None
    brokers: str = "all"
    rules_out: str | None = None


_CLASSIC = "GroupMetadata"

# Causes that leave no trace in a classic generation: a rebalance is completed even if its cause was undone.
_UNDONE = (
    "a change undone before the assignment: a member that came and went, a subscription that changed and changed back"
)
_UNSEEN = f"fresh metadata, a forced rebalance, a new coordinator, or {_UNDONE}"

_ANOTHER = "another member joined again, whose subscription names another generation"

# ReplicationControlManager.handleBrokerUncleanShutdown: without KIP-966 a broker that is back before it was fenced
# still leads its partitions, in the same epoch. Kafka 3.9.1 does so.
_CRASHED = "the coordinator crashed and was back at once, which keeps the epoch on brokers without KIP-966"

# GMM.convertToConsumerGroup bumps the epoch for a member that subscribes to a pattern; the pattern's topics bump it
# again.
_BY_UPGRADE = "or it joined in the epoch before, as it upgraded a classic group, whose tombstone compaction took"


@unique
class Evidence(Enum):
    """What the operation of a new generation changes in the group."""

    FIRST_RECORD = Conclusion(
        "unknown", "ambiguous", "the first record of the group that was read is not the first of its life", None
    )
    PROTOCOL_CONVERTED = Conclusion(
        "protocol_migrated", "recorded", "tombstones of one kind of group, values of another", None, "3.7 and newer"
    )
    # GMM.maybeDeleteEmptyClassicGroup and maybeDeleteEmptyConsumerGroup write the tombstones of
    # DeleteGroups, and the first member then joins a new group.
    EMPTY_GROUP_REPLACED = Conclusion(
        "protocol_migrated",
        "likely",
        "tombstones of an empty group of one kind, values of another",
        "or the empty group was deleted, and another began in the same millisecond",
        "3.7 and newer",
    )
    OTHER_PROTOCOL = Conclusion(
        "protocol_migrated",
        "likely",
        "values of another kind of group, without the tombstone of the one before or not with its next number",
        "or that group was emptied or deleted and another began: compaction took the records of that",
    )
    EPOCHS_MISSING = Conclusion(
        "unknown",
        "ambiguous",
        "an epoch that is not the next one: each is written, so compaction took some",
        "taken by compaction: what they changed may show only in this one",
        "3.7 and newer",
    )
    NO_MEMBERS = Conclusion("group_emptied", "recorded", "no members any more")
    MEMBERS_UNREADABLE = Conclusion(
        "unknown", "ambiguous", "no members that can be read, and a target or records that cannot be decoded"
    )
    FIRST_MEMBERS = Conclusion(
        "group_started", "recorded", "members, and none in the record of the generation before"
    )
    # An upgrade in generation 0 or 1 (GMM.convertToConsumerGroup), a downgrade in epoch 1 and a static member that
    # came back look like a beginning once their other records have been rewritten.
    FIRST_MEMBERS_READ = Conclusion(
        "group_started",
        "likely",
        "members, and no record of the generation or epoch before",
        "or compaction took earlier records: of members that were there, or of the group under its other protocol",
    )
    MEMBERS_ADDED = Conclusion("member_joined", "recorded", "new member ids, none gone")
    MEMBERS_ADDED_AND_GONE = Conclusion("members_joined_and_left", "recorded", "member ids new and gone")
    MEMBERS_ADDED_AND_RENEWED = Conclusion(
        "members_joined_and_left",
        "likely",
        "member ids new and gone; each that is gone has a new one of the same client id and host",
        "or one only rejoined under a new id: same client id and host",
    )
    MEMBERS_ADDED_AT_ONCE = Conclusion(
        "member_joined",
        "likely",
        "new member ids in the millisecond of the epoch before",
        _BY_UPGRADE,
        "3.7 and newer",
    )
    MEMBERS_ADDED_AT_ONCE_AND_GONE = Conclusion(
        "members_joined_and_left",
        "likely",
        "new member ids in the millisecond of the epoch before, and ids gone",
        _BY_UPGRADE,
        "3.7 and newer",
    )
    # GMM.hasMemberSubscriptionChanged and maybeUpdateRegularExpressions: such a member begins no epoch by itself.
    MEMBERS_ADDED_WITHOUT_TOPICS = Conclusion(
        "member_joined",
        "likely",
        "an epoch after members joined without topics, or with a pattern that matches none, and nothing else differs",
        "or compaction took what differs",
        "3.7 and newer",
    )
    GONE_WITHIN_TIMEOUTS = Conclusion(
        "member_left",
        "likely",
        f"{_CLASSIC} without the member, sooner after the last join phase than any timeout",
        "or an administrator removed it",
        "2.1 and newer",
        "an expired session and a missed rebalance: neither timeout had passed since the last join phase",
    )
    GONE_AFTER_ABSENCE = Conclusion(
        "member_expired",
        "likely",
        "tombstones of a member that had left for now (epoch -2), or had not given up partitions in time",
        "or it left just then, or an administrator removed it",
        "3.7 and newer",
    )
    GONE_STATIC = Conclusion("static_member_expired_or_removed", "likely", "a member with an instance id is gone")
    GONE_STATIC_SOON = Conclusion(
        "static_member_expired_or_removed",
        "likely",
        "tombstones of a static member that had left for now (epoch -2), within the shortest session by default",
        "or it left for good just then",
        "3.7 and newer",
    )
    GONE = Conclusion("member_left_or_expired", "ambiguous", "member ids are gone", "or an administrator removed it")
    # A coordinator takes a commit of a member only in its generation, and gives it a new session timer then
    # (OffsetMetadataManager.validateOffsetCommit); it does not ask whether the member owns the partition.
    GONE_AFTER_COMMIT = Conclusion(
        "member_left",
        "likely",
        "a member is gone sooner after a commit of its partitions than a session or a missed rebalance takes",
        "or an administrator removed it, its application committed without polling, or another member committed its "
        "partitions",
        rules_out="an expired session: a commit renews it, and it had not passed since the last one; a missed "
        "rebalance: the others would have waited longer for it",
    )
    GONE_AFTER_COMMIT_IN_EPOCH = Conclusion(
        "member_left",
        "likely",
        "tombstones of a member within two seconds of a commit of its partitions",
        "or it was removed although it committed: its heartbeats failed, or an administrator removed it",
        "3.7 and newer",
        "a crash: it ran two seconds before, and a session is longer",
    )
    GONE_SILENT = Conclusion(
        "member_expired",
        "likely",
        "a member is gone a session timeout after the last of regular commits, which have no need of new records, "
        "or there were some: others committed more of the same topics meanwhile",
        "or it stopped committing, and left just when its session would have ended",
        rules_out="an orderly close with auto-commit, which commits once more; a poll timeout, which comes later",
    )
    GONE_STALLED = Conclusion(
        "member_poll_timeout",
        "likely",
        "the same, its time between polls (max.poll.interval.ms) after the last commit; if it had crashed, its "
        "session would have ended before",
        "or it stopped committing, and left just then",
        rules_out="a crash: its session would have ended before; an orderly close with auto-commit, which commits "
        "once more",
    )
    MEMBERS_RENEWED = Conclusion(
        "member_rejoined",
        "likely",
        "as many member ids new as gone, of the same client ids and hosts",
        "or one left and one joined",
    )
    # A static member that comes back to a stable group causes no rebalance
    # (GMM.updateStaticMemberThenRebalanceOrCompleteJoin), and none of a KIP-848 group.
    STATIC_MEMBER_REPLACED = Conclusion(
        "static_member_replaced",
        "ambiguous",
        f"an instance id with another member id, in a new generation of {_CLASSIC}",
        "or it came back while the group rebalanced for another reason: it had expired, left or been removed before, "
        f"members that gave partitions up join again, {_UNSEEN}",
    )
    # librdkafka's and pattern subscribers join with the topics that exist (rd_kafka_cgrp_set_subscribed_topics).
    SUBSCRIPTIONS_DIFFER = Conclusion(
        "subscription_changed",
        "likely",
        "a member with other subscribed topics",
        "or a topic was created or deleted: pattern subscriptions and librdkafka list only existing topics",
    )
    PATTERN_DIFFERS = Conclusion(
        "subscription_changed",
        "recorded",
        "a member with another subscribedTopicRegex that had been resolved",
        None,
        "4.0 and newer",
    )
    # A new pattern begins an epoch when it has been resolved; the topics of the one before are missing at once.
    UNRESOLVED_PATTERN_DIFFERS = Conclusion(
        "subscription_changed",
        "likely",
        "a member with another subscribedTopicRegex that has not been resolved yet",
        "or topics changed: they were created or deleted, or got more partitions",
        "4.0 and newer",
    )
    ASSIGNOR_DIFFERS = Conclusion("assignor_changed", "recorded", f"another protocol in {_CLASSIC}")
    SUBSCRIPTIONS_UNREADABLE = Conclusion("unknown", "ambiguous", "a subscription that is not ConsumerProtocol")
    ASSIGNMENTS_UNREADABLE = Conclusion("unknown", "ambiguous", "an assignment that is not known")
    # GMM.convertToClassicGroup prepares a rebalance as soon as it has written the classic group.
    FIRST_AFTER_DOWNGRADE = Conclusion(
        "protocol_migrated",
        "likely",
        "the generation after the one that a downgrade wrote, with the same members",
        "or the leader joined again",
        "3.7 and newer",
    )
    # ConsumerCoordinator: a member that gave something up joins again at once.
    WITHHELD_PARTITIONS_ASSIGNED = Conclusion(
        "cooperative_follow_up",
        "likely",
        "partitions that were left to nobody have an owner, under a cooperative protocol",
        "or their topic was deleted and recreated",
    )
    NOTHING_ASSIGNED_BEFORE = Conclusion(
        LEADER,
        "ambiguous",
        "an assignment, and none before",
        "or the topics were created or got more partitions, or cooperative members gave them up before history "
        "begins, or the group was downgraded then",
    )
    NOTHING_ASSIGNED_BEFORE_IN_EPOCH = replace(
        NOTHING_ASSIGNED_BEFORE,
        cause=REJOINED,
        otherwise=f"{NOTHING_ASSIGNED_BEFORE.otherwise}, or {_ANOTHER}, or {_CRASHED}",
    )
    RECENTLY_SUBSCRIBED_TOPICS_ASSIGNED = Conclusion(
        LEADER,
        "ambiguous",
        "a topic is assigned to which members had only just subscribed",
        "or it was created or got more partitions, or another was deleted, or a cooperative member gave it up before "
        "history begins, or the group was downgraded then",
    )
    RECENTLY_SUBSCRIBED_TOPICS_ASSIGNED_IN_EPOCH = replace(
        RECENTLY_SUBSCRIBED_TOPICS_ASSIGNED,
        cause=REJOINED,
        otherwise=f"{RECENTLY_SUBSCRIBED_TOPICS_ASSIGNED.otherwise}, or {_ANOTHER}, or {_CRASHED}",
    )
    TOPICS_ASSIGNED = Conclusion("topic_created", "likely", "a subscribed topic is assigned, and was not")
    TOPICS_NOT_ASSIGNED = Conclusion("topic_deleted", "likely", "a subscribed topic is no longer assigned")
    PARTITIONS_ASSIGNED = Conclusion(
        "partitions_added", "likely", "partitions of an assigned topic that had none", "or it was recreated with more"
    )
    PARTITIONS_NOT_ASSIGNED = Conclusion(
        "topic_metadata_changed",
        "ambiguous",
        "some partitions of an assigned topic are no longer assigned",
        "recreated with fewer partitions, or left out by the leader",
    )
    PARTITIONS_TAKEN_AWAY = Conclusion(
        LEADER,
        "ambiguous",
        "members gave partitions up that nobody has yet, under a cooperative protocol",
        f"{_UNSEEN}, a topic recreated with fewer partitions, or members that gave partitions up join again",
    )
    PARTITIONS_TAKEN_AWAY_IN_EPOCH = replace(
        PARTITIONS_TAKEN_AWAY,
        cause=REJOINED,
        otherwise=f"fresh metadata, a forced rebalance, {_ANOTHER}, {_CRASHED}, {_UNDONE}, a topic recreated with "
        "fewer partitions, or members that gave partitions up join again",
    )
    NOTHING_DIFFERS = Conclusion(LEADER, "ambiguous", "another generation, all else alike", _UNSEEN)
    # A coordinator does not load a group again in its epoch (CoordinatorRuntime.scheduleLoadOperation). A stable
    # group rebalances if its leader joins again, or another member with other metadata
    # (GMM.classicGroupJoinExistingMember), and if its record was not replicated in time
    # (GMM.classicGroupSyncToClassicGroup).
    NOTHING_DIFFERS_IN_EPOCH = Conclusion(
        REJOINED,
        "ambiguous",
        "another generation, all else alike, written in the leader epoch of the one before",
        f"for fresh metadata or a forced rebalance; or {_ANOTHER}, the assignment before was not stored in time, "
        f"{_CRASHED}, or {_UNDONE}",
    )
    # Subscriptions of versions 0 and 1 name no generation: a member that joins again sends what it sent before.
    NOTHING_BUT_LEADER_IN_EPOCH = Conclusion(
        REJOINED,
        "likely",
        "the same, and the subscriptions are those of before to the last field, in a protocol without user data",
        "for fresh metadata or a forced rebalance; or the assignment before was not stored in time, "
        f"{_CRASHED}, or {_UNDONE}",
        "all, of clients that write version 0 or 1",
        "a moved coordinator: it would have written in a later leader epoch; the other members: each sent what it "
        "had sent",
    )
    # A coordinator loads a group as it was written last and begins no rebalance (GMM.onLoaded): members do that the
    # one before did not answer. The epoch also rises where the coordinator stays and loads nothing
    # (PartitionChangeBuilder.triggerLeaderEpochBumpForReplicaReassignmentIfNeeded).
    NOTHING_BUT_LEADER_IN_NEW_EPOCH = Conclusion(
        MOVED,
        "likely",
        "another generation, all else and all subscriptions alike, soon after one of an earlier leader epoch",
        "or was restarted; or that had no effect, as where only replicas changed: then fresh metadata, a forced "
        f"rebalance, or {_UNDONE}",
        "all, of clients that write version 0 or 1",
    )
    # ConsumerCoordinator.onJoinComplete: a member that gave up deleted partitions rejoins, too.
    NOTHING_DIFFERS_AFTER_REVOCATION = Conclusion(
        "cooperative_follow_up",
        "likely",
        "another generation, all else alike, after one that took partitions away under a cooperative protocol",
        f"or {_UNSEEN}",
    )
    # StreamThread.maybeTriggerScheduledRebalance; the assignor names the time to one member of the application.
    PROBING_TIME_PASSED = Conclusion(
        PROBING,
        "likely",
        "another generation of the same members of a Kafka Streams application, after the time (nextRebalanceMs) at "
        "which its leader had asked a member to join again",
        f"or {_UNSEEN}",
        "all, of applications of 2.6 and newer",
    )
    ASSIGNOR_ERROR = Conclusion(
        "unknown",
        "ambiguous",
        "an assignment of Kafka Streams with an error (errCode), which assigns nothing",
        "the assignment does not show what began the rebalance",
        "all, of applications of 2.0 and newer",
    )
    REGEX_RESOLVED = Conclusion(
        "subscription_changed",
        "recorded",
        "ConsumerGroupRegularExpression of a pattern to which members that were there have changed",
        None,
        "4.0 and newer",
    )
    REGEX_OF_UNKNOWN_MEMBERS_RESOLVED = Conclusion(
        "subscription_changed",
        "likely",
        "ConsumerGroupRegularExpression of a pattern, of whose members it is not known how they came to it",
        "or a member joined with it",
        "4.0 and newer",
    )
    REGEX_DROPPED = Conclusion(
        "subscription_changed",
        "likely",
        "a tombstone of ConsumerGroupRegularExpression",
        "or the last member that used it is gone, and compaction took its records",
        "4.0 and newer",
    )
    # GMM.asyncResolveRegex leaves out the topics that the member may not DESCRIBE.
    REGEX_MATCHES_MORE = Conclusion(
        "topic_created",
        "likely",
        "ConsumerGroupRegularExpression with more topics",
        "or it was there, and DESCRIBE on it was granted",
        "4.0 and newer",
    )
    REGEX_MATCHES_LESS = Conclusion(
        "topic_deleted",
        "likely",
        "ConsumerGroupRegularExpression with fewer topics",
        "or DESCRIBE on it was revoked",
        "4.0 and newer",
    )
    STREAMS_MEMBER_DIFFERS = Conclusion(
        "member_metadata_changed",
        "recorded",
        "StreamsGroupMemberMetadata of a member that was there, and an epoch: its change bumps it",
        None,
        "4.1 and newer",
    )
    # From 4.4 on streams groups have static members; a client that starts again has another process id.
    STREAMS_MEMBER_REPLACED = Conclusion(
        "static_member_replaced",
        "recorded",
        "an instance id with another member id and process id, which bumps the epoch",
        None,
        "4.4 and newer",
    )
    STREAMS_TOPOLOGY_VALIDATED = Conclusion(
        "topology_validated",
        "recorded",
        "validatedTopologyEpoch is that of the topology, and was not: the topics that it needs are there now",
        None,
        "4.2 and newer",
    )
    STREAMS_TOPOLOGY_INVALID = Conclusion(
        "topology_invalid",
        "recorded",
        "validatedTopologyEpoch is no longer that of the topology: topics that it needs are missing, or do not fit",
        None,
        "4.2 and newer",
    )
    STREAMS_SETTINGS_DIFFER = Conclusion(
        "assignor_settings_changed", "recorded", "other lastAssignmentConfigs", None, "4.2 and newer"
    )
    # GMM.streamsGroupHeartbeat: while the group is stable, a refined assignment that differs bumps the epoch.
    STREAMS_TASKS_WARMED_UP = Conclusion(
        "tasks_warmed_up",
        "likely",
        "an epoch in which nothing else differs, of a group with warm-up tasks",
        "or group.streams.num.warmup.replicas or group.streams.acceptable.recovery.lag was changed",
        "4.4 and newer",
    )
    STREAMS_TASKS_ADDED = Conclusion(
        "partitions_added",
        "likely",
        "other topics or partitions, then targets with more tasks",
        "or a topic that a pattern of the topology matches was created",
        "4.1 and newer",
    )
    STREAMS_FIRST_TASKS = Conclusion(
        "topology_validated",
        "likely",
        "other topics or partitions, then targets with tasks, and none before",
        "or the first assignment was delayed",
        "4.1 does not write which topology was validated",
    )
    STREAMS_TOPOLOGY_DIFFERS = Conclusion(
        "topology_or_settings_changed",
        "recorded",
        "another topology, validatedTopologyEpoch or lastAssignmentConfigs",
        None,
        "4.1 and newer; the last two 4.2 and newer",
    )
    STREAMS_EPOCH_ALONE = Conclusion(
        "topology_or_settings_changed",
        "likely",
        "an epoch, and nothing else that differs",
        "4.1 does not write which topology was validated, nor settings; later releases not those of warm-up tasks",
        "4.1 and newer",
    )
    SHARE_EPOCH_ALONE = Conclusion(
        "share_state_ready", "likely", "an epoch with the same hash", None, "4.1 and newer"
    )
    PARTITION_COUNTS_GREW = Conclusion(
        "partitions_added",
        "recorded",
        "ConsumerGroupPartitionMetadata with more partitions of a topic id",
        None,
        "3.7 to 4.0",
    )
    COUNTED_TOPICS_ADDED = Conclusion(
        "topic_created", "recorded", "ConsumerGroupPartitionMetadata with another topic id", None, "3.7 to 4.0"
    )
    COUNTED_TOPICS_GONE = Conclusion(
        "topic_deleted", "recorded", "ConsumerGroupPartitionMetadata without a topic id", None, "3.7 to 4.0"
    )
    RACKS_DIFFER = Conclusion(
        "topic_metadata_changed",
        "recorded",
        "ConsumerGroupPartitionMetadata with the same topics and partitions, and other racks of their replicas",
        None,
        "3.7 to 4.0",
    )
    METADATA_DIFFERS = Conclusion(
        "topic_metadata_changed",
        "recorded",
        "another metadataHash, or ConsumerGroupPartitionMetadata",
        None,
        "3.7 and newer",
    )
    METADATA_HASH_INTRODUCED = Conclusion(
        "topic_metadata_changed",
        "likely",
        "the first metadataHash of a group that had ConsumerGroupPartitionMetadata",
        "or its topics changed at the same time",
        "4.1 and newer",
    )
    EPOCH_ALONE = Conclusion(
        "unknown",
        "ambiguous",
        "an epoch, and nothing else that differs",
        "nothing else differs in what was read: the log does not show what did, or compaction took it, such as a "
        "member that went and came back under its id",
        "3.7 and newer",
    )
    TOPIC_IDS_DIFFER = Conclusion(
        "topic_metadata_changed", "recorded", "the targets name another topic id for the same name"
    )
    RECENTLY_SUBSCRIBED_TOPICS_TARGETED = Conclusion(
        "topic_metadata_changed",
        "ambiguous",
        "the targets hold a topic to which members had only just subscribed",
        "or it was created or got more partitions",
    )
    TARGETS_SAME = Conclusion("topic_metadata_changed", "ambiguous", "targets of the same partitions")
    TARGETS_SUPERSEDED = Conclusion(
        "topic_metadata_changed", "ambiguous", "another epoch before any target was computed for this one"
    )
    # By the brokers' log (`broker_log_evidence`). Lines of text, which a client could have written, make each of
    # them `likely` at most.
    LOGGED_EXPIRY = Conclusion(
        "member_expired",
        "recorded",
        "the brokers' log: the coordinator removed the members that are gone because their sessions had expired",
        rules_out="a leave and a removal by an administrator: the coordinator would have logged a LeaveGroup request",
    )
    LOGGED_LEAVE = Conclusion(
        "member_left",
        "recorded",
        "the brokers' log: LeaveGroup requests of clients that were closed or unsubscribed, or heartbeats by which "
        "KIP-848 members leave, before their poll timeout had passed",
        rules_out="an expired session: the coordinator would have logged it",
    )
    LOGGED_LEAVE_UNEXPLAINED = Conclusion(
        "member_left",
        "likely",
        "the brokers' log: LeaveGroup requests for which the clients gave no reason, or another",
        "or an administrator removed the member, or its application had not polled within max.poll.interval.ms",
        rules_out="an expired session: the coordinator would have logged it",
    )
    LOGGED_POLL_TIMEOUT = Conclusion(
        "member_poll_timeout",
        "recorded",
        "the brokers' log: LeaveGroup requests of clients whose application had not polled within "
        "max.poll.interval.ms",
        rules_out="an expired session: the coordinator would have logged it; an orderly close: the client names "
        "another reason",
    )
    LOGGED_LEAVE_AFTER_SILENCE = Conclusion(
        "member_poll_timeout",
        "likely",
        "the brokers' log: the members left by themselves, and their partitions had been committed regularly until "
        "about max.poll.interval.ms before, when there was still something to commit",
        "or a member stopped committing, and left just then",
        rules_out="an expired session: the coordinator would have logged it; an orderly close with auto-commit, "
        "which commits once more",
    )
    LOGGED_REBALANCE_TIMEOUT = Conclusion(
        "member_expired",
        "recorded",
        "the brokers' log: the coordinator removed a member that did not join, sync or give up partitions within its "
        "rebalance timeout",
        rules_out="a leave and a removal by an administrator: the coordinator would have logged a LeaveGroup request",
    )
    LOGGED_REMOVAL = Conclusion(
        "member_removed",
        "recorded",
        "the brokers' log: LeaveGroup requests with the reason that Kafka's admin client gives",
        rules_out="an expired session: the coordinator would have logged it; a leave of the client: it names another "
        "reason",
    )
    LOGGED_REPLACEMENT = Conclusion(
        "static_member_replaced",
        "recorded",
        "the brokers' log: the coordinator began the rebalance because a static member came back",
    )
    LOGGED_MOVE = Conclusion(
        MOVED,
        "recorded",
        "the brokers' log: a coordinator loaded the group, and its leader then joined again because a request had "
        "failed",
    )
    LOGGED_FORCED_REBALANCE = Conclusion(
        REJOINED, "recorded", "the brokers' log: the leader joined again because its application forced a rebalance"
    )
    LOGGED_REJOIN = Conclusion(
        REJOINED,
        "likely",
        "the brokers' log: the leader joined again, and the coordinator had not moved",
        "for fresh metadata or a forced rebalance",
    )
    LOGGED_REJOIN_OF_MEMBER = Conclusion(
        "member_rejoined",
        "recorded",
        "the brokers' log: a member other than the leader joined again because its application forced a rebalance",
    )
    LOGGED_PROBING = Conclusion(
        PROBING,
        "recorded",
        "the brokers' log: a member joined again and gave as its reason the time at which the leader of its Kafka "
        "Streams application had asked it to",
        None,
        "all, of applications of 3.2 and newer",
    )
    LOGGED_METADATA_OF_LEADER = Conclusion(
        "topic_metadata_changed",
        "likely",
        "the brokers' log: the leader joined again and gave new metadata of topics as its reason",
        "unless the client gives that reason for something else",
    )
    LOGGED_METADATA = Conclusion(
        "topic_metadata_changed",
        "recorded",
        "the brokers' log: metadata of topics had changed right before the epoch",
        None,
        "3.7 and newer",
    )
    LOG_DIFFERS_ABOUT_MEMBERS = Conclusion(
        "member_left_or_expired",
        "ambiguous",
        "the brokers' log says something else than commits or records",
        "as the one says, or as the other",
    )
    LOG_DIFFERS_ABOUT_LEADER = Conclusion(
        LEADER,
        "ambiguous",
        "the brokers' log says something else than records",
        "as the one says, or as the other",
    )


IN_ONE_EPOCH = {
    Evidence.NOTHING_ASSIGNED_BEFORE: Evidence.NOTHING_ASSIGNED_BEFORE_IN_EPOCH,
    Evidence.RECENTLY_SUBSCRIBED_TOPICS_ASSIGNED: Evidence.RECENTLY_SUBSCRIBED_TOPICS_ASSIGNED_IN_EPOCH,
    Evidence.PARTITIONS_TAKEN_AWAY: Evidence.PARTITIONS_TAKEN_AWAY_IN_EPOCH,
    Evidence.NOTHING_DIFFERS: Evidence.NOTHING_DIFFERS_IN_EPOCH,
}
"""The evidence in its place where both generations were written in one leader epoch: under one coordinator."""


@dataclass(frozen=True, slots=True)
class EndingConclusion:
    """How a membership ended, the evidence it gives for a rebalance, and the reason with {placeholders}.

    `recorded` describes the records if they are not those of `shows`.
    """

    ended: str
    shows: Evidence
    because: str
    recorded: str | None = None


@unique
class EndingEvidence(Enum):
    """What the records show when a member is gone."""

    STATIC = EndingConclusion(
        "expired_or_removed",
        Evidence.GONE_STATIC,
        "a static member sends no LeaveGroup request when it closes, unless its client is configured to",
    )
    NO_TIMES = EndingConclusion(
        "left_or_expired", Evidence.GONE, "the records do not show when the previous join phase ended"
    )
    # The coordinator removes a member without heartbeats a session timeout after the last join phase at the earliest,
    # and one that misses a rebalance a rebalance timeout after it (GMM.completeClassicGroupJoin, expirePendingSync).
    WITHIN_TIMEOUTS = EndingConclusion(
        "left",
        Evidence.GONE_WITHIN_TIMEOUTS,
        "gone {elapsed} ms after the last join phase, within its session timeout of {session} ms and its rebalance "
        "timeout of {rebalance} ms",
    )
    WITHIN_CLOCKS = EndingConclusion(
        "left_or_expired",
        Evidence.GONE,
        "gone {elapsed} ms after the last join phase: sooner than {timeout} ms, but the clocks of two coordinators "
        "may be as far apart",
    )
    AFTER_TIMEOUTS = EndingConclusion(
        "left_or_expired",
        Evidence.GONE,
        "gone {elapsed} ms after the last join phase: {timeouts} may have expired",
    )
    STATIC_WAS_AWAY = EndingConclusion(
        "expired_or_removed",
        Evidence.GONE_AFTER_ABSENCE,
        "a static member that had left temporarily{since}, and did not return",
    )
    STATIC_WAS_AWAY_SHORTLY = EndingConclusion(
        "expired_or_removed",
        Evidence.GONE_STATIC_SOON,
        "a static member that had left temporarily{since}: a session is longer by default, so that an administrator "
        "may have removed it",
    )
    KEPT_PARTITIONS_TOO_LONG = EndingConclusion(
        "left_or_expired",
        Evidence.GONE_AFTER_ABSENCE,
        "had not given up partitions within its rebalance timeout of {rebalance} ms, or left just then",
    )
    TOMBSTONES = EndingConclusion(
        "left_or_expired", Evidence.GONE, "a leave and an expired session write the same records"
    )
    REJOINED = EndingConclusion(
        "rejoined", Evidence.MEMBERS_RENEWED, "the same client and host rejoined under a new member id"
    )
    REPLACED = EndingConclusion(
        "replaced",
        Evidence.STATIC_MEMBER_REPLACED,
        "its instance id rejoined under a new member id",
        "its instance id with another member id",
    )
    COMPACTED = EndingConclusion(
        "unknown",
        Evidence.GONE,
        "compaction may have taken the records that show how it left, and when",
    )
    GROUP_REMOVED = EndingConclusion(
        "unknown", Evidence.GONE, "{note}", "tombstones of the group, or a record of another one of its name"
    )
    GROUP_REMOVED_POLLED = EndingConclusion(
        "group_ended", Evidence.GONE, "{note}", "the brokers no longer list the group"
    )
    # With the commits of its partitions (`departures`):
    AFTER_COMMIT = EndingConclusion(
        "left",
        Evidence.GONE_AFTER_COMMIT,
        "gone {age} ms after the last commit of its partitions, sooner than its session timeout of {session} ms and "
        "its rebalance timeout of {rebalance} ms allow",
    )
    AFTER_COMMIT_IN_EPOCH = EndingConclusion(
        "left", Evidence.GONE_AFTER_COMMIT_IN_EPOCH, "gone {age} ms after the last commit of its partitions"
    )
    SILENT = EndingConclusion(
        "expired",
        Evidence.GONE_SILENT,
        "its partitions were committed {commits} times, at least every {gap} ms, and then not for {age} ms: its "
        "session of {session} ms expired",
    )
    STALLED = EndingConclusion(
        "poll_timeout",
        Evidence.GONE_STALLED,
        "its partitions were committed {commits} times, at least every {gap} ms, and then not for {age} ms, which is "
        "longer than its session of {session} ms and its time between polls (max.poll.interval.ms) of {rebalance} ms",
    )


@unique
class RemovalEvidence(Enum):
    """What the records show when a group is removed."""

    POLLED = "polled: deleted or expired since the previous poll"
    MISSED = (
        "polled: its coordinator no longer had it after a stop in which compaction may have removed its tombstones: "
        "deleted or expired"
    )
    # Only an empty group is deleted or expires (GMM.validateDeleteGroup).
    HAD_MEMBERS = (
        "removed, but the last record read has members, so compaction took others: deleted, expired, or converted to "
        "another protocol"
    )
    # A conversion writes the same tombstone; compaction may take what follows (GMM.convertToConsumerGroup).
    NEVER_SEEN = "removed before history begins: deleted, expired, or converted to another protocol"
    NO_OFFSETS = "removed without offsets: deleted, or removed by the broker's regular cleanup of empty groups"
    OFFSETS = "deleted, or all its offsets expired"
    # Commits of clients before 2.1 have their own expiry. Before 4.0 an empty group goes with its last offset
    # (GroupMetadataManager.scala cleanupGroupMetadata).
    OFFSETS_SOON = (
        "removed with its offsets after only {empty} without members, within the offset retention of {retention} "
        "(assumed: history.offsets_retention_minutes): deleted; or its offsets expired, because the broker's "
        "offsets.retention.minutes is less, or they had their own expiry; or, by a broker before 4.0, its last "
        "offsets were deleted or belonged to a deleted topic"
    )
    OFFSETS_AFTER_RETENTION = (
        "expired: it had been empty for {empty}, longer than the offset retention of {retention} (assumed: "
        "history.offsets_retention_minutes); or an administrator deleted it at that time"
    )
    LOWER_GENERATION = "recreated: its removal is not in the log"


POLLED_NOTE = "polled: all changes since the previous poll are shown as one rebalance"

UNREADABLE_NOTE = "unless records of the group that could not be decoded show another reason"

COMPACTED_NOTE = (
    "unless compaction took other records before this was read, such as those of the group's deletion and another's "
    "beginning"
)

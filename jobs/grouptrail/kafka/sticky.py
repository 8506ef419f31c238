"""The sticky assignor of the installed kafka-python, as a plain function."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from grouptrail.kafka.client_internals import sticky_assignment

Partition = tuple[str, int]


def sticky_owners(
    members: Mapping[str, tuple[Collection[str], Collection[Partition], int]], counts: Mapping[str, int]
) -> dict[Partition, str]:
    """Return the member that gets each partition.

    `members` gives by member id the subscribed topics, the partitions owned before, and the generation of that claim;
    `counts` the number of partitions by topic.
    """
    # Numbers replace topics: it picks from sets, and the hash of a string differs between processes.
    topics = sorted(counts)
    numbers = {topic: index for index, topic in enumerate(topics)}
    metadata = {
        member_id: (
            [numbers[topic] for topic in sorted(counts.keys() & subscribed)],
            [(numbers[topic], number) for topic, number in sorted(owned) if topic in counts],
            generation,
        )
        for member_id, (subscribed, owned, generation) in members.items()
    }
    assigned = sticky_assignment(metadata, {numbers[topic]: range(count) for topic, count in counts.items()})
    return {
        (topics[topic], number): member_id
        for member_id in members
        for topic, owned_now in assigned[member_id].items()
        for number in owned_now
    }

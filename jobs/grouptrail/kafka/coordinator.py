"""The topics that coordinators write, and the partition that holds a group: its leader is the group's coordinator."""

from __future__ import annotations

from struct import iter_unpack

OFFSETS_TOPIC = "__consumer_offsets"
SHARE_STATE_TOPIC = "__share_group_state"


def coordinator_partition(group_id: str, partitions: int) -> int:
    """Return the group's partition of an offsets topic with this number of `partitions`, as Kafka computes it."""
    code = java_hash(group_id)
    # Java's smallest int has no positive counterpart: Kafka's abs makes it 0.
    return 0 if code == -(2**31) else abs(code) % partitions


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 code units, a signed int of 32 bits."""
    code = 0
    for (unit,) in iter_unpack("<H", text.encode("utf-16-le", "surrogatepass")):
        code = (code * 31 + unit) & 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code

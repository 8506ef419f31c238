"""Which partition of __consumer_offsets holds a group: the broker that leads it coordinates the group."""

from __future__ import annotations

from struct import iter_unpack


def coordinator_partition(group_id: str, partitions: int) -> int:
    """The group's partition, of the `partitions` that the offsets topic has, as Kafka computes it."""
    code = java_hash(group_id)
    # Java's smallest int has no positive: Kafka's abs makes it 0.
    return 0 if code == -(2**31) else abs(code) % partitions


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, a signed int of 32 bits."""
    code = 0
    for (unit,) in iter_unpack("<H", text.encode("utf-16-le", "surrogatepass")):
        code = (code * 31 + unit) & 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code

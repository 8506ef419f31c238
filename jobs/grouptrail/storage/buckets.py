"""`open_bucket`, the partition by which the open rows of a few groups are found and rewritten."""

from __future__ import annotations

from collections.abc import Collection

OPEN_BUCKETS = 8

_SEED = 42
_WORD = 0xFFFFFFFF


def bucket_of(group_id: str) -> int:
    """Return a group's bucket: Spark's `pmod(hash(group_id), 8)`, by which existing tables are partitioned."""
    return _spark_hash(group_id.encode()) % OPEN_BUCKETS


def in_buckets(buckets: Collection[int], column: str = "open_bucket") -> str:
    """Return the condition (SQL) on open rows of some buckets."""
    return f"{column} IN ({', '.join(map(str, sorted(buckets)))})" if buckets else "false"


def _spark_hash(content: bytes) -> int:
    """Return Spark's hash, unsigned: Murmur3, in which each of the last one to three bytes counts as a whole word."""
    whole = len(content) // 4 * 4
    value = _SEED
    for start in range(0, whole, 4):
        value = _mixed(value, int.from_bytes(content[start : start + 4], "little"))
    for start in range(whole, len(content)):
        value = _mixed(value, int.from_bytes(content[start : start + 1], signed=True) & _WORD)
    value ^= len(content)
    value = (value ^ value >> 16) * 0x85EBCA6B & _WORD
    value = (value ^ value >> 13) * 0xC2B2AE35 & _WORD
    return value ^ value >> 16


def _mixed(value: int, word: int) -> int:
    value ^= _rotated(word * 0xCC9E2D51 & _WORD, 15) * 0x1B873593 & _WORD
    return (_rotated(value, 13) * 5 + 0xE6546B64) & _WORD


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _WORD

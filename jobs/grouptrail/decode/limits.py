"""The size up to which the decode job decodes records, for each of its micro-batches.

A micro-batch that is repeated must put each record into the same table as before: its appends to some tables may have
been committed. So a new value of `decode.max_record_bytes` applies to batches that have not been tried yet. The
checkpoint's folder `limits` has a file for each value, named by the first batch that it applies to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grouptrail.storage.checkpoints import Checkpoint

# Of batches that were tried by a version without a limit.
_NO_LIMIT = (1 << 31) - 1


def apply(checkpoint: Checkpoint, max_record_bytes: int) -> Callable[[int], int]:
    """Let the configured limit apply to all batches that have not been tried; return the limit of a batch."""
    limits = {-1: _NO_LIMIT}
    for name in checkpoint.names("limits"):
        text = checkpoint.text(f"limits/{name}") if name.isdigit() else None
        if text:  # a file without text was being written: no batch was tried with it
            limits[int(name)] = int(text)

    def limit_of(batch: int) -> int:
        return limits[max(first for first in limits if first <= batch)]

    tried = checkpoint.newest("offsets")
    following = 0 if tried is None else tried + 1
    if limit_of(following) != max_record_bytes:
        limits[following] = max_record_bytes
        checkpoint.write_text(f"limits/{following}", str(max_record_bytes))
    return limit_of

"""Let this process return memory that it has freed."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import sys
from functools import cache
from typing import Any

MALLOC_ARENAS = 2
"""The number of malloc's arenas in Java, its Python workers and `run`; its default is eight for each core."""

# Of malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
# Larger blocks are mapped, so that they are returned when they are freed.
_MAPPED_BYTES = 16 << 20
_KEPT_BYTES = 128 << 20
_LONG_SECONDS = 0.3
# Arrow's allocator.
_PURGE_DELAY = "MIMALLOC_PURGE_DELAY"
KEPT_WITHIN_BATCHES = {
    _PURGE_DELAY: "1000",
    # jemalloc, delta-rs's allocator. By default each of eight arenas and each thread keep what the lists of tables'
    # files once needed.
    "_RJEM_MALLOC_CONF": "narenas:2,tcache:false,dirty_decay_ms:1000,muzzy_decay_ms:0",
}
"""The environment of a process that imports pyarrow or deltalake before it calls `keep_memory_within_batches`."""


def keep_memory_within_batches() -> None:
    """Let malloc and Arrow reuse what is freed until `release_memory`, and delta-rs for a second.

    Call it before pyarrow and deltalake are imported, or with `KEPT_WITHIN_BATCHES` in the environment.

    To return each block at once, and to map it again for the next column, takes half as long as the computation of
    lag itself. By malloc's own settings much stays for good: each larger block that is freed raises its thresholds,
    and each of the many threads has an arena.
    """
    is_chosen = _PURGE_DELAY in os.environ
    for name, value in KEPT_WITHIN_BATCHES.items():
        os.environ.setdefault(name, value)
    import pyarrow  # noqa: F401  # reads the setting, once

    if not is_chosen:
        del os.environ[_PURGE_DELAY]  # processes that this one starts do not call `release_memory`
    if (mallopt := _of_glibc("mallopt")) is not None:
        mallopt(_M_ARENA_MAX, MALLOC_ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def release_memory(*, after_seconds: float = math.inf) -> None:
    """Return what is freed to the system. It takes some milliseconds: after a short piece of work nothing is done."""
    if after_seconds < _LONG_SECONDS:
        return
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    if (trim := _of_glibc("malloc_trim")) is not None:
        trim(0)


@cache
def _of_glibc(name: str) -> Any:
    """Return a function of glibc; None with another C library."""
    return getattr(ctypes.CDLL(None), name, None)


def collect_garbage_sooner() -> None:
    """Exempt imported objects from garbage collection, so that Python collects every minute or two, not every six.

    Each of py4j's objects is in a reference cycle and keeps a plan or a snapshot in Java alive until it is collected.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # the number of objects left decides when Python next collects all of them

"""Let this process return memory that it has freed."""

from __future__ import annotations

import ctypes
import gc
import os

from grouptrail.spark import jvm

# Of malloc.h. By default each larger block that is freed would raise the threshold: the next is kept.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_MAPPED_BYTES = 1 << 20


def return_memory_sooner() -> None:
    """Let Arrow and malloc return what is freed to the system; call it before pyarrow is imported.

    Arrow's allocator keeps it until later, as do malloc's arenas, one for each of the many threads. Blocks of malloc
    below 1 MiB may stay: to map each of them anew would double the processor time of the lag of 50,000 positions.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "0")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, jvm.MALLOC_ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def collect_garbage_sooner() -> None:
    """Exempt imported objects from garbage collection, so that Python collects every minute or two, not every six.

    Each of py4j's objects is in a reference cycle and keeps a plan or a snapshot in Java alive until it is collected.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # the number of objects left decides when Python next collects all of them

"""Queries in separate processes, with limits on time, memory and the size of the result.

    QueryProcesses.run --request as JSON, on stdin--> `python -m grouptrail.query.process`
                       <--a line of JSON, and the rows as an Arrow stream, on stdout--

A query may need any amount of memory and time. A process of its own can be killed, and fails alone; the scheduler and
the kernel's memory killer prefer the caller to it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arro3.core import RecordBatch, Schema

from grouptrail.query.errors import QueryError

if TYPE_CHECKING:
    import pyarrow as pa

    from grouptrail.storage.warehouse import Warehouse

# With the longest time of a query (`web.sql_timeout_seconds`) less than the server has for a request.
_WAIT_SECONDS = 3.0
_LOOK_SECONDS = 0.1
# Beyond the caller's deadline: ends the process if its caller has been killed.
_ALARM_SECONDS = 2
_THREADS = 2
_NICENESS = 10
_MEGABYTE = 1_000_000


class LimitError(QueryError):
    """A query that exceeds a limit."""


class BusyError(QueryError):
    """The maximum number of queries is already running."""


class AbandonedError(QueryError):
    """A query whose client is gone."""

    def __init__(self) -> None:
        super().__init__("the client closed the connection, so its query was stopped: keep it open until the answer")


@dataclass(frozen=True)
class Limits:
    """Limits of a query: rows and bytes of its result, memory of its process, and time."""

    max_rows: int
    max_result_bytes: int
    max_memory_bytes: int
    timeout_seconds: float


@dataclass(frozen=True)
class QueryResult:
    """Rows of a query; `is_cut` if it has more, `seconds` is what it took.

    `note` says how old the data are if they do not show what the query's views are asked for."""

    table: pa.Table
    is_cut: bool
    seconds: float
    note: str | None = None

    @property
    def schema(self) -> Schema:
        """Return the columns as the engine and `formats` have them."""
        return Schema.from_arrow(self.table.schema)

    def batches(self) -> Iterator[RecordBatch]:
        """Yield the rows as the engine and `formats` have them."""
        return map(RecordBatch.from_arrow, self.table.to_batches())


class QueryProcesses:
    """Runs queries with limits, a few at a time."""

    def __init__(self, limits: Limits, at_once: int) -> None:
        self._limits = limits
        self._at_once = at_once
        self._free = threading.BoundedSemaphore(at_once) if at_once else None

    def run(
        self,
        warehouse: Warehouse,
        text: str,
        *,
        sample_seconds: float,
        is_abandoned: Callable[[], bool] = lambda: False,
    ) -> QueryResult:
        """Run a query of the tables and of the views of the warehouse's cluster, as `sql.run_query` does.

        Raises LimitError beyond a limit, BusyError if no other query ends in time, and QueryError for wrong queries.
        A query is stopped, with an AbandonedError, soon after `is_abandoned()`, which another thread calls.
        """
        if self._free is None:
            raise QueryError("SQL is disabled here: use `grouptrail sql`, or set web.sql_max_queries")
        if not self._free.acquire(timeout=_WAIT_SECONDS):
            plural = "y runs" if self._at_once == 1 else "ies run"
            raise BusyError(f"{self._at_once} quer{plural} already, which is the limit: try again in some seconds")
        try:
            if is_abandoned():
                raise AbandonedError
            return _run(_request(warehouse, text, sample_seconds, self._limits), self._limits, is_abandoned)
        finally:
            self._free.release()


def _run(request: bytes, limits: Limits, is_abandoned: Callable[[], bool]) -> QueryResult:
    started = time.monotonic()
    has_ended, was_abandoned = threading.Event(), threading.Event()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "grouptrail.query.process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TOKIO_WORKER_THREADS": str(_THREADS)},
        start_new_session=True,  # Ctrl-C is for the caller
    )

    # `communicate` cannot do this from time to time: called again, it does not send the rest of the request.
    def look() -> None:
        while not has_ended.wait(_LOOK_SECONDS):
            if is_abandoned():
                was_abandoned.set()
                process.kill()
                return

    with process:
        try:
            threading.Thread(target=look, name="sql-client", daemon=True).start()
            answer, complaint = process.communicate(request, limits.timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise LimitError(
                f"the query took longer than {limits.timeout_seconds:g} s and was stopped: read less, for example "
                "with a WHERE on cluster and time, or run it with `grouptrail sql`"
            ) from error
        finally:
            has_ended.set()
            process.kill()
    if was_abandoned.is_set():
        raise AbandonedError
    line, _, stream = answer.partition(b"\n")
    if not line:
        raise _ended(process.returncode, complaint, limits)
    header = json.loads(line)
    if "problem" in header:
        raise QueryError(header["problem"])
    import pyarrow as pa

    with pa.ipc.open_stream(stream) as reader:
        return QueryResult(reader.read_all(), header["is_cut"], time.monotonic() - started, header["note"])


def _request(warehouse: Warehouse, text: str, sample_seconds: float, limits: Limits) -> bytes:
    tables = {"location": warehouse.location, "cluster": warehouse.cluster, "options": dict(warehouse.options)}
    request = {"warehouse": tables, "text": text, "sample_seconds": sample_seconds, "limits": asdict(limits)}
    return json.dumps(request).encode()


def _ended(returncode: int, complaint: bytes, limits: Limits) -> QueryError:
    """Return the error of a process that ended without an answer."""
    said = complaint.decode("utf-8", "replace").strip()
    if returncode == -signal.SIGABRT and "panicked" in said and "emory" not in said:
        return QueryError(
            "the query's process was aborted, as by a damaged file: list such files with `grouptrail repair`, "
            "see docs/faults.md#damaged-files"
        )
    # Rust aborts without memory, Python and Arrow raise, and the kernel kills.
    if returncode in (-signal.SIGABRT, -signal.SIGKILL) or "emory" in said:
        return LimitError(
            f"the query needs more than {limits.max_memory_bytes / _MEGABYTE:,.0f} MB of memory and was stopped: "
            "read fewer columns or rows, or run it with `grouptrail sql`"
        )
    last = said.splitlines()[-1][:300] if said else f"exit code {returncode}"
    return QueryError(f"the query's process ended without an answer ({last}): report it")


def main() -> None:
    """Answer the request on stdin. Errors of the query are part of the answer."""
    request = json.load(sys.stdin)
    limits = Limits(**request["limits"])
    _limit_this_process(limits)
    from grouptrail.query.sql import DeltaRs, QueryContext, run_query_with_note
    from grouptrail.storage.damage import all_damage
    from grouptrail.storage.warehouse import Warehouse

    warehouse = Warehouse(**request["warehouse"])
    context = QueryContext(warehouse, DeltaRs(warehouse), request["sample_seconds"], is_cluster_named=True)
    try:
        schema, batches, note = run_query_with_note(context, request["text"])
        is_cut, rows = _answer(schema, batches, limits)
        note = "; ".join(filter(None, [note, *all_damage()])) or None
        header = {"is_cut": is_cut, "note": note}
    except QueryError as error:
        header, rows = {"problem": str(error)}, b""
    sys.stdout.buffer.write(json.dumps(header).encode() + b"\n" + rows)
    sys.stdout.flush()
    # Not sys.exit, which waits for threads of the engine that may still read.
    os._exit(0)


def _limit_this_process(limits: Limits) -> None:
    signal.alarm(int(limits.timeout_seconds) + _ALARM_SECONDS)
    os.nice(_NICENESS)
    # Data, not address space, of which threads reserve far more than they use.
    resource.setrlimit(resource.RLIMIT_DATA, (limits.max_memory_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _answer(schema: Any, batches: Iterator[Any], limits: Limits) -> tuple[bool, bytes]:
    """Return the first rows that are within the limits, and whether there are more."""
    import pyarrow as pa

    plain = pa.schema([field.with_type(_without_views(field.type)) for field in pa.schema(schema)])
    rows_left, bytes_left, is_cut = limits.max_rows, limits.max_result_bytes, False
    out = io.BytesIO()
    with pa.ipc.new_stream(out, plain) as writer:
        for answered in batches:
            batch = pa.RecordBatch.from_arrays(
                [
                    column.cast(type_)
                    for column, type_ in zip(pa.record_batch(answered).columns, plain.types, strict=True)
                ],
                schema=plain,
            )
            count = min(len(batch), rows_left)
            while count and batch.slice(0, count).nbytes > bytes_left:
                count //= 2
            fitting = batch.slice(0, count)
            if count:
                writer.write_batch(fitting)
            rows_left -= count
            bytes_left -= fitting.nbytes
            if count < len(batch):
                is_cut = True
                break
    return is_cut, out.getvalue()


def _without_views(type_: pa.DataType) -> pa.DataType:
    """Return the type with plain strings and bytes: a slice of views carries the bytes of the whole batch."""
    import pyarrow as pa

    if pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_binary_view(type_):
        return pa.binary()
    if pa.types.is_dictionary(type_):
        return _without_views(type_.value_type)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(_without_views(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_without_views(field.type)) for field in type_])
    return type_


if __name__ == "__main__":
    main()

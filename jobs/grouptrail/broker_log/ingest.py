"""`grouptrail ingest-broker-log`: write the events in brokers' log files that the table does not have yet."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grouptrail.broker_log.events_table import EVENTS, write_events
from grouptrail.broker_log.files import BrokerLogError
from grouptrail.broker_log.reading import LineCounts, read_events
from grouptrail.console.progress import Log, waiting
from grouptrail.jobs import ApplyEvents

if TYPE_CHECKING:
    from grouptrail.storage.warehouse import Warehouse

_ROWS_AT_A_TIME = 20_000


def ingest_broker_log(
    warehouse: Warehouse,
    paths: Sequence[Path],
    zone: tzinfo,
    log: Log,
    *,
    apply: ApplyEvents,
    trusts_clients: bool = False,
) -> None:
    """Write the events of some files to `broker_log_events`, each once, log counts, and apply them to the history.

    Events that were there already are applied, too: an earlier run may have been interrupted before it did so. Times
    without an offset are of `zone`. With `trusts_clients`, names and reasons that clients give are taken to
    contain no line breaks. Raises BrokerLogError at the end if a file could not be read, or not to its end.
    """
    table = warehouse.table(EVENTS)
    table.ensure()
    started, counts, written, faults = time.monotonic(), LineCounts(), 0, []
    times: list[datetime] = []
    for path in paths:
        with waiting(f"reading {path}"):
            rows = read_events(path, zone, counts, trusts_clients=trusts_clients)
            try:
                for batch in _batches(rows):
                    written += write_events(warehouse, batch)
                    logged = [*times, *(row["logged_at"] for row in batch)]
                    times = [min(logged), max(logged)]
            except BrokerLogError as error:
                faults.append(str(error))
    log(summary(counts, written, len(paths), time.monotonic() - started))
    if times:
        with waiting("applying them to the history"):
            updated = apply(*times)
        log(str(updated))
    if counts.lines and not counts.events:
        log("no line of a group coordinator was found: set the logger org.apache.kafka.coordinator.group to INFO")
    if faults:
        raise BrokerLogError("; ".join(faults))


def summary(counts: LineCounts, written: int, files: int, seconds: float) -> str:
    """Return the line about what was read."""
    many = "1 file" if files == 1 else f"{files:,} files"
    text = (
        f"{many}: {counts.lines:,} lines read, {counts.events:,} events, {written:,} of them new; "
        f"{counts.doubtful:,} doubtful, {counts.unmatched:,} lines unmatched, {counts.malformed:,} malformed"
    )
    if counts.ambiguous_times:
        text += f", {counts.ambiguous_times:,} dropped because clocks were changed then"
    return f"{text}; in {seconds:.1f} s"


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows some at a time; those before an error, too."""
    fault: BrokerLogError | None = None
    while fault is None:
        batch: list[dict[str, Any]] = []
        try:
            for row in rows:
                batch.append(row)
                if len(batch) == _ROWS_AT_A_TIME:
                    break
        except BrokerLogError as error:
            fault = error
        if batch:
            yield batch
        elif fault is None:
            return
    raise fault

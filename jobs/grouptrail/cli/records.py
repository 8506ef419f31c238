"""Commands on the records of __consumer_offsets and on brokers' logs: decode, redecode, ingest-…, rebuild."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from grouptrail.cli.options import ConfigOptions
from grouptrail.console.progress import print_now
from grouptrail.errors import GrouptrailError
from grouptrail.runtime.warehouses import warehouse_in_session, warehouse_of

if TYPE_CHECKING:
    from io import BufferedIOBase


def decode(
    hex_: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY_HEX [VALUE_HEX]]", help="Key and value of a record; a key without a value is a tombstone."
        ),
    ] = None,
    blob: Annotated[
        str | None, typer.Option(metavar="NAME", help="Decode the hex argument as this embedded blob instead.")
    ] = None,
    topic: Annotated[
        Literal["__consumer_offsets", "__share_group_state"],
        typer.Option(help='The topic of the records; "topic" of a JSON line overrides it.'),
    ] = "__consumer_offsets",
    max_record_bytes: Annotated[
        int,
        typer.Option(min=1, help="Maximum size of a key or value. Decoding takes up to thirty times as much memory."),
    ] = 10_000_000,
) -> None:
    """Decode records from hex, or from JSON lines {"key_hex": ..., "value_hex": ...} on stdin, to JSON lines."""
    from grouptrail.decode.lines import arriving_lines, decode_lines

    with contextlib.suppress(AttributeError):
        cast("Any", sys.stdout).reconfigure(encoding="utf-8", newline="\n", write_through=False)
    if hex_ or blob:
        lines: Iterator[str | None] = iter([_hex_line(hex_ or [], blob)])
    else:
        if sys.stdin.isatty():
            typer.echo("reading JSON lines from the terminal; end with Ctrl-D", err=True)
        lines = arriving_lines(cast("BufferedIOBase", sys.stdin.buffer), sys.stdout.flush, max_record_bytes)
    unusable = decode_lines(lines, sys.stdout, max_record_bytes, topic)
    if unusable:
        count, too_large = unusable.total(), unusable["too_large"]
        what = "line is" if count == 1 else "lines are"
        if too_large:
            what = f"{what} not valid input, {too_large} because of more than {max_record_bytes:,} bytes"
            raise GrouptrailError(f'{count} {what}: look for "too_large" in the output, or raise --max-record-bytes')
        raise GrouptrailError(f'{count} {what} not valid input: look for "where": "input" in the output')


def _hex_line(given: list[str], blob: str | None) -> str:
    import json

    if not 0 < len(given) <= (1 if blob else 2):
        expected = "one argument, the blob's hex" if blob else "KEY_HEX and optionally VALUE_HEX"
        raise typer.BadParameter(f"expected {expected}; got {len(given)} arguments", param_hint="HEX")
    names = ("value_hex",) if blob else ("key_hex", "value_hex")
    return json.dumps({"blob": blob} | dict(zip(names, given, strict=False)))


def redecode(options: ConfigOptions) -> None:
    """Decode the rows of undecodable_records again after an upgrade, and move those that now decode.

    The same for records of share groups, which are in share_group_state. Stop the share-state job first.
    """
    from grouptrail.decode.redecode import redecode as run_redecode
    from grouptrail.share_state.redecode import redecode_share_state

    config = options.load()
    with warehouse_in_session(config, "redecode", print_now, is_varied=True) as warehouse:
        run_redecode(warehouse, config.decode.max_record_bytes, print_now)
        redecode_share_state(warehouse, config.decode.max_record_bytes, print_now)


def ingest_segments(
    options: ConfigOptions,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A broker's log directory (log.dirs), or a copy of it.")
    ],
) -> None:
    """Ingest records from log segments of __consumer_offsets, on a broker's disk or in a backup, each record once."""
    from grouptrail.decode.sources.ingest import ingest_segments as run_ingest
    from grouptrail.decode.sources.segments import partition_folders

    config = options.load()
    folders = partition_folders(folder)
    warehouse_of(config).check()
    with warehouse_in_session(config, "ingest-segments", print_now, is_varied=True) as warehouse:
        run_ingest(
            warehouse,
            folders,
            print_now,
            max_batch_bytes=config.decode.max_segment_batch_bytes,
            max_record_bytes=config.decode.max_record_bytes,
        )


def ingest_broker_log(
    options: ConfigOptions,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Logs of brokers: plain text or JSON, also compressed by gzip or zstd."
        ),
    ],
    time_zone: Annotated[
        str,
        typer.Option(metavar="ZONE", help="Time zone of times without an offset, such as Europe/Berlin or +02:00."),
    ] = "UTC",
    trust_clients: Annotated[
        bool,
        typer.Option(
            "--trust-clients", help="No client puts lines of its own into names or reasons: see docs/broker-log.md."
        ),
    ] = False,
) -> None:
    """Ingest what group coordinators logged about groups, each line once. Needs their logger at level INFO."""
    from functools import partial

    from grouptrail.broker_log.ingest import ingest_broker_log as run_ingest
    from grouptrail.console.times import time_zone as parse_zone
    from grouptrail.history.broker_log_update import apply_events

    zone = parse_zone(time_zone)
    warehouse = warehouse_of(options.load())
    warehouse.check()
    apply = partial(apply_events, warehouse)
    run_ingest(warehouse, files, zone, print_now, apply=apply, trusts_clients=trust_clients)


def rebuild(
    options: ConfigOptions,
    what: Annotated[Literal["history"], typer.Argument(help="The tables to rebuild.")],
) -> None:
    """Recompute the history tables from all decoded records. Stop the history job first."""
    config = options.load()
    if what == "history":
        from grouptrail.runtime.rebuild import rebuild_history

        rebuild_history(config)

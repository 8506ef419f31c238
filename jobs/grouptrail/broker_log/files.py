"""Lines of a log file, plain or compressed by gzip or zstd, without holding more than one of them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from grouptrail.errors import GrouptrailError

MAX_LINE_BYTES = 64 << 10
"""A longer line is cut."""

_CHUNK_BYTES = 256 << 10
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class BrokerLogError(GrouptrailError):
    """A log file cannot be read, or only its beginning."""


def read_lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Yield the lines of a file without their ends, each with whether it was cut.

    Raises BrokerLogError, in a damaged or truncated file after the lines before that place.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4)
        with closing(_opened(path, head)) as stream:
            yield from _lines(stream.read, path)
    except OSError as error:
        raise BrokerLogError(
            f"{path} cannot be read ({error.strerror or error}): check the path and its rights"
        ) from error


def _opened(path: Path, head: bytes) -> IO[bytes] | Any:
    if head.startswith(_GZIP):
        return gzip.open(path, "rb")
    if head == _ZSTD:
        return pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")
    return path.open("rb")


def _lines(read: Callable[[int], bytes], path: Path) -> Iterator[tuple[bytes, bool]]:
    begun, is_cut, damage = b"", False, None
    while True:
        try:
            chunk = read(_CHUNK_BYTES)
        except (EOFError, zlib.error, OSError, pa.ArrowException) as error:
            damage, chunk = error, b""
        if not chunk:
            break
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            whole = begun + line
            yield whole[:MAX_LINE_BYTES].removesuffix(b"\r"), is_cut or len(whole) > MAX_LINE_BYTES
            begun, is_cut = b"", False
        begun += rest
        if len(begun) > MAX_LINE_BYTES:
            begun, is_cut = begun[:MAX_LINE_BYTES], True
    if begun:
        # The line at which a file was truncated looks complete if only its end is missing.
        yield begun.removesuffix(b"\r"), is_cut or damage is not None
    if damage is not None:
        raise BrokerLogError(
            f"{path} is damaged or truncated ({damage}): what could be read was kept; ingest a complete copy, too"
        ) from damage

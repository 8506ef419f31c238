"""Lines of a log file, plain or compressed by gzip or zstd, without holding more than one of them."""

from __future__ import annotations

import errno
import gzip
import os
import stat
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from io import BufferedReader
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


class MovedError(Exception):
    """The file that was to be read is not at its path any more."""


def read_lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Yield the lines of a file without their ends, each with whether it was cut.

    Raises BrokerLogError, in a damaged or truncated file after the lines before that place.
    """
    lines = LineSplitter()
    for chunk, is_damaged in read_chunks(path):
        yield from lines.end(is_damaged=is_damaged) if chunk is None else lines.feed(chunk)


def read_chunks(
    path: Path, offset: int = 0, place: tuple[int, int] | None = None
) -> Iterator[tuple[bytes | None, bool]]:
    """Yield the uncompressed content of a file after some bytes, then None with whether the file is damaged there.

    `place` are the device and inode that the file must have. Raises MovedError if it has not, and BrokerLogError, of
    a damaged or truncated file after that.
    """
    try:
        with open_regular(path) as file, closing(_uncompressed(file)) as stream:
            status = os.fstat(file.fileno())
            if place not in (None, (status.st_dev, status.st_ino)):
                raise MovedError
            damage = yield from _chunks(stream, offset)
    except OSError as error:
        if place is not None and isinstance(error, FileNotFoundError):
            raise MovedError from error
        raise BrokerLogError(
            f"{path} cannot be read ({error.strerror or error}): check the path and its rights"
        ) from error
    if damage is not None:
        raise BrokerLogError(
            f"{path} is damaged or truncated ({damage}): what could be read was kept; ingest a complete copy, too"
        ) from damage


def read_head(file: IO[bytes], size: int) -> tuple[bytes, bool]:
    """Return the first bytes of a file's uncompressed content, and whether it is compressed. Raises OSError."""
    stream = _uncompressed(file)
    try:
        return stream.read(size), stream is not file
    except (EOFError, zlib.error, pa.ArrowException) as error:
        raise OSError(errno.EINVAL, f"damaged or truncated ({error})") from error


class LineSplitter:
    """Divides content into lines without holding more than one of them.

    `is_cut`: what has been read last is a part of a line that is too long.
    """

    def __init__(self, *, is_cut: bool = False) -> None:
        self.is_cut = is_cut
        self._begun = b""

    @property
    def begun_bytes(self) -> int:
        """How much of an incomplete line there is that has to be read again to resume; none of one that is cut."""
        return 0 if self.is_cut else len(self._begun)

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield the lines that a part of the content ends, each with whether it was cut."""
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            whole = self._begun + line
            yield whole[:MAX_LINE_BYTES].removesuffix(b"\r"), self.is_cut or len(whole) > MAX_LINE_BYTES
            self._begun, self.is_cut = b"", False
        self._begun += rest
        if len(self._begun) > MAX_LINE_BYTES:
            self._begun, self.is_cut = self._begun[:MAX_LINE_BYTES], True

    def end(self, *, is_damaged: bool = False) -> Iterator[tuple[bytes, bool]]:
        """Yield the line that the end of the content ends, if there is one.

        The line at which a file was truncated looks complete if only its end is missing.
        """
        if self._begun or self.is_cut:
            yield self._begun.removesuffix(b"\r"), self.is_cut or is_damaged
        self._begun, self.is_cut = b"", False


def _uncompressed(file: IO[bytes]) -> IO[bytes] | Any:
    head = file.read(4)
    file.seek(0)
    if head.startswith(_GZIP):
        return gzip.GzipFile(fileobj=file, mode="rb")
    if head == _ZSTD:
        return pa.CompressedInputStream(pa.PythonFile(file), "zstd")
    return file


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file. Raises OSError, also of a pipe, which would wait for its writer."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file")
    return file


def _chunks(stream: IO[bytes] | Any, offset: int) -> Generator[tuple[bytes | None, bool], None, Exception | None]:
    damage: Exception | None = None
    skipped = stream.seek(offset) if isinstance(stream, BufferedReader) else 0
    while damage is None:
        try:
            chunk = stream.read(_CHUNK_BYTES)
        except (EOFError, zlib.error, OSError, pa.ArrowException) as error:
            damage, chunk = error, b""
        if not chunk:
            break
        skip = min(len(chunk), offset - skipped)
        skipped += skip
        if skip < len(chunk):
            yield chunk[skip:], False
    yield None, damage is not None
    return damage

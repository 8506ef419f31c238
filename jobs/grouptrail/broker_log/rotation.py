"""In which files a log goes on: the one that was read before, under whatever name, and those that came after it.

A file is known by its device and inode and by its first bytes, so that one that took another's place, or its inode,
is not taken for it. A copy of it, compressed or not, has the same first bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from grouptrail.broker_log.files import open_regular, read_head

HEAD_BYTES = 1_024
"""How much of a file's beginning is compared."""

_LEAST_HEAD_BYTES = 256
_ENDS_OF_NAMES = (".", "-", "_")


@dataclass(frozen=True)
class FileId:
    """Which file it is. `head` is a digest of its first `head_bytes` bytes, uncompressed."""

    device: int
    inode: int
    head_bytes: int
    head: str

    @property
    def place(self) -> tuple[int, int]:
        """Its device and inode."""
        return self.device, self.inode

    @property
    def is_weak(self) -> bool:
        """Whether other files of the log may begin like it, as it was read when it had only begun."""
        return self.head_bytes < _LEAST_HEAD_BYTES

    def is_place_of(self, file: File) -> bool:
        """Return whether a file has its device and inode."""
        return self.place == file.id.place


@dataclass(frozen=True)
class File:
    """A file with its first bytes. `size` is that on disk."""

    path: Path
    id: FileId
    size: int
    modified_ns: int
    is_compressed: bool
    beginning: bytes

    @classmethod
    def of(cls, path: Path) -> File:
        """Return the file that has a path now. Raises OSError."""
        with open_regular(path) as file:
            return _described(path, file)

    def begins_like(self, file_id: FileId) -> bool:
        """Return whether its first bytes are those of a file."""
        return (
            len(self.beginning) >= file_id.head_bytes
            and _digest(self.beginning[: file_id.head_bytes]) == file_id.head
        )

    def has(self, offset: int) -> bool:
        """Return whether its content may be that long."""
        return self.is_compressed or self.size >= offset


@dataclass(frozen=True)
class Position:
    """How far a log was read: the file, its path then, and the bytes of whole lines that were read of its content.

    `is_cut`: within a line that is too long.
    """

    file: FileId
    path: str
    offset: int
    modified_ns: int
    is_cut: bool = False

    @classmethod
    def begin(cls, file: File) -> Position:
        """Return the beginning of a file."""
        return cls(file.id, str(file.path), 0, file.modified_ns)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Position:
        """Return a position that was stored."""
        return cls(**{**stored, "file": FileId(**stored["file"])})

    def as_json(self) -> dict[str, Any]:
        """Return it to be stored."""
        return asdict(self)

    def is_in(self, file: File) -> bool:
        """Return whether a file is the one that was read, and has not become shorter."""
        return self.file.is_place_of(file) and file.begins_like(self.file) and file.has(self.offset)

    def moved_to(self, file: File) -> Position:
        """Return the same place in another copy of the file, or in the same one after it has grown."""
        return replace(self, file=file.id, path=str(file.path), modified_ns=file.modified_ns)


def rotated_files(
    path: Path, position: Position, known: Iterable[FileId], excluded: Collection[str]
) -> tuple[File | None, list[File]]:
    """Return the file that was read last, under its new name, and those that came after it, the oldest first.

    Without the file at `path` itself and those at `excluded` paths. The first is None if it is not there any more.
    `known` are files that were read to their ends.
    """
    current = Path(os.path.realpath(path))
    named = {current.name, Path(position.path).name}
    read: File | None = None
    copies: list[File] = []
    later: list[File] = []
    known = list(known)
    for folder in dict.fromkeys((current.parent, Path(position.path).parent)):
        for entry, inode in _entries(folder):
            if entry == current or str(entry) in excluded:
                continue
            is_named = any(_is_rotation(entry.name, name) for name in named)
            if not (is_named or inode == position.file.inode):
                continue
            try:
                file = File.of(entry)
            except OSError:
                continue
            is_same = file.begins_like(position.file) and file.has(position.offset)
            if is_same and position.file.is_place_of(file):
                read = file
            elif is_named and file.modified_ns >= position.modified_ns and not _is_known(file, known):
                (copies if is_same and position.file.head_bytes else later).append(file)
    copies.sort(key=age)
    if read is None and copies:
        read = copies.pop(0)
    # With few bytes in common these may be other files; with many they are the same one again, as while it is packed.
    if position.file.is_weak:
        later += copies
    return read, sorted(later, key=age)


def rotations_among(path: Path, others: Iterable[Path]) -> list[Path]:
    """Return those of some paths that are names of rotated files of a log."""
    return [other for other in others if other.parent == path.parent and _is_rotation(other.name, path.name)]


def by_age(paths: Sequence[Path], known: Iterable[FileId]) -> list[File]:
    """Return the files at some paths that can be read and are not known, the oldest first."""
    files = []
    for path in paths:
        try:
            files.append(File.of(path))
        except OSError:
            continue
    known = list(known)
    return sorted((file for file in files if not _is_known(file, known)), key=age)


def is_moved(path_file: File, position: Position) -> bool:
    """Return whether the file at a log's path is the one that was read, on another device or restored."""
    return not position.file.is_weak and path_file.begins_like(position.file) and path_file.has(position.offset)


def _is_known(file: File, known: Iterable[FileId]) -> bool:
    return any(one.head_bytes > 0 and file.begins_like(one) for one in known)


def _described(path: Path, file: IO[bytes]) -> File:
    status = os.fstat(file.fileno())
    beginning, is_compressed = read_head(file, HEAD_BYTES)
    file_id = FileId(status.st_dev, status.st_ino, len(beginning), _digest(beginning))
    return File(path, file_id, status.st_size, status.st_mtime_ns, is_compressed, beginning)


def _digest(beginning: bytes) -> str:
    return hashlib.sha256(beginning).hexdigest()[:32]


def _is_rotation(name: str, of: str) -> bool:
    return name.startswith(of) and name[len(of) : len(of) + 1] in _ENDS_OF_NAMES and name != of


def _entries(folder: Path) -> Iterator[tuple[Path, int]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield folder / entry.name, entry.inode()
    except OSError:
        return


def age(file: File) -> tuple[int, int, str]:
    """Return a key that orders files by age: those that were written at once by their names.

    Numbers grow with age (server.log.2 is older than server.log.1), dates do not.
    """
    number = file.path.name.removesuffix(".gz").removesuffix(".zst").rpartition(".")[2]
    return file.modified_ns, -int(number) if number.isdigit() and len(number) < 5 else 0, file.path.name

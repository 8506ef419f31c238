"""Damaged files of tables: which must not be opened, which cannot be read, and a table without them.

A damaged file costs its own rows where tables are shown, and stops a job that needs it; both name the file. What was
found is known to the whole process, until the file is replaced or no longer part of the table.
"""

from __future__ import annotations

import math
import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, create_table_with_add_actions

from grouptrail.errors import first_cause
from grouptrail.locations import is_uri, leads_out, shown, with_locations_shown
from grouptrail.storage.errors import DamagedFileError, UnreadableTableError
from grouptrail.storage.location import TableLocation
from grouptrail.storage.reader import READ_ERRORS, by_file, open_table, panics_as_errors, supports

_LEADS_OUT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|/|\\|(.*/)?\.\.(/|$)")
_REMEDY = "restore it from a backup, or see docs/faults.md#damaged-files"
OUTSIDE = "it is outside the table's folder"
_NOT_REGULAR = "it is no regular file"
# Of a table with more files, only the new ones: each takes three microseconds.
_MOST_LOOKED_AT_AGAIN = 2000
_END_BYTES = 8
_MOST_LINES = 5
# Whether a log can be read now is known to those who read it again.
_UNREADABLE_SECONDS = 600
_Stamp = tuple[int, ...] | None


@dataclass(frozen=True)
class _Damage:
    reason: str
    stamp: _Stamp


_lock = Lock()
# By the table's address, and the file's path in it.
_damaged: defaultdict[str, dict[str, _Damage]] = defaultdict(dict)
_looked_at: defaultdict[str, set[str]] = defaultdict(set)
_unreadable: dict[str, tuple[str, float]] = {}


def damaged_files(table: DeltaTable) -> dict[str, str]:
    """Return the files of a table's version that are known to be damaged, and why.

    Files must be regular ones in the table's folder, of the size in its log; of new ones the ends are read, too.
    """
    folder = _local_folder(table.table_uri)
    key = _key(table.table_uri)
    sizes = by_file(table, "size_bytes")
    with _lock:
        _forget_replaced(key, folder)
        known, seen = _damaged[key], _looked_at[key]
        is_large = len(sizes) > _MOST_LOOKED_AT_AGAIN
        for path, size in sizes.items():
            is_new = path not in seen
            if path in known or (is_large and not is_new):
                continue
            if reason := _unfit(folder, path, size, is_new=is_new):
                known[path] = _Damage(reason, _stamp(folder, path))
        _looked_at[key] = set(sizes)
        if known:
            _damaged[key] = {path: known[path] for path in sizes if path in known}
        return {path: one.reason for path, one in _damaged[key].items()}


def damage_of(location: str) -> list[str]:
    """Return a sentence about each file of a table's folder or URI that this process knows to be damaged.

    If the table's log cannot be read, the sentence says so.
    """
    key = _key(location)
    with _lock:
        reason, noted_at = _unreadable.get(key, ("", -math.inf))
        if time.monotonic() - noted_at < _UNREADABLE_SECONDS:
            return [reason]
        _forget_replaced(key, _local_folder(location))
        damaged = {path: one.reason for path, one in _damaged[key].items()}
    return [_said(location, path, reason) for path, reason in damaged.items()]


def _forget_replaced(key: str, folder: str | None) -> None:
    """Forget damaged files that have been replaced or restored since, so that they are looked at again."""
    known = _damaged[key]
    for path in [path for path, one in known.items() if _stamp(folder, path) != one.stamp]:
        del known[path]
        _looked_at[key].discard(path)


def all_damage() -> list[str]:
    """Return the sentences about all tables that this process has read."""
    with _lock:
        locations = [*_unreadable, *_damaged]
    return [text for location in dict.fromkeys(locations) for text in damage_of(location)]


def notes(damage: Collection[str]) -> list[str]:
    """Return lines for a log about sentences such as those of `damage_of`: what they mean, and what to do."""
    lines = [f"rows are missing: {text}: {_REMEDY}" for text in sorted(damage)]
    more = len(lines) - _MOST_LINES
    return lines if more <= 0 else [*lines[:_MOST_LINES], f"and {more:,} more: `grouptrail repair` lists them"]


@contextmanager
def noting_unreadable(location: str) -> Iterator[None]:
    """Note the UnreadableTableError that is raised while a table is opened, or that it can be opened."""
    try:
        yield
    except UnreadableTableError as error:
        with _lock:
            _unreadable[_key(location)] = (error.fact, time.monotonic())
        raise
    with _lock:
        _unreadable.pop(_key(location), None)


def look_again(table: TableLocation) -> list[str]:
    """Return `damage_of` a table after a look at its newest version: what was restored, or is gone, is forgotten."""
    if damage_of(table.path):
        with suppress(UnreadableTableError):
            with noting_unreadable(table.path):
                there = open_table(table)
            if there is not None:
                damaged_files(there)
            else:
                with _lock:
                    _damaged.pop(_key(table.path), None)
    return damage_of(table.path)


def find_damage(table: DeltaTable, options: Mapping[str, str]) -> dict[str, str]:
    """Read all files of a table's version that are not known to be damaged; return those that turn out to be.

    Arrow reads them, which raises where Rust may panic. `options` are delta-rs's options of the store.
    """
    found = dict(_not_read(table, undamaged_paths(table), options))
    note_damage(table, found)
    return found


def find_wrong_footers(table: DeltaTable) -> dict[str, str]:
    """Note the files of a local table whose Parquet footer cannot be where they say that it is; return them."""
    folder = _local_folder(table.table_uri)
    found = {}
    for path in undamaged_paths(table) if folder else ():
        with suppress(OSError):  # missing since: the reader names it
            if reason := _wrong_footer(os.path.join(str(folder), path)):
                found[path] = reason
    note_damage(table, found)
    return found


def undamaged_paths(table: DeltaTable) -> list[str]:
    """Return the files of a table's version that are not known to be damaged."""
    known = damaged_files(table)
    return [path for path in table.get_add_actions()["path"].to_pylist() if path not in known]


def note_damage(table: DeltaTable, found: Mapping[str, str]) -> None:
    """Note that files are damaged, and why."""
    folder, key = _local_folder(table.table_uri), _key(table.table_uri)
    with _lock:
        for path, reason in found.items():
            _damaged[key][path] = _Damage(reason, _stamp(folder, path))


def require_undamaged(table: DeltaTable) -> None:
    """Raise DamagedFileError if a file of a table's version is known to be damaged: see `damaged_files`."""
    if damaged := damaged_files(table):
        raise damage_error(table.table_uri, damaged)


def require_openable(table: DeltaTable) -> None:
    """Raise DamagedFileError if a file of a table's version must not be opened: a pipe or a device, or a file outside
    the table's folder.
    """
    if refused := {path: why for path, why in damaged_files(table).items() if why in (OUTSIDE, _NOT_REGULAR)}:
        raise damage_error(table.table_uri, refused)


def require_openable_by_spark(table: TableLocation, version: int | None = None) -> None:
    """Raise DamagedFileError as `require_openable`; of other files that Spark cannot read, its errors name them."""
    with suppress(UnreadableTableError):  # Spark may read what delta-rs cannot
        if supports(table.path) and (there := open_table(table, version)) is not None:
            require_openable(there)


def damage_error(location: str, damaged: Mapping[str, str]) -> DamagedFileError:
    """Return the error that names the first of a table's damaged files, and says what to do."""
    path, reason = next(iter(damaged.items()))
    others = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
    return DamagedFileError(f"{_said(location, path, reason)}{others}: {_REMEDY}")


@contextmanager
def naming_damage(table: DeltaTable, options: Mapping[str, str]) -> Iterator[None]:
    """If a table cannot be read or written since files of it are damaged, raise DamagedFileError, which names one."""
    try:
        with panics_as_errors():
            yield
    except READ_ERRORS as error:
        if isinstance(error, CommitFailedError):
            raise
        find_damage(table, options)
        if damaged := damaged_files(table):
            raise damage_error(table.table_uri, damaged) from error
        raise


def out_of_range(error: OverflowError) -> str:
    """Return one line about a value, such as a time in the year 30000, that is only in damaged files."""
    return f"a value in the tables is out of range ({error}): list damaged files with `grouptrail repair`"


def _said(location: str, path: str, reason: str) -> str:
    return f"{_local_folder(location) or shown(location)}/{path} is damaged ({with_locations_shown(reason)})"


def of_files(table: DeltaTable, paths: Collection[str], folder: str) -> DeltaTable:
    """Return some files of a table's version as a table, with a log of its own in an empty local folder.

    Raises DamagedFileError for a table in an object store, or with deletion vectors, which such a log cannot repeat.
    """
    there, partitioned_by = _local_folder(table.table_uri), table.metadata().partition_columns
    if there is None or next(iter(table.deletion_vectors()), None) is not None:
        raise damage_error(table.table_uri, damaged_files(table))
    actions = []
    for file in table.get_add_actions(flatten=True).to_struct_array().to_pylist():
        if file["path"] in paths:
            values = {name: file[f"partition.{name}"] for name in partitioned_by}
            texts = {name: None if value is None else str(value) for name, value in values.items()}
            uri = f"file://{Path(there, file['path']).absolute()}"  # delta-rs does not decode it
            actions.append(AddAction(uri, file["size_bytes"], texts, 0, True, "{}"))
    create_table_with_add_actions(folder, table.schema(), actions, partition_by=partitioned_by)
    return DeltaTable(folder)


def is_outside(path: str) -> bool:
    """Return whether a path in a table's log leads out of the table's folder, or is no path in it at all."""
    return bool(_LEADS_OUT.match(path) or _LEADS_OUT.match(unquote(path)))


def _unfit(folder: str | None, path: str, size: int, *, is_new: bool) -> str | None:
    """Return why a file must not be opened; None if it may be. Of a file in an object store only the path is seen."""
    if "\0" in path:  # no file has such a name
        return "its name is damaged"
    if is_new and is_outside(path):
        return OUTSIDE
    try:
        return None if folder is None else _unfit_there(folder, path, size, is_new=is_new)
    except OSError as error:
        return str(error.strerror)


def _unfit_there(folder: str, path: str, size: int, *, is_new: bool) -> str | None:
    whole = os.path.join(folder, path)
    there = os.lstat(whole)
    is_link = stat.S_ISLNK(there.st_mode)
    if (is_link or (is_new and "/" in path)) and leads_out(folder, path):
        return OUTSIDE
    there = os.stat(whole) if is_link else there
    if not stat.S_ISREG(there.st_mode):
        return _NOT_REGULAR
    if there.st_size != size:
        return f"it has {there.st_size:,} bytes instead of {size:,}"
    return _wrong_footer(whole) if is_new else None


def _wrong_footer(file: str) -> str | None:
    """Return what is wrong with the end of a Parquet file, its footer's length and magic bytes. Raises OSError."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        end = os.pread(descriptor, _END_BYTES, max(0, size - _END_BYTES))
    finally:
        os.close(descriptor)
    is_right = end[4:] == b"PAR1" and 0 < int.from_bytes(end[:4], "little") <= size - _END_BYTES - 4
    return None if is_right else "it does not end as a Parquet file does"


def _not_read(table: DeltaTable, paths: list[str], options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the files that Arrow, which raises where Rust may panic, cannot read, or that lack a column."""
    import pyarrow as pa
    from pyarrow import parquet

    from grouptrail.storage.table_log import table_folder

    folder = table_folder(table.table_uri, options)
    partitioned_by = table.metadata().partition_columns
    needed = [one.name for one in table.schema().fields if not one.nullable and one.name not in partitioned_by]
    for path in paths:
        try:
            with (
                folder.open_input_file(path) as stored,
                parquet.ParquetFile(stored, page_checksum_verification=True) as file,
            ):
                if missing := [name for name in needed if name not in file.schema_arrow.names]:
                    yield path, f"it has no column {missing[0]}"
                    continue
                for _ in file.iter_batches(use_threads=False):
                    pass
        except (OSError, ValueError, pa.ArrowException) as error:
            yield path, first_cause(error)


def _stamp(folder: str | None, path: str) -> _Stamp:
    """Return what changes when a file is replaced; None of a missing file, and in an object store."""
    try:
        there = os.stat(os.path.join(folder, path)) if folder else None
    except (OSError, ValueError):  # also of a name that no file has
        return None
    return None if there is None else (there.st_ino, there.st_size, there.st_mtime_ns)


def _local_folder(uri: str) -> str | None:
    """Return the folder of a table's URI; None in an object store."""
    if uri.startswith("file:"):
        return url2pathname(urlsplit(uri).path).rstrip("/")
    return None if is_uri(uri) else uri


def _key(location: str) -> str:
    folder = _local_folder(location)
    return location.rstrip("/") if folder is None else os.path.abspath(folder)

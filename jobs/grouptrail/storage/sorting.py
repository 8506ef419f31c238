"""Sort the files of a table that is appended to into runs: few files, each in the order of the contract's columns.

A run has about a million rows, and a file for each cluster. It is not touched again, so that the work is that of the
new rows. The last rows, which are fewer than a run, are sorted once more together with new ones. Writers go on
meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import CommitFailedError

from grouptrail.memory import release_memory
from grouptrail.storage.engines.commits import commit
from grouptrail.storage.errors import TableError
from grouptrail.storage.files import write_file
from grouptrail.storage.location import TableLocation
from grouptrail.storage.reader import OpenTable, existing_table
from grouptrail.storage.rows import file_batches
from grouptrail.storage.schema import compact, gathered, table_schema

_ROWS_A_RUN = 1 << 20
_BYTES_A_RUN = 256 << 20
_FILE_BYTES_A_RUN = 64 << 20
# A query for one group reads the row groups that may have it.
_ROWS_A_GROUP = 1 << 16

# The names of sorted files begin with one of these.
_RUN, _REST = "run", "rest"


class _File(NamedTuple):
    path: str
    size: int
    rows: int | None


def can_sort(table: OpenTable) -> bool:
    """Return whether files can be replaced without a look at rows that are marked as deleted in them."""
    return "deletionVectors" not in (table.protocol().writer_features or ())


def sort_new_files(table: TableLocation) -> None:
    """Replace the files that are not sorted by sorted ones, a run at a time.

    Each commit says that it only arranges rows (`dataChange`), so that nobody takes them for new ones. Files that
    another writer has replaced meanwhile are left to the next time. Raises TableError.
    """
    there = existing_table(table)
    columns = compact(_columns(there, table))
    for files in _groups(_unsorted(there)):
        if len(files) == 1 and _is_rest(files[0]):
            continue  # the new rows beside it make a run of their own
        rows = file_batches(there, [file.path for file in files], columns, table.options)
        is_large = sum(file.size for file in files) >= _FILE_BYTES_A_RUN // 2
        added, count = list[str](), 0
        for batches in gathered(rows, rows=_ROWS_A_RUN, size=_BYTES_A_RUN):
            rows_of_run = pa.Table.from_batches(batches)
            is_run = is_large or len(rows_of_run) >= _ROWS_A_RUN // 2 or rows_of_run.nbytes >= _BYTES_A_RUN // 2
            added += _write(rows_of_run, table, prefix=_RUN if is_run else _REST)
            count += len(rows_of_run)
        if all(file.rows is not None for file in files) and count != sum(file.rows or 0 for file in files):
            raise TableError(f"{table.shown}: its files have {count:,} rows, which is not what its log says")
        _commit(table, added, {file.path: file.size for file in files})
        release_memory()


def _unsorted(table: OpenTable) -> list[_File]:
    """Return the files to sort, oldest first: what is left of before, and new ones; none if there are no new ones."""
    actions = pa.table(table.get_add_actions(flatten=True)).sort_by("modification_time")
    counts = actions["num_records"].to_pylist() if "num_records" in actions.column_names else [None] * len(actions)
    paths, sizes = actions["path"].to_pylist(), actions["size_bytes"].to_pylist()
    files = [file for file in map(_File, paths, sizes, counts) if not file.path.startswith(f"{_RUN}-")]
    return files if not all(map(_is_rest, files)) else []


def _is_rest(file: _File) -> bool:
    return file.path.startswith(f"{_REST}-")


def _groups(files: Sequence[_File]) -> Iterator[list[_File]]:
    """Group files so that each group has at most the rows of a run, or is one file."""
    group: list[_File] = []
    rows = size = 0
    for file in files:
        rows, size = rows + (file.rows or 0), size + file.size
        if group and (rows > _ROWS_A_RUN or size > _FILE_BYTES_A_RUN):
            yield group
            group, rows, size = [], file.rows or 0, file.size
        group.append(file)
    if group:
        yield group


def _columns(there: OpenTable, table: TableLocation) -> pa.Schema:
    """Return the table's columns, also those that the contract of this version does not have."""
    known = table_schema(table.name)
    stored = pa.schema(there.schema().to_arrow())
    return pa.schema([known.field(one.name) if one.name in known.names else one for one in stored])


def _write(rows: pa.Table, table: TableLocation, *, prefix: str) -> Iterator[str]:
    """Write rows to sorted files, one for each cluster."""
    rows = rows.unify_dictionaries().combine_chunks()
    keys = [name for name in ("cluster", *table.contract.cluster_by) if name in rows.column_names]
    ranked = pa.table({name: _ranks(rows[name]) for name in keys})
    rows = rows.take(pc.sort_indices(ranked, sort_keys=[(name, "ascending") for name in keys]))
    ends = pc.run_end_encode(rows["cluster"].cast(pa.string()).combine_chunks()).run_ends.to_pylist()
    for start, end in zip([0, *ends], ends, strict=False):
        groups = (rows.slice(at, min(_ROWS_A_GROUP, end - at)) for at in range(start, end, _ROWS_A_GROUP))
        yield write_file(groups, rows.schema, table, prefix=prefix)


def _ranks(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Return what sorts as a column does: Arrow does not sort by dictionary codes."""
    if not pa.types.is_dictionary(column.type):
        return column
    codes = column.combine_chunks()
    return pc.rank(codes.dictionary, sort_keys="ascending", tiebreaker="dense").take(codes.indices)


def _commit(table: TableLocation, added: Collection[str], removed: dict[str, int]) -> None:
    """Replace files, unless one of them is not there any more or its rows have changed."""
    there = existing_table(table)
    while can_sort(there) and removed.keys() <= set(there.get_add_actions()["path"].to_pylist()):
        try:
            commit(table, there, added, instead_of=removed, rearranges=True)
        except CommitFailedError:
            newest = existing_table(table)
            if newest.version() == there.version():  # no other writer was first
                raise
            there = newest
        else:
            return

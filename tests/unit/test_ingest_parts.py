"""Which partitions' segments `grouptrail ingest-segments` reads together."""

from __future__ import annotations

from pathlib import Path

import pytest

from grouptrail.decode.sources import ingest


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([10, 10, 10, 10, 10], [{0, 1, 2, 3, 4}]),
        ([60, 60, 60, 60, 60], [{0, 1}, {2, 3}, {4}]),
        ([10, 10, 10, 90, 10], [{0, 1, 2}, {3, 4}]),
    ],
    ids=["small", "large", "mixed"],
)
def test_parts_are_as_many_partitions_as_tasks_or_more_of_small_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], parts: list[set[int]]
) -> None:
    """Two at once, and more up to 100 bytes; a partition's replicas are read together."""
    monkeypatch.setattr(ingest, "_SMALL_BYTES", 100)
    folders: ingest.Folders = []
    for partition, size in enumerate(sizes):
        for replica in ("a", "b"):
            path = tmp_path / f"{partition}-{replica}"
            path.write_bytes(bytes(size // 2))
            folders.append((partition, [path]))
    assert list(ingest._parts(folders, 2)) == parts

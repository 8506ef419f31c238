"""A disk that can be full: a tmpfs, mounted by this process without a right that it does not have.

`in_mount_namespace` starts the program again in a mount namespace of its own, so that nobody else sees the mount,
and nothing remains of it. Root may do that everywhere but in most containers; other users may where the kernel lets
them have user namespaces (Debian, Fedora; not Ubuntu since 24.04).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from grouptrail.errors import GrouptrailError

_INSIDE = "IN_MOUNT_NAMESPACE"
_NAMESPACES = (["--mount"], ["--user", "--map-root-user", "--mount"])
_TRIES = 20


class DiskError(GrouptrailError):
    """A small disk could not be mounted, filled or emptied."""


def in_mount_namespace(command: Sequence[str]) -> bool:
    """Replace this process by `command` in a mount namespace of its own, and return True there.

    Return False where the kernel or the container does not allow that.
    """
    if _INSIDE in os.environ:
        return True
    for options in _NAMESPACES:
        if _may_mount(options):
            sys.stdout.flush()
            os.execvpe("unshare", ["unshare", *options, *command], os.environ | {_INSIDE: "1"})
    return False


def _may_mount(options: Sequence[str]) -> bool:
    """Return whether a process in such a namespace may mount a tmpfs."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["unshare", *options, "mount", "-t", "tmpfs", "tmpfs", folder]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False  # there is no unshare


class SmallDisk:
    """A file system of `size` bytes in memory at `folder`, which it creates."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._size = size

    def __enter__(self) -> Self:
        self._folder.mkdir()
        _mount(f"size={self._size}", "-t", "tmpfs", "tmpfs", str(self._folder))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(["umount", "--lazy", str(self._folder)], check=False)

    def fill(self) -> None:
        """Leave no room: make the file system as small as its content. Raises DiskError."""
        for _ in range(_TRIES):  # writers may be faster than the first attempts
            room = os.statvfs(self._folder)
            used = (room.f_blocks - room.f_bfree) * room.f_frsize
            try:
                _mount(f"remount,size={max(used, room.f_frsize)}", str(self._folder))
            except DiskError as error:
                refused = error
            else:
                return
        raise refused

    def free(self) -> None:
        """Give it its size back. Raises DiskError."""
        _mount(f"remount,size={self._size}", str(self._folder))


def _mount(options: str, *arguments: str) -> None:
    command = ["mount", "-o", options, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DiskError(f"{' '.join(command)} failed ({done.stderr.strip()}): see mount(8)")

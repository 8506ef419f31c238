"""Errors of snapshots."""

from __future__ import annotations

from grouptrail.errors import GrouptrailError


class SnapshotError(GrouptrailError):
    """A table cannot be read."""

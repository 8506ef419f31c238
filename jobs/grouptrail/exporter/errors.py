"""Errors of the exporter."""

from __future__ import annotations

from grouptrail.errors import GrouptrailError


class ExporterError(GrouptrailError):
    """The exporter cannot listen."""

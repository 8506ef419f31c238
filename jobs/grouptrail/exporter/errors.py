"""What keeps metrics from being served."""

from __future__ import annotations

from grouptrail.errors import GrouptrailError


class ExporterError(GrouptrailError):
    """The exporter cannot listen, or cannot read a table."""

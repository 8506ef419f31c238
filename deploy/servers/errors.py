"""The error of Kafka's servers and tools."""

from __future__ import annotations

from grouptrail.errors import GrouptrailError


class BrokerError(GrouptrailError):
    """The jars, the broker or one of Kafka's own tools failed."""

"""Secrets that Kafka's settings refer to, and whether they were renewed while the jobs run."""

from __future__ import annotations

import time

from grouptrail.config import Config
from grouptrail.config.providers import SecretError

LOOK_EVERY_SECONDS = 5.0


class KafkaSecrets:
    """The Kafka settings of a cluster with the secrets that they refer to, which are read again and again."""

    def __init__(self, config: Config) -> None:
        """Read them. Raises SecretError."""
        self._config = config
        self._settings = config.kafka_settings()
        self._may_change = config.refers_to_secrets
        self._due_at = 0.0

    def have_changed(self) -> bool:
        """Return whether a secret is another one than at the last call; it is looked up every five seconds."""
        if not self._may_change or time.monotonic() < self._due_at:
            return False
        self._due_at = time.monotonic() + LOOK_EVERY_SECONDS
        try:
            settings = self._config.kafka_settings()
        except SecretError:  # it is being replaced; a job that starts says so
            return False
        before, self._settings = self._settings, settings
        return settings != before

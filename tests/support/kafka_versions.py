"""The Kafka releases that tests of the floor `broker` run on."""

from __future__ import annotations

import pytest

from servers.kafka import VERSIONS

EVERY_VERSION = (VERSIONS[0], *(pytest.param(version, marks=pytest.mark.full) for version in VERSIONS[1:]))
"""The newest for each change, the others in `make test-full`; of the fixture `broker` with `indirect`."""

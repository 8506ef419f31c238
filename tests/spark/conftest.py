"""A warehouse of its own for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from grouptrail.config import Config, load_config


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config(None, {"warehouse": str(tmp_path / "warehouse"), "cluster": "test"}, {})

"""A warehouse of its own for each test that wants one, and the browser of the tests without a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grouptrail.config import Config
from support.chromium import Browser


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(warehouse=str(tmp_path / "warehouse"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all pages."""
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    try:
        yield browser
    finally:
        browser.close()

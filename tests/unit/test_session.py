"""What Java is started with."""

from __future__ import annotations

import os

import pytest

from grouptrail.config import load_config
from grouptrail.session import collector_options

OPTIONS = "spark.spark.driver.extraJavaOptions"


@pytest.fixture(autouse=True)
def without_java_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("cores", "small"), [(1, True), (4, True), (5, False), (None, True)])
def test_the_heap_is_kept_small_where_there_are_few_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, small: bool
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert ("UseSerialGC" in collector_options(load_config(None, {}, {}))) is small


@pytest.mark.parametrize("way", ["configuration", "environment"])
def test_a_collector_that_was_chosen_stands(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    given = {OPTIONS: "-Xss8m -XX:+UseZGC"} if way == "configuration" else {}
    if way == "environment":
        monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:+UseParallelGC")
    assert collector_options(load_config(None, given, {})) == ""


def test_other_options_for_java_choose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert "UseSerialGC" in collector_options(load_config(None, {OPTIONS: "-XX:+UseStringDeduplication"}, {}))

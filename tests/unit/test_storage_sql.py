"""Literals of SQL, read back by the engine of delta-rs; tests/spark/test_views.py does the same with Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from deltalake import QueryBuilder
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.console.times import parsed_time
from grouptrail.storage.sql import Value, datafusion_literal, spark_identifier


def read_back(value: Value) -> object:
    [batch] = QueryBuilder().execute(f"SELECT {datafusion_literal(value)} AS value").read_all().to_batches()
    return batch["value"][0].as_py()


@given(
    text=st.text() | st.lists(st.sampled_from(["'", "\\", "$", "{x}", "--", "/*", "\n", "\x00", ";"])).map("".join)
)
def test_datafusion_literal_of_any_text_is_read_back_unchanged(text: str) -> None:
    """Quotes, backslashes, comments and control characters are plain text."""
    assert read_back(text) == text


@pytest.mark.parametrize("value", [0, -3, 2**62, datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)])
def test_datafusion_literal_of_numbers_and_times_is_read_back_unchanged(value: int | datetime) -> None:
    """Times beyond 2262, where nanoseconds in 64 bits end, too."""
    stored = read_back(value)
    assert (parsed_time(str(stored)) if isinstance(value, datetime) else stored) == value


def test_spark_identifier_doubles_backticks() -> None:
    """A name cannot end its own quotes."""
    assert spark_identifier("a`b") == "`a``b`"

"""Times as people write them."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.console.times import FORMS, parsed_moment

NOW = datetime(2026, 3, 4, 12, 30, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "2026-03-04T12:30:15"),
        ("today", "2026-03-04T00:00:00"),
        ("yesterday", "2026-03-03T00:00:00"),
        ("Yesterday 03:12", "2026-03-03T03:12:00"),
        ("yesterday at 03:12:09", "2026-03-03T03:12:09"),
        ("today 23:00", "2026-03-04T23:00:00"),
        ("03:12", "2026-03-04T03:12:00"),
        ("12:30:15", "2026-03-04T12:30:15"),
        ("12:31", "2026-03-03T12:31:00"),
        ("23:59", "2026-03-03T23:59:00"),
        ("2h", "2026-03-04T10:30:15"),
        ("2h ago", "2026-03-04T10:30:15"),
        ("2 hours ago", "2026-03-04T10:30:15"),
        ("90 min ago", "2026-03-04T11:00:15"),
        ("1h30m", "2026-03-04T11:00:15"),
        ("1 day 2 h ago", "2026-03-03T10:30:15"),
        ("15s", "2026-03-04T12:30:00"),
        ("1w", "2026-02-25T12:30:15"),
        ("2026-03-01", "2026-03-01T00:00:00"),
        ("2026-03-01 03:12", "2026-03-01T03:12:00"),
        ("2026-03-01T03:12:00Z", "2026-03-01T03:12:00"),
        ("2026-03-01T03:12:00+02:00", "2026-03-01T01:12:00"),
        ("  2026-03-01  ", "2026-03-01T00:00:00"),
    ],
)
def test_parsed_moment_known_form_is_that_time_in_utc(text: str, expected: str) -> None:
    assert parsed_moment(text, NOW) == datetime.fromisoformat(expected).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "noon", "3:12", "25:00", "03:60", "yesterday 3pm", "tomorrow", "2x", "2h later", "ago", "-2h"),
        *("1 month", "2mo", "03/04/2026", "999999 weeks", "9999-12-31T23:59:59-14:00", "2h agoo", "today now"),
    ],
)
def test_parsed_moment_any_other_text_raises(text: str) -> None:
    """What could be read in two ways is refused, such as a month or a time without its leading zero."""
    with pytest.raises(ValueError, match=r"."):
        parsed_moment(text, NOW)


@given(st.text(max_size=20))
def test_parsed_moment_any_text_is_a_time_in_utc_or_raises_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parsed_moment(text, NOW).utcoffset() == timedelta(0)


def test_forms_are_all_accepted() -> None:
    """The message about a wrong time names only forms that work."""
    listed = FORMS.replace(" (its last occurrence)", "").replace(" or ", ", ").replace("'", "")
    for form in listed.split(", "):
        parsed_moment(form, NOW)

"""Commands that move a group's offsets, as the page of a group prints them."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.web.reset_commands import reset_commands

AT = datetime(2026, 3, 4, 12, 30, 15, tzinfo=UTC)
NOW = datetime(2026, 3, 4, 14, tzinfo=UTC)


def test_reset_commands_skip_and_go_back_to_the_time_shown() -> None:
    skip, again, back = reset_commands("billing", "classic", "prod", AT, NOW)
    reset = "kafka-consumer-groups.sh --bootstrap-server HOST:PORT --group billing --reset-offsets"
    assert skip.text == f"{reset} --all-topics --to-latest --dry-run"
    assert again.text == f"{reset} --all-topics --to-datetime 2026-03-04T12:30:15.000 --dry-run"
    assert back.text.splitlines() == [
        "grouptrail sql --cluster prod --format reset-offsets -o offsets.csv "
        "'SELECT * FROM offsets_as_of('\"'\"'billing'\"'\"', '\"'\"'2026-03-04T12:30:15Z'\"'\"')'",
        f"{reset} --from-file offsets.csv --dry-run",
    ]


def test_reset_commands_of_a_share_group_are_for_its_own_tool_and_those_of_a_streams_group_none() -> None:
    """Its start offsets are no commits, to which one could go back."""
    skip, again = reset_commands("queue", "share", "prod", AT, NOW)
    reset = "kafka-share-groups.sh --bootstrap-server HOST:PORT --group queue --reset-offsets"
    assert skip.text == f"{reset} --all-topics --to-latest --dry-run"
    assert again.text == f"{reset} --all-topics --to-datetime 2026-03-04T12:30:15.000 --dry-run"
    assert reset_commands("app", "streams", "prod", AT, NOW) == []


def test_reset_commands_without_a_time_go_back_an_hour() -> None:
    assert "2026-03-04T13:00:00.000" in reset_commands("billing", None, "prod", None, NOW)[1].text


@pytest.mark.parametrize("name", ["a\nb", "a\u202eb", "\x1b[31m"])
def test_reset_commands_of_a_name_that_does_not_show_as_it_is_are_none(name: str) -> None:
    assert reset_commands(name, "classic", "prod", AT, NOW) == []
    assert reset_commands("billing", "classic", name, AT, NOW) == []


@given(name=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1))
def test_reset_commands_have_the_name_as_one_word(name: str) -> None:
    for command in reset_commands(name, "consumer", name, AT, NOW):
        words = shlex.split(command.text)
        assert words[words.index("--group") + 1] == name
        for line in command.text.splitlines():
            if line.startswith("grouptrail"):
                assert shlex.split(line)[-1].count(f"('{name.replace(chr(39), chr(39) * 2)}', ") == 1

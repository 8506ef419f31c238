"""Groups of other people's clients, recorded on Kafka 4.3.0: what is read of them, and what the docs say of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.client_records import Recorded, recorded_groups

GROUPS = recorded_groups()
PAGE = Path(__file__).parents[2] / "docs" / "history.md"
TOPICS = ["orders", "refunds"]


def documented(group: Recorded) -> str:
    """Return the group's row of the table in docs/history.md."""
    error = group.subscription_error()
    is_readable = "yes" if error is None else f"topics and user data (`{error}`)"
    is_own = {True: "yes", None: "unknown"}[group.newest_generation()["is_assignors_own"]]
    return f"| {group.library} | {group.version} | `{group.assignor}` | {is_readable} | {is_own} |"


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group.library} {group.assignor}")
def test_group_of_another_client_has_topics_and_what_its_members_say_that_they_own(group: Recorded) -> None:
    row = group.newest_generation()
    assert (row["protocol_type"], row["protocol"], row["member_count"]) == ("consumer", group.assignor, 3)
    assert [member["topics"] for member in row["members"]] == [TOPICS] * 3
    owned = {
        member["member_id"]: {one["topic"]: one["partitions"] for one in member["partitions"]}
        for member in row["members"]
    }
    assert owned == group.owned
    assert row["partition_count"] == 15
    assert row["is_assignors_own"] is not False


def test_documented_table_of_clients_is_what_was_recorded() -> None:
    """Each library, version and assignor: whether its subscription can be read, and its assignment is recognised."""
    rows = re.findall(r"^\| [\w-]+ \| [\d.]+ \| `[\w-]+` \|.*$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert rows == [documented(group) for group in GROUPS]

"""Groups of other people's clients, recorded on Kafka 4.3.0: what is read of them."""

from __future__ import annotations

import pytest

from support.client_records import Recorded, recorded_groups

GROUPS = recorded_groups()
TOPICS = ["orders", "refunds"]


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

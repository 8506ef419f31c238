"""Members with one client id have different names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.query.member_names import distinct_names
from support.strategies import MANY


def member(member_id: str, client_id: str | None = None, instance_id: str | None = None) -> dict[str, Any]:
    return {"member_id": member_id, "client_id": client_id, "instance_id": instance_id}


@pytest.mark.parametrize(
    ("members", "names"),
    [
        ([member("app-1f", "app"), member("web-2e", "web")], ["app", "web"]),
        ([member("sarama-00a1", "sarama"), member("sarama-00b2", "sarama")], ["sarama …00a1", "sarama …00b2"]),
        ([member("a-11-0000", "a"), member("a-22-0000", "a")], ["a …1-0000", "a …2-0000"]),
        ([member("x", "a"), member("y", "a")], ["a x", "a y"]),
        ([member("a-1", "a", "pod-0"), member("a-2", "a", "pod-1")], ["pod-0", "pod-1"]),
        ([member("a-0001", "a", "pod-0"), member("a-0002", "a", "pod-0")], ["pod-0 …0001", "pod-0 …0002"]),
        ([member("only")], ["only"]),
        ([member("a"), member("b-1234", "a")], ["a a", "a …1234"]),
        ([], []),
    ],
)
def test_distinct_names_are_client_or_instance_ids_and_what_tells_them_apart(
    members: list[dict[str, Any]], names: list[str]
) -> None:
    assert list(distinct_names(members).values()) == names


def test_distinct_names_of_a_member_that_is_listed_twice_is_one() -> None:
    """Its last mention counts."""
    assert distinct_names([member("a-1"), member("a-1", "app")]) == {"a-1": "app"}


IDS = st.text("ab-", max_size=6)


@MANY
@given(st.lists(st.builds(member, IDS, st.none() | IDS, st.none() | IDS), unique_by=lambda one: one["member_id"]))
def test_distinct_names_of_any_members_differ(members: list[dict[str, Any]]) -> None:
    names = distinct_names(members)
    assert names.keys() == {one["member_id"] for one in members}
    assert len(set(names.values())) == len(members)

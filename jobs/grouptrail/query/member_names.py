"""Short names that tell the members of a group apart: all of a service often have one client id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

# A member id ends in a UUID; four of its digits are enough for most groups.
_SHORTEST_END = 4


def distinct_names(members: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return a name for each member id: the instance or client id, or the member id where neither is known.

    Where several have the same one, the end of the member id follows, as in `sarama …9f2c`: as much of it as differs.
    """
    known = {member["member_id"]: member for member in members}
    alike: dict[str, list[str]] = defaultdict(list)
    for member_id, member in known.items():
        alike[member.get("instance_id") or member.get("client_id") or member_id].append(member_id)
    names: dict[str, str] = {}
    for name, member_ids in alike.items():
        ends = _distinct_ends(member_ids) if len(member_ids) > 1 else {}
        names |= {member_id: f"{name} {ends[member_id]}" if ends else name for member_id in member_ids}
    return names


def _distinct_ends(member_ids: Collection[str]) -> dict[str, str]:
    length = _SHORTEST_END
    while len({member_id[-length:] for member_id in member_ids}) < len(member_ids):
        length += 1
    return {
        member_id: member_id if len(member_id) <= length else f"…{member_id[-length:]}" for member_id in member_ids
    }

"""Start offsets and lag of share groups as their coordinators return them, in bytes written by Kafka 4.4.0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import IncompatibleBrokerVersion

from grouptrail.kafka import client_internals, groups
from grouptrail.kafka.client_internals import DescribeShareGroupOffsetsResponse, share_group_offsets_request
from grouptrail.kafka.group import ShareOffset, ShareOffsets
from grouptrail.kafka.groups import BrokerGroups, Throttle, share_offsets_of

ORDERS = "b3JkZXJzb3JkZXJzb3JkZQ"
REQUEST = "030671756575650000066f74686572000000"
# Group queue: orders-0 with start offset 50 and lag 30, orders-1 without, orders-2 with an error; groups secret
# (denied), moving (another coordinator) and none (no partitions).
RESPONSES = (
    "000000000506717565756502076f72646572736f72646572736f72646572736f726465040000000000000000000000320000000300000000"
    "00000001ffffffffffffffff0000000000000000000000020000000000000000000000000006066d6f766564000000000000077365637265"
    "7401001e1c47726f757020617574686f72697a6174696f6e206661696c65642e00076d6f76696e670100100000056e6f6e65010000000000",
    "000000000506717565756502076f72646572736f72646572736f72646572736f7264650400000000000000000000003200000003000000"
    "000000001e0000000000000001ffffffffffffffff00000000ffffffffffffffff0000000000000002000000000000000000000000fffff"
    "fffffffffff0006066d6f7665640000000000000773656372657401001e1c47726f757020617574686f72697a6174696f6e206661696c65"
    "642e00076d6f76696e670100100000056e6f6e65010000000000",
)


@pytest.mark.parametrize("version", [0, 1])
def test_request_asks_for_all_partitions_of_each_group(version: int) -> None:
    assert share_group_offsets_request(["queue", "other"]).encode(version=version).hex() == REQUEST


@pytest.mark.parametrize(("version", "lag"), [(0, None), (1, 30)])
def test_response_has_offsets_and_errors_by_group_and_partition(version: int, lag: int | None) -> None:
    response = DescribeShareGroupOffsetsResponse.decode(bytes.fromhex(RESPONSES[version]), version=version)
    assert {group.group_id: share_offsets_of(group) for group in response.groups} == {
        "queue": ShareOffsets(
            {("orders", 0): ShareOffset(ORDERS, 50, lag), ("orders", 1): ShareOffset(ORDERS, -1, None)},
            {("orders", 2): "NotLeaderForPartitionError"},
        ),
        "secret": "the principal may not DESCRIBE it",
        "moving": "",
        "none": ShareOffsets({}, {}),
    }


def broker(monkeypatch: pytest.MonkeyPatch, answer: Any) -> BrokerGroups:
    def send(_admin: Any, _node: int, _request: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(client_internals, "send_to_node", send)
    monkeypatch.setattr(client_internals, "list_groups_request", lambda _admin, kind: kind)
    monkeypatch.setattr(groups.BrokerGroups, "_ask", lambda _self, question: question(None))
    return BrokerGroups({"bootstrap.servers": "127.0.0.1:1"}, 1, "127.0.0.1:1", Throttle(1000))


def test_broker_that_cannot_list_groups_by_kind_has_no_share_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broker(monkeypatch, IncompatibleBrokerVersion()).listed_share_groups() == []
    listed = SimpleNamespace(group_id="queue", group_type="Share", protocol_type="share", group_state="Stable")
    answer = SimpleNamespace(error_code=0, groups=[listed])
    assert [group.group_id for group in broker(monkeypatch, answer).listed_share_groups()] == ["queue"]


def test_log_ends_are_read_directly_before_and_after_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = DescribeShareGroupOffsetsResponse.decode(bytes.fromhex(RESPONSES[1]), version=1)
    ends = iter([1, 2])
    offsets, read = broker(monkeypatch, answer).share_offsets(["queue"], lambda: next(ends))
    assert read == (1, 2)
    assert list(offsets) == ["queue", "secret", "moving", "none"]

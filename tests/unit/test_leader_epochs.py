"""Where leader epochs began, by the answers of a leader that keeps them as LeaderEpochFileCache does."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from grouptrail.kafka.cluster import partitions_of
from grouptrail.kafka.leader_epochs import NO_EPOCH, EndOffset, LeaderEpoch, Place, find_leader_epochs

ORDERS = ("orders", 0)


class Leader:
    """A leader of partitions whose epochs are given by where they began; all logs end at one offset."""

    def __init__(self, epochs: Mapping[Place, Mapping[int, int]], log_end: int, errors: Mapping[Place, int]) -> None:
        self._epochs, self._log_end, self._errors = epochs, log_end, errors
        self.requests = 0

    def ask(self, wanted: Mapping[Place, int]) -> dict[Place, EndOffset]:
        self.requests += 1
        return {place: self._end(place, epoch) for place, epoch in wanted.items() if place in self._epochs}

    def _end(self, place: Place, wanted: int) -> EndOffset:
        if place in self._errors:
            return EndOffset(self._errors[place], NO_EPOCH, -1)
        begun = self._epochs[place]
        if wanted == max(begun):
            return EndOffset(0, wanted, self._log_end)
        later = [epoch for epoch in begun if epoch > wanted]
        if wanted == NO_EPOCH or not later:
            return EndOffset(0, NO_EPOCH, -1)
        return EndOffset(0, max((epoch for epoch in begun if epoch <= wanted), default=wanted), begun[min(later)])


def found(begun: Mapping[int, int], log_end: int = 1_000, known: int | None = None) -> object:
    leader = Leader({ORDERS: begun}, log_end, {})
    after = {} if known is None else {ORDERS: known}
    return find_leader_epochs(leader.ask, {ORDERS: max(begun)}, after)[ORDERS]


BEGUN = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 90)), min_size=1, max_size=8).map(
    lambda steps: dict(
        zip(accumulate(step for step, _ in steps), accumulate(offset for _, offset in steps), strict=True)
    )
)


@given(BEGUN, st.booleans(), st.integers(0, 40))
def test_leader_epochs_are_those_that_the_leader_knows(begun: dict[int, int], is_first: bool, known: int) -> None:
    """Epochs may be missing at the beginning, as the log may, and in between."""
    begun = {0: 0, **begun} if is_first else begun
    expected = [LeaderEpoch(*one) for one in sorted(begun.items())]
    assert found(begun) == expected
    assert found(begun, known=known) == [one for one in expected if one.epoch > known]


def test_leader_epochs_of_an_empty_log_are_the_newest_alone() -> None:
    assert found({4: 0}, log_end=0) == [LeaderEpoch(4, 0)]


def test_leader_epochs_of_many_partitions_take_one_request_for_each_epoch() -> None:
    epochs = {("orders", number): {0: 0, **{epoch: 10 * epoch for epoch in range(1, number)}} for number in range(6)}
    leader = Leader(epochs, 1_000, {})
    answers = find_leader_epochs(leader.ask, {place: max(begun) for place, begun in epochs.items()}, {})
    assert answers == {place: [LeaderEpoch(*one) for one in begun.items()] for place, begun in epochs.items()}
    assert leader.requests == 1 + 5


def test_leader_epochs_without_an_answer_have_its_error() -> None:
    places: list[Place] = [("orders", number) for number in range(4)]
    leader = Leader({place: {0: 0, 1: 10} for place in places[:3]}, 20, {places[1]: 6})
    newest = {places[0]: 1, places[1]: 1, places[2]: 2, places[3]: 1}
    assert find_leader_epochs(leader.ask, newest, {}) == {
        places[0]: [LeaderEpoch(0, 0), LeaderEpoch(1, 10)],
        places[1]: 6,
        places[2]: None,
        places[3]: None,
    }


def test_metadata_has_the_leader_epoch_unless_the_broker_does_not_say() -> None:
    broker = {"node_id": 1, "host": "one", "port": 9092}
    partitions = [{"partition_index": 0, "leader_id": 1, "leader_epoch": 3}]
    partitions.append({"partition_index": 1, "leader_id": 1, "leader_epoch": -1})
    topic = {"name": "orders", "error_code": 0, "partitions": partitions}
    places = list(partitions_of({"brokers": [broker], "topics": [topic]}, None))
    assert [place.leader_epoch for place in places] == [3, None]

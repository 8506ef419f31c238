"""What lines of a broker's log prove about rebalances and endings, and what they do not."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.history.broker_log_evidence import EndingProof, RebalanceProof, prove_ending, prove_rebalance
from grouptrail.history.evidence import Evidence
from support import broker_log_lines as lines
from support.broker_log_lines import assigned, at, events_of, failed, left, preparing

A, B = "app-17e0bb30-0f94-4806-9276-0ad8e0e4ceea", "b-1536646c-48f4-4998-9bfb-accd8a286c4b"
M = "HgI3/lDhQ4iIKvUL7wsDLQ"
EXPIRED = f"removing member {B} on heartbeat expiration."
LEFT = f"explicit `LeaveGroup` request for ({B}) members."


def rebalance(**more: Any) -> dict[str, Any]:
    """Return a rebalance of `orders` from generation 4 to 5 after 12 s, in which B is gone."""
    return lines.rebalance(**{"members_left": [B], **more})


def membership(**more: Any) -> dict[str, Any]:
    return {
        "group_id": "orders",
        "record_partition": 0,
        "member_id": B,
        "joined_at": at(0),
        "left_at": at(12),
        "ended": "left_or_expired",
        "ended_because": "…",
        **more,
    }


def chain(removal: str, reason: str) -> list[tuple[float, str]]:
    """Return the lines of the rebalance."""
    return [(10, removal), (10, preparing("orders", 4, reason)), (12, assigned("orders", 5, A))]


def events(folder: Path, timed: list[tuple[float, str]], **options: Any) -> list[dict[str, Any]]:
    ordered = sorted(timed, key=lambda one: one[0])
    return events_of(folder, [lines.structured(seconds, text, **options) for seconds, text in ordered])


def proved(folder: Path, timed: list[tuple[float, str]], **more: Any) -> tuple[str, str] | None:
    proof = prove_rebalance(rebalance(**more), events(folder, timed))
    return None if proof is None else (proof.cause, proof.certainty)


def test_prove_rebalance_of_a_member_without_heartbeats_is_recorded_with_its_lines(tmp_path: Path) -> None:
    found = events(tmp_path, chain(failed("orders", B), EXPIRED))
    proof = prove_rebalance(rebalance(), found)
    assert proof == RebalanceProof(
        Evidence.LOGGED_EXPIRY,
        "the coordinator logged: its session expired",
        ((at(10), found[0]["line"]), (at(10), found[1]["line"])),
    )
    assert proof is not None
    assert (proof.cause, proof.certainty) == ("member_expired", "recorded")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("the consumer is being closed", ("member_left", "recorded")),
        ("consumer poll timeout has expired.", ("member_poll_timeout", "recorded")),
        ("not provided", ("member_left", "likely")),
        ("a reason of another client", ("member_left", "likely")),
        ("member was removed by an admin", ("member_removed", "recorded")),
        ("member was removed by an admin: deploy", ("member_removed", "recorded")),
    ],
)
def test_prove_rebalance_of_a_leave_goes_by_the_clients_reason(
    tmp_path: Path, reason: str, expected: tuple[str, str] | None
) -> None:
    """Administrators remove members by the same request, and may give no reason."""
    assert proved(tmp_path, chain(left("orders", B, reason), LEFT)) == expected


def test_prove_rebalance_of_a_static_member_without_a_reason_is_not_proved(tmp_path: Path) -> None:
    timed = chain(left("orders", B), LEFT)
    assert proved(tmp_path, timed, cause="static_member_expired_or_removed", certainty="likely") is None


def test_prove_rebalance_of_a_removed_static_member_is_proved_by_the_reason(tmp_path: Path) -> None:
    """Its id is not in the request."""
    timed = chain(
        left("orders", B, "member was removed by an admin"), "explicit `LeaveGroup` request for () members."
    )
    said = proved(tmp_path, timed, cause="static_member_expired_or_removed", certainty="likely")
    assert said == ("member_removed", "recorded")


def test_prove_rebalance_of_a_leave_and_a_removal_proves_nothing(tmp_path: Path) -> None:
    timed = chain(left("orders", B, "member was removed by an admin"), LEFT)
    assert proved(tmp_path, [*timed, (10, left("orders", A))], members_left=[A, B]) is None


@pytest.mark.parametrize(
    ("reason", "stopped", "expected"),
    [
        pytest.param("not provided", {B}, ("member_poll_timeout", "likely"), id="silent-before"),
        pytest.param("not provided", {A}, ("member_left", "likely"), id="another-was"),
        pytest.param("the consumer is being closed", {B}, ("member_left", "recorded"), id="but-closed"),
    ],
)
def test_prove_rebalance_of_a_leave_after_silence_is_a_poll_timeout(
    tmp_path: Path, reason: str, stopped: set[str], expected: tuple[str, str]
) -> None:
    found = events(tmp_path, chain(left("orders", B, reason), LEFT))
    proof = prove_rebalance(rebalance(), found, stopped_polling=stopped)
    assert proof is not None
    assert (proof.cause, proof.certainty) == expected


def test_prove_rebalance_by_lines_of_text_is_likely_at_most(tmp_path: Path) -> None:
    written = [lines.plain(seconds, text) for seconds, text in chain(failed("orders", B), EXPIRED)]
    proof = prove_rebalance(rebalance(), events_of(tmp_path, written))
    assert proof is not None
    assert (proof.cause, proof.certainty) == ("member_expired", "likely")
    assert proof.cause_note is not None
    assert proof.cause_note.endswith("unless a client wrote this line of the log")
    trusted = prove_rebalance(rebalance(), events_of(tmp_path, written, trusts_clients=True))
    assert trusted is not None
    assert trusted.certainty == "recorded"


def test_prove_rebalance_by_lines_ingested_twice_goes_by_the_trusted_ones(tmp_path: Path) -> None:
    written = [lines.plain(seconds, text) for seconds, text in chain(failed("orders", B), EXPIRED)]
    twice = events_of(tmp_path, written) + events_of(tmp_path, written, trusts_clients=True)
    proof = prove_rebalance(rebalance(), twice)
    assert proof is not None
    assert proof.certainty == "recorded"


EXPIRY = chain(failed("orders", B), EXPIRED)


@pytest.mark.parametrize(
    "timed",
    [
        pytest.param([], id="nothing"),
        pytest.param(EXPIRY[:2], id="no end"),
        pytest.param(EXPIRY[1:], id="no removal"),
        pytest.param([EXPIRY[0], EXPIRY[2]], id="no beginning"),
        pytest.param([*EXPIRY, (10.5, left("orders", B))], id="the member left, too"),
        pytest.param([*EXPIRY, (11, preparing("orders", 4, LEFT))], id="two beginnings"),
        pytest.param([*EXPIRY, (12.5, assigned("orders", 5, B))], id="two ends"),
        pytest.param(
            [*EXPIRY, (11, "Loaded classic group orders with 2 members.")], id="another coordinator meanwhile"
        ),
        pytest.param(chain(failed("orders", B), LEFT), id="expired, but another left"),
        pytest.param(chain(left("orders", B), EXPIRED), id="left, but another expired"),
        pytest.param(chain(failed("orders", A), EXPIRED), id="another member"),
        pytest.param(chain(failed("payments", B), EXPIRED), id="another group"),
        pytest.param([(seconds + 60, text) for seconds, text in EXPIRY], id="a minute later"),
        pytest.param([(seconds - 60, text) for seconds, text in EXPIRY], id="a minute before"),
        pytest.param([*EXPIRY[:1], (10, preparing("orders", 3, EXPIRED)), EXPIRY[2]], id="another generation"),
    ],
)
def test_prove_rebalance_with_lines_that_do_not_fit_proves_nothing(
    tmp_path: Path, timed: list[tuple[float, str]]
) -> None:
    assert proved(tmp_path, timed) is None


@pytest.mark.parametrize(
    "more",
    [
        {"certainty": "recorded", "cause": "member_left"},
        {"members_joined": [A]},
        {"members_left": [A, B]},
        {"from_generation": 3},
        {"record_partition": 5},
        {"at": None},
        {"cause": "subscription_changed"},
    ],
)
def test_prove_rebalance_of_a_row_that_the_lines_do_not_decide_proves_nothing(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    assert proved(tmp_path, EXPIRY, **more) is None


def test_prove_rebalance_of_a_group_created_again_goes_by_the_time(tmp_path: Path) -> None:
    """The numbers of its generations come again: a leave two hours before says nothing about this one."""
    before = [(seconds - 7200, text) for seconds, text in chain(left("orders", B), LEFT)]
    assert proved(tmp_path, [*before, *EXPIRY]) == ("member_expired", "recorded")


def test_prove_rebalance_by_a_doubtful_line_proves_nothing(tmp_path: Path) -> None:
    found = events(tmp_path, EXPIRY)
    for number in range(len(found)):
        doubtful = [{**one, "doubt": "…"} if index == number else one for index, one in enumerate(found)]
        assert prove_rebalance(rebalance(), doubtful) is None


def test_prove_rebalance_by_lines_of_two_brokers_proves_nothing(tmp_path: Path) -> None:
    found = events(tmp_path, EXPIRY[:2], broker=1) + events(tmp_path, EXPIRY[2:], broker=2)
    assert prove_rebalance(rebalance(), found) is None


def test_prove_rebalance_of_a_member_that_missed_it_proves_nothing(tmp_path: Path) -> None:
    """It may be dead, or alive with an application that does not poll."""
    missed = f"Group orders removed dynamic members who haven't joined: [{A}]"
    assert proved(tmp_path, [*EXPIRY, (11, missed)], members_left=[A, B]) is None


def test_prove_rebalance_of_a_leave_without_a_reason_names_what_else_sends_it(tmp_path: Path) -> None:
    found = events(tmp_path, chain(left("orders", B), LEFT))
    proof = prove_rebalance(rebalance(), found)
    assert proof is not None
    assert proof.cause_note is not None
    assert proof.cause_note.endswith(
        "; or an administrator removed it, or its application had not polled within max.poll.interval.ms"
    )
    polling = prove_rebalance(rebalance(), found, polling={B})
    assert polling is not None
    assert polling.cause_note is not None
    assert polling.cause_note.endswith("; or an administrator removed it")


LEADER = f"Leader {A} re-joining group during Stable; client reason: "


def rejoined(folder: Path, words: str, *more: tuple[float, str], before: float = 1) -> tuple[str, str] | None:
    timed = [(before, assigned("orders", 4, A)), *chain("", LEADER + words)[1:], *more]
    row = {"cause": "leader_rejoined_or_coordinator_moved", "members_left": []}
    return proved(folder, timed, **row)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("rebalance enforced by user", ("leader_rejoined", "recorded")),
        ("triggered followup rebalance scheduled for 1795943266137", ("probing_rebalance", "recorded")),
        ("triggered followup rebalance scheduled for 0", ("leader_rejoined", "recorded")),
        ("Active tasks corrupted", ("leader_rejoined", "recorded")),
        ("not provided", ("leader_rejoined", "likely")),
        ("cached metadata has changed from 1 to 2", ("topic_metadata_changed", "likely")),
        ("need to revoke partitions and re-join", None),
        ("rebalance failed due to DisconnectException", None),
    ],
)
def test_prove_rebalance_of_a_leader_that_joins_again_goes_by_its_reason(
    tmp_path: Path, words: str, expected: tuple[str, str] | None
) -> None:
    assert rejoined(tmp_path, words) == expected


def test_prove_rebalance_after_a_load_by_another_coordinator_is_coordinator_moved(tmp_path: Path) -> None:
    loaded = (8.0, "Loaded classic group orders with 2 members.")
    assert rejoined(tmp_path, "rebalance failed due to NotCoordinatorException", loaded) == (
        "coordinator_moved",
        "recorded",
    )
    assert rejoined(tmp_path, "rebalance enforced by user", loaded) is None


def test_prove_rebalance_that_two_coordinators_began_goes_by_the_one_that_ended_it(tmp_path: Path) -> None:
    """The group was loaded as it was before the first of them began."""
    enforced = preparing("orders", 4, LEADER + "rebalance enforced by user")
    before = events(tmp_path, [(1, assigned("orders", 4, A)), (5, enforced)], broker=1)
    again = preparing("orders", 4, LEADER + "rebalance failed due to NotCoordinatorException")
    loaded = (9.0, "Loaded classic group orders with 2 members.")
    after = events(tmp_path, [loaded, (9.0, again), (12, assigned("orders", 5, A))], broker=2)
    row = rebalance(cause="leader_rejoined_or_coordinator_moved", members_left=[])
    proof = prove_rebalance(row, [*before, *after])
    assert proof is not None
    assert (proof.cause, proof.certainty) == ("coordinator_moved", "recorded")
    doubtful = [{**one, "doubt": "…"} if one["event"] == "group_loaded" else one for one in after]
    assert prove_rebalance(row, [*before, *doubtful]) is None
    without_load = [one for one in after if one["event"] != "group_loaded"]
    assert prove_rebalance(row, [*before, *without_load]) is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("rebalance enforced by user", ("member_rejoined", "recorded")),
        ("triggered followup rebalance scheduled for 1795943266137", ("probing_rebalance", "recorded")),
        ("triggered followup rebalance scheduled for 0", ("member_rejoined", "recorded")),
        ("not provided", None),
        ("need to revoke partitions and re-join", None),
        ("rebalance failed due to DisconnectException", None),
    ],
)
def test_prove_rebalance_of_another_member_that_joins_again_is_not_the_leaders(
    tmp_path: Path, words: str, expected: tuple[str, str] | None
) -> None:
    trigger = f"Updating metadata for member {B} during Stable; client reason: {words}"
    timed = [(1, assigned("orders", 4, A)), *chain("", trigger)[1:]]
    row = {"cause": "leader_rejoined", "members_left": []}
    assert proved(tmp_path, timed, **row) == expected
    moved = [*timed, (8, "Loaded classic group orders with 2 members.")]
    assert proved(tmp_path, moved, **row) is None


def test_prove_rebalance_of_a_leader_without_the_generation_before_proves_nothing(tmp_path: Path) -> None:
    """Whether the coordinator had moved is not known then."""
    assert rejoined(tmp_path, "rebalance enforced by user", before=100) is None


def kip848(**more: Any) -> dict[str, Any]:
    return rebalance(group_kind="consumer", members_left=[M], at=at(10), **more)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"[GroupId orders] Member {M} left the consumer group.", ("member_left", "likely")),
        (
            f"[GroupId orders] Member {M} fenced from the group because the member session expired.",
            ("member_expired", "recorded"),
        ),
        (f"[GroupId other] Member {M} left the consumer group.", None),
    ],
)
def test_prove_rebalance_of_a_kip_848_group_goes_by_its_members(
    tmp_path: Path, text: str, expected: tuple[str, str] | None
) -> None:
    proof = prove_rebalance(kip848(), events(tmp_path, [(10, text)]))
    assert (None if proof is None else (proof.cause, proof.certainty)) == expected


def test_prove_rebalance_of_a_kip_848_member_that_expired_says_that_its_application_may_not_have_polled(
    tmp_path: Path,
) -> None:
    """Members of librdkafka 2.16 send no heartbeats then; Java's leave."""
    text = f"[GroupId orders] Member {M} fenced from the group because the member session expired."
    proof = prove_rebalance(kip848(), events(tmp_path, [(10, text)]))
    assert proof is not None
    assert "also if their application does not poll" in (proof.cause_note or "")


def test_prove_rebalance_of_a_kip_848_member_that_polled_is_recorded(tmp_path: Path) -> None:
    """Nobody else can send the heartbeat by which it leaves."""
    found = events(tmp_path, [(10, f"[GroupId orders] Member {M} left the consumer group.")])
    proof = prove_rebalance(kip848(), found, polling={M})
    assert proof is not None
    assert (proof.cause, proof.certainty) == ("member_left", "recorded")


def test_prove_rebalance_of_an_epoch_after_new_metadata_is_recorded(tmp_path: Path) -> None:
    bumped = (10.01, "[GroupId orders] Bumped group epoch to 5 with metadata hash 7.")
    changed = (10.0, "[GroupId orders] Computed new metadata hash: 7.")
    row = {**kip848(), "members_left": [], "cause": "unknown"}
    proof = prove_rebalance(row, events(tmp_path, [changed, bumped]))
    assert proof is not None
    assert (proof.cause, proof.certainty) == ("topic_metadata_changed", "recorded")
    subscribed = (10.0, f"[GroupId orders] Member {M} updated its subscribed topics to: [t1].")
    assert prove_rebalance(row, events(tmp_path, [changed, subscribed, bumped])) is None
    assert prove_rebalance(row, events(tmp_path, [bumped])) is None


def test_prove_ending_of_a_member_is_how_it_was_removed(tmp_path: Path) -> None:
    found = events(tmp_path, EXPIRY)
    assert prove_ending(membership(), found) == EndingProof(
        "expired",
        "the coordinator logged that it removed the member: its session expired",
        Evidence.LOGGED_EXPIRY,
        ((at(10), found[0]["line"]),),
    )
    closed = prove_ending(
        membership(), events(tmp_path, chain(left("orders", B, "the consumer is being closed"), LEFT))
    )
    assert closed is not None
    assert closed.ended == "left"
    assert closed.ended_because.endswith("the client's reason: the consumer is being closed")


@pytest.mark.parametrize(
    "more",
    [
        {"ended": None},
        {"ended": "rejoined"},
        {"ended": "left"},
        {"left_at": None},
        {"left_at": at(4)},
        {"joined_at": at(11)},
        {"member_id": A},
        {"group_id": "other"},
        {"record_partition": 5},
    ],
)
def test_prove_ending_of_another_membership_proves_nothing(tmp_path: Path, more: dict[str, Any]) -> None:
    assert prove_ending(membership(**more), events(tmp_path, EXPIRY)) is None


@pytest.mark.parametrize(
    ("reason", "seconds", "expected"),
    [
        ("not provided", 300, "left"),
        ("not provided", 5, "left_or_poll_timeout"),
        ("not provided", None, "left_or_poll_timeout"),
        ("consumer poll timeout has expired.", None, "poll_timeout"),
        ("the consumer is being closed", None, "left"),
        ("member was removed by an admin", 300, "removed"),
    ],
)
def test_prove_ending_by_a_leave_needs_a_reason_or_the_poll_timeout(
    tmp_path: Path, reason: str, seconds: float | None, expected: str | None
) -> None:
    found = events(tmp_path, chain(left("orders", B, reason), LEFT))
    timeout = None if seconds is None else timedelta(seconds=seconds)
    proof = prove_ending(membership(), found, poll_timeout=timeout)
    assert (None if proof is None else proof.ended) == expected


def test_prove_ending_of_a_static_member_by_a_leave_without_a_reason_proves_nothing(tmp_path: Path) -> None:
    """An administrator may have removed it."""
    found = events(tmp_path, chain(left("orders", B), LEFT))
    static = membership(ended="expired_or_removed")
    assert prove_ending(static, found, poll_timeout=timedelta(seconds=300)) is None
    assert prove_ending(static, found, polled=True) is None


@pytest.mark.parametrize(
    ("commits", "expected"),
    [({"polled": True}, "left"), ({"stopped_polling": True}, "poll_timeout"), ({}, "left_or_poll_timeout")],
)
def test_prove_ending_by_a_leave_without_a_reason_goes_by_commits(
    tmp_path: Path, commits: dict[str, bool], expected: str
) -> None:
    proof = prove_ending(membership(), events(tmp_path, chain(left("orders", B), LEFT)), **commits)
    assert proof is not None
    assert proof.ended == expected
    assert ("committed" in proof.ended_because) == bool(commits)


def test_prove_ending_of_an_expired_session_is_not_changed_by_commits(tmp_path: Path) -> None:
    proof = prove_ending(membership(), events(tmp_path, EXPIRY), polled=True, stopped_polling=True)
    assert proof is not None
    assert proof.ended == "expired"


@pytest.mark.parametrize(
    "text",
    [
        f"Group orders removed dynamic members who haven't joined: [{B}]",
        preparing("orders", 4, f"Removing {B} on pending sync request expiration"),
        f"[GroupId orders] Member {B} fenced from the group because it failed to transition from epoch 3 within 9ms.",
    ],
)
def test_prove_ending_of_a_member_that_missed_a_rebalance_is_a_rebalance_timeout(tmp_path: Path, text: str) -> None:
    """It may be dead, or alive with an application that does not poll."""
    proof = prove_ending(membership(), events(tmp_path, [(11, text)]))
    assert proof is not None
    assert proof.ended == "rebalance_timeout"
    assert "because it had crashed, or its application did not poll" in proof.ended_because


def test_prove_ending_with_two_ways_of_leaving_proves_nothing(tmp_path: Path) -> None:
    assert prove_ending(membership(), events(tmp_path, [*EXPIRY, (11, left("orders", B))])) is None


@given(order=st.permutations(range(5)), times=st.integers(1, 3))
def test_proofs_do_not_depend_on_the_order_of_events_or_their_repetition(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], times: int
) -> None:
    more = [(0.0, assigned("orders", 4, A)), (12.1, "Stabilized group payments generation 5 with 1 members.")]
    found = events(tmp_path_factory.getbasetemp(), [*EXPIRY, *more])
    mixed = [found[number] for number in order] * times
    assert prove_rebalance(rebalance(), mixed) == prove_rebalance(rebalance(), found)
    assert prove_ending(membership(), mixed) == prove_ending(membership(), found)

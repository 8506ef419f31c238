"""What becomes of a cause or an end that records or commits show, if the brokers' log says the same or another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grouptrail.history.broker_log_conclusions import (
    KEPT_CAUSE,
    KEPT_ENDING,
    Leaver,
    conclude_ending,
    conclude_rebalance,
)
from support import broker_log_lines as lines
from support.broker_log_lines import assigned, at, events_of, failed, left, preparing

A, B = "app-17e0bb30-0f94-4806-9276-0ad8e0e4ceea", "b-1536646c-48f4-4998-9bfb-accd8a286c4b"
CLOSED, POLL_TIMEOUT = "the consumer is being closed", "consumer poll timeout has expired."
BY_ADMIN = "member was removed by an admin"
RECORD = {"source": "record", "at": at(12), "record_partition": 0, "record_offset": 7, "shows": "…"}

Values = dict[str, Any]
OPEN = "member_left_or_expired"
EXPIRED = ("member_expired", "recorded", "LOGGED_EXPIRY")
STALLED = ("member_poll_timeout", "recorded", "LOGGED_POLL_TIMEOUT")
CLOSING = ("member_left", "recorded", "LOGGED_LEAVE")
LEFT = ("member_left", "likely", "LOGGED_LEAVE_UNEXPLAINED")
SILENT = ("member_expired", "likely", "GONE_SILENT")
REMOVED = ("member_removed", "recorded", "LOGGED_REMOVAL")
DIFFERS = (OPEN, "ambiguous", "LOG_DIFFERS_ABOUT_MEMBERS")


def departure(**more: Any) -> Values:
    return {"member_id": B, "joined_at": at(0), "left_at": at(12), "rebalance_timeout_ms": 300_000, **more}


def rebalance(cause: str = OPEN, rule: str = "GONE", **more: Any) -> Values:
    said = {
        "cause": cause,
        "certainty": "ambiguous" if rule == "GONE" else "likely",
        "cause_note": "as before",
        "rule": rule,
        "ruled_out": None,
        "evidence": [RECORD],
        **dict.fromkeys(KEPT_CAUSE.values()),
    }
    return lines.rebalance(**{**said, "members_left": [B], "departed": [departure()], **more})


def membership(ended: str = "left_or_expired") -> Values:
    whole = {"group_id": "orders", "record_partition": 0, "member_id": B, "joined_at": at(0), "left_at": at(12)}
    said = {"ended": ended, "ended_because": "as before", "rule": "TOMBSTONES", "ruled_out": None}
    return {**whole, **said, "evidence": [RECORD], **dict.fromkeys(KEPT_ENDING.values())}


def gone(folder: Path, what: str, *, is_text: bool = False) -> list[Values]:
    """The log of a rebalance in which B is gone: it says `expired`, or the reason of a LeaveGroup request."""
    started = f"explicit `LeaveGroup` request for ({B}) members."
    removal = left("orders", B, what)
    if what == "expired":
        started, removal = f"removing member {B} on heartbeat expiration.", failed("orders", B)
    listed = [(10, removal), (10, preparing("orders", 4, started)), (12, assigned("orders", 5, A))]
    layout = lines.plain if is_text else lines.structured
    return events_of(folder, [layout(seconds, text) for seconds, text in listed])


@pytest.mark.parametrize(
    ("cause", "rule", "logged", "is_text", "expected"),
    [
        pytest.param(OPEN, "GONE", "expired", False, EXPIRED, id="open"),
        pytest.param(OPEN, "GONE", "expired", True, (*EXPIRED[:1], "likely", EXPIRED[2]), id="open-forgeable"),
        pytest.param(OPEN, "GONE", POLL_TIMEOUT, False, STALLED, id="stalled"),
        pytest.param(OPEN, "GONE", "not provided", False, LEFT, id="no-reason-but-it-polled"),
        pytest.param("member_expired", "GONE_SILENT", "expired", False, EXPIRED, id="agree"),
        pytest.param("member_expired", "GONE_SILENT", "expired", True, SILENT, id="agree-forgeable"),
        pytest.param("member_poll_timeout", "GONE_STALLED", POLL_TIMEOUT, False, STALLED, id="agree-stalled"),
        pytest.param("member_left", "GONE_AFTER_COMMIT", "expired", False, DIFFERS, id="differ"),
        pytest.param("member_expired", "GONE_SILENT", CLOSED, False, DIFFERS, id="differ-closed"),
        pytest.param("member_expired", "GONE_SILENT", CLOSED, True, DIFFERS, id="differ-forgeable"),
        pytest.param("member_left", "GONE_WITHIN_TIMEOUTS", "expired", False, DIFFERS, id="differ-records"),
        pytest.param("member_expired", "GONE_AFTER_ABSENCE", CLOSED, False, CLOSING, id="exception-of-records"),
        pytest.param(OPEN, "GONE", BY_ADMIN, False, REMOVED, id="removed"),
        pytest.param("member_left", "GONE_AFTER_COMMIT", BY_ADMIN, False, REMOVED, id="narrower-than-commits"),
        pytest.param("member_expired", "GONE_SILENT", BY_ADMIN, False, DIFFERS, id="differ-removed"),
    ],
)
def test_cause_with_the_log(
    tmp_path: Path, cause: str, rule: str, logged: str, expected: tuple[str, str, str], *, is_text: bool
) -> None:
    row = rebalance(cause, rule)
    events = gone(tmp_path, logged, is_text=is_text)
    said = conclude_rebalance(row, events)
    assert (said["cause"], said["certainty"], said["rule"]) == expected
    assert [one["source"] for one in said["evidence"]] == ["record", "broker log", "broker log"]
    if said["certainty"] == "ambiguous":
        assert cause in said["cause_note"]
        assert "the brokers' log shows" in said["cause_note"]
    kept = (said["cause_without_log"], said["rule_without_log"], said["note_without_log"])
    assert kept == ((None,) * 3 if rule == said["rule"] else (row["cause"], rule, "as before"))
    again = {**row, **said}
    assert conclude_rebalance(again, events) == said
    assert {**again, **conclude_rebalance(again, [])} == row
    assert said["ruled_out"] is None or not is_text


@pytest.mark.parametrize("is_text", [False, True])
def test_cause_of_a_group_that_is_empty_stays_recorded_and_says_how_its_members_left(
    tmp_path: Path, *, is_text: bool
) -> None:
    row = {**rebalance("group_emptied", "NO_MEMBERS"), "certainty": "recorded"}
    events = gone(tmp_path, "expired", is_text=is_text)
    said = conclude_rebalance(row, events)
    assert (said["cause"], said["certainty"], said["rule"]) == ("group_emptied", "recorded", "NO_MEMBERS")
    assert said["cause_note"].startswith("as before; the brokers' log: the coordinator logged: its session expired")
    assert said["cause_note"].endswith("unless a client wrote this line of the log") == is_text
    assert (said["cause_without_log"], said["note_without_log"]) == ("group_emptied", "as before")
    assert [one["source"] for one in said["evidence"]] == ["record", "broker log", "broker log"]
    again = {**row, **said}
    assert conclude_rebalance(again, events) == said
    assert {**again, **conclude_rebalance(again, [])} == row


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("triggered followup rebalance scheduled for 7", ("probing_rebalance", "recorded", "LOGGED_PROBING")),
        ("not provided", ("probing_rebalance", "likely", "PROBING_TIME_PASSED")),
        ("rebalance enforced by user", ("leader_rejoined", "recorded", "LOGGED_FORCED_REBALANCE")),
    ],
)
def test_cause_of_a_probing_rebalance_with_the_log_goes_by_the_reason_of_the_client(
    tmp_path: Path, words: str, expected: tuple[str, str, str]
) -> None:
    """Clients before 3.2 give none, which leaves it as it was."""
    row = rebalance("probing_rebalance", "PROBING_TIME_PASSED", members_left=[], departed=[])
    started = preparing("orders", 4, f"Leader {A} re-joining group during Stable; client reason: {words}")
    listed = [(1, assigned("orders", 4, A)), (10, started), (12, assigned("orders", 5, A))]
    said = conclude_rebalance(row, events_of(tmp_path, [lines.structured(*one) for one in listed]))
    assert (said["cause"], said["certainty"], said["rule"]) == expected


def test_cause_by_commits_of_a_poll_timeout_stays_where_the_client_gave_no_reason(tmp_path: Path) -> None:
    row = rebalance("member_poll_timeout", "GONE_STALLED", departed=[departure(rebalance_timeout_ms=10_000)])
    said = conclude_rebalance(row, gone(tmp_path, "not provided"))
    assert (said["cause"], said["rule"], len(said["evidence"])) == ("member_poll_timeout", "GONE_STALLED", 3)


def test_ending_by_commits_that_a_forgeable_line_confirms_stays_and_keeps_the_line(tmp_path: Path) -> None:
    row = {**membership("left"), "rule": "AFTER_COMMIT", "ruled_out": "an expired session"}
    said = conclude_ending(row, gone(tmp_path, CLOSED, is_text=True), None)
    assert {**row, **said} == {**row, "evidence": said["evidence"]}
    assert [one["source"] for one in said["evidence"]] == ["record", "broker log"]


@pytest.mark.parametrize(
    ("ended", "logged", "poll_timeout_ms", "expected"),
    [
        pytest.param("left_or_expired", "expired", None, "expired", id="open"),
        pytest.param("left_or_expired", CLOSED, None, "left", id="closed"),
        pytest.param("left_or_expired", "not provided", None, "left_or_poll_timeout", id="no-reason"),
        pytest.param("poll_timeout", "not provided", None, "poll_timeout", id="no-reason-but-it-had-stalled"),
        pytest.param("left", "not provided", None, "left", id="no-reason-but-it-had-left"),
        pytest.param("left_or_expired", BY_ADMIN, None, "removed", id="removed"),
        pytest.param("left", BY_ADMIN, None, "removed", id="removed-rather-than-left"),
        pytest.param("expired", BY_ADMIN, None, "left_or_expired", id="differ-removed"),
        pytest.param("left_or_expired", "not provided", 300_000, "left", id="no-reason-but-it-polled"),
        pytest.param(
            "left_or_expired", "not provided", 5_000, "left_or_poll_timeout", id="no-reason-and-perhaps-no-poll"
        ),
        pytest.param("left", CLOSED, None, "left", id="agree"),
        pytest.param("poll_timeout", POLL_TIMEOUT, None, "poll_timeout", id="agree-stalled"),
        pytest.param("left", "expired", None, "left_or_expired", id="differ"),
        pytest.param("expired", CLOSED, None, "left_or_expired", id="differ-closed"),
        pytest.param("expired", "not provided", None, "left_or_expired", id="differ-no-reason"),
        pytest.param("rejoined", CLOSED, None, "rejoined", id="not-an-end"),
    ],
)
def test_ending_with_the_log(
    tmp_path: Path, ended: str, logged: str, poll_timeout_ms: int | None, expected: str
) -> None:
    row, events = membership(ended), gone(tmp_path, logged)
    leaver = Leaver.of(departure(rebalance_timeout_ms=poll_timeout_ms))
    said = conclude_ending(row, events, leaver)
    assert said["ended"] == expected
    is_by_log = said["rule"].startswith("LOG")
    says_the_same = expected == ended and logged in (CLOSED, POLL_TIMEOUT)
    assert is_by_log == (ended != "rejoined" and (expected != ended or says_the_same))
    kept = (said["ended_without_log"], said["because_without_log"], said["rule_without_log"])
    assert kept == ((ended, "as before", "TOMBSTONES") if is_by_log else (None, None, None))
    assert [one["source"] for one in said["evidence"]] == ["record", *([] if ended == "rejoined" else ["broker log"])]
    again = {**row, **said}
    assert conclude_ending(again, events, leaver) == said
    assert {**again, **conclude_ending(again, [], leaver)} == row


def test_ending_of_a_member_that_missed_a_rebalance_is_kept_if_commits_show_that_it_did_not_poll(
    tmp_path: Path,
) -> None:
    missed = events_of(
        tmp_path, [lines.structured(11, f"Group orders removed dynamic members who haven't joined: [{B}]")]
    )
    for ended, expected in (
        ("left_or_expired", "rebalance_timeout"),
        ("poll_timeout", "poll_timeout"),
        ("left", "left_or_expired"),
        ("expired", "left_or_expired"),
    ):
        assert conclude_ending(membership(ended), missed, None)["ended"] == expected

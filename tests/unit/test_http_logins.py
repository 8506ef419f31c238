"""How many wrong passwords and tokens of an address are checked, and what the log says of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from grouptrail.http import logins
from grouptrail.http.logins import AT_ONCE, MAX_ADDRESSES, SECONDS_EACH, Login, Logins
from support.deadlines import until

ATTACKER, READER = "10.0.0.66", "10.0.0.5"


class _Clock:
    """A time that passes when the test says so."""

    now = 1_000.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def checked(clock: _Clock) -> Callable[..., Login]:
    """What checks a login from an address."""
    known = Logins(lambda _: None, clock)

    def check(address: str, *, is_right: bool = False) -> Login:
        return known.check(address, lambda: is_right)

    return check


def test_wrong_logins_of_an_address_beyond_the_limit_are_checked_one_per_half_second(
    clock: _Clock, checked: Callable[..., Login]
) -> None:
    answers = [checked(ATTACKER) for _ in range(1_000)]
    assert answers == [Login.WRONG] * AT_ONCE + [Login.UNCHECKED] * (1_000 - AT_ONCE)
    assert checked(ATTACKER, is_right=True) is Login.UNCHECKED
    for _ in range(20):
        clock.now += SECONDS_EACH
        assert [checked(ATTACKER), checked(ATTACKER)] == [Login.WRONG, Login.UNCHECKED]
    clock.now += SECONDS_EACH
    assert checked(ATTACKER, is_right=True) is Login.RIGHT


def test_limit_of_an_address_does_not_affect_other_addresses(checked: Callable[..., Login]) -> None:
    for _ in range(100):
        checked(ATTACKER)
    assert checked(READER) is Login.WRONG
    assert checked(READER, is_right=True) is Login.RIGHT


def test_address_with_a_right_login_within_the_hour_is_not_limited(
    clock: _Clock, checked: Callable[..., Login]
) -> None:
    """Behind a proxy, all clients have its address."""
    assert checked(READER, is_right=True) is Login.RIGHT
    clock.now += 3_500
    assert [checked(READER) for _ in range(100)] == [Login.WRONG] * 100
    assert checked(READER, is_right=True) is Login.RIGHT
    clock.now += 3_700
    assert [checked(READER) for _ in range(100)].count(Login.UNCHECKED) == 100 - AT_ONCE


@pytest.mark.parametrize(
    ("addresses", "is_one"),
    [
        (["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.9"], True),
        (["2001:db8::1", "2001:db8::2", "2001:db8::ffff:0:1"], True),
        (["10.0.0.1", "::ffff:10.0.0.1"], True),
        (["fe80::1%eth0", "fe80::2"], True),
        (["10.0.0.1", "10.0.0.2"], False),
        (["2001:db8::1", "2001:db8:0:1::1"], False),
    ],
)
def test_addresses_that_one_client_can_have_share_a_limit(
    checked: Callable[..., Login], addresses: list[str], is_one: bool
) -> None:
    for _ in range(AT_ONCE):
        checked(addresses[0])
    assert {checked(address) for address in addresses[1:]} == {Login.UNCHECKED if is_one else Login.WRONG}


def test_addresses_beyond_the_most_share_a_limit_until_others_are_quiet(
    clock: _Clock, checked: Callable[..., Login]
) -> None:
    for number in range(MAX_ADDRESSES):
        checked(f"10.1.{number // 250}.{number % 250}")
    answers = [checked(f"10.2.0.{number}") for number in range(100)]
    assert answers == [Login.WRONG] * AT_ONCE + [Login.UNCHECKED] * (100 - AT_ONCE)
    clock.now += AT_ONCE * SECONDS_EACH
    assert {checked(f"10.2.0.{number}") for number in range(100)} == {Login.WRONG}


def test_log_names_the_addresses_with_most_wrong_logins_in_one_line() -> None:
    said: list[str] = []
    known = Logins(said.append)
    for number in range(5):
        for _ in range(number + 1):
            known.check(f"10.0.0.{number}", lambda: False)
    known.check("10.0.0.9", lambda: True)
    known.stop()
    assert said == [
        "login: 15 requests with a wrong password or token from 10.0.0.4 (5), 10.0.0.3 (4), 10.0.0.2 (3) "
        "and 2 others: correct what this client sends, or keep it away from the port"
    ]


def test_log_of_wrong_logins_gets_a_line_after_a_pause_and_none_without_further_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logins, "LOG_SECONDS", 0.01)
    said: list[str] = []
    known = Logins(said.append)
    for count in (1, 2):
        known.check(ATTACKER, lambda: False)
        until(lambda: known._timer is None and len(said) == count)  # noqa: B023 - it is called at once
    known.stop()
    assert [line.partition(":")[2].partition(" with")[0] for line in said] == [" 1 request", " 1 request"]


def test_log_that_is_closed_ends_nothing() -> None:
    def refuse(_: str) -> None:
        raise BrokenPipeError

    known = Logins(refuse)
    known.check(ATTACKER, lambda: False)
    known.stop()

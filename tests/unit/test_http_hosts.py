"""Which Host headers are answered on a loopback address."""

from __future__ import annotations

import pytest

from grouptrail.http.hosts import is_own_host


@pytest.mark.parametrize(
    ("host", "is_answered"),
    [
        (None, True),
        ("127.0.0.1:9308", True),
        ("127.0.0.2", True),
        ("localhost", True),
        ("LOCALHOST.:9308", True),
        ("[::1]:9308", True),
        ("[::ffff:127.0.0.1]", True),
        ("proxy.example.org", True),
        ("Proxy.Example.org.:443", True),
        ("[fd00::1]:443", True),
        ("evil.example.com", False),
        ("127.0.0.1.evil.example.com", False),
        ("localhost.evil.example.com", False),
        ("localhost@evil.example.com", False),
        ("evil.example.com@localhost", False),
        ("localhost, evil.example.com", False),
        ("localhost:9308:9308", False),
        ("localhost:", False),
        ("10.0.0.5", False),
        ("[fd00::2]", False),
        ("", False),
        (".", False),
    ],
)
def test_is_own_host_on_loopback_takes_names_of_this_machine_and_of_the_settings(
    host: str | None, is_answered: bool
) -> None:
    for address in ("127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"):
        assert is_own_host(host, address, ["proxy.example.org", "proxy.example.org.", "[fd00::1]"]) == is_answered


@pytest.mark.parametrize("host", [None, "", "grouptrail.monitoring.svc:9308", "evil.example.com"])
def test_is_own_host_on_a_network_address_takes_any_name(host: str | None) -> None:
    assert is_own_host(host, "10.0.0.5", [])
    assert is_own_host(host, "0.0.0.0", [])
    assert is_own_host(host, "fe80::1%eth0", [])

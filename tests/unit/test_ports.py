"""Ports for the servers of the tests and the demo."""

from __future__ import annotations

import random
import socket

import pytest

from servers import ports


def test_port_is_given_once_and_not_while_something_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers listen some seconds after they were given their ports: others must not be given these meanwhile."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        taken = listening.getsockname()[1]
        first, second = ports.free_ports(2)
        drawn = iter([first, taken, second])

        class Drawn(random.SystemRandom):
            def randrange(self, *_: int) -> int:
                return next(drawn, 0) or super().randrange(15_000, 32_000)

        monkeypatch.setattr(ports, "_PORTS", Drawn())
        assert ports.free_port() not in (first, second, taken)
        assert next(drawn, None) is None

"""Free ports on loopback."""

from __future__ import annotations

import random
import socket

# Not the global generator, which may be seeded: two processes would then try the same ports.
_PORTS = random.SystemRandom()
_HELD: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Return free loopback ports below the range that outgoing connections get theirs from.

    A client that retries a stopped broker could otherwise be given the broker's own port, and hold it. No other call
    is given them while this process runs, though nothing listens there yet: their numbers are held for UDP, which
    the servers here do not use.
    """
    ports: set[int] = set()
    while len(ports) < count:
        port = _PORTS.randrange(15_000, 32_000)
        held = socket.socket(type=socket.SOCK_DGRAM)
        try:
            held.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            held.close()
            continue
        _HELD.append(held)
        ports.add(port)
    return sorted(ports)


def free_port() -> int:
    """Return a port as `free_ports` does."""
    return free_ports(1)[0]

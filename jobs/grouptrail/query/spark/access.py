"""Who may connect to `serve-sql`: clients with the token, and without a token only the user who runs it.

Neither Spark Connect nor the Thrift server authenticates clients here, so the gateways in front of them do.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path

from grouptrail.errors import GrouptrailError

_SOCKETS = ("/proc/net/tcp", "/proc/net/tcp6")
_ESTABLISHED = "01"
_ROOT = 0


class ServeError(GrouptrailError):
    """A server that does not start."""


@dataclass(frozen=True)
class Tls:
    """The PEM files of a server's certificate and key."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return the context of a server. Raises ServeError."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ValueError) as error:
            raise ServeError(f"--tls-certificate or --tls-key cannot be used ({error}): give PEM files") from error
        return context


@dataclass(frozen=True)
class Access:
    """The address to listen on, and what a client needs."""

    host: str
    token: str | None = None
    tls: Tls | None = None

    def check(self) -> str:
        """Return the IP address of the host; raise ServeError if clients cannot be authenticated there."""
        try:
            address = str(socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise ServeError(
                f"--host {self.host} cannot be used ({error.strerror or error}): give an address"
            ) from error
        if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            if self.token is None and not Path(_SOCKETS[0]).is_file():
                raise ServeError("this system does not show which user connects: require a token with --token-file")
        elif self.token is None or self.tls is None:
            raise ServeError(
                f"other machines can reach {self.host}: require a token there with --token-file, and encrypt it with "
                "--tls-certificate and --tls-key"
            )
        if self.tls is not None:
            self.tls.context()
        return address

    def refusal(self, token: str, client_port: int, port: int) -> str | None:
        """Return why a client that gives this token, or none (""), is refused; None if it may connect.

        The ports are those of its connection, to find its user.
        """
        if self.token is not None:
            accepted = hmac.compare_digest(token.encode(), self.token.encode())
            return None if accepted else "give the server's token (serve-sql --token-file)"
        if _user_of(client_port, port) in (os.getuid(), _ROOT):
            return None
        return "only the user who runs this server may connect (others: serve-sql --token-file)"


def _user_of(client_port: int, port: int) -> int | None:
    """Return the user id of the process at the other end of a loopback connection; None if it is not found."""
    for sockets in _SOCKETS:
        try:
            lines = Path(sockets).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for _, local, remote, state, *_, uid in (line.split()[:8] for line in lines):
            # Connections that are being closed are listed as root's.
            if state == _ESTABLISHED and (_port(local), _port(remote)) == (client_port, port) and _is_loopback(local):
                return int(uid)
    return None


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _is_loopback(address: str) -> bool:
    """Return whether an address of /proc/net/tcp, in words of the machine's byte order, is a loopback address."""
    words = address.rpartition(":")[0]
    ip = ipaddress.ip_address(
        b"".join(int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8))
    )
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback

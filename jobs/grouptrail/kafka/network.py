"""kafka-python's network layer, adapted so that a refused login is reported at once and with its reason."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from kafka import errors as client_errors
from kafka.net import transport
from kafka.net.compat import KafkaNetClient

LOGIN_REFUSED = (client_errors.SaslAuthenticationFailedError, client_errors.UnsupportedSaslMechanismError)


@cache
def adapt_kafka_python() -> None:
    """Silence kafka-python's log and keep what it receives together with the end of a connection.

    Its log repeats every lost connection, and at DEBUG whole configurations, secrets included.
    """
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    for kind in (transport.KafkaTCPTransport, transport.KafkaSSLTransport):
        kind._sock_recv = _without_loss(kind._sock_recv)


def _without_loss(receive: Callable[[Any], tuple[bytes, Exception | None]]) -> Callable[[Any], Any]:
    """Keep data that arrives together with an error: kafka-python drops it, and with it why a login was refused."""

    def received(connection: Any) -> tuple[bytes, Exception | None]:
        data, error = receive(connection)
        return data, None if data else error  # the next call returns the error

    return received


class Network:
    """The network clients below one admin client or consumer, which stop at a refused login.

    Java's client stops there, too; kafka-python would log in again and again until its deadline, report only a
    timeout, and leave its thread running.
    """

    def __init__(self) -> None:
        self._clients: list[Any] = []
        self._refused: dict[Any, Exception] = {}

    def client(self, **arguments: Any) -> Any:
        """Create a network client: the `kafka_client` argument of KafkaAdminClient and KafkaConsumer."""
        client = KafkaNetClient(**arguments)
        connect = client._manager.get_connection

        def connect_unless_refused(node: Any, **how: Any) -> Any:
            if node in self._refused:
                raise self._refused[node]
            connection = connect(node, **how)
            connection.init_future.add_errback(lambda error: self._remember(node, error))
            return connection

        client._manager.get_connection = connect_unless_refused
        self._clients.append(client)
        return client

    def _remember(self, node: Any, error: Exception) -> None:
        if isinstance(error, LOGIN_REFUSED):
            self._refused[node] = error

    def stop(self) -> None:
        """Close the clients and end their threads."""
        for client in self._clients:
            client.close()
            client._net.stop()

"""kafka-python's network layer, adapted so that a refused login is reported at once and with its reason."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from kafka import errors as client_errors

from grouptrail.errors import GrouptrailError
from grouptrail.kafka import client_internals
from grouptrail.kafka.kerberos import Tickets
from grouptrail.kafka.tokens import Tokens

LOGIN_REFUSED = (client_errors.SaslAuthenticationFailedError, client_errors.UnsupportedSaslMechanismError)


class LoginUnavailableError(client_errors.SaslAuthenticationFailedError):  # type: ignore[misc]
    """There is no token or ticket to log in with; `reason` says why. To kafka-python it is a refused login."""

    def __init__(self, reason: GrouptrailError) -> None:
        super().__init__(str(reason))
        self.reason = reason

    def __str__(self) -> str:
        return str(self.reason)


def token_provider(tokens: Tokens) -> Any:
    """Return the `sasl_oauth_token_provider` argument of an admin client or consumer."""

    def token() -> str:
        with _as_refused_login():
            return tokens.token()

    return client_internals.token_provider(token, tokens.extensions)


class _Exchange:
    """A login with Kerberos, whose errors are refused logins to kafka-python."""

    def __init__(self, tickets: Tickets, host: str) -> None:
        with _as_refused_login():
            self._exchange = tickets.begin(host)

    @property
    def is_done(self) -> bool:
        return self._exchange.is_done

    def answer(self) -> bytes:
        return self._exchange.answer()

    def receive(self, message: bytes) -> None:
        with _as_refused_login():
            self._exchange.receive(message)


def kerberos_name(tickets: Tickets) -> Any:
    """Return the `sasl_kerberos_name` argument of an admin client or consumer."""
    return client_internals.kerberos_name(partial(_Exchange, tickets))


@contextmanager
def _as_refused_login() -> Iterator[None]:
    try:
        yield
    except GrouptrailError as error:
        raise LoginUnavailableError(error) from error


@cache
def adapt_kafka_python() -> None:
    """Silence kafka-python's log and keep what it receives together with the end of a connection.

    Its log repeats every lost connection, and at DEBUG whole configurations, secrets included.
    """
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    client_internals.keep_bytes_received_with_error()


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
        client = client_internals.network_client(
            arguments, before_connecting=self._raise_if_refused, on_connection_error=self._remember
        )
        self._clients.append(client)
        return client

    def _raise_if_refused(self, node: Any) -> None:
        if node in self._refused:
            raise self._refused[node]

    def _remember(self, node: Any, error: Exception) -> None:
        if isinstance(error, LOGIN_REFUSED):
            self._refused[node] = error

    def stop(self) -> None:
        """Close the clients and end their threads."""
        for client in self._clients:
            client_internals.stop_network_client(client)

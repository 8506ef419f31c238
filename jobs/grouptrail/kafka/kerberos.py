"""Login with Kerberos (SASL GSSAPI): the settings of Kafka's Java client, and tickets that are renewed.

Java's client gets tickets of its own. Both follow the same krb5.conf: libkrb5 that of the variable KRB5_CONFIG, and
Java what `spark.session` passes on.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from grouptrail.config.jaas import jaas_line, jaas_options
from grouptrail.errors import GrouptrailError
from grouptrail.kafka import gssapi
from grouptrail.kafka.errors import KafkaLoginError, KafkaSettingError, KdcUnreachableError
from grouptrail.kafka.gssapi import GssError

MECHANISM = "GSSAPI"
CONFIG_VARIABLE = "KRB5_CONFIG"

_SERVICE = "sasl.kerberos.service.name"
_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
_JAAS = 'kafka."sasl.jaas.config"'
_EXAMPLE = f'{_MODULE} required useKeyTab=true keyTab="/etc/grouptrail.keytab" principal="grouptrail@EXAMPLE.COM";'

# Error codes of krb5.h, and what to do.
_CHECK_CLIENT = f"create the principal, or correct it in {_JAAS}"
_CHECK_SERVICE = f'create it, or check kafka."{_SERVICE}" and the hosts in the brokers\' advertised.listeners'
_ENABLE_CLIENT = "let the KDC's administrator enable the principal"
_EXPORT_KEYTAB = "the keytab's key is not, or no longer, that of the KDC: export the keytab again"
_SET_CLOCKS = "synchronize the clocks of this machine, the KDC and the brokers"
_KINIT = f"run kinit, or give a keytab in {_JAAS}"
_CHECK_CONFIG = f"check krb5.conf; {CONFIG_VARIABLE} names another one"
_REMEDIES = {
    -1765328378: _CHECK_CLIENT,
    -1765328377: _CHECK_SERVICE,
    -1765328383: _ENABLE_CLIENT,
    -1765328366: _ENABLE_CLIENT,
    -1765328361: _ENABLE_CLIENT,
    -1765328360: _EXPORT_KEYTAB,
    -1765328353: _EXPORT_KEYTAB,
    -1765328174: _EXPORT_KEYTAB,
    -1765328352: _KINIT,
    -1765328243: _KINIT,
    -1765328189: _KINIT,
    -1765328351: _SET_CLOCKS,
    -1765328347: _SET_CLOCKS,
    -1765328236: _SET_CLOCKS,
}
# Refused tickets stay in memory: they are exchanged no more often.
_KEEP_SECONDS = 300.0

_NO_TICKET_CACHE = (-1765328243, -1765328189)
_NO_KDC = (-1765328230, -1765328228)


class Exchange:
    """The client's side of a login with SASL GSSAPI (RFC 4752), without a security layer, as Kafka has it."""

    def __init__(self, tickets: Tickets, context: gssapi.Context) -> None:
        self.is_done = False
        self._tickets = tickets
        self._context = context
        self._has_agreed = False
        self._answer = context.step(b"")

    def answer(self) -> bytes:
        """Return what to send next; the last message is followed by an empty one of the broker's."""
        self.is_done = self._has_agreed
        return self._answer

    def receive(self, message: bytes) -> None:
        """Take what the broker has sent. Raises as `Tickets.begin`."""
        try:
            self._receive(message)
        except GssError as error:
            raise self._tickets.explained(error) from None

    def _receive(self, message: bytes) -> None:
        if not self._context.is_complete:
            self._answer = self._context.step(message)
        elif not self._has_agreed:
            offered = self._context.unwrap(message)
            if not offered or not offered[0] & 1:
                raise GssError("the broker demands a security layer of SASL, which Kafka has not")
            # No layer, and so no size of its messages; the broker's name for this client is its principal.
            self._answer = self._context.wrap(b"\1\0\0\0")
            self._has_agreed = True


@dataclass(frozen=True)
class Login:
    """What a client logs in with: a keytab, or without one a ticket cache (None: that of the user)."""

    service: str
    principal: str | None
    keytab: str | None
    ticket_cache: str | None

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Login:
        """Return the login that the settings of Kafka's client describe. Raises KafkaSettingError."""
        line = settings.get("sasl.jaas.config", "")
        options = jaas_options(line)
        if not re.match(r"\s*[\w.]*Krb5LoginModule\s", line):
            raise KafkaSettingError(f"{_JAAS} names no Krb5LoginModule, which GSSAPI needs: write {_EXAMPLE}")
        service = settings.get(_SERVICE) or options.get("serviceName")
        if not service or options.get("serviceName", service) != service:
            raise KafkaSettingError(
                f'kafka."{_SERVICE}" is missing, or another one than serviceName in {_JAAS}: give the first part of '
                "the brokers' principals, mostly kafka"
            )
        if os.pathsep in os.environ.get(CONFIG_VARIABLE, ""):
            raise KafkaSettingError(f"{CONFIG_VARIABLE} names several files, of which Java reads one: name one")
        principal = options.get("principal")
        if options.get("useKeyTab", "false").lower() == "true":
            if not principal or "keyTab" not in options:
                raise KafkaSettingError(f"{_JAAS} has useKeyTab without keyTab or principal: write {_EXAMPLE}")
            return cls(service, principal, options["keyTab"], None)
        if options.get("useTicketCache", "false").lower() == "true":
            return cls(service, principal, None, options.get("ticketCache"))
        raise KafkaSettingError(f"{_JAAS} has neither useKeyTab nor useTicketCache: write {_EXAMPLE}")


class Tickets:
    """The ticket of a login, renewed by libkrb5 when it is half over. May be used by several threads."""

    _numbers = itertools.count()

    def __init__(self, login: Login) -> None:
        self._login = login
        self._new_cache()

    def _new_cache(self) -> None:
        # The process's own cache in memory: nothing that others read or overwrite.
        self._own_cache = f"MEMORY:grouptrail-{os.getpid()}-{next(self._numbers)}"
        self._keep_until = time.monotonic() + _KEEP_SECONDS

    def prepare(self) -> None:
        """Get a ticket, or renew it if that is due.

        Raises KafkaLoginError, KdcUnreachableError or KafkaSettingError.
        """
        self._credentials()

    def begin(self, host: str) -> Exchange:
        """Begin to log in at a broker. Raises as `prepare`."""
        credentials = self._credentials()
        try:
            return Exchange(self, gssapi.Context(credentials, self._login.service, host))
        except GssError as error:
            raise self.explained(error) from None

    def refused_by(self, servers: str) -> str:
        """Return the error's text for a ticket that brokers refuse; get another one if it is not new."""
        if time.monotonic() >= self._keep_until:
            self._new_cache()
        return (
            f"{servers} refuses the Kerberos ticket of {self._shown}: compare the brokers' keytab and clocks with "
            "those of the KDC, and see their log"
        )

    def explained(self, error: GssError) -> GrouptrailError:
        """Return an error of the library as one of `grouptrail.kafka.errors`, with a remedy."""
        if error.code in _NO_KDC:
            return KdcUnreachableError(f"no Kerberos login ({error}): start the KDC, or {_CHECK_CONFIG}")
        if self._login.keytab and error.code in _NO_TICKET_CACHE:
            return KafkaLoginError(self._keytab_problem(self._login.keytab))
        remedy = _REMEDIES.get(error.code, f"check {_JAAS} and krb5.conf")
        return KafkaLoginError(f"no Kerberos login as {self._shown} ({error}): {remedy}")

    def _keytab_problem(self, keytab: str) -> str:
        try:
            with open(keytab.removeprefix("FILE:"), "rb"):
                pass
        except OSError as error:
            return (
                f"the keytab {keytab} cannot be read ({error.strerror}): put it there, or correct keyTab in {_JAAS}"
            )
        return (
            f"the keytab {keytab} has no key of {self._shown}: klist -k shows its keys; export the keytab again, or "
            f"correct principal in {_JAAS}"
        )

    @property
    def _shown(self) -> str:
        return self._login.principal or "the ticket cache's principal"

    def _credentials(self) -> gssapi.Credentials:
        if not gssapi.is_installed():
            raise KafkaSettingError(
                f"Kerberos needs {gssapi.LIBRARY}: install the package libgssapi-krb5-2 (Debian, Ubuntu) or "
                "krb5-libs (Red Hat)"
            )
        try:
            credentials = self._acquired()
            if credentials.lifetime_seconds == 0 and self._login.keytab:
                # The library has kept the expired ticket because it got no new one. An empty cache shows why.
                self._new_cache()
                credentials = self._acquired()
        except GssError as error:
            raise self.explained(error) from None
        return credentials

    def _acquired(self) -> gssapi.Credentials:
        login = self._login
        if login.keytab:
            store = {"client_keytab": login.keytab, "ccache": self._own_cache}
        else:
            store = {"ccache": login.ticket_cache} if login.ticket_cache else {}
        return gssapi.Credentials(login.principal, store)


_tickets: dict[Login, Tickets] = {}
_finding = threading.Lock()


def tickets_of(settings: Mapping[str, str]) -> Tickets | None:
    """Return the login in the settings of Kafka's client; None if these do not log in with Kerberos.

    All clients of a process that have the same login share a ticket. Raises KafkaSettingError.
    """
    if not uses_kerberos(settings):
        return None
    login = Login.of(settings)
    with _finding:
        return _tickets.setdefault(login, Tickets(login))


def uses_kerberos(settings: Mapping[str, str]) -> bool:
    """Return whether the settings of Kafka's client are those of a login with GSSAPI, Java's default."""
    is_sasl = settings.get("security.protocol", "").upper().startswith("SASL")
    return is_sasl and settings.get("sasl.mechanism", MECHANISM) == MECHANISM


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for Java's client, which takes paths in quotes only. Raises KafkaSettingError.

    It reads krb5.conf again at each login: before its first one the JVM may have read another file.
    """
    if not uses_kerberos(settings):
        return dict(settings)
    Login.of(settings)
    options = {"refreshKrb5Config": "true", **jaas_options(settings["sasl.jaas.config"])}
    return {**settings, "sasl.jaas.config": jaas_line(_MODULE, options)}

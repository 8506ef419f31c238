"""Settings of a login with Kerberos, and what is said of each error. No KDC is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from grouptrail.config.jaas import jaas_options
from grouptrail.errors import GrouptrailError
from grouptrail.kafka import gssapi
from grouptrail.kafka.errors import KafkaLoginError, KafkaSettingError, KdcUnreachableError
from grouptrail.kafka.gssapi import GssError
from grouptrail.kafka.java_client import java_settings
from grouptrail.kafka.kerberos import Exchange, Login, Tickets, tickets_of
from grouptrail.kafka.settings import client_arguments

MODULE = "com.sun.security.auth.module.Krb5LoginModule"
WITH_KEYTAB = f'{MODULE} required useKeyTab=true keyTab=/etc/g.keytab principal="g@EXAMPLE.COM";'
SETTINGS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "GSSAPI",
    "sasl.kerberos.service.name": "kafka",
    "sasl.jaas.config": WITH_KEYTAB,
}


@pytest.fixture(autouse=True)
def default_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KRB5_CONFIG", raising=False)


def with_line(options: str, **more: str) -> dict[str, str]:
    return {**SETTINGS, "sasl.jaas.config": f"{MODULE} required {options};", **more}


def test_login_with_keytab_takes_principal_and_service() -> None:
    assert Login.of(SETTINGS) == Login("kafka", "g@EXAMPLE.COM", "/etc/g.keytab", None)


def test_login_with_ticket_cache_needs_no_principal() -> None:
    assert Login.of(with_line("useTicketCache=true")) == Login("kafka", None, None, None)
    cache = Login.of(with_line('useTicketCache=true ticketCache="/tmp/cc" serviceName="kafka"'))
    assert cache == Login("kafka", None, None, "/tmp/cc")


def test_kerberos_login_is_shared_by_clients_with_the_same_settings() -> None:
    """GSSAPI is Java's default; other mechanisms have no login here."""
    login = tickets_of(SETTINGS)
    assert login is tickets_of({name: value for name, value in SETTINGS.items() if name != "sasl.mechanism"})
    assert login is not tickets_of(with_line("useTicketCache=true"))
    assert tickets_of({**SETTINGS, "sasl.mechanism": "PLAIN"}) is None
    assert tickets_of({**SETTINGS, "security.protocol": "SSL"}) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**SETTINGS, "sasl.jaas.config": ""}, "names no Krb5LoginModule, which GSSAPI needs: write"),
        ({**SETTINGS, "sasl.jaas.config": 'PlainLoginModule required username="a";'}, "names no Krb5LoginModule"),
        (with_line("useKeyTab=true principal=g"), "without keyTab or principal"),
        (with_line('useKeyTab=true keyTab="/g"'), "without keyTab or principal"),
        (with_line("principal=g"), "neither useKeyTab nor useTicketCache"),
        (with_line("useTicketCache=true serviceName=other"), "another one than serviceName"),
        (with_line("useTicketCache=true", **{"sasl.kerberos.service.name": ""}), "mostly kafka"),
    ],
)
def test_login_wrong_setting_raises_one_line(settings: dict[str, str], message: str) -> None:
    with pytest.raises(KafkaSettingError) as caught:
        client_arguments(settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_login_several_configuration_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libkrb5 would merge them, Java reads one."""
    monkeypatch.setenv("KRB5_CONFIG", "/etc/a.conf:/etc/b.conf")
    with pytest.raises(KafkaSettingError, match="names several files"):
        Login.of(SETTINGS)


def test_java_settings_quotes_paths_and_reads_the_configuration_again() -> None:
    """Java's client refuses a path without quotes; the JVM may have read krb5.conf before its place was known."""
    java = java_settings(SETTINGS)
    assert 'keyTab="/etc/g.keytab"' in java["sasl.jaas.config"]
    assert jaas_options(java["sasl.jaas.config"]) == {"refreshKrb5Config": "true", **jaas_options(WITH_KEYTAB)}
    assert {name for name in SETTINGS if java[name] != SETTINGS[name]} == {"sasl.jaas.config"}
    own = java_settings(with_line("useTicketCache=true refreshKrb5Config=false"))
    assert jaas_options(own["sasl.jaas.config"])["refreshKrb5Config"] == "false"


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (-1765328378, KafkaLoginError, "create the principal"),
        (-1765328377, KafkaLoginError, 'kafka."sasl.kerberos.service.name"'),
        (-1765328366, KafkaLoginError, "administrator"),
        (-1765328360, KafkaLoginError, "export the keytab again"),
        (-1765328347, KafkaLoginError, "synchronize the clocks"),
        (-1765328228, KdcUnreachableError, "start the KDC"),
        (-1765328230, KdcUnreachableError, "start the KDC"),
        (-1, KafkaLoginError, "and krb5.conf"),
        (0, KafkaLoginError, "and krb5.conf"),
    ],
)
def test_explained_error_of_the_library_has_a_remedy(code: int, kind: type[GrouptrailError], message: str) -> None:
    error = Tickets(Login.of(SETTINGS)).explained(GssError("why", code))
    assert type(error) is kind
    assert message in str(error)
    assert "\n" not in str(error)


def test_explained_missing_ticket_cache_names_kinit() -> None:
    login = Tickets(Login.of(with_line("useTicketCache=true")))
    assert "as the ticket cache's principal (why): run kinit" in str(login.explained(GssError("why", -1765328189)))


def test_prepare_without_the_library_names_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gssapi, "is_installed", lambda: False)
    with pytest.raises(KafkaSettingError, match="install the package libgssapi-krb5-2"):
        Tickets(Login.of(SETTINGS)).prepare()


def test_explained_keytab_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Libkrb5 says in both cases that it has found no ticket cache."""
    keytab = tmp_path / "keytab"
    tickets = Tickets(Login.of(with_line(f'useKeyTab=true keyTab="FILE:{keytab}" principal=g')))
    missing = GssError("No credentials cache found", -1765328189)
    assert "keytab cannot be read (No such file or directory): put it there" in str(tickets.explained(missing))
    keytab.touch()
    assert "keytab has no key of g: klist -k" in str(tickets.explained(missing))


class Acquired:
    """Credentials as the library would return them, and the caches that it was asked for."""

    def __init__(self, *lifetimes: int) -> None:
        self.lifetimes = list(lifetimes)
        self.caches: list[str] = []

    def __call__(self, _principal: str | None, store: dict[str, str]) -> Acquired:
        self.caches.append(store["ccache"])
        self.lifetime_seconds = self.lifetimes.pop(0)
        return self


def test_prepare_expired_ticket_is_left_for_an_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library returns a ticket that it could not renew, and says nothing of the reason."""
    acquired = Acquired(60, 0, 60, 60)
    monkeypatch.setattr(gssapi, "is_installed", lambda: True)
    monkeypatch.setattr(gssapi, "Credentials", acquired)
    login = Tickets(Login.of(SETTINGS))
    login.prepare()
    login.prepare()
    login.prepare()
    first, again, fresh, last = acquired.caches
    assert first == again
    assert again != fresh
    assert fresh == last
    assert all(cache.startswith("MEMORY:") for cache in acquired.caches)


class Context:
    """A security context whose peer answers as it is told."""

    def __init__(self, layers: bytes) -> None:
        self.is_complete = False
        self.layers = layers

    def step(self, token: bytes) -> bytes:
        self.is_complete = token == b"from broker"
        return b"" if self.is_complete else b"ticket"

    def unwrap(self, _message: bytes) -> bytes:
        return self.layers

    def wrap(self, content: bytes) -> bytes:
        return b"signed " + content


def exchange_with(layers: bytes) -> Exchange:
    context: object = Context(layers)
    return Exchange(Tickets(Login.of(SETTINGS)), context)  # type: ignore[arg-type]


def test_exchange_agrees_on_no_security_layer() -> None:
    """As in RFC 4752: ticket, proof of the broker, its layers, the choice of none."""
    exchange = exchange_with(b"\x07\0\xff\xff")
    assert exchange.answer() == b"ticket"
    exchange.receive(b"from broker")
    assert (exchange.answer(), exchange.is_done) == (b"", False)
    exchange.receive(b"layers")
    assert (exchange.answer(), exchange.is_done) == (b"signed \1\0\0\0", True)
    exchange.receive(b"")
    assert exchange.is_done


@pytest.mark.parametrize("layers", [b"", b"\x06\0\xff\xff"])
def test_exchange_broker_that_demands_a_layer_is_an_error(layers: bytes) -> None:
    exchange = exchange_with(layers)
    exchange.receive(b"from broker")
    with pytest.raises(KafkaLoginError, match="security layer"):
        exchange.receive(b"layers")

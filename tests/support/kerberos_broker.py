"""A broker whose clients log in with Kerberos over TLS, and their settings.

Tests are skipped without a KDC, but fail in CI.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from servers.kafka import Broker
from servers.kdc import REALM, Kdc, NoKdcError
from support.certificates import Authority

CLIENT = "grouptrail"
SERVICE = "kafka/localhost"  # both clients look up the name of 127.0.0.1
MODULE = "com.sun.security.auth.module.Krb5LoginModule"


@dataclass(frozen=True)
class KerberosBroker:
    """A KDC, a broker that trusts its tickets, the keytab of `CLIENT`, and the broker's authority."""

    kdc: Kdc
    broker: Broker
    keytab: Path
    certificate: Path

    def settings(self, **options: str) -> dict[str, str]:
        """Return the Kafka settings of a login with the keytab, or with other options of the JAAS line."""
        line = " ".join(f'{name}="{value}"' for name, value in (options or self.keytab_options()).items())
        return {
            "bootstrap.servers": self.broker.sasl_bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificate),
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            # By default Java renews no ticket more often than once a minute.
            "sasl.kerberos.min.time.before.relogin": "1000",
            "sasl.jaas.config": f"{MODULE} required {line};",
        }

    def keytab_options(self, keytab: Path | None = None, principal: str = CLIENT) -> dict[str, str]:
        """Return the options of the JAAS line for a login with a keytab, by default that of `CLIENT`."""
        return {"useKeyTab": "true", "keyTab": str(keytab or self.keytab), "principal": f"{principal}@{REALM}"}

    def environment(self, config: Path | None = None, **options: str) -> dict[str, str]:
        """Return the same as variables, with the krb5.conf."""
        settings = self.settings(**options).items()
        environ = {f"GROUPTRAIL_KAFKA__{name.replace('.', '_').upper()}": value for name, value in settings}
        return environ | {"KRB5_CONFIG": str(config or self.kdc.config)}


def _kdc(folder: Path) -> Kdc:
    try:
        return Kdc(folder)
    except NoKdcError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@contextmanager
def kerberos_broker(folder: Path, *, session_seconds: int) -> Iterator[KerberosBroker]:
    """Run both; the broker closes connections that have not logged in again within `session_seconds` (KIP-368)."""
    with _kdc(folder / "kdc") as kdc:
        authority, keytab = Authority(folder, "authority"), kdc.keytab("broker.keytab", SERVICE)
        acceptor = f'useKeyTab="true" storeKey="true" isInitiator="false" keyTab="{keytab}"'
        properties = {
            "offsets.topic.num.partitions": "4",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(authority.signed("broker")),
            "sasl.enabled.mechanisms": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "listener.name.sasl.gssapi.sasl.jaas.config": (
                f'{MODULE} required {acceptor} principal="{SERVICE}@{REALM}";'
            ),
            "listener.name.sasl.gssapi.connections.max.reauth.ms": str(1000 * session_seconds),
        }
        java_options = f"-Djava.security.krb5.conf={kdc.config}"
        with Broker(folder / "kafka", properties=properties, security="sasl", java_options=java_options) as broker:
            client_keytab = kdc.keytab("grouptrail.keytab", CLIENT)
            yield KerberosBroker(kdc, broker, client_keytab, authority.certificate)

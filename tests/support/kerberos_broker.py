"""A broker whose clients log in with Kerberos, and their settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servers.kafka import Broker
from servers.kdc import REALM, Kdc

CLIENT = "grouptrail"
SERVICE = "kafka/localhost"  # both clients look up the name of 127.0.0.1
MODULE = "com.sun.security.auth.module.Krb5LoginModule"


@dataclass(frozen=True)
class KerberosBroker:
    """A KDC, a broker that trusts its tickets, and the keytab of `CLIENT`."""

    kdc: Kdc
    broker: Broker
    keytab: Path

    def settings(self, **options: str) -> dict[str, str]:
        """Return the Kafka settings of a login with the keytab, or with other options of the JAAS line."""
        line = " ".join(f'{name}="{value}"' for name, value in (options or self.keytab_options()).items())
        return {
            "bootstrap.servers": self.broker.sasl_bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
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


@contextmanager
def kerberos_broker(folder: Path, *, session_seconds: int) -> Iterator[KerberosBroker]:
    """Run both; the broker closes connections that have not logged in again within `session_seconds` (KIP-368)."""
    with Kdc(folder / "kdc") as kdc:
        keytab = kdc.keytab("broker.keytab", SERVICE)
        acceptor = f'useKeyTab="true" storeKey="true" isInitiator="false" keyTab="{keytab}"'
        properties = {
            "offsets.topic.num.partitions": "4",
            "sasl.enabled.mechanisms": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "listener.name.sasl.gssapi.sasl.jaas.config": (
                f'{MODULE} required {acceptor} principal="{SERVICE}@{REALM}";'
            ),
            "listener.name.sasl.gssapi.connections.max.reauth.ms": str(1000 * session_seconds),
        }
        java_options = f"-Djava.security.krb5.conf={kdc.config}"
        with Broker(folder / "kafka", properties=properties, security="sasl", java_options=java_options) as broker:
            yield KerberosBroker(kdc, broker, kdc.keytab("grouptrail.keytab", CLIENT))

"""Settings of Kafka's Java client as arguments of kafka-python.

Spark passes the same settings to the Java client, as `java_client.java_settings` returns them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from grouptrail.config.jaas import jaas_options
from grouptrail.kafka import kerberos, msk_iam, oauthbearer
from grouptrail.kafka.errors import KafkaSettingError
from grouptrail.kafka.kerberos import Tickets, tickets_of
from grouptrail.kafka.network import kerberos_name, token_provider
from grouptrail.kafka.oauthbearer import tokens_of, uses_tokens
from grouptrail.kafka.tls import tls_context
from grouptrail.kafka.tokens import Tokens

DEADLINE_SECONDS = 10

_NUMBERS = {
    "request.timeout.ms": "request_timeout_ms",
    "connections.max.idle.ms": "connections_max_idle_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "reconnect.backoff.ms": "reconnect_backoff_ms",
    "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
    "retry.backoff.ms": "retry_backoff_ms",
    "receive.buffer.bytes": "receive_buffer_bytes",
    "send.buffer.bytes": "send_buffer_bytes",
}

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MECHANISMS = (*_PASSWORD_MECHANISMS, oauthbearer.MECHANISM, msk_iam.MECHANISM, kerberos.MECHANISM)

# Other settings that decide who is trusted or how to log in must not be ignored.
_UNDERSTOOD = re.compile(
    r"ssl\.(truststore|keystore)\.|ssl\.key\.password|ssl\.endpoint\.identification\.algorithm|"
    r"ssl\.(protocol|enabled\.protocols)$|sasl\.(mechanism|jaas\.config)$|sasl\.login\.(refresh|retry)\.|"
    r"sasl\.login\.(connect|read)\.|sasl\.kerberos\.|security\.protocol$"
)
_UNDERSTOOD_OF_TOKENS = re.compile(
    r"sasl\.oauthbearer\.(token\.endpoint\.url|client\.credentials\.client\.(id|secret)|scope|(scope|sub)\.claim\.name|"
    r"header\.urlencode|jwt\.retriever\.class|assertion\.(algorithm|file|template\.file|private\.key\.(file|passphrase)|"
    r"claim\.(iss|sub|aud|exp\.seconds|nbf\.seconds|jti\.include)))$|sasl\.login\.callback\.handler\.class$"
)


def client_arguments(settings: Mapping[str, str], deadline_seconds: float = DEADLINE_SECONDS) -> dict[str, Any]:
    """Return kafka-python's arguments for settings of the Java client; tuning that it lacks is left out.

    Raises KafkaSettingError for settings that decide on security and cannot be followed.
    """
    protocol = settings.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise KafkaSettingError(f'kafka."security.protocol" is {protocol}: give one of {", ".join(_PROTOCOLS)}')
    arguments: dict[str, Any] = {
        "bootstrap_servers": settings.get("bootstrap.servers", "").split(","),
        "bootstrap_timeout_ms": round(deadline_seconds * 1000),
        "request_timeout_ms": round(deadline_seconds * 1000),
        "client_id": settings.get("client.id", "grouptrail"),
        "security_protocol": protocol,
    }
    arguments |= {_NUMBERS[name]: _whole_number(name, value) for name, value in settings.items() if name in _NUMBERS}
    _refuse_unsupported(settings, protocol)
    if protocol.startswith("SASL"):
        arguments |= _login(settings)
    if protocol.endswith("SSL"):
        arguments["ssl_context"] = tls_context(settings)
    return arguments


def login_of(settings: Mapping[str, str]) -> Tokens | Tickets | None:
    """Return the login of the Java client's settings if it has to be renewed. Raises KafkaSettingError."""
    return tokens_of(settings) or tickets_of(settings)


def _whole_number(name: str, value: str) -> int | None:
    try:
        number = int(value)
    except ValueError:
        raise KafkaSettingError(f'kafka."{name}" is {value}: give a whole number') from None
    return None if number == -1 and name.endswith(".buffer.bytes") else number


def _refuse_unsupported(settings: Mapping[str, str], protocol: str) -> None:
    prefixes = ["security."]
    prefixes += ["sasl."] if protocol.startswith("SASL") else []
    prefixes += ["ssl."] if protocol.endswith("SSL") else []
    has_tokens = uses_tokens(settings)
    of_msk = msk_iam.HANDLERS if msk_iam.uses_msk_iam(settings) else ()
    for name in settings:
        if not name.startswith(tuple(prefixes)) or _UNDERSTOOD.match(name) or name in of_msk:
            continue
        if not (has_tokens and _UNDERSTOOD_OF_TOKENS.match(name)):
            raise KafkaSettingError(
                f'kafka."{name}" decides on security and cannot be followed outside Java: leave it out, and use '
                f"PEM certificates and one of {', '.join(_MECHANISMS)}"
            )


def _login(settings: Mapping[str, str]) -> dict[str, Any]:
    mechanism = settings.get("sasl.mechanism", kerberos.MECHANISM)
    if mechanism not in _MECHANISMS:
        raise KafkaSettingError(
            f'kafka."sasl.mechanism" is {mechanism}: grouptrail logs in with {", ".join(_MECHANISMS)}, or by TLS '
            "certificate (security.protocol SSL)"
        )
    login = login_of(settings)
    if isinstance(login, Tokens):
        return {"sasl_mechanism": oauthbearer.MECHANISM, "sasl_oauth_token_provider": token_provider(login)}
    if isinstance(login, Tickets):
        return {"sasl_mechanism": mechanism, "sasl_kerberos_name": kerberos_name(login)}
    options = jaas_options(settings.get("sasl.jaas.config", ""))
    if not options.keys() >= {"username", "password"}:
        raise KafkaSettingError(
            'kafka."sasl.jaas.config" names no username and password: write '
            '...LoginModule required username="..." password="...";'
        )
    if options.get("tokenauth", "false").lower() == "true":
        raise KafkaSettingError('kafka."sasl.jaas.config": tokenauth cannot be followed: give a user and password')
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": options["username"],
        "sasl_plain_password": options["password"],
    }

"""Settings of Kafka's Java client as arguments of kafka-python.

Spark passes the same settings to the Java client as they are.
"""

from __future__ import annotations

import contextlib
import re
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from grouptrail.kafka.errors import KafkaSettingError

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
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_TLS_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

# Other settings that decide who is trusted or how to log in must not be ignored.
_UNDERSTOOD = re.compile(
    r"ssl\.(truststore|keystore)\.|ssl\.key\.password|ssl\.endpoint\.identification\.algorithm|"
    r"ssl\.(protocol|enabled\.protocols)$|sasl\.(mechanism|jaas\.config)$|sasl\.login\.(refresh|retry)\.|"
    r"sasl\.login\.(connect|read)\.|sasl\.kerberos\.|security\.protocol$"
)
_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")


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
        arguments["ssl_context"] = _tls(settings)
    return arguments


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
    for name in settings:
        if name.startswith(tuple(prefixes)) and not _UNDERSTOOD.match(name):
            raise KafkaSettingError(
                f'kafka."{name}" decides on security and cannot be followed outside Java: leave it out, and use '
                f"PEM certificates and one of {', '.join(_MECHANISMS)}"
            )


def _login(settings: Mapping[str, str]) -> dict[str, str]:
    mechanism = settings.get("sasl.mechanism", "GSSAPI")
    if mechanism not in _MECHANISMS:
        raise KafkaSettingError(
            f'kafka."sasl.mechanism" is {mechanism}, Java\'s default being GSSAPI: grouptrail logs in with '
            f"{', '.join(_MECHANISMS)}, or by TLS certificate (security.protocol SSL)"
        )
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


def jaas_options(text: str) -> dict[str, str]:
    r"""Return the options of a JAAS login line: `...LoginModule required username="a" password="b\"c";`."""
    return {name: _unescaped(double or single) or bare for name, double, single, bare in _JAAS_OPTION.findall(text)}


def _unescaped(text: str) -> str:
    controls = {"n": "\n", "t": "\t", "r": "\r"}
    return re.sub(r"\\(.)", lambda match: controls.get(match[1], match[1]), text, flags=re.DOTALL)


def _tls(settings: Mapping[str, str]) -> ssl.SSLContext:
    """Return a context that trusts, presents and checks what the Java client would."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _limit_versions(context, settings.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3"))
    check = settings.get("ssl.endpoint.identification.algorithm", "https")
    if check.lower() not in ("", "https"):
        raise KafkaSettingError(
            f'kafka."ssl.endpoint.identification.algorithm" is {check}: give https, or nothing for no check'
        )
    context.check_hostname = bool(check)
    _trust(context, settings)
    _present(context, settings)
    return context


def _limit_versions(context: ssl.SSLContext, enabled: str) -> None:
    versions = sorted(_TLS_VERSIONS[name.strip()] for name in enabled.split(",") if name.strip() in _TLS_VERSIONS)
    if not versions:
        raise KafkaSettingError(f'kafka."ssl.enabled.protocols" is {enabled}: give TLSv1.2, TLSv1.3 or both')
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


def _trust(context: ssl.SSLContext, settings: Mapping[str, str]) -> None:
    inline, location = settings.get("ssl.truststore.certificates"), settings.get("ssl.truststore.location")
    if inline is None and location is None:
        return context.load_default_certs()
    _require_pem(settings, "ssl.truststore")
    with _certificate_errors("ssl.truststore.certificates" if inline else "ssl.truststore.location"):
        context.load_verify_locations(cafile=None if inline else location, cadata=inline)
    return None


def _present(context: ssl.SSLContext, settings: Mapping[str, str]) -> None:
    inline, location = settings.get("ssl.keystore.key"), settings.get("ssl.keystore.location")
    if inline is None and location is None:
        return
    _require_pem(settings, "ssl.keystore")
    password = settings.get("ssl.key.password", "")
    if inline is None:
        with _certificate_errors("ssl.keystore.location"):
            context.load_cert_chain(str(location), password=lambda: password)
        return
    # OpenSSL reads a key from a file only; this one is readable by its owner alone and deleted at once.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file, _certificate_errors("ssl.keystore.key"):
        file.write(f"{inline}\n{settings.get('ssl.keystore.certificate.chain', '')}\n")
        file.flush()
        context.load_cert_chain(file.name, password=lambda: password)


def _require_pem(settings: Mapping[str, str], store: str) -> None:
    kind = settings.get(f"{store}.type", "JKS").upper()
    if kind != "PEM":
        raise KafkaSettingError(
            f'kafka."{store}.type" is {kind}, which only Java reads: convert the store to PEM (keytool, openssl) '
            f'and set "{store}.type" = "PEM"'
        )


@contextlib.contextmanager
def _certificate_errors(name: str) -> Iterator[None]:
    """Raise what OpenSSL rejects in a certificate or key as a KafkaSettingError of setting `name`."""
    try:
        yield
    except ssl.SSLError as error:
        reason = error.reason or "not PEM, or the wrong password"
        raise KafkaSettingError(
            f'kafka."{name}" cannot be used ({reason}): give PEM certificates, with the key and its '
            'kafka."ssl.key.password" where it has one'
        ) from None
    except OSError as error:
        raise KafkaSettingError(f'kafka."{name}" cannot be read ({error.strerror}): check the path') from None

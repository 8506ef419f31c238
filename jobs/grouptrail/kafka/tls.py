"""TLS as the settings `ssl.…` of Kafka's Java client describe it."""

from __future__ import annotations

import contextlib
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping

from grouptrail.kafka.errors import KafkaSettingError

_TLS_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def kafka_setting(name: str) -> str:
    """Return the name of a setting of Kafka's client as it is written in messages."""
    return f'kafka."{name}"'


def tls_context(settings: Mapping[str, str], spell: Callable[[str], str] = kafka_setting) -> ssl.SSLContext:
    """Return a context that trusts, presents and checks what the Java client would with settings `ssl.…`.

    `spell` returns the name of a setting for messages. Raises KafkaSettingError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _limit_versions(context, settings.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3"), spell)
    check = settings.get("ssl.endpoint.identification.algorithm", "https")
    if check.lower() not in ("", "https"):
        raise KafkaSettingError(
            f"{spell('ssl.endpoint.identification.algorithm')} is {check}: give https, or nothing for no check"
        )
    context.check_hostname = bool(check)
    _trust(context, settings, spell)
    _present(context, settings, spell)
    return context


def _limit_versions(context: ssl.SSLContext, enabled: str, spell: Callable[[str], str]) -> None:
    versions = sorted(_TLS_VERSIONS[name.strip()] for name in enabled.split(",") if name.strip() in _TLS_VERSIONS)
    if not versions:
        raise KafkaSettingError(f"{spell('ssl.enabled.protocols')} is {enabled}: give TLSv1.2, TLSv1.3 or both")
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


def _trust(context: ssl.SSLContext, settings: Mapping[str, str], spell: Callable[[str], str]) -> None:
    inline, location = settings.get("ssl.truststore.certificates"), settings.get("ssl.truststore.location")
    if inline is None and location is None:
        return context.load_default_certs()
    _require_pem(settings, "ssl.truststore", spell)
    with _certificate_errors("ssl.truststore.certificates" if inline else "ssl.truststore.location", spell):
        context.load_verify_locations(cafile=None if inline else location, cadata=inline)
    return None


def _present(context: ssl.SSLContext, settings: Mapping[str, str], spell: Callable[[str], str]) -> None:
    inline, location = settings.get("ssl.keystore.key"), settings.get("ssl.keystore.location")
    if inline is None and location is None:
        return
    _require_pem(settings, "ssl.keystore", spell)
    password = settings.get("ssl.key.password", "")
    if inline is None:
        with _certificate_errors("ssl.keystore.location", spell):
            context.load_cert_chain(str(location), password=lambda: password)
        return
    # OpenSSL reads a key from a file only; this one is readable by its owner alone and deleted at once.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file, _certificate_errors("ssl.keystore.key", spell):
        file.write(f"{inline}\n{settings.get('ssl.keystore.certificate.chain', '')}\n")
        file.flush()
        context.load_cert_chain(file.name, password=lambda: password)


def _require_pem(settings: Mapping[str, str], store: str, spell: Callable[[str], str]) -> None:
    kind = settings.get(f"{store}.type", "JKS").upper()
    if kind != "PEM":
        raise KafkaSettingError(
            f"{spell(f'{store}.type')} is {kind}, which only Java reads: convert the store to PEM (keytool, openssl) "
            f'and set "{store}.type" = "PEM"'
        )


@contextlib.contextmanager
def _certificate_errors(name: str, spell: Callable[[str], str]) -> Iterator[None]:
    """Raise what OpenSSL rejects in a certificate or key as a KafkaSettingError of setting `name`."""
    try:
        yield
    except ssl.SSLError as error:
        reason = error.reason or "not PEM, or the wrong password"
        raise KafkaSettingError(
            f"{spell(name)} cannot be used ({reason}): give PEM certificates, with the key and its "
            f"{spell('ssl.key.password')} where it has one"
        ) from None
    except OSError as error:
        raise KafkaSettingError(f"{spell(name)} cannot be read ({error.strerror}): check the path") from None

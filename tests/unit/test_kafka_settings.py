"""Settings of Kafka's Java client as kafka-python's arguments, and errors where no broker answers."""

from __future__ import annotations

import logging
import socket
import ssl
import time

import pytest

from grouptrail.config import Config
from grouptrail.config.jaas import jaas_options
from grouptrail.kafka.errors import KafkaSettingError, KafkaUnreachableError
from grouptrail.kafka.offsets_topic import OffsetsTopic
from grouptrail.kafka.settings import client_arguments
from support.deadlines import scaled

LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";'
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": LOGIN}


@pytest.mark.parametrize(
    ("text", "username", "password"),
    [
        (LOGIN, "a", "b"),
        (r'X required username="a\"b" password="c\\d;=";', 'a"b', r"c\d;="),
        ("X required username='a b' password=bare;", "a b", "bare"),
        ('X required\n  username = "a"\n  password = ""\n;', "a", ""),
        ('X required password="username=eve" username="a";', "a", "username=eve"),
    ],
)
def test_jaas_options_parses_quotes_escapes_order_and_whitespace(text: str, username: str, password: str) -> None:
    options = jaas_options(text)
    assert (options["username"], options["password"]) == (username, password)


def test_client_arguments_jaas_login_becomes_username_and_password() -> None:
    """PLAIN and SCRAM take them from the JAAS line."""
    arguments = client_arguments({**SASL, "sasl.mechanism": "SCRAM-SHA-512"})
    assert arguments["security_protocol"] == "SASL_PLAINTEXT"
    assert arguments["sasl_mechanism"] == "SCRAM-SHA-512"
    assert (arguments["sasl_plain_username"], arguments["sasl_plain_password"]) == ("a", "b")


def test_client_arguments_tuning_settings_are_mapped_or_ignored() -> None:
    """Settings that only Java's client has are ignored; -1 stands for the system's own buffer size."""
    tuning = {"request.timeout.ms": "1234", "receive.buffer.bytes": "-1", "fetch.max.bytes": "1", "acme.x": "y"}
    arguments = client_arguments(tuning)
    assert (arguments["request_timeout_ms"], arguments["receive_buffer_bytes"]) == (1234, None)
    assert not {"fetch.max.bytes", "fetch_max_bytes", "acme.x"} & arguments.keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"security.protocol": "TLS"}, "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"request.timeout.ms": "soon"}, "whole number"),
        ({**SASL, "sasl.mechanism": "NTLM"}, "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM, GSSAPI"),
        ({"security.protocol": "SASL_SSL"}, "Krb5LoginModule"),
        ({**SASL, "sasl.jaas.config": "X required;"}, "names no username and password"),
        ({**SASL, "sasl.jaas.config": f"{LOGIN[:-1]} tokenauth=true;"}, "tokenauth"),
        ({**SASL, "sasl.client.callback.handler.class": "X"}, "cannot be followed outside Java"),
        ({"security.protocol": "SSL", "ssl.cipher.suites": "X"}, "cannot be followed outside Java"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "x.jks"}, "convert the store to PEM"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "x", "ssl.keystore.type": "PKCS12"}, "to PEM"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldaps"}, "give https"),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1"}, "TLSv1.2, TLSv1.3"),
        (
            {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": "/no/such"},
            "cannot be read",
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.certificates": "junk"},
            "cannot be used",
        ),
    ],
)
def test_client_arguments_unsupported_setting_raises_one_line_error(settings: dict[str, str], message: str) -> None:
    """The line says what to do; ignoring the setting would change which brokers are trusted or how clients log in."""
    with pytest.raises(KafkaSettingError) as caught:
        client_arguments(settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_client_arguments_plaintext_ignores_ssl_and_sasl_settings() -> None:
    """As in Java, a PLAINTEXT client reads no trust store."""
    assert "ssl_context" not in client_arguments({"ssl.truststore.location": "x.jks", "sasl.mechanism": "GSSAPI"})


@pytest.mark.parametrize(("algorithm", "checks"), [("", False), ("https", True), (None, True)])
def test_client_arguments_hostname_check_is_off_only_if_disabled(algorithm: str | None, checks: bool) -> None:
    """Certificates are verified in any case, by TLS 1.2 or newer."""
    given = {} if algorithm is None else {"ssl.endpoint.identification.algorithm": algorithm}
    context = client_arguments({"security.protocol": "SSL", **given})["ssl_context"]
    assert context.check_hostname is checks
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_client_arguments_enabled_protocols_set_the_minimum_tls_version() -> None:
    """TLSv1.3 alone excludes older versions."""
    settings = {"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.3"}
    assert client_arguments(settings)["ssl_context"].minimum_version == ssl.TLSVersion.TLSv1_3


def test_client_arguments_invalid_key_error_does_not_contain_the_key() -> None:
    """An error does not repeat the value of ssl.keystore.key."""
    settings = {"security.protocol": "SSL", "ssl.keystore.type": "PEM", "ssl.keystore.key": "hunter2"}
    with pytest.raises(KafkaSettingError) as caught:
        client_arguments(settings)
    assert "hunter2" not in str(caught.value)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_offsets_topic_connection_refused_raises_before_any_deadline() -> None:
    """A refused connection needs no deadline; every server that was tried is named."""
    servers = f"127.0.0.1:{closed_port()},127.0.0.1:{closed_port()}"
    started = time.monotonic()
    with pytest.raises(KafkaUnreachableError, match="connection refused") as caught:
        OffsetsTopic({"bootstrap.servers": servers}).partitions()
    assert time.monotonic() - started < scaled(5)
    assert servers in str(caught.value)
    assert "\n" not in str(caught.value)


def test_offsets_topic_unknown_host_raises_naming_the_host() -> None:
    """The error has the name from the settings."""
    topic = OffsetsTopic({"bootstrap.servers": "no-such-host.invalid:9092"})
    with pytest.raises(KafkaUnreachableError, match=r"no-such-host\.invalid:9092"):
        topic.bounds()


def test_offsets_topic_tls_to_plaintext_port_raises_naming_security_protocol() -> None:
    """The error for a port that answers without TLS names the setting to check."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        config = Config(
            kafka={"bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}", "security.protocol": "SSL"}
        )
        import threading

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(KafkaUnreachableError, match=r"does not accept a TLS connection.*security\.protocol"):
            OffsetsTopic(config.kafka_settings()).partitions()


def test_kafka_python_logger_is_disabled_for_errors() -> None:
    """kafka-python logs every retry, and whole configurations at DEBUG."""
    OffsetsTopic({"bootstrap.servers": "kafka:9092"})
    assert not logging.getLogger("kafka.net.manager").isEnabledFor(logging.ERROR)

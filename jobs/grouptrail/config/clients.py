"""Settings of other programs that grouptrail passes on: which names Kafka's client and Spark take."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

from grouptrail.config.presets import PRESET, PRESETS

KAFKA_DEFAULTS = {"bootstrap.servers": "localhost:9092"}

_SERVER = re.compile(r"(?:[\w.%-]*://)?(?:\[[\w.:%]+\]|[\w.%-]+):\d{1,5}")

# Settings that grouptrail controls, and why.
_CONTROLLED = {
    "group.id": "grouptrail joins no group, so that it leaves no trace in the topic it reads",
    "key.deserializer": "grouptrail decodes the bytes itself",
    "value.deserializer": "grouptrail decodes the bytes itself",
    "isolation.level": "grouptrail reads committed records only",
    "auto.offset.reset": "grouptrail starts at the beginning of the log, then at its checkpoint",
    "enable.auto.commit": "grouptrail keeps its position in its checkpoint and commits no offsets to Kafka",
    "interceptor.classes": "Spark's Kafka source does not support interceptors",
}

# Names of librdkafka's settings, and what Kafka's Java client has instead.
_LIBRDKAFKA_NAMES = {
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.username": "sasl.jaas.config",
    "sasl.password": "sasl.jaas.config",
    "ssl.ca.location": 'ssl.truststore.location, with "ssl.truststore.type" = "PEM"',
    "ssl.ca.pem": 'ssl.truststore.certificates, with "ssl.truststore.type" = "PEM"',
    "ssl.certificate.location": 'ssl.keystore.location (key and certificates), with "ssl.keystore.type" = "PEM"',
    "ssl.key.location": 'ssl.keystore.location (key and certificates), with "ssl.keystore.type" = "PEM"',
    "enable.ssl.certificate.verification": "ssl.endpoint.identification.algorithm",
}

# The settings of Kafka 4.3's consumer and admin clients, to distinguish a misspelt name from a plug-in's setting;
# without those of sasl.oauthbearer that only brokers read.
_KAFKA_CLIENT_NAMES = """
allow.auto.create.topics auto.commit.interval.ms auto.offset.reset bootstrap.controllers bootstrap.servers
check.crcs client.dns.lookup client.id client.rack config.providers connections.max.idle.ms
default.api.timeout.ms enable.auto.commit enable.metrics.push exclude.internal.topics fetch.max.bytes
fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor
heartbeat.interval.ms interceptor.classes isolation.level key.deserializer max.partition.fetch.bytes
max.poll.interval.ms max.poll.records metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms
metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level
metrics.sample.window.ms partition.assignment.strategy receive.buffer.bytes reconnect.backoff.max.ms
reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.template.file sasl.oauthbearer.jwt.retriever.class
sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.header.urlencode sasl.oauthbearer.scope
sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
security.protocol
security.providers send.buffer.bytes session.timeout.ms socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms ssl.cipher.suites ssl.enabled.protocols
ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
value.deserializer
"""
KAFKA_CLIENT_SETTINGS = tuple(_KAFKA_CLIENT_NAMES.split())


def kafka_problem(name: str, value: Any) -> str | None:
    """Return why a setting of Kafka's client is refused, or None."""
    if name in _CONTROLLED:
        return f"cannot be set: {_CONTROLLED[name]}"
    if name == PRESET and value not in PRESETS:
        return f"is no preset: give one of {', '.join(PRESETS)}"
    if name in _LIBRDKAFKA_NAMES:
        return f"is a librdkafka name: use the name of Kafka's Java client, {_LIBRDKAFKA_NAMES[name]}"
    if name == "bootstrap.servers" and not all(_SERVER.fullmatch(part.strip()) for part in str(value).split(",")):
        return "must be host:port, or several separated by commas"
    known = KAFKA_CLIENT_SETTINGS
    near = [] if name in known else get_close_matches(name, known, n=1, cutoff=0.85)
    return f"is not a setting of Kafka's client: did you mean {near[0]}?" if near else None


def spark_problem(name: str, _value: Any) -> str | None:
    """Return why a Spark setting is refused, or None."""
    return None if name.startswith("spark.") else "is not a Spark setting: names start with spark."

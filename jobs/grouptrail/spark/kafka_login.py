"""What the JVM of a session needs, besides settings of Kafka's client, so that this client can log in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from grouptrail.spark.object_stores import AWS_SDK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""The token endpoints that Kafka's client may use, a system property of the JVM since Kafka 3.9.1."""

MSK_LIBRARY = "software.amazon.msk:aws-msk-iam-auth:2.3.6"
_AWS_MODULES = ("auth", "sts", "apache-client")


def msk_dependencies() -> tuple[str, ...]:
    """Return the Maven coordinates of what AWS's library for MSK needs, in the version that an object store has."""
    return tuple(f"software.amazon.awssdk:{module}:{AWS_SDK}" for module in _AWS_MODULES)


def prepare_login(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Let Kafka's client in the driver log in with settings of the Java client. Raises KafkaSettingError."""
    from grouptrail.kafka.errors import KafkaSettingError
    from grouptrail.kafka.msk_iam import LOGIN_MODULE, uses_msk_iam
    from grouptrail.kafka.oauthbearer import token_endpoint

    if url := token_endpoint(settings):
        _allow(spark, url)
    if uses_msk_iam(settings) and not _jvm(spark).org.apache.spark.util.Utils.classIsLoadable(LOGIN_MODULE):
        raise KafkaSettingError(
            f"Spark has no class {LOGIN_MODULE}, with which its Kafka client logs in to MSK: start it with "
            f"--packages {MSK_LIBRARY}"
        )


def _allow(spark: SparkSession, url: str) -> None:
    system = _jvm(spark).java.lang.System
    allowed = [*filter(None, (system.getProperty(ALLOWED_URLS) or "").split(",")), url]
    system.setProperty(ALLOWED_URLS, ",".join(dict.fromkeys(allowed)))


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm

"""What a session's JVM needs, so that Kafka's client in it can log in."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from grouptrail.kafka.errors import KafkaSettingError
from grouptrail.kafka.java_client import java_settings
from grouptrail.spark.kafka_login import ALLOWED_URLS, prepare_login
from support.token_server import token_server

MSK = {
    "bootstrap.servers": "b-1.orders.abc123.c2.kafka.eu-central-1.amazonaws.com:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
}


def allowed(spark: SparkSession) -> list[str]:
    return str(spark.sparkContext._jvm.java.lang.System.getProperty(ALLOWED_URLS)).split(",")


def test_prepare_login_allows_the_endpoint_once_and_keeps_others(spark: SparkSession, tmp_path: Path) -> None:
    with token_server() as server:
        endpoint = java_settings(server.settings())
        relayed = java_settings(server.settings_with_file(tmp_path / "token"))
        for settings in (endpoint, relayed, endpoint):
            prepare_login(spark, settings)
        urls = allowed(spark)
        assert urls.count(server.url) == 1
        assert urls.count(relayed["sasl.oauthbearer.token.endpoint.url"]) == 1


def test_prepare_login_to_msk_without_the_library_names_it(spark: SparkSession) -> None:
    """As under spark-submit: the JVM of the tests has no library for MSK."""
    with pytest.raises(KafkaSettingError) as caught:
        prepare_login(spark, java_settings(MSK))
    assert "start it with --packages software.amazon.msk:aws-msk-iam-auth:" in str(caught.value)
    assert "\n" not in str(caught.value)

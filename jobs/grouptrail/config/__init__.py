"""The configuration: a TOML file, then the environment, then flags, each overriding the one before.

    cluster = "production"
    [kafka]                        # any setting of Kafka's Java client, by Kafka's own name
    "bootstrap.servers" = "localhost:9092"
    [decode]
    trigger_seconds = 5
    [spark]                        # any Spark setting
    "spark.driver.memory" = "2g"
    [storage]                      # where the warehouse is a URI: any option of delta-rs
    aws_region = "eu-central-1"

Each setting's meaning stands below it; docs/settings.md has them all. `GROUPTRAIL_DECODE__TRIGGER_SECONDS` is
`decode.trigger_seconds`, `GROUPTRAIL_KAFKA__SASL_MECHANISM` is `kafka."sasl.mechanism"`. The file is `--config`, else
`GROUPTRAIL_CONFIG`, else `grouptrail.toml` if there is one.

Several Kafka clusters have a section each, whose settings come before those that all share:

    [clusters.production.kafka]
    "bootstrap.servers" = "kafka-1:9092"

There `GROUPTRAIL_CLUSTERS__PRODUCTION__KAFKA__SASL_MECHANISM` is `clusters.production.kafka."sasl.mechanism"`.
"""

from __future__ import annotations

from grouptrail.config.loading import ConfigError, load_config, load_configs
from grouptrail.config.model import Config, ExporterConfig, MaintainConfig
from grouptrail.config.paths import is_uri
from grouptrail.config.secrets import is_secret

__all__ = [
    "Config",
    "ConfigError",
    "ExporterConfig",
    "MaintainConfig",
    "is_secret",
    "is_uri",
    "load_config",
    "load_configs",
]

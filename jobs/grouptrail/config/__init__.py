"""The configuration: a TOML file, then the environment, then flags, with later sources overriding earlier ones.

    cluster = "production"
    [kafka]                        # any setting of Kafka's Java client, by its own name
    "bootstrap.servers" = "localhost:9092"
    [decode]
    trigger_seconds = 5
    [spark]                        # any Spark setting
    "spark.driver.memory" = "2g"
    [storage]                      # where the warehouse is a URI: any option of delta-rs
    aws_region = "eu-central-1"

`model.py` defines each setting with its meaning; docs/settings.md lists them all. The environment variable of
`decode.trigger_seconds` is `GROUPTRAIL_DECODE__TRIGGER_SECONDS`, that of `kafka."sasl.mechanism"`
`GROUPTRAIL_KAFKA__SASL_MECHANISM`. The file is `--config`, otherwise `GROUPTRAIL_CONFIG`, otherwise `grouptrail.toml`
if it exists.

With several Kafka clusters each has a section, whose settings override those that all clusters share:

    [clusters.production.kafka]
    "bootstrap.servers" = "kafka-1:9092"

The variable of `clusters.production.kafka."sasl.mechanism"` is
`GROUPTRAIL_CLUSTERS__PRODUCTION__KAFKA__SASL_MECHANISM`.
"""

from __future__ import annotations

from grouptrail.config.loading import ConfigError, load_config, load_configs
from grouptrail.config.model import Config, ExporterConfig, MaintainConfig
from grouptrail.config.secrets import is_secret
from grouptrail.config.sources import without_settings
from grouptrail.locations import is_uri

__all__ = [
    "Config",
    "ConfigError",
    "ExporterConfig",
    "MaintainConfig",
    "is_secret",
    "is_uri",
    "load_config",
    "load_configs",
    "without_settings",
]

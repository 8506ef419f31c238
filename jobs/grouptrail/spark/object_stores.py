"""Object stores: Hadoop's settings derived from those of delta-rs, and the jars that Hadoop needs.

`[storage]` has the options of delta-rs by its own names (`aws_region`, `azure_storage_account_key` and so on). For
S3, Hadoop's settings follow from them; for other stores they are set in `[spark]` as `spark.hadoop.fs.…`.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

_S3 = ("s3", "s3a")

# delta-rs accepts these names with and without `aws_`.
_S3A = {
    "access_key_id": "fs.s3a.access.key",
    "secret_access_key": "fs.s3a.secret.key",
    "session_token": "fs.s3a.session.token",
    "token": "fs.s3a.session.token",
    "endpoint": "fs.s3a.endpoint",
    "endpoint_url": "fs.s3a.endpoint",
    "region": "fs.s3a.endpoint.region",
    "default_region": "fs.s3a.endpoint.region",
}
_PATH_STYLE = "fs.s3a.path.style.access"

# hadoop-aws depends on the whole AWS SDK, a jar of 500 MB, but uses only these modules (the version: Hadoop 3.5.0's).
AWS_SDK = "2.35.4"
_AWS_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
WHOLE_AWS_SDK = "software.amazon.awssdk:bundle"


def is_s3(location: str) -> bool:
    """Return whether a warehouse is in an S3 store."""
    return urlsplit(location).scheme in _S3


def spark_settings(location: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings for the store that delta-rs's `options` describe; secrets in clear."""
    if not is_s3(location):
        return {}
    plain = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    renamed = {_S3A[name]: value for name, value in plain.items() if name in _S3A}
    if "fs.s3a.endpoint" in renamed:
        renamed[_PATH_STYLE] = "false" if plain.get("virtual_hosted_style_request", "").lower() == "true" else "true"
    return {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.delta.logStore.s3.impl": "io.delta.storage.S3SingleDriverLogStore",
        **{f"spark.hadoop.{name}": value for name, value in renamed.items()},
    }


def s3_dependencies(hadoop: str) -> tuple[str, ...]:
    """Return the Maven coordinates of the jars that a version of Hadoop needs for S3."""
    sdk = (f"software.amazon.awssdk:{module}:{AWS_SDK}" for module in _AWS_MODULES)
    return (f"org.apache.hadoop:hadoop-aws:{hadoop}", *sdk)

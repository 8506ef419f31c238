"""Object stores: what Hadoop is told of the one that delta-rs is told of, and the jars that it takes.

`[storage]` has the options of delta-rs, by its own names (`aws_region`, `azure_storage_account_key` and so on). For
S3, Hadoop's settings follow from them; for the others they stand in `[spark]` as `spark.hadoop.fs.…`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

_S3 = ("s3", "s3a")
_OF_DELTA_RS = (*_S3, "gs", "az", "azure", "abfs", "abfss", "adl")

# delta-rs takes its names with and without `aws_`.
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

# hadoop-aws asks for all of the AWS SDK in one jar of 500 MB; it uses this much, in the version of Hadoop 3.5.0.
_AWS_SDK = "2.35.4"
_AWS_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
WHOLE_AWS_SDK = "software.amazon.awssdk:bundle"

_FIRST_TRY = {"max_retries": "1", "retry_timeout": "10s", "timeout": "10s", "connect_timeout": "5s"}


def is_s3(location: str) -> bool:
    """Whether a warehouse lies in an S3 store."""
    return urlsplit(location).scheme in _S3


def is_known(location: str) -> bool:
    """Whether delta-rs reads and writes there."""
    return urlsplit(location).scheme in ("", "file", *_OF_DELTA_RS)


def spark_settings(location: str, options: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings that lead it where delta-rs's `options` lead; secrets in clear."""
    if not is_s3(location):
        return {}
    plain = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    found = {_S3A[name]: value for name, value in plain.items() if name in _S3A}
    if "fs.s3a.endpoint" in found:
        found[_PATH_STYLE] = "false" if plain.get("virtual_hosted_style_request", "").lower() == "true" else "true"
    return {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.delta.logStore.s3.impl": "io.delta.storage.S3SingleDriverLogStore",
        **{f"spark.hadoop.{name}": value for name, value in found.items()},
    }


def s3_dependencies(hadoop: str) -> tuple[str, ...]:
    """The Maven coordinates of what Hadoop of that version takes to reach S3."""
    sdk = (f"software.amazon.awssdk:{module}:{_AWS_SDK}" for module in _AWS_MODULES)
    return (f"org.apache.hadoop:hadoop-aws:{hadoop}", *sdk)


def fault(location: str, options: Mapping[str, str]) -> str | None:
    """Why a store cannot be looked into, in one line; None where it can, or delta-rs does not know its kind."""
    if urlsplit(location).scheme not in _OF_DELTA_RS:
        return None
    try:
        DeltaTable.is_deltatable(location, {**_FIRST_TRY, **options})
    except (DeltaError, OSError, ValueError) as error:
        return one_line(str(error))
    return None


def one_line(message: str) -> str:
    """An error of delta-rs's object store: its innermost reason, or what the store said."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", message)
    said = re.search(r"<Message>(.*?)</Message>", plain, re.DOTALL)
    if said:
        return said[1].strip().rstrip(".")
    lines = [line.strip(" ↳") for line in plain.splitlines() if line.strip()]
    return lines[-1][:200].rstrip(".:? ") if lines else "it failed without a word"

"""Which settings are secrets, and how they are kept out of what is printed."""

from __future__ import annotations

import re

from pydantic import SecretStr

from grouptrail.config.clients import KAFKA_CLIENT_SETTINGS
from grouptrail.config.presets import PRESET
from grouptrail.locations import with_locations_shown

_SECRET = re.compile(
    r"passw|passphrase|jaas|secret|token|private.?key|access.?key|account.?key|master.?key|encryption.?key|signature|"
    r"credential|connection.?string|^headers$|^ssl\.keystore\.key$|(^|[._])sas([._]|$)",
    re.IGNORECASE,
)

# Settings whose values are shown. All others are hidden: no list of words finds the secrets of every plug-in.
_HARMLESS_SPARK = re.compile(
    r"spark\.("
    r"master|app\.name|submit\.deployMode|default\.parallelism|cores\.max|local\.dir|serializer|network\.timeout|"
    r"(driver|executor)\.(memory|memoryOverhead\w*|cores|instances|host|bindAddress|port|maxResultSize|heartbeatInterval)|"
    r"task\.(cpus|maxFailures)|(dynamicAllocation|locality|memory|shuffle|speculation|reducer)\.[\w.]+|"
    r"(ui|eventLog|python|pyspark|broadcast|cleaner|scheduler|storage|jars|connect\.grpc\.binding)(\.[\w.]+)?|"
    r"kubernetes\.(namespace|container\.image|driver\.pod\.name|file\.upload\.path)|yarn\.(queue|archives|maxAppAttempts)|"
    r"sql\.(catalog\.spark_catalog|catalogImplementation|extensions|warehouse\.dir|ansi\.enabled)|"
    r"sql\.(adaptive|autoBroadcastJoinThreshold|codegen|execution|files|parquet|session|shuffle|sources|streaming|ui)"
    r"(\.[\w.]+)?|"
    r"(databricks\.delta|delta\.logStore)\.[\w.]+|"
    r"hadoop\.fs\.(defaultFS|\w+\.impl)|hadoop\.hive\.server2\.thrift\.(port|bind\.host)|"
    r"hadoop\.fs\.s3a\.(bucket\.[\w-]+\.)?(endpoint|endpoint\.region|path\.style\.access|ssl\.channel\.mode|"
    r"encryption\.algorithm|server-side-encryption-algorithm|attempts\.maximum|"
    r"(connection|fast\.upload|multipart|paging|readahead|retry|socket|threads)\.[\w.]+)"
    r")"
)
_HARMLESS_STORAGE = re.compile(
    r"(aws_|azure_storage_|azure_|google_)?("
    r"region|default_region|endpoint|endpoint_url|account_name|bucket|bucket_name|container_name|use_emulator|"
    r"allow_http|allow_invalid_certificates|virtual_hosted_style_request|(s3_)?allow_unsafe_rename|conditional_put|"
    r"copy_if_not_exists|s3_locking_provider|timeout|connect_timeout|max_retries|retry_timeout|"
    r"pool_idle_timeout|pool_max_idle_per_host|user_agent)",
    re.IGNORECASE,
)


def is_secret(setting: str) -> bool:
    """Return whether a Kafka, Spark or storage setting is a secret, by its name; the path of one is none."""
    harmless = (".url", ".class", ".client.id", "token_file", ".key.file")
    return _SECRET.search(setting) is not None and not setting.endswith(harmless)


def is_shown(section: str, setting: str, value: str) -> bool:
    """Return whether a setting of the section `kafka`, `spark` or `storage` is known to hold no secret."""
    if is_secret(setting) or with_locations_shown(value) != value:
        return False
    if section == "kafka":
        return setting in KAFKA_CLIENT_SETTINGS or setting == PRESET
    harmless = _HARMLESS_SPARK if section == "spark" else _HARMLESS_STORAGE
    return harmless.fullmatch(setting) is not None


def reveal(value: str | SecretStr) -> str:
    """Return a setting's value in clear text."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def revealed(settings: dict[str, str | SecretStr]) -> dict[str, str]:
    """Return settings with their secrets in clear text."""
    return {name: reveal(value) for name, value in settings.items()}


def hide_secrets(section: str, settings: dict[str, str | SecretStr]) -> dict[str, str | SecretStr]:
    """Return a section's settings with all that may be secret wrapped, so that neither repr nor JSON shows it."""
    plain = revealed(settings)
    return {
        name: value if is_shown(section, name, value) and isinstance(settings[name], str) else SecretStr(value)
        for name, value in plain.items()
    }

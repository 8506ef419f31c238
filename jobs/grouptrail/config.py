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

import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from grouptrail.errors import GrouptrailError

DEFAULT_FILE = "grouptrail.toml"
ENVIRONMENT_PREFIX = "GROUPTRAIL_"
KAFKA_DEFAULTS = {"bootstrap.servers": "localhost:9092"}

_FILE_VARIABLE = f"{ENVIRONMENT_PREFIX}CONFIG"
_FREE_SECTIONS = ("kafka", "spark", "storage")
_DOTTED_SECTIONS = ("kafka", "spark")
_SECTIONS = (*_FREE_SECTIONS, "decode", "admin", "log_offsets", "history", "lag", "exporter", "maintain")
_CLUSTERS = "clusters"
_TEN_YEARS_MINUTES = 10 * 366 * 24 * 60
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9_-]+")

# What the clusters of one configuration share: they are landed in one warehouse by one Spark application, which
# serves their metrics at one address.
_SHARED = ("cluster", "warehouse", "checkpoints", "storage", "spark", "maintain")
_SHARED_OF_EXPORTER = (
    *("listen", "refresh_seconds", "also_as", "tls_certificate", "tls_key", "tls_client_ca"),
    *("basic_auth_user", "basic_auth_password"),
)
_FLAGS = {"cluster": "--cluster", "warehouse": "--warehouse", "kafka.bootstrap.servers": "--bootstrap-server"}

# A service named grouptrail gives every pod of its namespace such variables.
_KUBERNETES_LINK = re.compile(r"GROUPTRAIL_(\w+_)?(SERVICE_HOST|SERVICE_PORT\w*|PORT(_\d+_(TCP|UDP)\w*)?)")

_SECRET = re.compile(
    r"passw|passphrase|jaas|secret|token|private.?key|access.?key|account.?key|master.?key|sas.?key|credential|"
    r"^ssl\.keystore\.key$",
    re.IGNORECASE,
)
_SERVER = re.compile(r"(?:[\w.%-]*://)?(?:\[[\w.:%]+\]|[\w.%-]+):\d{1,5}")
_LISTEN = re.compile(r"(\[[\w.:%]+\]|[\w.-]+):\d{1,5}")
_URI = re.compile(r"[a-zA-Z][\w+.-]+:/")

_OWNED_BY_GROUPTRAIL = {
    "group.id": "grouptrail joins no group, so that it leaves no trace in the topic it watches",
    "key.deserializer": "grouptrail decodes the bytes itself",
    "value.deserializer": "grouptrail decodes the bytes itself",
    "isolation.level": "grouptrail reads committed records only",
    "auto.offset.reset": "grouptrail starts at the log's start, then at its checkpoint",
    "enable.auto.commit": "grouptrail keeps its position in its checkpoint and commits none to Kafka",
    "interceptor.classes": "Spark's Kafka source takes no interceptors",
}

_OTHER_CLIENTS_NAMES = {
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.username": "sasl.jaas.config",
    "sasl.password": "sasl.jaas.config",
    "ssl.ca.location": 'ssl.truststore.location, with "ssl.truststore.type" = "PEM"',
    "ssl.ca.pem": 'ssl.truststore.certificates, with "ssl.truststore.type" = "PEM"',
    "ssl.certificate.location": 'ssl.keystore.location (key and certificates), with "ssl.keystore.type" = "PEM"',
    "ssl.key.location": 'ssl.keystore.location (key and certificates), with "ssl.keystore.type" = "PEM"',
    "enable.ssl.certificate.verification": "ssl.endpoint.identification.algorithm",
}

# The names of Kafka 4.3's consumer and admin clients, to tell a misspelt one from the setting of a plug-in;
# without sasl.oauthbearer's, which nothing here reads.
_KAFKA_CLIENT_SETTINGS = """
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
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism security.protocol
security.providers send.buffer.bytes session.timeout.ms socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms ssl.cipher.suites ssl.enabled.protocols
ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
value.deserializer
"""


class ConfigError(GrouptrailError):
    """The configuration is wrong; the message has one line a problem, each with its place."""

    def __init__(self, problems: list[str]) -> None:
        head = [] if len(problems) == 1 else [f"{len(problems)} problems in the configuration:"]
        super().__init__("\n  ".join([*head, *problems]))
        self.problems = problems


def is_secret(setting: str) -> bool:
    """Whether a Kafka or Spark setting of that name holds something nobody but its owner may see."""
    return _SECRET.search(setting) is not None and not setting.endswith((".url", ".class"))


def is_uri(location: str) -> bool:
    """Whether a warehouse is a URI (s3://…, abfss://…, file:/…), not a local folder."""
    return _URI.match(location) is not None


def _setting_text(value: Any) -> str | SecretStr:
    """Kafka and Spark settings are text: true and false in lower case, numbers as written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, SecretStr):
        return value
    raise ValueError("takes text, a number, or true or false")


def _location(value: str) -> str:
    return value.rstrip("/") if is_uri(value) else str(Path(value).expanduser().absolute())


def _in_clear(value: str | SecretStr) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _hide_secrets(settings: dict[str, str | SecretStr]) -> dict[str, str | SecretStr]:
    return {name: SecretStr(_in_clear(value)) if is_secret(name) else value for name, value in settings.items()}


def _kafka_fault(name: str, value: Any) -> str | None:
    """Why this Kafka setting cannot be taken."""
    if name in _OWNED_BY_GROUPTRAIL:
        return f"cannot be set: {_OWNED_BY_GROUPTRAIL[name]}"
    if name in _OTHER_CLIENTS_NAMES:
        return f"is another client's name: Kafka's Java client, whose names count, has {_OTHER_CLIENTS_NAMES[name]}"
    if name == "bootstrap.servers" and not all(_SERVER.fullmatch(part) for part in _servers(value)):
        return "takes host:port, or several with commas between"
    known = _KAFKA_CLIENT_SETTINGS.split()
    near = [] if name in known else get_close_matches(name, known, n=1, cutoff=0.85)
    return f"is no setting of Kafka's client: did you mean {near[0]}?" if near else None


def _servers(value: Any) -> list[str]:
    return [part.strip() for part in str(value).split(",")]


def _spark_fault(name: str, _value: Any) -> str | None:
    """Why this Spark setting cannot be taken."""
    return None if name.startswith("spark.") else "is no Spark setting: their names begin with spark."


def _refuse(settings: Any, fault: Callable[[str, Any], str | None]) -> None:
    """Raises one error that holds the faults of all settings, each at its own name."""
    faults = [(name, fault(name, value)) for name, value in settings.items()]
    errors: list[InitErrorDetails] = [
        {"type": PydanticCustomError("setting", "{text}", {"text": text}), "loc": (name,), "input": None}
        for name, text in faults
        if text is not None
    ]
    if errors:
        raise ValidationError.from_exception_data("settings", errors, hide_input=True)


_Setting = Annotated[str | SecretStr, PlainValidator(_setting_text)]
_Location = Annotated[str, Field(min_length=1), AfterValidator(_location)]


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True, use_attribute_docstrings=True
    )


class DecodeConfig(_Section):
    """How the decode job cuts the topic into micro-batches."""

    max_records_per_batch: int = Field(default=5_000_000, gt=0)
    """At most so many records in a micro-batch."""
    trigger_seconds: float = Field(default=5, ge=0, allow_inf_nan=False)
    """How often a micro-batch starts."""


class LogOffsetsConfig(_Section):
    """What the log-offsets job asks the brokers."""

    interval_seconds: float = Field(default=10, gt=0, allow_inf_nan=False)
    """How often the brokers are asked where the logs end."""
    all_topics: bool = False
    """Of all partitions that the principal may see, not only of those that groups commit to."""


class HistoryConfig(_Section):
    """What the history job takes from outside the log."""

    commit_lookback_minutes: float = Field(default=60, gt=0, le=_TEN_YEARS_MINUTES)
    """How long before a partition changed hands its last commit is looked for."""
    offsets_retention_minutes: float = Field(default=7 * 24 * 60, gt=0, allow_inf_nan=False)
    """The brokers' `offsets.retention.minutes`: tells expired groups from deleted ones."""


def _split(value: Any) -> Any:
    """Variables and flags hold text: a list is written with commas there."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _compiled(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Refuses what a shell would take for a pattern that matches nothing, or for text."""
    for pattern in patterns:
        sets = re.sub(r"\[!?\]?[^\]]*\]", "", pattern)
        ranges = re.findall(r"(.)-(.)", "".join(re.findall(r"\[!?(\]?[^\]]*)\]", pattern)))
        if not pattern:
            raise ValueError("an empty pattern matches nothing: leave it out")
        if "[" in sets:
            raise ValueError(f"{pattern!r} is no pattern: [ without ], or [[] for the character itself")
        if any(low > high for low, high in ranges):
            raise ValueError(f"{pattern!r} is no pattern: a range runs backwards")
    return patterns


Patterns = Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_compiled)]


class AdminConfig(_Section):
    """How groups are polled where `source` is `admin`. Patterns are as of a shell: billing-*."""

    interval_seconds: float = Field(default=30, gt=0, allow_inf_nan=False)
    """How often groups are polled."""
    requests_per_second: float = Field(default=10, gt=0, allow_inf_nan=False)
    """So many requests at most each broker gets; one is about up to 50 groups."""
    allow_groups: Patterns = ("*",)
    """Groups that are polled."""
    deny_groups: Patterns = ()
    """Groups that are not all the same."""


class LagConfig(_Section):
    """How lag is judged. Groups are named by patterns as of a shell, such as billing-*."""

    window_seconds: float = Field(default=600, gt=0, allow_inf_nan=False)
    """What a verdict looks back on."""
    stop_seconds: float = Field(default=300, gt=0, allow_inf_nan=False)
    """A group that has not committed for so long, while a record waited for as long, has stopped."""
    allowed_lag: int = Field(default=0, ge=0)
    """So many unread records are none to speak of."""
    rate_seconds: float = Field(default=300, gt=0, allow_inf_nan=False)
    """Over what time rates are told."""
    read_committed_groups: Patterns = ()
    """Groups whose lag ends at the last stable offset."""
    exact_groups: Patterns = ()
    """Groups whose first unread record is asked for its age, which takes READ on its topic."""


def _listen(value: str) -> str:
    if value and (not _LISTEN.fullmatch(value) or int(value.rpartition(":")[2]) > 65535):
        raise ValueError("takes host:port, such as 127.0.0.1:9308 or [::]:9308")
    return value


class ExporterConfig(_Section):
    """What metrics are served, and where. Groups and topics are named by patterns as of a shell."""

    listen: Annotated[str, AfterValidator(_listen)] = "127.0.0.1:9308"
    """Where the lag job and `grouptrail serve` do, as host:port; empty for not at all."""
    refresh_seconds: float = Field(default=10, gt=0, allow_inf_nan=False)
    """How often metrics are made anew at least."""
    granularity: Literal["partition", "topic", "group"] = "partition"
    """The finest series: `partition`, `topic` or `group`."""
    allow_groups: Patterns = ("*",)
    """Groups that have series."""
    deny_groups: Patterns = ()
    """Groups that have none all the same."""
    allow_topics: Patterns = ("*",)
    """Topics that have series."""
    deny_topics: Patterns = ()
    """Topics that have none all the same."""
    series_budget: int = Field(default=100_000, gt=0)
    """So many series at most; the groups with the least lag are put together as group `other`."""
    also_as: Annotated[
        tuple[Literal["kafka_exporter", "kminion", "burrow", "kafka-lag-exporter"], ...], BeforeValidator(_split)
    ] = ()
    """Exporters whose names are served, too: `kafka_exporter`, `kminion`, `burrow`, `kafka-lag-exporter`."""
    tls_certificate: Path | None = None
    """PEM file: metrics are served over TLS."""
    tls_key: Path | None = None
    """PEM file of its key."""
    tls_client_ca: Path | None = None
    """PEM file: who asks must show a certificate that it signed."""
    basic_auth_user: Annotated[str, Field(min_length=1, pattern="^[^:]*$")] | None = None
    """`/metrics` is for this user only, by HTTP basic authentication; `/ready` and `/healthz` stay open."""
    basic_auth_password: Annotated[SecretStr, Field(min_length=1)] | None = None
    """The user's password: in the file, or in a variable."""

    @model_validator(mode="after")
    def _login_is_whole(self) -> Self:
        if (self.basic_auth_user is None) != (self.basic_auth_password is None):
            raise ValueError("basic_auth_user and basic_auth_password belong together: give both")
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key belong together: give both")
        if self.tls_client_ca and not self.tls_certificate:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key: without them there is no TLS")
        return self


def _thinning(value: Any) -> Any:
    steps = _split(value)
    pairs = [str(step).split(":") for step in steps] if isinstance(steps, (list, tuple)) else []
    try:
        told = tuple((float(days), int(seconds)) for days, seconds in pairs)
    except ValueError:
        told = ((-1.0, 0),)
    if any(not 0 < days < math.inf or seconds < 1 for days, seconds in told) or not isinstance(steps, (list, tuple)):
        raise ValueError("takes pairs days:seconds, such as 7:600: after 7 days one sample in 600 s stays")
    return told


class MaintainConfig(_Section):
    """How long `grouptrail maintain` keeps rows."""

    decoded_days: float = Field(default=0, ge=0, allow_inf_nan=False)
    """How long records stay, and the batches they landed in; 0: for ever. The newest of each key stays."""
    history_days: float = Field(default=0, ge=0, allow_inf_nan=False)
    """How long what has ended stays in the history; 0: for ever."""
    samples_days: float = Field(default=0, ge=0, allow_inf_nan=False)
    """How long log_offsets and consumer_lag stay; 0: for ever."""
    check_results_days: float = Field(default=90, ge=0, allow_inf_nan=False)
    """How long results of checks stay; 0: for ever."""
    thin_samples: Annotated[
        tuple[tuple[float, int], ...],
        BeforeValidator(_thinning),
        PlainSerializer(lambda steps: [f"{days:g}:{seconds}" for days, seconds in steps]),
    ] = ("1:60", "7:600")  # type: ignore[assignment]
    """Pairs days:seconds: from so many days on one sample in so many seconds stays, and where a verdict changes."""


class Config(_Section):
    """The whole configuration. Local folders are absolute; secrets appear neither in repr nor in str."""

    cluster: str = Field(default="default", min_length=1)
    """The cluster's name in every row."""
    warehouse: _Location = "warehouse"
    """Folder or URI of the Delta tables; in a file a relative one starts at the file's folder."""
    checkpoints: _Location | None = None
    """Where the jobs of each cluster keep their positions; `<warehouse>/_checkpoints` unless given."""
    source: Literal["topic", "admin"] = "topic"
    """Where groups' records come from: `topic`, or `admin` to poll the brokers where the topic may not be read."""
    kafka: dict[str, _Setting] = Field(default_factory=dict)
    decode: DecodeConfig = Field(default_factory=DecodeConfig)
    admin: AdminConfig = Field(default_factory=AdminConfig)
    log_offsets: LogOffsetsConfig = Field(default_factory=LogOffsetsConfig)
    history: HistoryConfig = Field(default_factory=HistoryConfig)
    lag: LagConfig = Field(default_factory=LagConfig)
    exporter: ExporterConfig = Field(default_factory=ExporterConfig)
    maintain: MaintainConfig = Field(default_factory=MaintainConfig)
    spark: dict[str, _Setting] = Field(default_factory=dict)
    storage: dict[str, _Setting] = Field(default_factory=dict)

    @field_validator("kafka", mode="before")
    @classmethod
    def _kafka_settings(cls, settings: Any) -> Any:
        if isinstance(settings, dict):
            _refuse(settings, _kafka_fault)
            return KAFKA_DEFAULTS | settings
        return settings

    @field_validator("spark", mode="before")
    @classmethod
    def _spark_settings(cls, settings: Any) -> Any:
        if isinstance(settings, dict):
            _refuse(settings, _spark_fault)
        return settings

    @field_validator("kafka", "spark", "storage", mode="after")
    @classmethod
    def _secrets(cls, settings: dict[str, str | SecretStr]) -> dict[str, str | SecretStr]:
        return _hide_secrets(settings)

    def table_path(self, name: str) -> str:
        """Where the Delta table of that name lies."""
        return f"{self.warehouse}/{name}"

    def checkpoint_path(self, job: str) -> str:
        """Where the job of that name keeps its checkpoint."""
        cluster = quote(self.cluster, safe="")
        return f"{self.checkpoints or self.warehouse + '/_checkpoints'}/{cluster}/{job}"

    def kafka_settings(self) -> dict[str, str]:
        """The Kafka settings by Kafka's names, secrets in clear."""
        return {name: _in_clear(value) for name, value in self.kafka.items()}

    def spark_settings(self) -> dict[str, str]:
        """The Spark settings, secrets in clear."""
        return {name: _in_clear(value) for name, value in self.spark.items()}

    def storage_options(self) -> dict[str, str]:
        """delta-rs's options for the warehouse, secrets in clear."""
        return {name: _in_clear(value) for name, value in self.storage.items()}

    def spark_kafka_options(self) -> dict[str, str]:
        """The Kafka settings as options of Spark's Kafka source, secrets in clear."""
        return {f"kafka.{name}": value for name, value in self.kafka_settings().items()}

    def redacted(self) -> dict[str, Any]:
        """Everything, for display: stars in place of secrets."""
        return self.model_dump(mode="json", exclude_none=True)


@dataclass(frozen=True)
class _Source:
    """Where settings come from: `spell` writes a dotted name as this source does, `place` where it stands."""

    spell: Callable[[str], str]
    place: Callable[[str], str]
    can_hold_secrets: bool = True


@dataclass(frozen=True)
class _Given:
    """One setting and its source. By section and name: `("decode", "trigger_seconds")`, `("cluster",)`; what one
    cluster has of its own: `("clusters", "production", "decode", "trigger_seconds")`."""

    at: tuple[str, ...]
    value: Any
    source: _Source

    @property
    def cluster(self) -> str | None:
        """The cluster whose own it is."""
        return self.at[1] if self.at[0] == _CLUSTERS and len(self.at) > 2 else None

    @property
    def path(self) -> tuple[str, ...]:
        """Section and name."""
        return self.at if self.cluster is None else self.at[2:]

    @property
    def dotted(self) -> str:
        return ".".join(self.at)

    @property
    def place(self) -> str:
        return self.source.place(self.dotted)

    def spelt(self, setting: str) -> str:
        """Another setting of the same cluster, as this one's source writes it."""
        return self.source.spell(".".join([*self.at[: len(self.at) - len(self.path)], setting]))


def load_config(
    path: str | os.PathLike[str] | None,
    overrides: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """The configuration of one cluster; where there are several, of the one that `cluster` names.

    As `load_configs`; raises ConfigError, too, where there are several and none is named.
    """
    configs = load_configs(path, overrides, environ)
    if len(configs) > 1:
        names = ", ".join(config.cluster for config in configs)
        raise ConfigError([f"there are several clusters ({names}): name one with --cluster"])
    return configs[0]


def load_configs(
    path: str | os.PathLike[str] | None,
    overrides: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
) -> tuple[Config, ...]:
    """The configuration of each cluster, by a file (None: see the module), the environment and flags (dotted name to
    text): of the one that there is, of all, or of the one that `cluster` names.

    Raises ConfigError with every problem of all three at once.
    """
    problems: list[str] = []
    given = list(_from_file(_file(path, environ, problems), problems))
    names = tuple(dict.fromkeys(setting.at[1] for setting in given if setting.at[0] == _CLUSTERS and setting.at[1:]))
    given += [*_from_environment(environ, names), *_from_flags(overrides)]
    problems += [problem for setting in given for problem in _misplaced(setting, names)]
    configs = [_validated(part, problems) for part in _by_cluster(given, names, problems)]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return tuple(config for config in configs if config is not None)


def _by_cluster(given: list[_Given], names: Sequence[str], problems: list[str]) -> Iterator[list[_Given]]:
    """The settings of each cluster, the later before the earlier: what is a cluster's own comes before what all
    share, and flags come before both."""
    if not names:
        yield given
        return
    asked = [setting for setting in given if setting.at == ("cluster",)]
    if asked and asked[-1].value not in names:
        problems.append(f"{asked[-1].place}: there is no such cluster: there are {', '.join(names)}")
        return
    shared = [setting for setting in given if setting.at[0] not in ("cluster", _CLUSTERS)]
    chosen = [asked[-1].value] if asked else names
    problems += [
        f"{setting.place}: there are several clusters: name the one with --cluster"
        for setting in shared
        if len(chosen) > 1 and setting.at == ("kafka", "bootstrap.servers") and setting.source is _COMMAND_LINE
    ]
    for name in chosen:
        own = [setting for setting in given if setting.cluster == name]
        both = [*shared, *own]
        flags = [setting for setting in both if setting.source is _COMMAND_LINE]
        called = _Given(("cluster",), name, _ENVIRONMENT)
        yield [*(setting for setting in both if setting.source is not _COMMAND_LINE), *flags, called]


def _file(path: str | os.PathLike[str] | None, environ: Mapping[str, str], problems: list[str]) -> Path | None:
    """The file to read; None where none was asked for and there is none."""
    asked = str(path) if path is not None else environ.get(_FILE_VARIABLE)
    if not asked:
        return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None
    if Path(asked).is_file():
        return Path(asked)
    place = "--config" if path is not None else _FILE_VARIABLE
    problems.append(f"{place}: there is no file {asked}: correct the path")
    return None


def _from_file(file: Path | None, problems: list[str]) -> Iterator[_Given]:
    if file is None:
        return
    try:
        tree = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{file}: not TOML: {error}")
        return
    except OSError as error:
        problems.append(f"{file}: cannot be read: {error.strerror}")
        return
    source = _Source(spell=lambda name: name, place=lambda name: f"{file}: {name}")
    for key, value in tree.items():
        if key in ("warehouse", "checkpoints") and isinstance(value, str) and value and not is_uri(value):
            yield _Given((key,), str(file.absolute().parent / Path(value).expanduser()), source)
        elif key == _CLUSTERS and isinstance(value, dict):
            for name, own in value.items():
                if isinstance(own, dict):
                    yield _Given((key, name), {}, source)
                    for section, leaf in own.items():
                        yield from _of_section((key, name, section), leaf, source)
                else:
                    yield _Given((key, name), own, source)
        else:
            yield from _of_section((key,), value, source)


def _of_section(at: tuple[str, ...], value: Any, source: _Source) -> Iterator[_Given]:
    """The settings of a section, or the one that is none."""
    if not isinstance(value, dict):
        yield _Given(at, value, source)
    elif at[-1] in _FREE_SECTIONS:
        yield from (_Given((*at, name), leaf, source) for name, leaf in _leaves(value))
    else:
        yield from (_Given((*at, name), leaf, source) for name, leaf in value.items())


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """TOML reads `sasl.mechanism` without quotes as tables in tables: back to dotted names."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _path(dotted: str) -> tuple[str, ...]:
    """A setting's place in the tree. The names of Kafka's and Spark's settings have dots of their own."""
    section, dot, name = dotted.partition(".")
    if section != _CLUSTERS:
        return (section, name) if dot else (section,)
    cluster, dot, own = name.partition(".")
    return (section, cluster, *_path(own)) if dot else (section, cluster)


def _variable(dotted: str) -> str:
    *sections, name = _path(dotted)
    return ENVIRONMENT_PREFIX + "__".join([*sections, name.replace(".", "_")]).replace("-", "_").upper()


def _from_environment(environ: Mapping[str, str], clusters: Sequence[str]) -> Iterator[_Given]:
    called = {cluster.lower().replace("-", "_"): cluster for cluster in clusters}
    for variable, value in sorted(environ.items()):
        ours = variable.startswith(ENVIRONMENT_PREFIX) and variable != _FILE_VARIABLE
        if ours and not _KUBERNETES_LINK.fullmatch(variable):
            at = variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            of_cluster: list[str] = []
            if at[0] == _CLUSTERS and len(at) > 2:
                of_cluster, at = [_CLUSTERS, called.get(at[1], at[1])], at[2:]
            section, *names = at
            if names:
                name = "__".join(names)
                names = [name.replace("_", ".") if section in _DOTTED_SECTIONS else name]
            yield _Given((*of_cluster, section, *names), value, _ENVIRONMENT)


def _flag(dotted: str) -> str:
    return _FLAGS.get(dotted, f"--set {dotted}")


def _from_flags(overrides: Mapping[str, str]) -> Iterator[_Given]:
    for dotted, value in overrides.items():
        at = _path(dotted)
        if at[0] == "spark" and not dotted.startswith("spark.spark."):
            at = ("spark", dotted)
        yield _Given(at, value, _COMMAND_LINE)


_ENVIRONMENT = _Source(spell=_variable, place=_variable)
_COMMAND_LINE = _Source(spell=_flag, place=_flag, can_hold_secrets=False)


def _misplaced(given: _Given, clusters: Sequence[str]) -> Iterator[str]:
    """What is wrong with a setting at the place where it was found, though it may be right elsewhere."""
    if _is_bare_section(given):
        yield f"{given.place}: is a section: give its settings one by one"
    if given.at[0] == _CLUSTERS and len(given.at) > 1:
        yield from _misplaced_of_cluster(given, clusters)
    elif given.at == ("cluster",) and clusters and given.source not in (_ENVIRONMENT, _COMMAND_LINE):
        yield f"{given.place}: the sections [clusters.NAME] name the clusters: leave it out"
    if not given.source.can_hold_secrets and is_secret(given.path[-1]):
        remedy = "put it into the configuration file"
        if given.path[0] != "spark":
            remedy += f" or into {_variable(given.dotted)}"
        yield f"{given.place}: a secret in a flag can be read by everybody on the machine (ps): {remedy}"
    elif _is_spark_variable(given):
        yield (
            f"{given.place}: Spark's names need upper and lower case, which a variable cannot tell: "
            "use the configuration file or --set"
        )


def _misplaced_of_cluster(given: _Given, clusters: Sequence[str]) -> Iterator[str]:
    name = given.at[1]
    if not _CLUSTER_NAME.fullmatch(name):
        yield f"{given.place}: a cluster's name is made of letters, digits, - and _"
    elif name not in clusters:
        there = f"there are {', '.join(clusters)}" if clusters else "the configuration file names none"
        yield f"{given.place}: there is no such cluster: {there}"
    elif any(other != name and _variable(other) == _variable(name) for other in clusters):
        yield f"{given.place}: a variable cannot tell this cluster from another of that name: call it otherwise"
    section, setting = [*given.path, ""][:2]
    if section in _SHARED or (section == "exporter" and setting in _SHARED_OF_EXPORTER):
        yield f"{given.place}: all clusters share it: it stands outside [clusters.{name}]"


def _is_bare_section(given: _Given) -> bool:
    if given.at[0] == _CLUSTERS and given.cluster is None:
        return bool(given.value != {})
    return len(given.path) == 1 and given.path[0] in _SECTIONS


def _is_spark_variable(given: _Given) -> bool:
    return given.path[0] == "spark" and given.source is _ENVIRONMENT


def _validated(given: list[_Given], problems: list[str]) -> Config | None:
    """The configuration, or None and its problems."""
    tree: dict[str, Any] = {}
    places: dict[tuple[str, ...], _Given] = {}
    for setting in given:
        if not _is_bare_section(setting) and not _is_spark_variable(setting):
            places[setting.path] = setting
            *sections, name = setting.path
            node = tree.setdefault(sections[0], {}) if sections else tree
            node[name] = setting.value
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_context=True, include_input=False):
            path = tuple(str(part) for part in fault["loc"])
            setting = (
                places.get(path)
                or places.get(path[:2])
                or next(found for at, found in places.items() if at[0] == path[0])
            )
            problems.append(f"{setting.place}: {_told(fault['type'], fault['msg'], setting)}")
    return None


def _told(kind: str, message: str, setting: _Given) -> str:
    """What pydantic found, in one line; for an unknown key, the known ones."""
    if kind != "extra_forbidden":
        return message.removeprefix("Value error, ")
    known = _known_settings()
    spelt = {setting.spelt(name): name for name in known}
    asked = setting.source.spell(setting.dotted)
    near = get_close_matches(asked, spelt, n=1, cutoff=0.8) or [
        setting.spelt(name) for name in known if name.split(".")[-1] == setting.path[-1]
    ]
    if near:
        return f"unknown setting: did you mean {near[0]}?"
    return f"unknown setting: there are {', '.join(spelt)}"


def _known_settings() -> list[str]:
    """Every setting but those of the free sections, dotted."""
    names = [name for name in Config.model_fields if name not in _SECTIONS]
    sections = [(name, field.default_factory) for name, field in Config.model_fields.items() if name in _SECTIONS]
    closed = [(name, section) for name, section in sections if isinstance(section, type(_Section))]
    return [*names, *(f"{name}.{field}" for name, section in closed for field in section.model_fields)]

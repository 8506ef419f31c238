"""The settings: their names, defaults, limits and meanings. `make docs` writes docs/settings.md from here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from grouptrail.config.clients import KAFKA_DEFAULTS, kafka_problem, spark_problem
from grouptrail.config.presets import completed, preset_of
from grouptrail.config.providers import refers, resolved
from grouptrail.config.secrets import hide_secrets, revealed
from grouptrail.config.toml import to_toml
from grouptrail.config.values import (
    ClientSetting,
    FilePatterns,
    GroupSeconds,
    ListenAddress,
    Location,
    Patterns,
    ResourceAttributes,
    SplitText,
    ThinningSteps,
    TimeZone,
    WarehouseLocation,
    parse_pairs,
)

_TEN_YEARS_MINUTES = 10 * 366 * 24 * 60


def _check_names(settings: dict[str, Any], problem: Callable[[str, Any], str | None]) -> None:
    """Raise one ValidationError with the problems of all settings, each at its own name."""
    problems = [(name, problem(name, value)) for name, value in settings.items()]
    errors: list[InitErrorDetails] = [
        {"type": PydanticCustomError("setting", "{text}", {"text": text}), "loc": (name,), "input": None}
        for name, text in problems
        if text is not None
    ]
    if errors:
        raise ValidationError.from_exception_data("settings", errors, hide_input=True)


class Section(BaseModel):
    """A section of settings: unknown names are refused, values are not shown in errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True, use_attribute_docstrings=True
    )


class DecodeConfig(Section):
    """Micro-batches of the decode job."""

    max_records_per_batch: int = Field(default=5_000_000, gt=0)
    """Maximum number of records in a micro-batch."""
    trigger_seconds: float = Field(default=5, ge=0, allow_inf_nan=False)
    """How often a micro-batch starts."""
    max_record_bytes: int = Field(default=10_000_000, gt=0, lt=1 << 31)
    """Maximum size of a key or value to decode, which takes up to thirty times as much memory. Larger records are
    kept in `undecodable_records`."""
    max_segment_batch_bytes: int = Field(default=100_000_000, gt=0, lt=1 << 31)
    """Maximum size of a record batch on disk that `ingest-segments` reads. Larger batches are reported and left out;
    with a higher limit, the command can be repeated."""


EXPORTERS_OF_TOPICS = {"kafka_exporter", "kminion"}
"""The exporters of `exporter.also_as` whose metrics are about all topics, and about brokers."""


class LogOffsetsConfig(Section):
    """Requests of the log-offsets job to the brokers."""

    interval_seconds: float = Field(default=10, gt=0, allow_inf_nan=False)
    """How often log end offsets are requested from the brokers."""
    all_topics: bool | None = None
    """Request offsets of all partitions visible to the principal, not only of those with committed offsets; by
    default only if `exporter.also_as` has `kafka_exporter` or `kminion`, whose metrics are about all topics."""


class ClusterFactsConfig(Section):
    """Samples of the cluster: brokers, topics, partitions and settings of topics."""

    enabled: bool = True
    """Run the job `cluster`, unless jobs are named."""
    interval_seconds: float = Field(default=60, gt=0, allow_inf_nan=False)
    """How often the cluster is sampled. Settings of topics are read every ten minutes, and when a topic is new."""
    log_sizes_interval_seconds: float = Field(default=300, ge=0, allow_inf_nan=False)
    """How often the sizes of all replicas' logs are read, with a sample of the cluster; 0: never."""


class ShareStateConfig(Section):
    """Records of share groups (KIP-932) in `__share_group_state`, or what their coordinators return."""

    enabled: bool = True
    """Run the job `share-state`, unless jobs are named: it needs READ and DESCRIBE on `__share_group_state`. Without
    them, and with `source = "admin"`, it polls share groups from the brokers, which needs DESCRIBE on the groups."""
    interval_seconds: float = Field(default=10, gt=0, allow_inf_nan=False)
    """How often new records are read, or share groups are polled."""


class BrokerLogConfig(Section):
    """The brokers' log files that the job `broker-log` follows."""

    files: FilePatterns = ()
    """Log files of the cluster's brokers, as paths or patterns such as /var/log/kafka/*/server.log, that the job
    `broker-log` follows. A file that is rotated to a name such as server.log.1 is read to its end. A relative path in
    the file is relative to the file's folder."""
    interval_seconds: float = Field(default=5, gt=0, allow_inf_nan=False)
    """How often the files are looked at."""
    time_zone: TimeZone = "UTC"
    """Time zone of times without an offset, such as Europe/Berlin or +02:00."""
    trust_clients: bool = False
    """No client puts lines of its own into names or reasons, so that lines of text prove as much as JSON."""


class HistoryConfig(Section):
    """Inputs of the history job from outside the log."""

    commit_lookback_minutes: float = Field(default=60, gt=0, le=_TEN_YEARS_MINUTES)
    """How far before a change of owner to search for the partition's last commit."""
    offsets_retention_minutes: float = Field(default=7 * 24 * 60, gt=0, allow_inf_nan=False)
    """The brokers' `offsets.retention.minutes`: distinguishes expired groups from deleted ones."""
    tombstones_retention_minutes: float = Field(default=24 * 60, gt=0, le=_TEN_YEARS_MINUTES)
    """`delete.retention.ms` of `__consumer_offsets`, in minutes. After a longer stop the group coordinators are asked
    which groups and committed offsets still exist."""


class AdminConfig(Section):
    """Polling of groups where `source` is `admin`, and of share groups whose state may not be read. Groups are named
    by shell patterns: billing-*."""

    interval_seconds: float = Field(default=30, gt=0, allow_inf_nan=False)
    """How often groups are polled."""
    requests_per_second: float = Field(default=10, gt=0, allow_inf_nan=False)
    """Maximum requests per second to each broker; one request covers up to 50 groups."""
    allow_groups: Patterns = ("*",)
    """Groups to poll."""
    deny_groups: Patterns = ()
    """Groups not to poll, even if allowed."""


class LagConfig(Section):
    """Computation of lag and of verdicts. Groups are named by shell patterns: billing-*."""

    window_seconds: float = Field(default=600, gt=0, allow_inf_nan=False)
    """Length of the time window that a verdict is based on."""
    stop_seconds: float = Field(default=300, gt=0, allow_inf_nan=False)
    """A group is stopped if it has not committed for this long while a record has waited as long."""
    allowed_lag: int = Field(default=0, ge=0)
    """Up to this many unread records count as no lag."""
    group_stop_seconds: GroupSeconds = ()
    """Pairs pattern:seconds: `stop_seconds` of the groups whose names match; the first match applies."""
    stop_seconds_limit: float = Field(default=86_400, gt=0, allow_inf_nan=False)
    """A group that usually commits less often than `stop_seconds` is stopped after twice its usual silence, but at
    the latest after this long."""
    empty_seconds: float = Field(default=86_400, gt=0, allow_inf_nan=False)
    """A group whose members left is stopped if records have waited this long and nobody has come back, while its
    history shows no habit of pausing."""
    rate_seconds: float = Field(default=300, gt=0, allow_inf_nan=False)
    """Length of the window over which rates are computed."""
    read_committed_groups: Patterns = ()
    """Groups whose lag ends at the last stable offset."""
    exact_groups: Patterns = ()
    """Groups whose oldest unread record is read from the broker for its age; needs READ on its topic."""
    timestamp_lookup: bool = True
    """Whether brokers look up the timestamps of unread records that are older than the samples, for lag in seconds;
    needs DESCRIBE on their topics."""
    retention_check_seconds: float = Field(default=300, ge=0, allow_inf_nan=False)
    """How often the brokers check which segments to delete (log.retention.check.interval.ms); for the latest time at
    which unread records are deleted."""
    shards: int = Field(default=1, ge=1)
    """Number of parts in which lag is computed beside Spark's executors; 1 computes it in the driver's process."""


class ExporterConfig(Section):
    """Metrics to serve, and where. Groups and topics are named by shell patterns."""

    listen: ListenAddress = "127.0.0.1:9308"
    """Address where the lag job and `grouptrail serve` serve metrics, as host:port; empty disables it."""
    refresh_seconds: float = Field(default=10, gt=0, allow_inf_nan=False)
    """Longest time between two refreshes of the metrics."""
    granularity: Literal["partition", "topic", "group"] = "partition"
    """Finest granularity of series: `partition`, `topic` or `group`."""
    allow_groups: Patterns = ("*",)
    """Groups to export."""
    deny_groups: Patterns = ()
    """Groups not to export, even if allowed."""
    allow_topics: Patterns = ("*",)
    """Topics to export."""
    deny_topics: Patterns = ()
    """Topics not to export, even if allowed."""
    series_budget: int = Field(default=100_000, gt=0)
    """Maximum number of series; groups with the least lag are merged into the group `other`."""
    page_bytes: int = Field(default=64_000_000, ge=1_000_000)
    """Maximum size of the series of groups and topics as text; groups with the least lag are merged into `other`."""
    label_bytes: int = Field(default=256, ge=64)
    """Maximum size of a label value; a longer name is cut and ends with `~` and a hash of the whole name."""
    also_as: Annotated[
        tuple[Literal["kafka_exporter", "kminion", "burrow", "kafka-lag-exporter"], ...], SplitText
    ] = ()
    """Exporters whose metric names are served, too: `kafka_exporter`, `kminion`, `burrow`, `kafka-lag-exporter`."""
    readable_lag: bool = False
    """Serve lag without offsets that are known to hold no record to read, for scalers."""
    owner_info: bool = False
    """Serve which member, client and host each partition belongs to, as a metric to join with lag."""
    web_config_file: Path | None = None
    """Web configuration file of Prometheus' exporters, with TLS, client certificates and users; read again when it
    changes. It takes the place of the settings below."""
    tls_certificate: Path | None = None
    """PEM file of the server's certificate; enables TLS."""
    tls_key: Path | None = None
    """PEM file of the certificate's private key."""
    tls_client_ca: Path | None = None
    """PEM file of a CA: clients must present a certificate that it signed."""
    basic_auth_user: Annotated[str, Field(min_length=1, pattern="^[^:]*$")] | None = None
    """User for HTTP basic authentication on `/metrics`; `/ready` and `/healthz` stay open."""
    basic_auth_password: Annotated[SecretStr, Field(min_length=1)] | None = None
    """The user's password, from the file or the environment variable."""

    @model_validator(mode="after")
    def _check_web_config(self) -> Self:
        replaced = ("tls_certificate", "tls_key", "tls_client_ca", "basic_auth_user", "basic_auth_password")
        named = [name for name in replaced if getattr(self, name) is not None]
        if self.web_config_file is not None and named:
            raise ValueError(f"web_config_file takes the place of {', '.join(named)}: set one or the other")
        return self

    @model_validator(mode="after")
    def _check_basic_auth(self) -> Self:
        if (self.basic_auth_user is None) != (self.basic_auth_password is None):
            raise ValueError("basic_auth_user and basic_auth_password belong together: set both")
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key belong together: set both")
        if self.tls_client_ca and not self.tls_certificate:
            raise ValueError("tls_client_ca requires TLS: set tls_certificate and tls_key")
        return self


class OtlpConfig(Section):
    """Push of the metrics to an OpenTelemetry receiver; needs `pip install 'grouptrail[otlp]'`."""

    enabled: bool | None = None
    """Push the metrics; by default if `otlp.endpoint` is set. Without that, the variables OTEL_EXPORTER_OTLP_… say
    where to."""
    endpoint: Annotated[str, Field(pattern=r"^https?://[^\s@?]+$")] | None = None
    """URL of the receiver, with its path: https://collector.example:4318/v1/metrics."""
    headers: SecretStr | None = None
    """Headers of each request, such as Authorization=Bearer%20abc, separated by commas; from the file or the
    environment variable."""
    interval_seconds: float = Field(default=60, gt=0, allow_inf_nan=False)
    """How often metrics are pushed."""
    protocol: Literal["http/protobuf"] = "http/protobuf"
    """OTLP's transport."""
    resource_attributes: ResourceAttributes = ()
    """Attributes of the resource, such as deployment.environment.name=production."""

    @property
    def pushes(self) -> bool:
        """Whether metrics are pushed."""
        return self.endpoint is not None if self.enabled is None else self.enabled

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: SecretStr | None) -> SecretStr | None:
        if headers is not None:
            parse_pairs(headers.get_secret_value())
        return headers


class WebConfig(Section):
    """Web pages and JSON on the port of the metrics."""

    enabled: bool = True
    """Serve web pages and JSON at `exporter.listen`, like `/metrics`."""
    token_file: Path | None = None
    """File with a token that pages and JSON require, as password of any user or as bearer token; not `/metrics`."""
    allow_anonymous: bool = False
    """Serve pages and JSON on a network address even to clients without token, password or client certificate."""
    hosts: Annotated[tuple[str, ...], SplitText] = ()
    """Host names of a proxy on the same machine. On a loopback address, requests for other names are refused."""
    sql_max_queries: int = Field(default=2, ge=0, le=6)
    """Maximum number of concurrent SQL queries, each in a separate process; 0 disables SQL."""
    sql_timeout_seconds: float = Field(default=20, gt=0, le=25)
    """A query that takes longer is stopped. The server closes connections after 30 seconds."""
    sql_max_memory_bytes: int = Field(default=1_000_000_000, ge=200_000_000)
    """A query whose process needs more memory is stopped."""
    sql_max_rows: int = Field(default=10_000, gt=0, le=1_000_000)
    """Maximum number of rows of a result; further rows are left out, which the result says."""
    sql_max_result_bytes: int = Field(default=16_000_000, ge=1_000_000, le=256_000_000)
    """Maximum size of a result in memory; further rows are left out."""


class MaintainConfig(Section):
    """Retention of rows, as applied by `grouptrail maintain`."""

    decoded_days: float = Field(default=0, ge=0, allow_inf_nan=False)
    """Retention of decoded records and of their batches; 0: forever. The newest record of each key is kept."""
    history_days: float = Field(default=0, ge=0, allow_inf_nan=False)
    """Retention of rows of the history and of the cluster that have ended, and of brokers' log events; 0: forever."""
    samples_days: float = Field(default=0, ge=0, allow_inf_nan=False)
    """Retention of log_offsets and consumer_lag; 0: forever."""
    check_results_days: float = Field(default=90, ge=0, allow_inf_nan=False)
    """Retention of the results of checks; 0: forever."""
    thin_samples: ThinningSteps = ("1:60", "7:600")  # type: ignore[assignment]
    """Pairs days:seconds: after this many days, keep one sample per this many seconds and each change of verdict."""


class Config(Section):
    """The whole configuration. Local folders are absolute; secrets appear neither in repr nor in str."""

    cluster: str = Field(default="default", min_length=1)
    """Name of the cluster in every row."""
    warehouse: WarehouseLocation = "warehouse"
    """Folder or URI of the Delta tables; a relative path in the file is relative to the file's folder."""
    checkpoints: Location | None = None
    """Folder or URI of the jobs' checkpoints; `<warehouse>/_checkpoints` by default."""
    source: Literal["topic", "admin"] = "topic"
    """Source of group records: `topic`, or `admin` to poll the brokers where the topic cannot be read."""
    kafka: dict[str, ClientSetting] = Field(default_factory=dict)
    decode: DecodeConfig = Field(default_factory=DecodeConfig)
    admin: AdminConfig = Field(default_factory=AdminConfig)
    log_offsets: LogOffsetsConfig = Field(default_factory=LogOffsetsConfig)
    cluster_facts: ClusterFactsConfig = Field(default_factory=ClusterFactsConfig)
    share_state: ShareStateConfig = Field(default_factory=ShareStateConfig)
    broker_log: BrokerLogConfig = Field(default_factory=BrokerLogConfig)
    history: HistoryConfig = Field(default_factory=HistoryConfig)
    lag: LagConfig = Field(default_factory=LagConfig)
    exporter: ExporterConfig = Field(default_factory=ExporterConfig)
    otlp: OtlpConfig = Field(default_factory=OtlpConfig)
    web: WebConfig = Field(default_factory=WebConfig)
    maintain: MaintainConfig = Field(default_factory=MaintainConfig)
    spark: dict[str, ClientSetting] = Field(default_factory=dict)
    storage: dict[str, ClientSetting] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _read_as_preset_allows(cls, settings: Any) -> Any:
        if isinstance(settings, dict) and (preset := preset_of(settings.get("kafka"))) and preset.source:
            return {"source": preset.source} | settings
        return settings

    @field_validator("kafka", mode="before")
    @classmethod
    def _check_kafka(cls, settings: Any) -> Any:
        if isinstance(settings, dict):
            _check_names(settings, kafka_problem)
            preset = preset_of(settings)
            return KAFKA_DEFAULTS | (preset.filled(settings) if preset else {}) | settings
        return settings

    @field_validator("spark", mode="before")
    @classmethod
    def _check_spark(cls, settings: Any) -> Any:
        if isinstance(settings, dict):
            _check_names(settings, spark_problem)
        return settings

    @field_validator("otlp")
    @classmethod
    def _check_otlp(cls, otlp: OtlpConfig, others: ValidationInfo) -> OtlpConfig:
        exporter = others.data.get("exporter")
        if otlp.pushes and exporter is not None and not exporter.listen:
            raise ValueError("what is pushed are the exporter's metrics: set exporter.listen")
        return otlp

    @field_validator("kafka", "spark", "storage", mode="after")
    @classmethod
    def _hide_secrets(
        cls, settings: dict[str, str | SecretStr], section: ValidationInfo
    ) -> dict[str, str | SecretStr]:
        return hide_secrets(section.field_name or "", settings)

    _warning: str | None = PrivateAttr(default=None)

    @property
    def warning(self) -> str | None:
        """What is wrong with where the settings come from, although they can be used."""
        return self._warning

    def with_warning(self, warning: str | None) -> Self:
        """Return the settings with such a warning."""
        self._warning = warning
        return self

    @property
    def reads_topic(self) -> bool:
        """Whether the offsets topic is read; otherwise the brokers are polled."""
        return self.source == "topic"

    def checkpoints_folder(self) -> str:
        """Return the folder of the cluster's checkpoints."""
        # `quote` leaves dots, and a folder of that name is this or the parent folder.
        cluster = quote(self.cluster, safe="") if self.cluster.strip(".") else "%2E" * len(self.cluster)
        return f"{self.checkpoints or self.warehouse + '/_checkpoints'}/{cluster}"

    def kafka_settings(self) -> dict[str, str]:
        """Return the settings of Kafka's client, with secrets in clear text.

        Secrets that they refer to elsewhere are read at each call. Raises SecretError if one cannot be.
        """
        return completed(resolved(revealed(self.kafka)))

    @property
    def refers_to_secrets(self) -> bool:
        """Whether the settings of Kafka's client may change, because they refer to secrets elsewhere."""
        return refers(revealed(self.kafka))

    def spark_settings(self) -> dict[str, str]:
        """Return the Spark settings, with secrets in clear text."""
        return revealed(self.spark)

    def storage_options(self) -> dict[str, str]:
        """Return the options of delta-rs for the warehouse, with secrets in clear text."""
        return revealed(self.storage)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return self.redacted().items()

    def redacted(self) -> dict[str, Any]:
        """Return all settings for display, with stars in place of secrets."""
        return self.model_dump(mode="json", exclude_none=True)

    def redacted_toml(self) -> str:
        """Return all settings as a TOML file, with stars in place of secrets; a comment names those of a preset."""
        return to_toml(self.redacted(), self._of_preset())

    def _of_preset(self) -> dict[tuple[str, ...], str]:
        """Return the paths of settings whose values are the preset's, and what to say of them."""
        kafka = revealed(self.kafka)
        if (preset := preset_of(kafka)) is None:
            return {}
        paths: list[tuple[str, ...]]
        paths = [("kafka", name) for name, value in preset.settings.items() if kafka.get(name) == value]
        paths += [("source",)] if self.source == preset.source else []
        return dict.fromkeys(paths, "from kafka.preset")


# Sections of settings of other programs, by these programs' names, and sections of grouptrail's own settings.
CLIENT_SECTIONS = ("kafka", "spark", "storage")
GROUPTRAIL_SECTIONS: dict[str, type[Section]] = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}
SECTIONS = (*CLIENT_SECTIONS, *GROUPTRAIL_SECTIONS)

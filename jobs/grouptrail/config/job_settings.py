"""The settings that each job takes: its own section, and plain values of others."""

from __future__ import annotations

from dataclasses import dataclass

from grouptrail.config.model import (
    EXPORTERS_OF_TOPICS,
    AdminConfig,
    BrokerLogConfig,
    ClusterFactsConfig,
    Config,
    DecodeConfig,
    HistoryConfig,
    LagConfig,
    LogOffsetsConfig,
    ShareStateConfig,
)


@dataclass(frozen=True)
class LogOffsetsSettings:
    """Of the log-offsets job.

    `reads_topic`: it may read the offsets topic. `all_topics`: it samples all partitions, not only those of groups.
    """

    log_offsets: LogOffsetsConfig
    reads_topic: bool
    all_topics: bool


@dataclass(frozen=True)
class ClusterFactsSettings:
    """Of the cluster job; `requests_per_second` limits its requests about single topics."""

    cluster_facts: ClusterFactsConfig
    requests_per_second: float


@dataclass(frozen=True)
class ShareStateSettings:
    """Of the share-state job; a key or value of more than `max_record_bytes` is not decoded.

    `reads_topic`: it may read `__share_group_state`. `admin` limits its requests to coordinators.
    """

    share_state: ShareStateConfig
    max_record_bytes: int
    reads_topic: bool
    admin: AdminConfig


@dataclass(frozen=True)
class HistorySettings:
    """Of the history job, which looks for new batches of other processes every `trigger_seconds`.

    `requests_per_second` limits the requests to each coordinator.
    """

    history: HistoryConfig
    trigger_seconds: float
    requests_per_second: float


@dataclass(frozen=True)
class LagSettings:
    """Of the lag job.

    `sample_seconds` is the time between samples of the logs, `poll_seconds` that between polls of groups, and
    `share_poll_seconds` of share groups; `requests_per_second` limits the requests to each coordinator.
    """

    lag: LagConfig
    sample_seconds: float
    poll_seconds: float
    share_poll_seconds: float
    requests_per_second: float


def decode(config: Config) -> DecodeConfig:
    """Return the settings of the decode job."""
    return config.decode


def polling(config: Config) -> AdminConfig:
    """Return the settings of the job that polls the brokers instead."""
    return config.admin


def log_offsets(config: Config) -> LogOffsetsSettings:
    """Return the settings of the log-offsets job."""
    chosen = config.log_offsets.all_topics
    all_topics = bool(EXPORTERS_OF_TOPICS & set(config.exporter.also_as)) if chosen is None else chosen
    return LogOffsetsSettings(config.log_offsets, config.reads_topic, all_topics)


def cluster_facts(config: Config) -> ClusterFactsSettings:
    """Return the settings of the cluster job."""
    return ClusterFactsSettings(config.cluster_facts, config.admin.requests_per_second)


def share_state(config: Config) -> ShareStateSettings:
    """Return the settings of the job that reads share groups' state."""
    return ShareStateSettings(config.share_state, config.decode.max_record_bytes, config.reads_topic, config.admin)


def broker_log(config: Config) -> BrokerLogConfig:
    """Return the settings of the job that follows the brokers' log files."""
    return config.broker_log


def history(config: Config) -> HistorySettings:
    """Return the settings of the history job."""
    return HistorySettings(config.history, config.decode.trigger_seconds, config.admin.requests_per_second)


def lag(config: Config) -> LagSettings:
    """Return the settings of the lag job."""
    return LagSettings(
        config.lag,
        sample_seconds=config.log_offsets.interval_seconds,
        poll_seconds=config.admin.interval_seconds,
        share_poll_seconds=config.share_state.interval_seconds,
        requests_per_second=config.admin.requests_per_second,
    )

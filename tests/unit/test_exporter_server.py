"""The exporter over HTTP, as Prometheus and people meet it."""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
import re
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from pydantic import SecretStr

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.exporter import service
from grouptrail.exporter.errors import ExporterError
from grouptrail.exporter.page import Page
from grouptrail.exporter.service import Exporter
from grouptrail.http import connections
from grouptrail.snapshot.cluster_facts import NO_SAMPLE
from grouptrail.snapshot.reader import STALE_SECONDS
from support.certificates import self_signed
from support.deadlines import until
from support.exporter_tables import (
    DEADLINE_SECONDS,
    LONG_TOPIC,
    OPEN,
    STRANGE,
    configured,
    lag_row,
    lag_table,
    lay_everything,
    now,
    progress,
)
from support.from_config import exporter_of
from support.prometheus_server import running as prometheus_running
from support.prometheus_server import tool
from support.small_tables import lay

DOCS = Path(__file__).resolve().parents[2] / "docs"
# The Accept header of Prometheus 2.42.
PROMETHEUS = {
    "Accept": "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}


def get(url: str, headers: dict[str, str] | None = None, **options: Any) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS, **options) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as answer:
        return answer.code, dict(answer.headers), answer.read()


def scrape(exporter: Exporter) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return samples by metric name; none before the first snapshot."""
    status, _, body = get(f"{exporter.url}/metrics")
    if status == 503:
        return {}
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parse_text(body.decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    """An exporter of tables with rows in each, with all other exporters' names."""
    everyone = "kafka_exporter,kminion,burrow,kafka-lag-exporter"
    config = configured(tmp_path_factory.mktemp("lake"), also_as=everyone, owner_info=True, readable_lag=True)
    lay_everything(config)
    lay(config, "memberships")
    with exporter_of([config], lambda _: None) as running:
        until(lambda: running.page)
        yield running


@pytest.fixture
def fast_refresh(tmp_path: Path) -> Config:
    """A warehouse of its own that is refreshed at short intervals."""
    return configured(tmp_path, refresh_seconds=0.05)


# --- what is answered ---------------------------------------------------------------------------------------


def test_metrics_are_text_unless_openmetrics_is_accepted(exporter: Exporter) -> None:
    """Both formats parse and contain the same series, but for when counters of the process began."""
    _, headers, plain = get(f"{exporter.url}/metrics")
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    _, headers, packed = get(f"{exporter.url}/metrics", PROMETHEUS)
    assert headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert headers["Content-Encoding"] == "gzip"
    unpacked = gzip.decompress(packed).decode()
    assert unpacked.endswith("# EOF\n")
    both = [
        {(sample.name, *sorted(sample.labels.items())) for family in families for sample in family.samples}
        for families in (parse_text(plain.decode()), parse_openmetrics(unpacked))
    ]
    created = {series for series in both[1] if series[0].endswith("_created")}
    assert {name for name, *_ in created} == {"grouptrail_refresh_errors_created", "grouptrail_job_restarts_created"}
    assert both[0] == both[1] - created
    assert exporter.page is not None
    assert len(both[0]) == exporter.page.series + 5


def test_openmetrics_says_when_counters_of_the_process_began(fast_refresh: Config) -> None:
    """Of each job; counters that are computed from tables began at a time that is not known."""
    before = time.time()
    with exporter_of([fast_refresh], lambda _: None) as running:
        until(lambda: running.page)
        running.show_job("default", "lag", is_running=True, restarts=2)
        text = get(f"{running.url}/metrics", {"Accept": "application/openmetrics-text"})[2].decode()
    families = {family.name: family for family in parse_openmetrics(text)}
    samples = [
        (sample.name, sample.labels.get("job_name"), sample.value)
        for sample in families["grouptrail_job_restarts"].samples
    ]
    assert [(name, job) for name, job, _ in samples] == [
        (f"grouptrail_job_restarts_{kind}", job) for job in ("exporter", "lag") for kind in ("total", "created")
    ]
    for name, _, value in samples:
        if name.endswith("_created"):
            assert before - 0.001 <= value <= time.time()
    others = [family for family in families.values() if family.type in ("counter", "histogram")]
    begun = {family.name for family in others if any(sample.name.endswith("_created") for sample in family.samples)}
    assert begun == {"grouptrail_job_restarts", "grouptrail_refresh_errors"}


def test_prometheus_counts_from_when_counters_began(fast_refresh: Config, tmp_path: Path) -> None:
    """Restarts before its first scrape are an increase; Prometheus has this since 2.55."""
    lay_everything(fast_refresh)
    with exporter_of([fast_refresh], lambda _: None) as exporter:
        until(lambda: exporter.page)
        exporter.show_job("default", "lag", is_running=True, restarts=2)
        scrape = {"job_name": "g", "static_configs": [{"targets": [exporter.url.removeprefix("http://")]}]}
        settings = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [scrape]}
        feature = "--enable-feature=created-timestamp-zero-ingestion"
        with prometheus_running(tmp_path, settings, feature) as prometheus:
            (series,) = prometheus.wait_for('increase(grouptrail_job_restarts_total{job_name="lag"}[5m]) > 0')
            assert series["metric"]["job_name"] == "lag"
            assert prometheus.query('{__name__=~".+_created"}') == [], "they are no series of their own"
            assert prometheus.query("increase(kafka_consumer_group_offset_commits_total[5m]) > 0") == []


def test_prometheus_makes_native_histograms_of_the_classic_ones(exporter: Exporter, tmp_path: Path) -> None:
    """With custom buckets, as docs/metrics.md has it; Prometheus has this since 3.0."""
    documented = re.findall(
        r"```yaml\n\s*(scrape_configs:.*?)```", (DOCS / "metrics.md").read_text("utf-8"), re.DOTALL
    )
    (block,) = [block for block in documented if "nhcb" in block]
    (asked,) = yaml.safe_load(block)["scrape_configs"]
    asked["static_configs"] = [{"targets": [exporter.url.removeprefix("http://")]}]
    settings = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [asked]}
    name = "kafka_consumer_group_rebalance_interval_seconds"
    with prometheus_running(tmp_path, settings, "--web.enable-otlp-receiver") as prometheus:
        (native,) = prometheus.wait_for(f'{name}{{group="billing"}}')
        buckets = scrape(exporter)[f"{name}_bucket"]
        classic = {labels["le"]: count for labels, count in buckets if labels["group"] == "billing"}
        assert float(native["histogram"][1]["count"]) == classic["+Inf"] == 1
        assert [float(value) for value in native["histogram"][1]["buckets"][0][1:3]] == [60, 300]
        assert prometheus.query(f"{name}_bucket") == []


def test_metrics_serve_every_registered_metric_with_its_labels(exporter: Exporter) -> None:
    """No unregistered metric has one of grouptrail's prefixes."""
    _, _, plain = get(f"{exporter.url}/metrics")
    families = {family.name: family for family in parse_text(plain.decode())}
    for metric in contracts.metrics().values():
        family = families[metric.name.removesuffix("_total") if metric.type == "counter" else metric.name]
        assert (family.type, family.documentation) == (metric.type, metric.help)
        labels = {tuple(sorted(set(sample.labels) - {"le"})) for sample in family.samples}
        assert labels <= {tuple(sorted(metric.labels))}
    ours = re.findall(
        r"^# TYPE ((?:kafka_consumer_group|kafka_topic_log|kafka_cluster|grouptrail)_\S+)", plain.decode(), re.M
    )
    assert set(ours) == set(contracts.metrics())


def test_metrics_hostile_group_and_topic_names_stay_label_values(exporter: Exporter) -> None:
    """Quotes, newlines, text that looks like a sample line, and a topic name of the maximum length."""
    samples = scrape(exporter)
    groups = {labels["group"] for labels, _ in samples["kafka_consumer_group_status"]}
    assert groups == {"billing", STRANGE}
    assert LONG_TOPIC in {labels["topic"] for labels, _ in samples["kafka_consumer_group_status"]}


def test_metrics_without_aliases_pass_promtool_check(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay_everything(config)
    with exporter_of([config], lambda _: None) as running:
        until(lambda: running.page)
        _, _, body = get(f"{running.url}/metrics")
    checked = subprocess.run([tool("promtool"), "check", "metrics"], input=body, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_metrics_with_aliases_get_only_promtool_lint_advice(exporter: Exporter) -> None:
    """Status 3 is advice, here about names that other exporters chose; status 1 would be an error."""
    _, _, body = get(f"{exporter.url}/metrics")
    checked = subprocess.run([tool("promtool"), "check", "metrics"], input=body, capture_output=True, check=False)
    advice = checked.stderr.decode() + checked.stdout.decode()
    assert checked.returncode == 3, advice
    assert "kafka_consumer_group_" not in advice.replace("kminion_kafka_consumer_group_", "")


@pytest.mark.parametrize(
    ("accepted", "packed"), [("gzip", True), ("deflate, GZIP;q=0.5", True), ("gzip;q=0", False), ("br", False)]
)
def test_metrics_are_gzipped_only_if_accepted(exporter: Exporter, accepted: str, packed: bool) -> None:
    _, headers, body = get(f"{exporter.url}/metrics", {"Accept-Encoding": accepted})
    assert (headers.get("Content-Encoding") == "gzip") is packed
    assert (gzip.decompress(body) if packed else body).startswith(b"# HELP kafka_consumer_group_lag ")


@pytest.mark.parametrize(
    ("accepted", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/html, application/xhtml+xml, */*;q=0.8", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=x; q=y", False),
        ("application/openmetrics-text;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.5", False),
        ("text/plain;q=0.3, application/openmetrics-text;q=0.6", True),
    ],
)
def test_metrics_format_follows_the_accept_header(exporter: Exporter, accepted: str, openmetrics: bool) -> None:
    """Any header gets an answer."""
    status, headers, _ = get(f"{exporter.url}/metrics", {"Accept": accepted})
    assert (status, headers["Content-Type"].startswith("application/openmetrics-text")) == (200, openmetrics)


def test_metrics_duplicate_also_as_is_served_once(tmp_path: Path) -> None:
    """Otherwise its series would appear twice."""
    with exporter_of([configured(tmp_path, also_as="burrow,burrow")], lambda _: None) as running:
        until(lambda: running.page)
        _, _, body = get(f"{running.url}/metrics")
    assert body.count(b"# TYPE burrow_kafka_consumer_status ") == 1


def test_server_other_paths_and_methods_return_the_expected_status(exporter: Exporter) -> None:
    """Health, a start page, and 404."""
    assert get(f"{exporter.url}/healthz")[::2] == (200, b"alive\n")
    assert get(f"{exporter.url}/ready")[::2] == (200, b"ready\n")
    assert get(f"{exporter.url}/")[0] == 200
    assert get(f"{exporter.url}/../etc/passwd")[0] == 404
    head = urllib.request.Request(f"{exporter.url}/metrics", method="HEAD")
    with urllib.request.urlopen(head, timeout=DEADLINE_SECONDS) as answer:
        assert int(answer.headers["Content-Length"]) > 1000
        assert answer.read() == b""
    post = urllib.request.Request(f"{exporter.url}/metrics", data=b"x")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(post, timeout=DEADLINE_SECONDS)


def test_freshness_seconds_rises_between_scrapes(exporter: Exporter) -> None:
    """It rises without a new snapshot, which reveals a stopped pipeline."""

    def age() -> float:
        return max(value for labels, value in scrape(exporter)["grouptrail_freshness_seconds"] if labels["table"])

    first = age()
    until(lambda: age() > first)


# --- snapshots ----------------------------------------------------------------------------------------------


def test_ready_returns_503_with_the_reason_until_the_backlog_is_read(fast_refresh: Config) -> None:
    """It waits first for rows, then for the backlog; metrics are served in the meantime."""
    logged: list[str] = []
    with exporter_of([fast_refresh], logged.append) as running:
        until(lambda: running.page)
        assert get(f"{running.url}/ready")[0] == 503
        assert b"nothing of __consumer_offsets has landed" in get(f"{running.url}/ready")[2]
        assert get(f"{running.url}/ready")[1]["Retry-After"] == "5"
        assert scrape(running)["grouptrail_ready"][0][1] == 0
        lay(fast_refresh, "ingest_progress", progress(0, 10, stable=100))
        until(lambda: b"90 records of __consumer_offsets have not been read" in get(f"{running.url}/ready")[2])
        lay(fast_refresh, "ingest_progress", progress(10, 100))
        until(lambda: get(f"{running.url}/ready")[0] == 200)
        until(lambda: scrape(running)["grouptrail_ready"][0][1] == 1)
    assert logged == []


def test_ready_after_a_restart_waits_for_lag_of_this_run_and_serves_the_old_meanwhile(tmp_path: Path) -> None:
    config = configured(tmp_path, refresh_seconds=3600)
    lay_everything(config)
    lay(config, "consumer_lag", lag_row(4, sampled_at=now()))
    with exporter_of([config], lambda _: None, awaits_lag=True) as running:
        until(lambda: "kafka_consumer_group_lag" in scrape(running))
        assert get(f"{running.url}/ready")[0] == 503
        assert b"lag is not sampled yet since the start" in get(f"{running.url}/ready")[2]
        assert scrape(running)["grouptrail_ready"][0][1] == 0
        running.publish("default", lag_table(lag_row(5)))
        until(lambda: get(f"{running.url}/ready")[0] == 200)
        assert scrape(running)["grouptrail_ready"][0][1] == 1


def test_publish_lag_is_served_before_the_next_refresh(tmp_path: Path) -> None:
    with exporter_of([configured(tmp_path, refresh_seconds=3600)], lambda _: None) as running:
        until(lambda: running.page)
        running.publish("default", lag_table(lag_row(4)))
        until(lambda: "kafka_consumer_group_lag" in scrape(running))
        assert scrape(running)["kafka_consumer_group_lag"][0][1] == 20
        running.publish("default", lag_table(lag_row(5)))
        until(lambda: [labels["partition"] for labels, _ in scrape(running)["kafka_consumer_group_lag"]] == ["5"])


def test_tables_are_read_again_while_lag_is_published_without_a_pause(fast_refresh: Config) -> None:
    lay_everything(fast_refresh)
    with exporter_of([fast_refresh], lambda _: None) as running:
        until(lambda: "kafka_consumer_group_state" in scrape(running))
        lay(fast_refresh, "group_states", {**OPEN, "group_id": "fresh", "state": "Stable"})

        def is_shown() -> bool:
            running.publish("default", lag_table(lag_row(4)))
            groups = {labels["group"] for labels, _ in scrape(running)["kafka_consumer_group_state"]}
            return "fresh" in groups

        until(is_shown)


def test_exporter_two_clusters_are_served_with_their_cluster_label(tmp_path: Path) -> None:
    """Two clusters in one warehouse: each metric has one header, each series its cluster; a cluster that is not
    ready does not delay the other."""
    config = configured(tmp_path, refresh_seconds=3600)
    lay(config, "ingest_progress", progress(0, 100))
    with exporter_of([config, config.model_copy(update={"cluster": "spare"})], lambda _: None) as running:
        until(lambda: running.page and len(running.page.snapshots) == 2)
        running.publish("default", lag_table(lag_row(4)))
        running.publish("spare", lag_table(lag_row(7, cluster="spare")))
        until(lambda: len(scrape(running).get("kafka_consumer_group_lag", ())) == 2)
        partitions = {
            labels["cluster"]: labels["partition"] for labels, _ in scrape(running)["kafka_consumer_group_lag"]
        }
        assert partitions == {"default": "4", "spare": "7"}
        assert get(f"{running.url}/ready")[0] == 200
        ready = {labels["cluster"]: value for labels, value in scrape(running)["grouptrail_ready"]}
        assert ready == {"default": 1, "spare": 0}


def test_exporter_failed_snapshot_keeps_serving_the_previous_one(fast_refresh: Config) -> None:
    """The failure is counted, logged once, and ends with the next snapshot that succeeds."""
    logged: list[str] = []
    lay_everything(fast_refresh)
    with exporter_of([fast_refresh], logged.append) as running:
        until(lambda: running.page)
        running.publish("default", lag_table(lag_row()).drop_columns("lag"))
        until(lambda: b"without lag" in get(f"{running.url}/ready")[2])
        assert len(scrape(running)["kafka_consumer_group_lag"]) == 3
        assert scrape(running)["grouptrail_refresh_errors_total"][0][1] > 0
        running.publish("default", lag_table(lag_row()))
        until(lambda: get(f"{running.url}/ready")[0] == 200)
    assert len([line for line in logged if "without lag" in line]) == 1


def restarts(running: Exporter) -> float:
    """Return how often the exporter's own threads were restarted."""
    series = scrape(running)["grouptrail_job_restarts_total"]
    return next(value for labels, value in series if labels["job_name"] == "exporter")


def test_exporter_thread_that_accepts_connections_fails_and_continues(
    fast_refresh: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    with exporter_of([fast_refresh], logged.append) as running:
        until(lambda: running.page)
        faults = [MemoryError("no memory left")]
        process = running._server._http.process_conn

        def fail_once(connection: object) -> None:
            if faults:
                raise faults.pop()
            process(connection)

        # Of this server only: the class also serves those of other tests.
        monkeypatch.setattr(running._server._http, "process_conn", fail_once)
        host, port = running.url.removeprefix("http://").split(":")
        socket.create_connection((host, int(port))).close()
        until(lambda: not faults)
        until(lambda: restarts(running) == 1)
    assert logged == ["metrics: MemoryError: no memory left; restarting"]


def test_exporter_thread_that_takes_snapshots_fails_and_continues(
    fast_refresh: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after an error that is no Exception, as where delta-rs panics."""

    class PanicError(BaseException):
        pass

    logged: list[str] = []
    faults = [PanicError("index out of bounds"), ValueError("no page")]
    running = exporter_of([fast_refresh], logged.append)
    cluster = running._clusters["default"]
    refresh = cluster.refresh

    def fail_twice(*, reads_tables: bool) -> None:
        if faults:
            raise faults.pop()
        refresh(reads_tables=reads_tables)

    # Of this exporter only: the one that other tests share takes snapshots meanwhile.
    monkeypatch.setattr(cluster, "refresh", fail_twice)
    with running:
        until(lambda: running.page)
        assert restarts(running) == 2
    assert logged == [
        "metrics: ValueError: no page; restarting",
        "metrics: PanicError: index out of bounds; restarting",
    ]


def test_show_job_is_served_at_once(fast_refresh: Config) -> None:
    with exporter_of([fast_refresh], lambda _: None) as running:
        until(lambda: running.page)
        running.show_job("default", "lag", is_running=True, restarts=0)
        running.show_job("default", "log-offsets", is_running=False, restarts=3)
        samples = scrape(running)
    shown = [
        {labels["job_name"]: value for labels, value in samples[f"grouptrail_job_{name}"]}
        for name in ("running", "restarts_total")
    ]
    assert shown == [{"exporter": 1, "lag": 1, "log-offsets": 0}, {"exporter": 0, "lag": 0, "log-offsets": 3}]


def test_show_outage_is_served_before_the_next_refresh_and_ends_with_it(tmp_path: Path) -> None:
    """/ready, the metric and the figures of groups are of one snapshot."""
    config = configured(tmp_path, refresh_seconds=3600)
    lay_everything(config)
    with exporter_of([config], lambda _: None) as running:
        until(lambda: running.page)
        assert get(f"{running.url}/ready")[0] == 200
        running.show_outage("default", "no Kafka broker answers: start it")
        until(lambda: get(f"{running.url}/ready")[0] == 503)
        assert get(f"{running.url}/ready")[2].startswith(b"no Kafka broker answers: start it; no broker has returned")
        samples = scrape(running)
        assert samples["grouptrail_ready"][0][1] == 0
        assert "kafka_consumer_group_sum_lag" not in samples
        running.show_outage("default", None)
        until(lambda: get(f"{running.url}/ready")[0] == 200)
        assert scrape(running)["kafka_consumer_group_sum_lag"]


@pytest.mark.parametrize(("names", "expected"), [("burrow", []), ("kminion", [f"metrics: {NO_SAMPLE}"])])
def test_exporter_says_once_why_aliases_have_no_series_if_that_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, expected: list[str]
) -> None:
    """The first sample of the cluster takes its time."""
    logged: list[str] = []
    cluster = exporter_of([configured(tmp_path, also_as=names)], logged.append)._clusters["default"]
    for _ in range(2):
        cluster.refresh(reads_tables=True)
    assert logged == []
    monkeypatch.setattr(service, "_FIRST_SAMPLE_SECONDS", 0)
    for _ in range(2):
        cluster.refresh(reads_tables=True)
    assert logged == expected


def test_exporter_stale_snapshot_serves_no_group_metrics(fast_refresh: Config) -> None:
    """If the tables cannot be read for long, the snapshot's age is exported and its group metrics are not."""
    lay_everything(fast_refresh)
    with exporter_of([fast_refresh], lambda _: None) as running:
        until(lambda: {"kafka_consumer_group_lag", "kafka_cluster_brokers"} <= scrape(running).keys())
        running.publish("default", lag_table(lag_row()).drop_columns("lag"))
        until(lambda: running.state("default").problem)
        assert "kafka_consumer_group_lag" in scrape(running)
        page = running._clusters["default"].page
        assert page is not None
        page.snapshot = replace(page.snapshot, made_at=page.snapshot.made_at - STALE_SECONDS)
        until(lambda: "kafka_consumer_group_lag" not in scrape(running))
        samples = scrape(running)
        assert not {"kafka_consumer_group_members", "kafka_cluster_brokers"} & samples.keys()
        assert samples["grouptrail_snapshot_timestamp_seconds"][0][1] == page.snapshot.made_at
        assert {labels["table"] for labels, _ in samples["grouptrail_freshness_seconds"]} == {
            "consumer_lag",
            "ingest_progress",
        }


def test_scrape_during_updates_contains_a_single_snapshot(fast_refresh: Config) -> None:
    """The tables change during the scrape, and all partitions still come from one sample."""
    with exporter_of([fast_refresh], lambda _: None) as running:
        stop = threading.Event()

        def publish() -> None:
            for number in range(1, 1_000_000):
                running.publish("default", lag_table(*(lag_row(partition, lag=number) for partition in range(50))))
                if stop.wait(0.001):
                    break

        publishing = threading.Thread(target=publish)
        publishing.start()
        try:
            seen: set[float] = set()
            until(lambda: "kafka_consumer_group_lag" in scrape(running))
            while len(seen) < 5:
                samples = scrape(running)
                lags = {value for _, value in samples["kafka_consumer_group_lag"]}
                assert len(lags) == 1
                assert samples["kafka_consumer_group_sum_lag"][0][1] == 50 * min(lags)
                seen |= lags
        finally:
            stop.set()
            publishing.join()


# --- bad company --------------------------------------------------------------------------------------------


def test_exporter_fifty_concurrent_scrapes_are_all_answered(exporter: Exporter) -> None:
    """Every answer is complete."""
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: get(f"{exporter.url}/metrics", PROMETHEUS), range(50)))
    assert {status for status, _, _ in answers} == {200}
    assert all(gzip.decompress(body).endswith(b"# EOF\n") for _, _, body in answers)


def test_exporter_dropped_connections_do_not_affect_other_requests(
    exporter: Exporter, capsys: pytest.CaptureFixture[str]
) -> None:
    """Connections closed before a request, during it, or during the response; nothing is printed."""
    host, port = exporter.url.removeprefix("http://").split(":")
    silent = socket.create_connection((host, int(port)))
    for request in (b"", b"GET /met", b"GET /metrics HTTP/1.1\r\n\r\n", b"\x16\x03\x01 not HTTP\r\n\r\n"):
        for _ in range(5):
            with socket.create_connection((host, int(port))) as client:
                client.sendall(request)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert get(f"{exporter.url}/healthz")[0] == 200
    silent.close()
    assert capsys.readouterr() == ("", "")


LIMITED_PROCESS = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from support.exporter_tables import configured, lay_everything
from support.from_config import exporter_of
config = configured(sys.argv[1], refresh_seconds=0.2)
lay_everything(config)
with exporter_of([config], lambda _: None) as running:
    while running.page is None:
        time.sleep(0.05)
    print(running.url, flush=True)
    for line in sys.stdin:  # each line asks whether the process can still open files
        print(len([open("/dev/null") for _ in range(50)]), flush=True)
"""


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"", id="silent", marks=pytest.mark.full),
        pytest.param(b"GET /metrics HTTP/1.1\r\nX: ", id="slow"),
    ],
)
def test_exporter_many_more_slow_connections_than_file_descriptors_does_not_affect_process_or_scrapes(
    tmp_path: Path, request_bytes: bytes
) -> None:
    """400 of them at 256 file descriptors: the process still opens files, and each scrape is answered in time."""
    command = [sys.executable, "-c", LIMITED_PROCESS, str(tmp_path)]
    paths = os.pathsep.join(path for path in sys.path if path)
    with (
        contextlib.ExitStack() as open_until_the_end,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths}
        ) as process,
    ):
        open_until_the_end.callback(process.kill)
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        host, port = url.removeprefix("http://").split(":")
        for _ in range(400):
            client = open_until_the_end.enter_context(socket.create_connection((host, int(port)), DEADLINE_SECONDS))
            with contextlib.suppress(ConnectionError):
                client.sendall(request_bytes)
        for _ in range(3):
            started = time.monotonic()
            status, _, body = get(f"{url}/metrics")
            assert (status, b"kafka_consumer_group_lag{" in body) == (200, True)
            assert time.monotonic() - started < 10, "Prometheus gives up after ten seconds"
        process.stdin.write("open\n")
        process.stdin.flush()
        assert process.stdout.readline() == "50\n"


def limits(monkeypatch: pytest.MonkeyPatch, **values: float) -> None:
    for name, value in values.items():
        monkeypatch.setattr(connections, name, value)


def closed_within_deadline(client: socket.socket) -> bool:
    """Whether the server ends the connection."""
    client.settimeout(DEADLINE_SECONDS)
    with contextlib.suppress(ConnectionError):
        while client.recv(1 << 16):
            pass
    return True


def test_exporter_request_sent_byte_by_byte_is_closed_at_the_deadline(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends a byte now and then does not get more time for each of them."""
    limits(monkeypatch, REQUEST_SECONDS=1.0)
    host, port = exporter.url.removeprefix("http://").split(":")
    started = time.monotonic()
    with socket.create_connection((host, int(port))) as client, contextlib.suppress(ConnectionError):
        client.settimeout(0.1)
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
        ended = False
        while not ended:
            assert time.monotonic() - started < DEADLINE_SECONDS
            client.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                ended = client.recv(1) == b""


def test_exporter_response_that_is_not_read_is_closed_for_the_next_client(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both connections of two are held by clients that do not read a long page."""
    limits(monkeypatch, MAX_CONNECTIONS=2)
    monkeypatch.setattr(Page, "text", lambda *_, **__: [b"x" * (64 << 20)])
    host, port = exporter.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as open_until_the_end:
        slow = [open_until_the_end.enter_context(socket.create_connection((host, int(port)))) for _ in range(4)]
        for client in slow:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        started = time.monotonic()
        assert get(f"{exporter.url}/healthz")[0] == 200
        assert time.monotonic() - started < 10
        assert all(closed_within_deadline(client) for client in slow)


def test_exporter_request_with_oversized_headers_is_refused(exporter: Exporter) -> None:
    """A hundred lines of 64 KB each would be 6 MB of memory for each connection."""
    headers = {f"X-{number}": "x" * 60_000 for number in range(3)}
    try:
        status, _, _ = get(f"{exporter.url}/metrics", headers)
    except (urllib.error.URLError, ConnectionError):
        status = 431  # refused before all was sent
    assert status == 431


def test_exporter_port_in_use_or_unknown_host_raises(exporter: Exporter, tmp_path: Path) -> None:
    """The message says what to do."""
    taken = exporter.url.removeprefix("http://")
    with pytest.raises(ExporterError, match=f"cannot listen on {taken} .*: choose another with --listen") as caught:
        exporter_of([configured(tmp_path, listen=taken)])
    assert "\n" not in str(caught.value)
    with pytest.raises(ExporterError, match="cannot listen on"):
        exporter_of([configured(tmp_path, listen="no.such.host.invalid:9308")])


def test_exporter_listens_on_an_ipv6_address(tmp_path: Path) -> None:
    """The address is in brackets, as in a URL."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with exporter_of([configured(tmp_path, listen="[::1]:0")], lambda _: None) as running:
        assert running.url.startswith("http://[::1]:")
        assert get(f"{running.url}/healthz")[0] == 200


def test_exporter_published_lag_one_hour_old_is_not_served(tmp_path: Path) -> None:
    """Values of a job that hangs must not look current."""
    with exporter_of([configured(tmp_path)], lambda _: None) as running:
        running.publish("default", lag_table(lag_row(sampled_at=now() - timedelta(hours=1))))
        until(lambda: scrape(running).get("grouptrail_freshness_seconds"))
        samples = scrape(running)
        assert samples["grouptrail_freshness_seconds"][0][1] >= 3600
        assert "kafka_consumer_group_lag" not in samples


def test_exporter_stop_frees_the_port(tmp_path: Path) -> None:
    """Immediately, even before the first snapshot."""
    running = exporter_of([configured(tmp_path)], lambda _: None).start()
    running.stop()
    listen = running.url.removeprefix("http://")
    with exporter_of([configured(tmp_path, listen=listen)], lambda _: None) as again:
        assert get(f"{again.url}/healthz")[0] == 200
    exporter_of([configured(tmp_path)], lambda _: None).stop()


# --- who may ask --------------------------------------------------------------------------------------------

USER, PASSWORD = "prometheus", "geheim: \N{SNOWMAN}"


def login(user: str, password: str, scheme: str = "Basic") -> dict[str, str]:
    return {"Authorization": f"{scheme} {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


def guarded(warehouse: Path, **exporter: Any) -> Config:
    """Return a configuration with a user and a password."""
    config = configured(warehouse, **exporter)
    secret = {"basic_auth_user": USER, "basic_auth_password": SecretStr(PASSWORD)}
    return config.model_copy(update={"exporter": config.exporter.model_copy(update=secret)})


def test_metrics_wrong_or_missing_credentials_return_401(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The response has no content but the request to log in; probes need no password."""
    logged: list[str] = []
    with exporter_of([guarded(tmp_path)], logged.append) as running:
        until(lambda: running.page)
        metrics = f"{running.url}/metrics"
        assert get(metrics, login(USER, PASSWORD))[0] == 200
        assert get(metrics, login(USER, PASSWORD, "basic") | PROMETHEUS)[0] == 200
        rejected: list[dict[str, str]] = [
            {},
            login(USER, "wrong"),
            login("someone", PASSWORD),
            login(USER, ""),
            login(USER, PASSWORD, "Bearer"),
            {"Authorization": "Basic"},
            {"Authorization": "Basic \xff\xfe"},
        ]
        for wrong in rejected:
            status, headers, body = get(metrics, wrong)
            assert (status, body) == (401, b"user and password are missing or wrong\n"), wrong
            assert headers["WWW-Authenticate"] == 'Basic realm="grouptrail", charset="UTF-8"'
        assert get(f"{running.url}/healthz")[0] == 200
        assert get(f"{running.url}/ready")[0] == 503
    assert [line.partition(":")[2].partition(" from")[0] for line in logged] == [
        " 6 requests with a wrong password or token"
    ], "one line for all, and none for a request without any"
    assert capsys.readouterr() == ("", "")


def test_exporter_basic_auth_without_tls_logs_a_warning(certificates: tuple[Path, Path], tmp_path: Path) -> None:
    """One line, once; none with TLS or without a password."""
    logged: list[str] = []
    certificate, key = certificates
    exporter_of(
        [guarded(tmp_path, listen="0.0.0.0:0", tls_certificate=certificate, tls_key=key)], logged.append
    ).start().stop()
    exporter_of([configured(tmp_path, listen="0.0.0.0:0")], logged.append).start().stop()
    assert logged == []
    exporter_of([guarded(tmp_path, listen="0.0.0.0:0")], logged.append).start().stop()
    (warning,) = logged
    assert "set exporter.tls_certificate" in warning
    assert PASSWORD not in warning


# --- TLS ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))


def test_exporter_tls_idle_connection_does_not_block_others(certificates: tuple[Path, Path], tmp_path: Path) -> None:
    """A connection without a TLS handshake does not delay the next one."""
    certificate, key = certificates
    with exporter_of([configured(tmp_path, tls_certificate=certificate, tls_key=key)], lambda _: None) as running:
        assert running.url.startswith("https://")
        host, port = running.url.removeprefix("https://").split(":")
        with socket.create_connection((host, int(port))):
            trusting = ssl.create_default_context(cafile=str(certificate))
            assert get(f"{running.url}/healthz", context=trusting)[0] == 200


def test_exporter_with_client_ca_rejects_clients_without_certificate(
    certificates: tuple[Path, Path], tmp_path: Path
) -> None:
    """A client with a certificate of the authority gets an answer."""
    certificate, key = certificates
    config = configured(tmp_path, tls_certificate=certificate, tls_key=key, tls_client_ca=certificate)
    with exporter_of([config], lambda _: None) as running:
        trusting = ssl.create_default_context(cafile=str(certificate))
        with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
            get(f"{running.url}/healthz", context=trusting)
        trusting.load_cert_chain(certificate, key)
        assert get(f"{running.url}/healthz", context=trusting)[0] == 200


def test_exporter_invalid_certificate_file_raises_one_line_error(tmp_path: Path) -> None:
    """The error is raised before a port is opened."""
    nothing = tmp_path / "nothing.pem"
    for make in (lambda: None, lambda: nothing.write_text("no PEM")):
        make()
        with pytest.raises(ExporterError, match=r"cannot be used: .*: give PEM files") as caught:
            exporter_of([configured(tmp_path, tls_certificate=nothing, tls_key=nothing)])
        assert "\n" not in str(caught.value)

"""Metrics pushed by OTLP: to a receiver that decodes requests, and to a real Prometheus that has one."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, HistogramDataPoint, Metric
from prometheus_client.parser import text_string_to_metric_families as parse_text

from grouptrail import contracts
from grouptrail.config import Config, ConfigError, load_config
from grouptrail.exporter import otlp
from grouptrail.exporter.errors import ExporterError
from grouptrail.exporter.otlp import Pusher
from grouptrail.exporter.service import Exporter
from support.deadlines import until
from support.exporter_tables import DEADLINE_SECONDS, STRANGE, lay_everything
from support.from_config import exporter_of
from support.prometheus_server import free_port, running

SECRET = "geheim-0123456789"
Series = dict[tuple[tuple[str, str], ...], float]
# What changes between the moments of a push and a scrape.
MOMENTARY = "grouptrail_freshness_seconds"


class Receiver(ThreadingHTTPServer):
    """An OTLP receiver; it answers with `status`, and repeats the request's headers if that is an error."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        self.status = 200
        self.requests: list[tuple[str, dict[str, str], ExportMetricsServiceRequest]] = []
        super().__init__(("127.0.0.1", port), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Where metrics are sent to."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1/metrics"

    def stop(self) -> None:
        """Close the port."""
        self.shutdown()
        self.server_close()

    def metrics(self) -> list[Metric]:
        """Return the metrics of all requests."""
        return [
            metric
            for _, _, request in self.requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        receiver = self.server
        assert isinstance(receiver, Receiver)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = ExportMetricsServiceRequest.FromString(body)
        receiver.requests.append((self.path, dict(self.headers), request))
        answer = b"" if receiver.status == 200 else str(dict(self.headers)).encode()
        self.send_response(receiver.status, None if receiver.status == 200 else f"no {self.headers['X-Key']}")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = load_config(None, {"warehouse": str(tmp_path_factory.mktemp("lake"))}, {})
    lay_everything(config)
    return config.warehouse


def configured(warehouse: str, environ: dict[str, str] | None = None, **settings: object) -> Config:
    named = {f"otlp.{name}": str(value) for name, value in settings.items()}
    return load_config(None, {"warehouse": warehouse, "exporter.listen": "127.0.0.1:0", **named}, environ or {})


@contextlib.contextmanager
def pushing(config: Config, log: Callable[[str], None] = lambda _: None) -> Iterator[Exporter]:
    """Run an exporter, with its first snapshot."""
    with exporter_of([config], log) as exporter:
        until(lambda: exporter.page)
        yield exporter


def push(exporter: Exporter, receiver: Receiver, **settings: object) -> None:
    """Push once what an exporter serves."""
    config = configured("unused", endpoint=receiver.url, **settings).otlp
    said: list[str] = []
    Pusher(config, lambda: exporter.page, said.append).push()
    assert said == []


def scraped(exporter: Exporter) -> Series:
    """Return the series of a scrape by name and labels."""
    with urllib.request.urlopen(f"{exporter.url}/metrics", timeout=DEADLINE_SECONDS) as answer:
        text = answer.read().decode()
    return {
        _key(sample.name, sample.labels): sample.value for family in parse_text(text) for sample in family.samples
    }


def pushed(metrics: list[Metric]) -> Series:
    """Return the series that a receiver makes of pushed metrics, histograms as Prometheus has them."""
    series: Series = {}
    for metric in metrics:
        points = getattr(metric, str(metric.WhichOneof("data"))).data_points
        for point in points:
            labels = {one.key: one.value.string_value for one in point.attributes}
            found = (
                list(_histogram(metric.name, labels, point))
                if metric.HasField("histogram")
                else [(metric.name, labels, point.as_double if point.HasField("as_double") else point.as_int)]
            )
            for name, its_labels, value in found:
                assert _key(name, its_labels) not in series, "a series twice"
                series[_key(name, its_labels)] = value
    return series


def _histogram(
    name: str, labels: dict[str, str], point: HistogramDataPoint
) -> Iterator[tuple[str, dict[str, str], float]]:
    total = 0
    for bound, count in zip([*point.explicit_bounds, math.inf], point.bucket_counts, strict=True):
        total += count
        yield f"{name}_bucket", {**labels, "le": str(bound).replace("inf", "+Inf")}, total
    assert total == point.count
    yield f"{name}_count", labels, point.count
    yield f"{name}_sum", labels, point.sum


def _key(name: str, labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    known = {label: value for label, value in labels.items() if value}
    if "le" in known:
        known["le"] = str(float(known["le"]))
    return ("", name), *sorted(known.items())


def assert_same(one: Series, other: Series) -> None:
    assert set(one) == set(other)
    differing = [key for key in one if one[key] != other[key] and key[0][1] != MOMENTARY]
    assert differing == []
    assert len(one) > 60


@pytest.mark.parametrize("series_of_a_request", [5_000, 7])
def test_pushed_series_are_those_of_a_scrape(
    warehouse: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, series_of_a_request: int
) -> None:
    monkeypatch.setattr(otlp, "_REQUEST_SERIES", series_of_a_request)
    with pushing(configured(warehouse)) as exporter:
        push(exporter, receiver)
        assert_same(pushed(receiver.metrics()), scraped(exporter))
    assert STRANGE in {dict(key).get("group") for key in pushed(receiver.metrics())}
    assert (len(receiver.requests) > 5) is (series_of_a_request == 7)


def test_pushed_metrics_have_types_help_start_and_resource(warehouse: str, receiver: Receiver) -> None:
    """Counters that begin with the process have its start; others are counted from tables, since an unknown time."""
    before = time.time_ns()
    settings = {"resource_attributes": "deployment.environment.name=test,service.name=other"}
    with pushing(configured(warehouse)) as exporter:
        exporter.show_job("default", "lag", is_running=True, restarts=2)
        push(exporter, receiver, **settings)
    known = contracts.metrics()
    cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    starts: dict[str, set[int]] = {}
    for metric in receiver.metrics():
        expected = known[metric.name]
        assert (metric.description, metric.unit) == (expected.help, "")
        kind = {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}[expected.type]
        assert metric.WhichOneof("data") == kind
        data = getattr(metric, kind)
        if kind != "gauge":
            assert data.aggregation_temporality == cumulative
            starts[metric.name] = {point.start_time_unix_nano for point in data.data_points}
        assert metric.sum.is_monotonic is (kind == "sum")
        assert {point.time_unix_nano >= before for point in data.data_points} == {True}
    begun = {name for name, times in starts.items() if times != {0}}
    assert begun == {"grouptrail_refresh_errors_total", "grouptrail_job_restarts_total"}
    assert all(before <= at <= time.time_ns() for name in begun for at in starts[name])
    attributes = {
        one.key: one.value.string_value for one in receiver.requests[0][2].resource_metrics[0].resource.attributes
    }
    assert attributes["service.name"] == "other"
    assert attributes["deployment.environment.name"] == "test"
    assert {"service.version", "service.instance.id"} <= set(attributes)


def test_standard_variables_say_where_to_if_the_settings_do_not(
    warehouse: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url.removesuffix("/v1/metrics"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=of%20the%20variable")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=kafka")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    with pushing(configured(warehouse, enabled=True)):
        until(lambda: receiver.requests)
    path, headers, request = receiver.requests[0]
    assert path == "/v1/metrics"
    assert headers["x-key"] == "of the variable"
    attributes = {one.key: one.value.string_value for one in request.resource_metrics[0].resource.attributes}
    assert (attributes["team"], attributes["service.name"]) == ("kafka", "ours")
    receiver.requests.clear()
    with pushing(configured(warehouse)) as exporter:
        assert exporter._pusher is None, "variables alone switch nothing on"


def test_resource_is_grouptrail_if_the_variables_name_no_service(
    warehouse: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=kafka")
    with pushing(configured(warehouse)) as exporter:
        push(exporter, receiver)
    resource = receiver.requests[0][2].resource_metrics[0].resource
    attributes = {one.key: one.value.string_value for one in resource.attributes}
    assert (attributes["team"], attributes["service.name"]) == ("kafka", "grouptrail")


def test_receiver_that_is_down_is_one_line_and_pushes_go_on(
    warehouse: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Scrapes are served meanwhile, and nothing else is printed."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    port = free_port()
    said: list[str] = []
    config = configured(warehouse, endpoint=f"http://127.0.0.1:{port}/v1/metrics", interval_seconds=0.1)
    with pushing(config, said.append) as exporter:
        pusher = exporter._pusher
        assert pusher is not None
        until(lambda: pusher._failed >= 2)
        started = time.monotonic()
        assert scraped(exporter)
        assert time.monotonic() - started < 5
        assert len(said) == 1, said
        assert said[0].startswith("otlp: metrics cannot be pushed (")
        assert "refused" in said[0]
        late = Receiver(port)
        try:
            until(lambda: len(said) == 2)
            assert said[1].startswith("otlp: metrics are pushed again")
            until(lambda: len(late.requests) >= 2)
        finally:
            late.stop()
    assert capfd.readouterr() == ("", "")


def test_receiver_that_never_answers_delays_neither_scrapes_nor_the_end(warehouse: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = configured(warehouse, endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}/v1/metrics")
        with pushing(config) as exporter:
            silent.settimeout(DEADLINE_SECONDS)
            silent.accept()
            assert scraped(exporter)
            stopped = time.monotonic()
        assert time.monotonic() - stopped < 12


@pytest.mark.parametrize("is_setting", [True, False])
def test_refusal_is_logged_without_the_secret(
    warehouse: str,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    is_setting: bool,
) -> None:
    receiver.status = 401
    said: list[str] = []
    environ = {"GROUPTRAIL_OTLP__HEADERS": f"X-Key={SECRET}"} if is_setting else {}
    if not is_setting:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-key={SECRET},{SECRET}")
    config = configured(warehouse, environ, endpoint=receiver.url)
    with pushing(config, said.append):
        until(lambda: said)
    assert receiver.requests[0][1]["x-key"] == SECRET
    assert "401" in said[0]
    assert SECRET not in said[0]
    assert capfd.readouterr() == ("", "")
    assert SECRET not in f"{config!r} {config.redacted_toml()}"


@pytest.mark.parametrize("headers", ["Authorization", "=x", "a=b,c"])
def test_headers_that_are_no_pairs_are_refused_without_being_shown(headers: str) -> None:
    with pytest.raises(ConfigError, match="must be pairs name=value") as caught:
        load_config(None, {}, {"GROUPTRAIL_OTLP__HEADERS": f"{headers},{SECRET}"})
    assert SECRET not in str(caught.value)


def test_headers_in_a_flag_are_refused() -> None:
    with pytest.raises(ConfigError, match="a secret in a flag"):
        load_config(None, {"otlp.headers": f"a={SECRET}"}, {})


def test_push_without_an_exporter_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"set exporter\.listen"):
        load_config(None, {"otlp.enabled": "true", "exporter.listen": ""}, {})


def test_missing_packages_are_one_line(warehouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ExporterError, match=r"pip install 'grouptrail\[otlp\]'") as caught:
        exporter_of([configured(warehouse, endpoint="http://127.0.0.1:1/v1/metrics")])
    assert "\n" not in str(caught.value)


def test_other_protocol_of_the_variables_is_refused(warehouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ExporterError, match="grpc is not supported: set OTEL_EXPORTER_OTLP_PROTOCOL"):
        exporter_of([configured(warehouse, endpoint="http://127.0.0.1:1/v1/metrics")])


def test_prometheus_stores_pushed_series_as_those_that_it_scrapes(warehouse: str, tmp_path: Path) -> None:
    """With the OTLP receiver that Prometheus has since 2.47."""
    with running(tmp_path, {}, "--web.enable-otlp-receiver") as prometheus:
        endpoint = f"http://{prometheus.address}/api/v1/otlp/v1/metrics"
        with pushing(configured(warehouse, endpoint=endpoint)) as exporter:
            prometheus.wait_for("grouptrail_build_info")
            stored: Series = {}
            for one in prometheus.query('{__name__=~".+", __name__!="target_info"}'):
                labels: dict[str, Any] = {
                    key: value for key, value in one["metric"].items() if key not in ("job", "instance")
                }
                stored[_key(labels.pop("__name__"), labels)] = float(one["value"][1])
            assert_same(stored, scraped(exporter))
            (target,) = prometheus.query("target_info")
            assert target["metric"]["job"] == "grouptrail"

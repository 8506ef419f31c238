"""Push the metrics of the exporter's page to an OpenTelemetry receiver, by OTLP over HTTP."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.config.secrets import reveal
from grouptrail.config.values import parse_pairs
from grouptrail.console.progress import Log
from grouptrail.errors import first_cause
from grouptrail.exporter.errors import ExporterError
from grouptrail.exporter.text import Family
from grouptrail.locations import with_locations_shown

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricExporter
    from opentelemetry.sdk.resources import Resource

    from grouptrail.config.model import OtlpConfig
    from grouptrail.exporter.page import Page

# The series of a request: its parts are Python objects, which take 2 KB each until it is sent.
_REQUEST_SERIES = 5_000
_FIRST_PAGE_SECONDS = 0.5
# After a failed push, the time until the next line about failed ones; it doubles.
_LOG_SECONDS = 60.0
_MOST_LOG_SECONDS = 3600.0
_WITHOUT_REASON = ("due to timeout, max retries or shutdown.", "aborting retry.")
_SDK_LOG = "opentelemetry"
_HEADER_VARIABLES = ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class Pusher:
    """Pushes the current page, `page()`, at an interval, in a thread of its own, from `start` to `stop`.

    A push that fails is not repeated: the next one has the newer values of all series. `log` gets a line for the
    first failure, further ones at growing intervals, and one when a push succeeds again.
    """

    def __init__(self, config: OtlpConfig, page: Callable[[], Page | None], log: Log) -> None:
        """Raises ExporterError if OpenTelemetry's packages are missing, or the settings cannot be used."""
        self._page = page
        self._log = log
        self._interval = config.interval_seconds
        self._reason = _Reason(config)
        # Without a handler, Python prints warnings of the SDK, some with stack traces or headers.
        logger = logging.getLogger(_SDK_LOG)
        logger.addHandler(self._reason)
        logger.propagate = False
        self._exporter, self._resource = _sdk(config)
        self._failed = 0
        self._said_at = -_MOST_LOG_SECONDS
        self._pause = _LOG_SECONDS
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._push_for_ever, name="otlp-push", daemon=True)

    def start(self) -> None:
        """Start to push."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; a push in progress is given up."""
        self._stopping.set()
        self._exporter.shutdown()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        logging.getLogger(_SDK_LOG).removeHandler(self._reason)

    def push(self) -> None:
        """Push the current page, if there is one, and report whether that failed."""
        page = self._page()
        if page is None:
            return
        try:
            problem = self._push(page.families())
        except Exception as error:  # the thread must not end
            problem = f"{type(error).__name__}: {first_cause(error)}"
        self._report(problem)

    def _push_for_ever(self) -> None:
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            # Without a first page, it is looked for again soon.
            due = time.monotonic() + (_FIRST_PAGE_SECONDS if self._page() is None else self._interval)
            self.push()

    def _push(self, families: Iterable[Family]) -> str | None:
        """Send all series, and return why that failed, or None."""
        from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        scope = InstrumentationScope("grouptrail", version("grouptrail"))
        now = time.time_ns()
        for metrics in _requests(families, now):
            of_scope = ScopeMetrics(scope=scope, metrics=metrics, schema_url="")
            data = MetricsData([ResourceMetrics(resource=self._resource, scope_metrics=[of_scope], schema_url="")])
            if self._exporter.export(data) is not MetricExportResult.SUCCESS:
                return self._reason.text
        return None

    def _report(self, problem: str | None) -> None:
        now = time.monotonic()
        if problem is None:
            if self._failed:
                self._say(f"metrics are pushed again, after {self._failed:,} pushes that failed")
            self._failed, self._pause, self._said_at = 0, _LOG_SECONDS, -_MOST_LOG_SECONDS
            return
        self._failed += 1
        if self._stopping.is_set() or now - self._said_at < self._pause:
            return
        if self._failed > 1:
            self._pause = min(2 * self._pause, _MOST_LOG_SECONDS)
        self._said_at = now
        self._say(f"metrics cannot be pushed ({problem}): check otlp.endpoint, otlp.headers and the receiver")

    def _say(self, line: str) -> None:
        # The output may be closed; the thread must not end.
        with contextlib.suppress(OSError, ValueError):
            self._log(f"otlp: {line}")


def _sdk(config: OtlpConfig) -> tuple[MetricExporter, Resource]:
    """Return what sends, and the resource that it says the metrics are of."""
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    except ImportError as error:
        raise ExporterError(f"otlp needs OpenTelemetry ({error}): pip install 'grouptrail[otlp]'") from error
    asked = next((os.environ[name] for name in _PROTOCOL_VARIABLES if os.environ.get(name)), config.protocol)
    if asked != config.protocol:
        raise ExporterError(f"otlp: {asked} is not supported: set OTEL_EXPORTER_OTLP_PROTOCOL to {config.protocol}")
    own = {
        "service.name": "grouptrail",
        "service.version": version("grouptrail"),
        "service.instance.id": socket.gethostname(),
    }
    # Later ones override earlier ones; the variables are OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME.
    resource = Resource(own).merge(OTELResourceDetector().detect())
    resource = resource.merge(Resource(dict(config.resource_attributes)))
    headers = _headers(config)
    try:
        return OTLPMetricExporter(endpoint=config.endpoint, headers=headers or None), resource
    except (OSError, ValueError) as error:
        raise ExporterError(f"otlp cannot be used ({error}): check the settings and variables OTEL_…") from error


def _headers(config: OtlpConfig) -> dict[str, str]:
    pairs = () if config.headers is None else parse_pairs(reveal(config.headers))
    return {name: unquote(value) for name, value in pairs}


class _Reason(logging.Handler):
    """Keeps why the last request failed, as the SDK logs it, without stack trace and values of headers."""

    text = "no reason is known"

    def __init__(self, config: OtlpConfig) -> None:
        super().__init__()
        variables = [part for name in _HEADER_VARIABLES for part in os.environ.get(name, "").split(",")]
        values = [*_headers(config).values(), *(unquote(part.partition("=")[2].strip()) for part in variables)]
        self._secrets = sorted(filter(None, values), key=len, reverse=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a reason; the SDK's last words on a failure have none."""
        if not record.getMessage().endswith(_WITHOUT_REASON):
            text = record.getMessage().partition("\n")[0]
            for secret in self._secrets:
                text = text.replace(secret, "***")
            self.text = with_locations_shown(text)[:300]


def _requests(families: Iterable[Family], now: int) -> Iterator[list[Metric]]:
    """Yield the metrics of each request."""
    metrics: list[Metric] = []
    count = 0
    for family in families:
        rows = family.rows.drop_null()
        for start in range(0, len(rows), _REQUEST_SERIES):
            part = rows.slice(start, _REQUEST_SERIES)
            if count and count + len(part) > _REQUEST_SERIES:
                yield metrics
                metrics, count = [], 0
            metrics.append(_metric(family, part, now))
            count += len(part)
    if metrics:
        yield metrics


def _metric(family: Family, rows: pa.Table, now: int) -> Metric:
    """Return a family's rows with the same name, labels and values as in text; times are in nanoseconds.

    It has no unit: receivers make it a part of the name. A start is given where it is known.
    """
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        Metric,
        NumberDataPoint,
        Sum,
    )

    start = 0 if family.created is None else int(family.created * 1e9)
    labels = list(_labels(family, rows))
    cumulative = AggregationTemporality.CUMULATIVE
    data: Any
    if family.buckets:
        counts = zip(*(rows[f"le_{n}"].to_pylist() for n in range(len(family.buckets) + 1)), strict=True)
        data = Histogram(
            [
                HistogramDataPoint(each, start, now, sum(count), seconds, count, family.buckets, None, None)  # type: ignore[arg-type]
                for each, count, seconds in zip(labels, counts, rows["seconds"].to_pylist(), strict=True)
            ],
            cumulative,
        )
    else:
        values = rows["value"].to_pylist()
        points = [NumberDataPoint(each, start, now, value) for each, value in zip(labels, values, strict=True)]
        data = Sum(points, cumulative, is_monotonic=True) if family.type == "counter" else Gauge(points)
    return Metric(name=family.name, description=family.help, unit="", data=data)


def _labels(family: Family, rows: pa.Table) -> Iterator[Mapping[str, str]]:
    columns = [pc.cast(rows[column], pa.string()).to_pylist() for column in family.labels.values()]
    for values in zip(*columns, strict=True) if columns else ((),) * len(rows):
        yield {**family.fixed, **dict(zip(family.labels, values, strict=True))}

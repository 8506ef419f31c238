"""Serve metrics and web pages on one port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grouptrail.console import signals
from grouptrail.console.progress import print_now
from grouptrail.web.pages import Pages

if TYPE_CHECKING:
    from grouptrail.config import Config
    from grouptrail.exporter.service import Exporter, Report


def exporter_with_pages(
    configs: Sequence[Config], report: Report = print_now, *, awaits_lag: bool = False
) -> Exporter:
    """Return an exporter, not started, that also serves the pages unless the settings disable them."""
    from grouptrail.exporter.service import Exporter

    exporter = Exporter(configs, report, awaits_lag=awaits_lag)
    if configs[0].web.enabled:
        exporter.serve_pages(Pages(configs, exporter.state, report))
    return exporter


def serve(configs: Sequence[Config], report: Report = print_now) -> None:
    """Serve the tables until SIGINT or SIGTERM, which end the process with 130 or 143."""
    await_end = signals.ending()
    with exporter_with_pages(configs, report) as exporter:
        report(f"serving {exporter.url}/metrics from {configs[0].warehouse}")
        if exporter.serves_pages:
            report(f"web pages: {exporter.url}/")
        received = await_end()
    raise SystemExit(128 + received)

"""`grouptrail doctor`: check whether this machine and configuration can run the pipeline, without running it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

from grouptrail.console.times import time_zone
from grouptrail.errors import GrouptrailError
from grouptrail.locations import is_uri, shown
from grouptrail.query.formats import RowsFormat, write_rows
from grouptrail.spark.java import JavaError, cache_folder, find_java
from grouptrail.storage.engines.choice import rule
from grouptrail.storage.reader import store_fault, supports

if TYPE_CHECKING:
    from grouptrail.config import Config
    from grouptrail.kafka.log import LogBounds
    from grouptrail.kafka.offsets_topic import OffsetsTopic

Status = Literal["ok", "warn", "FAIL"]

WARN_FREE_BYTES = 5_000_000_000
FAIL_FREE_BYTES = 500_000_000

_CONNECTOR = "spark-sql-kafka-0-10_2.13"
_HANGING = "if that lasts, look for a hanging transaction (kafka-transactions.sh find-hanging)"
_IDLE_READ_SECONDS = 2.0
_CLOCKS_SINCE = timedelta(minutes=10)


@dataclass(frozen=True)
class Finding:
    """One line of output: the subject, the result and, if the status is not ok, the remedy."""

    status: Status
    subject: str
    text: str


Check = Callable[["Config"], Iterable[Finding]]


def examine(configs: Sequence[Config]) -> Iterator[Finding]:
    """Yield the findings of every check as they are made; a cluster's brokers may take about ten seconds."""
    for check in CHECKS:
        yield from check(configs[0])
    for config in configs:
        named = len(configs) > 1
        yield from (
            replace(finding, text=f"{config.cluster}: {finding.text}") if named else finding
            for check in (check_kafka, check_broker_log, check_clocks)
            for finding in check(config)
        )


def print_findings(findings: Iterable[Finding], out: TextIO, *, format: RowsFormat = "table") -> bool:
    """Print one line for each finding, in a table as soon as it is known; return whether none is a FAIL."""
    printed = []
    for finding in findings:
        printed.append(finding)
        if format == "table":
            out.write(f"{finding.status:<4}  {finding.subject:<9}  {finding.text}\n")
            out.flush()
    if format != "table":
        names = [field.name for field in fields(Finding)]
        write_rows(names, (astuple(finding) for finding in printed), out, format=format)
    return all(finding.status != "FAIL" for finding in printed)


def check_settings(config: Config) -> Iterator[Finding]:
    """Report what is wrong with where the settings come from."""
    if config.warning is not None:
        yield Finding("warn", "settings", config.warning)


def check_python(_config: Config) -> Iterator[Finding]:
    """Check that the package supports this Python."""
    least = _numbers(metadata("grouptrail")["Requires-Python"])
    here = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[: len(least)] >= least:
        yield Finding("ok", "python", here)
    else:
        wanted = ".".join(map(str, least))
        yield Finding("FAIL", "python", f"{here} is older than {wanted}: install grouptrail on a newer one")


def check_java(_config: Config) -> Iterator[Finding]:
    """Find the Java that would run Spark."""
    try:
        java = find_java()
    except JavaError as error:
        yield Finding("FAIL", "java", str(error))
    else:
        yield Finding("ok", "java", f"{java.version} from {java.source} ({java.home})")


def check_versions(_config: Config) -> Iterator[Finding]:
    """Check that pyspark, delta-spark, deltalake and kafka-python are installed in supported versions."""
    versions: dict[str, str] = {}
    for package in ("pyspark", "delta-spark", "deltalake", "kafka-python"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            yield Finding(
                "FAIL",
                "versions",
                f"{package}, which `grouptrail run` needs, is not installed: pip install grouptrail",
            )
            return
    installed = ", ".join(f"{package} {number}" for package, number in versions.items())
    old, untested = [], []
    for package, relation, wanted in _required():
        if relation == ">=" and package in versions and _numbers(versions[package]) < _numbers(wanted):
            old.append(f"{package}>={wanted}")
        if relation == "==" and versions.get(package, wanted) != wanted:
            untested.append(f"{package}=={wanted}")
    if old:
        yield Finding("FAIL", "versions", f"{installed}: too old, run: pip install {' '.join(map(repr, old))}")
    elif untested:
        remedy = f"pip install {' '.join(map(repr, untested))}"
        yield Finding(
            "warn", "versions", f"{installed}: not what grouptrail was tested with; if Spark fails, {remedy}"
        )
    else:
        yield Finding("ok", "versions", f"{installed}, {_CONNECTOR} {versions['pyspark']}")


def _required() -> Iterator[tuple[str, str, str]]:
    """Yield package, `>=` or `==`, and version from grouptrail's own package metadata."""
    for requirement in requires("grouptrail") or []:
        bound = re.match(r"([\w-]+)[^;]*([>=]=)\s*([\d.]+)", requirement)
        if bound and "extra ==" not in requirement:
            yield bound[1], bound[2], bound[3]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def check_jars(_config: Config) -> Iterator[Finding]:
    """Report whether the first run has to download Spark's connectors."""
    with contextlib.suppress(PackageNotFoundError):
        connector = f"{_CONNECTOR}-{version('pyspark')}.jar"
        for jar in (cache_folder() / "connectors").glob(f"*/{connector}"):
            yield Finding("ok", "jars", f"Spark's connectors are in {jar.parent}")
            return
    yield Finding("ok", "jars", "Spark's connectors are not here yet: the first run downloads about 60 MB")


def check_engine(config: Config) -> Iterator[Finding]:
    """Say which engine reads and writes the tables."""
    only_spark = "Spark alone: delta-rs does not support this store"
    yield Finding("ok", "engine", rule() if supports(config.warehouse) else only_spark)


def check_warehouse(config: Config) -> Iterator[Finding]:
    """Check that a local warehouse can be written and has free space, or that an object store can be reached."""
    place = shown(config.warehouse)
    if is_uri(config.warehouse):
        if reason := store_fault(config.warehouse, config.storage_options()):
            remedy = "check --warehouse, [storage] and the access rights"
            yield Finding("FAIL", "warehouse", f"{place} cannot be reached ({reason}): {remedy}")
        else:
            yield Finding("ok", "warehouse", f"{place}: reachable; write access is not tested")
        return
    folder = _nearest(config.warehouse)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        remedy = "make it writable, or name another with --warehouse"
        yield Finding("FAIL", "warehouse", f"{place}: {folder}: {error.strerror}: {remedy}")
        return
    state = "can be written" if folder == Path(config.warehouse) else "will be made by the first run"
    yield Finding("ok", "warehouse", f"{place} {state}")
    yield _disk(folder)


def _nearest(path: str) -> Path:
    """Return the path, or the nearest parent folder that exists."""
    folder = Path(path)
    while not os.path.exists(folder):
        folder = folder.parent
    return folder


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    text = f"{free / 1e9:.1f} GB free for the warehouse"
    if free < FAIL_FREE_BYTES:
        return Finding("FAIL", "disk", f"{text}: free at least {FAIL_FREE_BYTES / 1e9:.1f} GB")
    if free < WARN_FREE_BYTES:
        return Finding("warn", "disk", f"{text}: free {WARN_FREE_BYTES / 1e9:.0f} GB or more")
    return Finding("ok", "disk", text)


def check_web(config: Config) -> Iterator[Finding]:
    """Check what protects metrics and pages, if anything is configured: TLS, client certificates, users, a token."""
    from grouptrail.exporter.service import server_settings

    try:
        settings = server_settings(config.exporter, config.web, lambda _line: None)()
    except GrouptrailError as error:
        yield Finding("FAIL", "web", str(error))
        return
    access = settings.access
    protections = {
        "TLS": settings.tls is not None,
        "client certificates": access.has_certificates,
        "passwords": access.users is not None,
        "a token for pages": access.token is not None,
    }
    source = config.exporter.web_config_file
    if source is not None or any(protections.values()):
        text = ", ".join(name for name, is_required in protections.items() if is_required) or "neither TLS nor users"
        yield Finding("ok", "web", f"{shown(str(source or config.exporter.listen))}: {text}")


def check_kafka(config: Config) -> Iterator[Finding]:
    """Check the brokers, then the topic, then that its records can be read; stop at the first failure."""
    from grouptrail.kafka.offsets_topic import OffsetsTopic

    if not config.reads_topic:
        yield from _check_polling(config)
        return
    subject = "broker"
    try:
        with OffsetsTopic(config.kafka_settings()) as topic:
            brokers = topic.brokers()
            yield Finding("ok", subject, f"{len(brokers)} in the cluster: {', '.join(brokers)}")
            subject = "topic"
            bounds = topic.bounds()
            yield _bounds(bounds)
            subject = "records"
            yield _records(topic, bounds)
            subject = "retention"
            yield _retention(topic.retention_minutes(), config.history.offsets_retention_minutes)
    except GrouptrailError as error:
        yield Finding("FAIL", subject, str(error))


def check_broker_log(config: Config) -> Iterator[Finding]:
    """Check that the brokers' log files to follow can be read, and have lines of group coordinators."""
    from grouptrail.broker_log.inspection import inspect_files

    for found in inspect_files(config.broker_log.files, time_zone(config.broker_log.time_zone)):
        yield Finding("ok" if found.is_good else "FAIL" if found.cannot_read else "warn", "brokerlog", found.text)


def check_clocks(config: Config) -> Iterator[Finding]:
    """Name coordinators' clocks that are off, as the lag of the last ten minutes has shown."""
    from grouptrail.runtime.warehouses import warehouse_of
    from grouptrail.storage.sql import datafusion_literal
    from grouptrail.storage.sql_snapshot import SqlSnapshot

    with contextlib.suppress(GrouptrailError):
        tables = SqlSnapshot(warehouse_of(config), ["consumer_lag"])
        if "consumer_lag" not in tables.versions:
            return
        since = datafusion_literal(datetime.now(UTC) - _CLOCKS_SINCE)
        [found] = tables.rows(
            "SELECT COUNT(DISTINCT group_id) AS groups, MIN(group_id) AS example, "
            "MIN(clock_offset_seconds) AS least, MAX(clock_offset_seconds) AS most FROM consumer_lag "
            f"WHERE cluster = {datafusion_literal(config.cluster)} AND sampled_at >= {since} "
            "AND clock_offset_seconds IS NOT NULL"
        )
        if found["groups"]:
            apart = [f"{seconds:.0f} s ahead" for seconds in (found["most"],) if seconds > 0]
            apart += [f"{-seconds:.0f} s behind" for seconds in (found["least"],) if seconds < 0]
            groups = f"{found['groups']:,} groups, such as {found['example']!r}"
            off = f"the coordinators' clocks of {groups}, are up to {' or '.join(apart)} of the lag samples' clock"
            yield Finding("warn", "clocks", f"{off}: synchronise brokers and this pipeline by NTP")


def _check_polling(config: Config) -> Iterator[Finding]:
    """Check the brokers, then the groups that a poll returns; the topic is not used."""
    from grouptrail.polling.poller import Poller

    try:
        with contextlib.closing(Poller(config.admin, config.kafka_settings())) as poller:
            poll = poller.poll()
    except GrouptrailError as error:
        yield Finding("FAIL", "broker", str(error))
        return
    if poll.listed:
        yield Finding("ok", "broker", f"{len(poll.listed)} listed their groups")
    for problem in poll.problems:
        yield Finding("warn" if poll.listed else "FAIL", "broker", problem)
    hidden = sorted(name for name, group in poll.groups.items() if group.problem)
    if hidden:
        failed = f"{len(hidden):,} of {len(poll.groups):,} groups, such as {hidden[0]!r}, cannot be described"
        yield Finding("warn", "groups", f"{failed} ({poll.groups[hidden[0]].problem}): grant DESCRIBE on them")
    elif poll.groups:
        yield Finding("ok", "groups", f"{len(poll.groups):,} can be polled")
    elif poll.listed:
        yield Finding("warn", "groups", "none found: there are none, or the principal may DESCRIBE none")


def _bounds(bounds: dict[int, LogBounds]) -> Finding:
    offsets = sum(log.log_end_offset - log.log_start_offset for log in bounds.values())
    held = sum(log.log_end_offset - log.last_stable_offset for log in bounds.values())
    text = f"__consumer_offsets has {len(bounds)} partitions with {offsets:,} offsets"
    if held:
        return Finding("warn", "topic", f"{text}, {held:,} held back: {_HANGING}")
    return Finding("ok", "topic", text)


def _records(topic: OffsetsTopic, bounds: dict[int, LogBounds]) -> Finding:
    partition, log = max(bounds.items(), key=lambda item: item[1].last_stable_offset - item[1].log_start_offset)
    is_empty = log.last_stable_offset == log.log_start_offset
    waiting = {"seconds": _IDLE_READ_SECONDS} if is_empty else {}
    count = topic.count_readable(partition, log.log_start_offset, **waiting)
    if count:
        return Finding("ok", "records", f"can be read ({count} of partition {partition} tried)")
    if is_empty:
        return Finding("ok", "records", "can be read; there is none yet")
    return Finding(
        "warn",
        "records",
        f"none could be read from partition {partition} in time: see the broker's log if that lasts",
    )


def _retention(minutes: float | None, assumed: float) -> Finding:
    """Compare the setting by which history tells expired groups from deleted ones."""
    if minutes is None:
        hidden = "the brokers' offsets.retention.minutes is not shown (it needs DESCRIBE_CONFIGS on the cluster)"
        return Finding("ok", "retention", f"{hidden}: history assumes {assumed:g}, history.offsets_retention_minutes")
    if minutes == assumed:
        return Finding("ok", "retention", f"the brokers keep offsets of empty groups for {minutes:g} min, as assumed")
    remedy = f"set history.offsets_retention_minutes = {minutes:g}"
    differs = f"the brokers keep offsets of empty groups for {minutes:g} min, history assumes {assumed:g}"
    return Finding("warn", "retention", f"{differs}: {remedy}")


CHECKS: tuple[Check, ...] = (
    check_settings,
    check_python,
    check_java,
    check_versions,
    check_jars,
    check_engine,
    check_warehouse,
    check_web,
)

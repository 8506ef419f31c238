"""The exporter: a thread that takes snapshots, and a server that serves the newest."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from grouptrail.config.model import EXPORTERS_OF_TOPICS
from grouptrail.config.tokens import read_token
from grouptrail.console.progress import Log, print_now
from grouptrail.errors import GrouptrailError, first_cause
from grouptrail.exporter.endpoints import CLOSED, Endpoints
from grouptrail.exporter.errors import ExporterError
from grouptrail.exporter.otlp import Pusher
from grouptrail.exporter.page import ClusterPage, Page, groups_to_read
from grouptrail.http.access import Access, Token, Users
from grouptrail.http.hosts import is_loopback
from grouptrail.http.logins import Logins
from grouptrail.http.server import Server, WsgiApplication, keep_running
from grouptrail.http.tls import tls_context
from grouptrail.http.web_config import ServerSettings, WebConfigFile
from grouptrail.memory import release_memory
from grouptrail.snapshot.reader import LAG_COLUMNS, STALE_SECONDS, ServedCluster, Snapshot, SnapshotReader
from grouptrail.snapshot.state import NO_SNAPSHOT_YET, ClusterState, JobState
from grouptrail.storage.damage import notes, out_of_range

if TYPE_CHECKING:
    import ssl

    from grouptrail.config.model import ExporterConfig, OtlpConfig, WebConfig


_OWN_JOB = "exporter"
_FIRST_SAMPLE_SECONDS = 90


class Exporter:
    """Serves the metrics of clusters that share a warehouse, from `start` to `stop`; also a context manager.

    A new page replaces the old one in one assignment: every scrape returns one snapshot of each cluster, and none
    waits for the next. If a snapshot fails, `log` gets the reason and the old page is still served, without its
    groups once it is too old.

    `web` says who may see the pages, `otlp` where metrics are pushed to. `awaits_lag`: a lag job of this process will
    `publish`. Until then an earlier job's lag is served, and /ready waits for a newer sample.
    """

    def __init__(
        self,
        clusters: Sequence[ServedCluster],
        web: WebConfig,
        log: Log = print_now,
        *,
        otlp: OtlpConfig | None = None,
        awaits_lag: bool = False,
    ) -> None:
        exporter = clusters[0].exporter
        self._clusters = {one.name: _Cluster(one, log, awaits_lag=awaits_lag) for one in clusters}
        self._log = log
        self._refresh_seconds = exporter.refresh_seconds
        self._page: Page | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._settings = server_settings(exporter, web, log)
        self._pusher = None if otlp is None or not otlp.pushes else Pusher(otlp, lambda: self._page, log)
        hosts = [*web.hosts, exporter.listen.rpartition(":")[0]]
        self._logins = Logins(log)
        self._endpoints = Endpoints(lambda: self._page, self._problem, self._settings, self._logins, hosts)
        self._server = _listening(exporter.listen, self._endpoints, self._count_restart, self._settings)
        self._refresher = threading.Thread(target=self._keep_refreshing, name="exporter-refresh", daemon=True)

    @property
    def url(self) -> str:
        """Return the URL, with the actual port if port 0 was configured."""
        return self._server.url

    @property
    def serves_pages(self) -> bool:
        """Return whether clients get web pages."""
        return self._endpoints.serves_pages(self._settings(), self._server.address)

    @property
    def page(self) -> Page | None:
        """Return the page that is served now; None before the first snapshot."""
        return self._page

    def state(self, cluster: str) -> ClusterState:
        """Return the newest state of a cluster. May be called from any thread."""
        known = self._clusters[cluster]
        page = known.page
        return ClusterState(None if page is None else page.snapshot, known.problem, dict(known.jobs))

    def serve_pages(self, application: WsgiApplication) -> None:
        """Answer with a WSGI application whatever the exporter itself has no answer for."""
        self._endpoints.pages = application

    def start(self) -> Self:
        """Start taking snapshots and answering requests."""
        if self._endpoints.pages is not None and not self.serves_pages:
            self._log(f"web pages are not served at {self.url}: {CLOSED}")
        has_secret = self._settings().access.for_pages is not None
        if has_secret and self.url.startswith("http:") and not is_loopback(self._server.address):
            self._log(
                f"metrics: clients send the password or token for {self.url} unencrypted: "
                "set exporter.tls_certificate and exporter.tls_key, or tls_server_config in "
                "exporter.web_config_file, unless a proxy in front of it provides TLS"
            )
        self._refresher.start()
        self._server.start()
        if self._pusher is not None:
            self._pusher.start()
        return self

    def stop(self) -> None:
        """Stop both; wait at most five seconds for a snapshot in progress."""
        self._stopping.set()
        self._wake.set()
        if self._pusher is not None:
            self._pusher.stop()
        self._server.stop()
        self._logins.stop()
        if self._refresher.is_alive():
            self._refresher.join(timeout=5)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def publish(self, cluster: str, lag_rows: pa.Table) -> None:
        """Pass a cluster's newest sample, with the columns of `consumer_lag`, to be served with the next snapshot.

        After the first call the table itself is no longer read; a sample without a successor becomes stale as it
        would there. May be called from any thread; it does not block.
        """
        # The other columns, such as the reasons, may take more memory than these.
        served = [name for name in LAG_COLUMNS if name in lag_rows.column_names]
        self._clusters[cluster].lag = lag_rows.select(served)
        self._wake.set()

    def show_job(self, cluster: str, job: str, *, is_running: bool, restarts: int) -> None:
        """Serve the state of a cluster's job from now on. May be called from any thread; it does not block."""
        self._clusters[cluster].jobs[job] = JobState(is_running, restarts)

    def show_outage(self, cluster: str, reason: str | None) -> None:
        """Serve the past of a cluster whose brokers do not answer, and the reason, which says what to do.

        None: its jobs need not wait for one. May be called from any thread; it does not block.
        """
        known = self._clusters[cluster]
        if known.outage != reason:
            known.outage = reason
            self._wake.set()

    def _count_restart(self, fault: BaseException) -> None:
        """Count and report that one of the exporter's threads has failed and continues."""
        for cluster in self._clusters.values():
            cluster.jobs[_OWN_JOB] = JobState(is_running=True, restarts=cluster.jobs[_OWN_JOB].restarts + 1)
        # The output may be closed; metrics must be served anyway.
        with contextlib.suppress(OSError, ValueError):
            self._log(f"metrics: {type(fault).__name__}: {first_cause(fault)}; restarting")

    def _problem(self) -> str | None:
        """Return why no cluster is ready; None once one is: problems of one cluster do not affect the others."""
        problems = {name: cluster.problem for name, cluster in self._clusters.items()}
        if None in problems.values():
            return None
        return "; ".join(f"{name}: {text}" if len(problems) > 1 else str(text) for name, text in problems.items())

    def _keep_refreshing(self) -> None:
        keep_running(self._refresh_for_ever, self._stopping, self._count_restart)

    def _refresh_for_ever(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            self._wake.clear()
            started = time.monotonic()
            reads_tables = started >= due
            if reads_tables:
                due = started + self._refresh_seconds
            for cluster in self._clusters.values():
                if self._stopping.is_set():
                    return
                cluster.refresh(reads_tables=reads_tables)
                pages = [one.page for one in self._clusters.values() if one.page is not None]
                self._page = Page(pages) if pages else None
            release_memory(after_seconds=time.monotonic() - started)
            self._wake.wait(max(0.0, due - time.monotonic()))


def _listening(
    listen: str,
    application: WsgiApplication,
    on_fault: Callable[[BaseException], None],
    settings: Callable[[], ServerSettings],
) -> Server:
    def tls() -> ssl.SSLContext:
        context = settings().tls
        assert context is not None  # TLS is not switched off while it runs
        return context

    try:
        return Server(listen, application, on_fault, None if settings().tls is None else tls)
    except OSError as error:
        raise ExporterError(
            f"cannot listen on {listen} ({error.strerror or error}): choose another with --listen"
        ) from error


def server_settings(exporter: ExporterConfig, web: WebConfig, log: Log) -> Callable[[], ServerSettings]:
    """Return what returns the server's settings as of now: those of a web configuration file may change.

    `log` gets a line when they do. Raises GrouptrailError if a certificate, the token or the file cannot be used.
    """
    token = None if web.token_file is None else Token(read_token(web.token_file, "web.token_file"))
    access = Access(token=token, is_open=web.allow_anonymous)
    if exporter.web_config_file is not None:
        return WebConfigFile(exporter.web_config_file, access, log).current
    tls = None
    if exporter.tls_certificate is not None:
        try:
            tls = tls_context(exporter.tls_certificate, exporter.tls_key, exporter.tls_client_ca)
        except (OSError, ValueError) as error:
            raise ExporterError(
                f"exporter.tls_certificate, tls_key or tls_client_ca cannot be used: {error}: give PEM files"
            ) from error
    access = replace(access, has_certificates=exporter.tls_client_ca is not None)
    if exporter.basic_auth_user is not None and exporter.basic_auth_password is not None:
        passwords = {exporter.basic_auth_user: exporter.basic_auth_password.get_secret_value()}
        access = replace(access, users=Users(passwords, {}))
    settings = ServerSettings(tls, access)
    return lambda: settings


class _Cluster:
    """The page of one cluster, updated by the refresher's thread."""

    def __init__(self, cluster: ServedCluster, log: Log, *, awaits_lag: bool) -> None:
        self.page: ClusterPage | None = None
        self.problem: str | None = NO_SNAPSHOT_YET
        self.lag: pa.Table | None = None
        self.outage: str | None = None
        self.jobs = {_OWN_JOB: JobState(is_running=True, restarts=0)}
        self._exporter = cluster.exporter
        self._log = log
        self._shown_outage: str | None = None
        self._problem_since: float | None = None
        self._explained: str | None = None
        self._reader = SnapshotReader(cluster, lag_since=datetime.now(UTC) if awaits_lag else None)
        self._errors = 0
        self._started_at = time.time()

    def refresh(self, *, reads_tables: bool) -> None:
        """Take a snapshot and make its page; an error is counted, reported and shown by /ready.

        Without `reads_tables` only the published lag and an outage are new."""
        fault = None
        outage = self.outage
        try:
            snapshot = self._reader.read(
                self.lag,
                reads_tables=reads_tables or outage != self._shown_outage,
                outage=outage,
                choose=lambda snapshot: groups_to_read(snapshot, self._exporter, self.page),
            )
            self._show(snapshot)
            self._shown_outage = outage
            self._explain(snapshot.facts.problem)
        except GrouptrailError as error:
            fault = str(error)
        except OverflowError as error:
            fault = out_of_range(error)
        except Exception as error:
            # If this thread ended, old values would be served forever.
            fault = f"{type(error).__name__}: {first_cause(error)}; report it"
        self._errors += fault is not None
        if self.page is not None and time.time() - self.page.snapshot.made_at > STALE_SECONDS:
            self._show(self.page.snapshot.forgotten())
        if fault not in (None, self.problem):
            self._say(f"metrics: {fault}")
        self.problem = fault or snapshot.not_ready

    def _explain(self, problem: str | None) -> None:
        """Say why aliases about the cluster have no series, if that lasts: the first sample takes its time."""
        if problem is None or EXPORTERS_OF_TOPICS.isdisjoint(self._exporter.also_as):
            self._problem_since = None
        elif self._problem_since is None:
            self._problem_since = time.monotonic()
        elif time.monotonic() - self._problem_since >= _FIRST_SAMPLE_SECONDS and problem != self._explained:
            self._explained = problem
            self._say(f"metrics: {problem}")

    def _say(self, line: str) -> None:
        # The output may be closed; metrics must be served anyway.
        with contextlib.suppress(OSError, ValueError):
            self._log(line)

    def _show(self, snapshot: Snapshot) -> None:
        known = set() if self.page is None else _texts(self.page.snapshot.damage)
        for line in notes(_texts(snapshot.damage) - known):
            self._say(f"metrics: {line}")
        self.page = ClusterPage(
            snapshot,
            self._exporter,
            errors=lambda: self._errors,
            jobs=lambda: dict(self.jobs),
            started_at=self._started_at,
            before=self.page,
        )


def _texts(damage: Mapping[str, Sequence[str]]) -> set[str]:
    return {text for texts in damage.values() for text in texts}

"""The pages as a WSGI application that is made with the first request: Flask takes a second of a start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from grouptrail.console.progress import Log

if TYPE_CHECKING:
    from grouptrail.config.model import WebConfig
    from grouptrail.http.server import WsgiApplication
    from grouptrail.snapshot.reader import ServedCluster
    from grouptrail.snapshot.state import ClusterState

# Pages, and those that wait for one of these to end.
_AT_A_TIME = 8
_WAITING = 16
_WAIT_SECONDS = 10.0
# Queries that run or wait: `web.sql_max_queries` and `QueryProcesses` say how many run.
_QUERIES = 24
_SQL_PATHS = ("/sql", "/api/v1/sql")
_TYPE = ("Content-Type", "text/plain; charset=utf-8")
_BUSY = "too many pages are being made: try again"
_TOO_MANY_QUERIES = "too many queries run or wait: try again"


class Pages:
    """Answers a few requests at a time, so that pages leave connections and memory for /metrics.

    Queries have places of their own: however many are sent, and however long they take, pages are made.
    """

    def __init__(
        self,
        clusters: Sequence[ServedCluster],
        web: WebConfig,
        state: Callable[[str], ClusterState],
        log: Log,
    ) -> None:
        """`state` returns the newest state of a cluster by its name; `log` gets errors that have no remedy."""
        self._clusters = clusters
        self._web = web
        self._state = state
        self._log = log
        self._making = threading.Lock()
        self._application: WsgiApplication | None = None
        self._pages = _Places(_AT_A_TIME, _WAITING)
        self._queries = _Places(_QUERIES, 0)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request (PEP 3333)."""
        is_query = _runs_query(environ)
        with (self._queries if is_query else self._pages).taken() as is_free:
            if not is_free:
                start_response("503 Service Unavailable", [_TYPE])
                return [f"{_TOO_MANY_QUERIES if is_query else _BUSY}\n".encode()]
            # As a list: nothing is computed any more while a slow client receives it.
            return list(self._made()(environ, start_response))

    def _made(self) -> WsgiApplication:
        with self._making:
            if self._application is None:
                try:
                    from grouptrail.web.application import application
                except ImportError as error:
                    self._log(f"web: {error}: install grouptrail's dependencies")
                    raise
                self._application = application(self._clusters, self._web, self._state, self._log)
        return self._application


class _Places:
    """Places for requests: a number that are answered at a time, and a number that wait for this."""

    def __init__(self, at_a_time: int, waiting: int) -> None:
        self._all = threading.BoundedSemaphore(at_a_time + waiting)
        self._answered = threading.BoundedSemaphore(at_a_time)

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Take a place for the code inside; False if none is free, or none in time."""
        if not self._all.acquire(blocking=False):
            yield False
            return
        try:
            is_free = self._answered.acquire(timeout=_WAIT_SECONDS)
            try:
                yield is_free
            finally:
                if is_free:
                    self._answered.release()
        finally:
            self._all.release()


def _runs_query(environ: dict[str, Any]) -> bool:
    """Return whether a request may run a query, unlike one for the empty editor."""
    if environ.get("PATH_INFO") not in _SQL_PATHS:
        return False
    return environ.get("REQUEST_METHOD") == "POST" or "q" in parse_qs(environ.get("QUERY_STRING", ""))

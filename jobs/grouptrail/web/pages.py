"""The pages as a WSGI application that is made with the first request: Flask takes a second of a start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from grouptrail.console.progress import Log

if TYPE_CHECKING:
    from grouptrail.config.model import WebConfig
    from grouptrail.http.server import WsgiApplication
    from grouptrail.snapshot.reader import ServedCluster
    from grouptrail.snapshot.state import ClusterState

_AT_A_TIME = 8
_WAIT_SECONDS = 10.0
_TYPE = ("Content-Type", "text/plain; charset=utf-8")
_BUSY = "too many pages are being made: try again"


class Pages:
    """Answers a few requests at a time, so that pages leave connections and memory for /metrics."""

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
        self._free = threading.BoundedSemaphore(_AT_A_TIME)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request (PEP 3333)."""
        if not self._free.acquire(timeout=_WAIT_SECONDS):
            start_response("503 Service Unavailable", [_TYPE, ("Retry-After", "5")])
            return [f"{_BUSY}\n".encode()]
        try:
            # As a list: nothing is computed any more while a slow client receives it.
            return list(self._made()(environ, start_response))
        finally:
            self._free.release()

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

"""Requests to the web pages of a warehouse without a socket, and to those of a server."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from types import MappingProxyType

from werkzeug.routing import Rule
from werkzeug.test import Client

from grouptrail.config import Config
from grouptrail.errors import GrouptrailError
from grouptrail.snapshot.state import ClusterState, JobState
from grouptrail.web.application import application
from support.deadlines import scaled
from support.from_config import served_cluster, snapshot_reader

LOCAL = "http://127.0.0.1:9308"


def state_of(config: Config, jobs: Mapping[str, JobState] = MappingProxyType({})) -> ClusterState:
    """Return the state of a cluster as an exporter has it after its first snapshot."""
    try:
        snapshot = snapshot_reader(config).read()
    except GrouptrailError as error:
        return ClusterState(None, str(error), jobs)
    return ClusterState(snapshot, snapshot.not_ready, jobs)


def fetched(
    url: str, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    """Return status, headers and text of a server's answer; `headers` replace the usual ones."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=scaled(30))
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode()
    finally:
        connection.close()


class Site:
    """The pages of some clusters; unexpected errors fail the test."""

    def __init__(self, *configs: Config, **states: ClusterState) -> None:
        """`states` replaces the state of a cluster by its name."""
        known = {config.cluster: states.get(config.cluster) or state_of(config) for config in configs}
        self.faults: list[str] = []
        self.application = application(
            [served_cluster(config) for config in configs], configs[0].web, known.__getitem__, self.faults.append
        )
        self.client = Client(self.application)

    def get(self, path: str, *, status: int = 200, **headers: str) -> str:
        """Return the text of an answer, which must have this status."""
        answer = self.client.get(path, base_url=LOCAL, headers=headers)
        assert answer.status_code == status, answer.text
        assert self.faults == []
        return answer.text

    def rules(self) -> list[Rule]:
        """Return the paths of all pages."""
        return list(self.application.url_map.iter_rules())

"""The page of a scrape: the snapshots' text, rendered once for each format and served to all scrapers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from grouptrail.exporter import governor
from grouptrail.exporter.alias import ALIASES, Alias, alias_families
from grouptrail.exporter.families import momentary_families, pipeline_families
from grouptrail.exporter.governor import Governed, governed, governed_topics
from grouptrail.exporter.text import EOF, Family, written
from grouptrail.http.encoding import gzip_packer
from grouptrail.snapshot.reader import Snapshot
from grouptrail.snapshot.state import JobState

if TYPE_CHECKING:
    import zlib

    from grouptrail.config import ExporterConfig


class ClusterPage:
    """The metric families of one cluster's snapshot. Only those at its end, ages, change between snapshots."""

    def __init__(
        self,
        snapshot: Snapshot,
        config: ExporterConfig,
        *,
        errors: Callable[[], int] = lambda: 0,
        jobs: Callable[[], Mapping[str, JobState]] = dict,
        started_at: float | None = None,
        before: ClusterPage | None = None,
    ) -> None:
        """`errors()` returns how many snapshots have failed since `started_at`, in seconds, `jobs()` the jobs.

        `before` is the previous page.
        """
        aliases = _aliases(config)
        self._governed: Governed = governed(snapshot, config, aliases, before.kept if before else ())
        topics = governed_topics(snapshot, config, aliases, self._governed.families)
        dropped = {why: count + topics.dropped[why] for why, count in self._governed.dropped.items()}
        pipeline = pipeline_families(snapshot, dropped=dropped)
        self.snapshot = snapshot
        self.families: Sequence[Family] = [
            *self._governed.families,
            *topics.families,
            *pipeline,
            *alias_families(pipeline, aliases),
        ]
        self._errors = errors
        self._jobs = jobs
        self._started_at = started_at

    @property
    def kept(self) -> Collection[str]:
        """Return the groups that have series of their own although the budget does not hold all."""
        return self._governed.kept

    def momentary(self) -> Sequence[Family]:
        """Return the families at its end, as of now."""
        return momentary_families(
            self.snapshot, errors=self._errors(), jobs=self._jobs(), started_at=self._started_at
        )


def groups_to_read(snapshot: Snapshot, config: ExporterConfig, before: ClusterPage | None) -> Collection[str]:
    """Return the groups whose rows of lag a page needs, given a snapshot that has only the summary of all."""
    return governor.groups_to_read(snapshot, config, _aliases(config), before.kept if before else ())


def _aliases(config: ExporterConfig) -> list[Alias]:
    return [alias for exporter in dict.fromkeys(config.also_as) for alias in ALIASES[exporter]]


class Page:
    """The text of all clusters' families."""

    def __init__(self, clusters: Sequence[ClusterPage]) -> None:
        self._clusters = clusters
        self._making = threading.Lock()
        self._texts: dict[bool, bytes] = {}
        self._compressed: dict[bool, tuple[bytes, zlib._Compress]] = {}

    @property
    def snapshots(self) -> list[Snapshot]:
        """Return the snapshots that it shows."""
        return [cluster.snapshot for cluster in self._clusters]

    @property
    def series(self) -> int:
        """Return how many series it has, without those at its end."""
        return sum(family.series for cluster in self._clusters for family in cluster.families)

    def families(self) -> list[Family]:
        """Return all families as of now."""
        return [family for cluster in self._clusters for family in (*cluster.families, *cluster.momentary())]

    def text(self, *, openmetrics: bool) -> list[bytes]:
        """Return the page as of now, in pieces: the long one is not copied for each request."""
        with self._making:
            made = self._made(openmetrics)
        return [made, self._end(openmetrics)]

    def gzipped(self, *, openmetrics: bool) -> list[bytes]:
        """Return the page as of now, compressed by gzip: only its end is compressed for each request."""
        with self._making:
            if openmetrics not in self._compressed:
                packer = gzip_packer()
                self._compressed[openmetrics] = (packer.compress(self._made(openmetrics)), packer)
            head, packer = self._compressed[openmetrics]
            packer = packer.copy()
        return [head, packer.compress(self._end(openmetrics)) + packer.flush()]

    def _made(self, openmetrics: bool) -> bytes:
        if openmetrics not in self._texts:
            families = [family for cluster in self._clusters for family in cluster.families]
            self._texts[openmetrics] = written(families, openmetrics=openmetrics)
        return self._texts[openmetrics]

    def _end(self, openmetrics: bool) -> bytes:
        families = [family for cluster in self._clusters for family in cluster.momentary()]
        end = written(families, openmetrics=openmetrics)
        return end + EOF if openmetrics else end

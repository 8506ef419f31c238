"""What a scrape is answered with: the snapshots' text, made once for each format however many ask for it."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from grouptrail.exporter.alias import ALIASES, alias_families
from grouptrail.exporter.families import momentary_families, pipeline_families
from grouptrail.exporter.governor import Governed, governed
from grouptrail.exporter.snapshot import Snapshot
from grouptrail.exporter.text import EOF, Family, written

if TYPE_CHECKING:
    from grouptrail.config import ExporterConfig

_GZIP = 31  # zlib's word for gzip's format with its greatest window
_LEVEL = 1  # a page shrinks to a twentieth; level 9 takes twenty times as long for a quarter less


class ClusterPage:
    """The families of one cluster's snapshot. Only those at its end change: they tell how old things are."""

    def __init__(
        self,
        snapshot: Snapshot,
        config: ExporterConfig,
        *,
        errors: Callable[[], int] = lambda: 0,
        before: ClusterPage | None = None,
    ) -> None:
        """`errors()`: how many snapshots could not be made, at the time of asking. `before`: the page of before."""
        aliases = [alias for exporter in dict.fromkeys(config.also_as) for alias in ALIASES[exporter]]
        self._governed: Governed = governed(snapshot, config, aliases, before._governed.kept if before else ())
        pipeline = pipeline_families(snapshot, dropped=self._governed.dropped)
        self.snapshot = snapshot
        self.families: Sequence[Family] = [*self._governed.families, *pipeline, *alias_families(pipeline, aliases)]
        self._errors = errors

    def momentary(self) -> Sequence[Family]:
        """The families at its end, as of now."""
        return momentary_families(self.snapshot, errors=self._errors())


class Page:
    """The text of all clusters' families for those who ask."""

    def __init__(self, clusters: Sequence[ClusterPage]) -> None:
        self._clusters = clusters
        self._making = threading.Lock()
        self._texts: dict[bool, bytes] = {}
        self._compressed: dict[bool, tuple[bytes, zlib._Compress]] = {}

    @property
    def snapshots(self) -> list[Snapshot]:
        """What it shows."""
        return [cluster.snapshot for cluster in self._clusters]

    @property
    def series(self) -> int:
        """How many series it has, without those at its end."""
        return sum(family.series for cluster in self._clusters for family in cluster.families)

    def text(self, *, openmetrics: bool) -> list[bytes]:
        """The page as of now, in pieces: the long one is not copied for each who asks."""
        with self._making:
            made = self._made(openmetrics)
        return [made, self._end(openmetrics)]

    def gzipped(self, *, openmetrics: bool) -> list[bytes]:
        """The page as of now in gzip's format: only its end is compressed anew."""
        with self._making:
            if openmetrics not in self._compressed:
                packer = zlib.compressobj(_LEVEL, wbits=_GZIP)
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

"""What a scrape is answered with: a snapshot's text, made once for each format however many ask for it."""

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


class Page:
    """The families of a snapshot, and their text for those who ask. Only what stands at its end changes."""

    def __init__(
        self,
        snapshot: Snapshot,
        config: ExporterConfig,
        *,
        errors: Callable[[], int] = lambda: 0,
        before: Page | None = None,
    ) -> None:
        """`errors()`: how many snapshots could not be made, at the time of asking. `before`: the page of before."""
        aliases = [alias for exporter in dict.fromkeys(config.also_as) for alias in ALIASES[exporter]]
        self._governed: Governed = governed(snapshot, config, aliases, before._governed.kept if before else ())
        pipeline = pipeline_families(snapshot, dropped=self._governed.dropped)
        self.snapshot = snapshot
        self._errors = errors
        self._families: Sequence[Family] = [*self._governed.families, *pipeline, *alias_families(pipeline, aliases)]
        self._making = threading.Lock()
        self._texts: dict[bool, bytes] = {}
        self._compressed: dict[bool, tuple[bytes, zlib._Compress]] = {}

    @property
    def series(self) -> int:
        """How many series it has, without those at its end."""
        return sum(family.series for family in self._families)

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
            self._texts[openmetrics] = written(self._families, openmetrics=openmetrics)
        return self._texts[openmetrics]

    def _end(self, openmetrics: bool) -> bytes:
        end = written(momentary_families(self.snapshot, errors=self._errors()), openmetrics=openmetrics)
        return end + EOF if openmetrics else end

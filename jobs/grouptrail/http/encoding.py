"""Content negotiation and gzip compression, for metrics and for pages."""

from __future__ import annotations

import re
import zlib

_NUMBER = re.compile(r"\d(\.\d*)?")
_GZIP = 31  # zlib's `wbits` for gzip's format with the largest window
_LEVEL = 1  # metrics shrink to a twentieth; level 9 takes twenty times as long for a quarter less


def quality(accepted: str, name: str) -> float:
    """Return the q-value of a name in a header like Accept; 0 if it is not named."""
    best = 0.0
    for entry in accepted.lower().split(","):
        named, *parameters = (part.strip() for part in entry.split(";"))
        wanted = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        if named == name and _NUMBER.fullmatch(wanted):
            best = max(best, float(wanted))
    return best


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether a client with this Accept-Encoding takes gzip."""
    return quality(accept_encoding, "gzip") > 0


def gzip_packer() -> zlib._Compress:
    """Return a compressor of gzip's format, which can be copied."""
    return zlib.compressobj(_LEVEL, wbits=_GZIP)


def gzipped(content: bytes) -> bytes:
    """Return bytes compressed by gzip."""
    packer = gzip_packer()
    return packer.compress(content) + packer.flush()

"""Damage to the files of a warehouse, as disks, copies and programs do it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

_FOOTER_BYTES = 8

Damage = Callable[[random.Random, bytearray], bytes | bytearray]


def _flip_bit_of_footer_length(rng: random.Random, content: bytearray) -> bytearray:
    content[-5] ^= 1 << rng.choice((7, 7, rng.randrange(8)))
    return content


def _footer_length(rng: random.Random, content: bytearray) -> bytearray:
    content[-8:-4] = rng.randbytes(4)
    return content


def _footer(rng: random.Random, content: bytearray) -> bytearray:
    return _changed(rng, content, len(content) - _FOOTER_BYTES - _length(content), len(content) - _FOOTER_BYTES)


def _pages(rng: random.Random, content: bytearray) -> bytearray:
    return _changed(rng, content, 4, len(content) - _FOOTER_BYTES - _length(content))


def _anywhere(rng: random.Random, content: bytearray) -> bytearray:
    return _changed(rng, content, 0, len(content))


def _zeros(rng: random.Random, content: bytearray) -> bytearray:
    start = rng.randrange(len(content))
    end = min(len(content), start + rng.choice((1, 8, 200, 4096, len(content))))
    content[start:end] = bytes(end - start)
    return content


def _all_zeros(_: random.Random, content: bytearray) -> bytes:
    return bytes(len(content))


def _truncated(rng: random.Random, content: bytearray) -> bytearray:
    return content[: rng.choice((0, rng.randrange(len(content))))]


def _shifted(rng: random.Random, content: bytearray) -> bytearray:
    at = rng.randrange(len(content))
    content[at:at] = rng.randbytes(rng.randrange(1, 9))
    return content


def _random(rng: random.Random, content: bytearray) -> bytes:
    return rng.randbytes(len(content))


CONTENT: dict[str, Damage] = {
    "bit of the footer's length": _flip_bit_of_footer_length,
    "footer's length": _footer_length,
    "footer": _footer,
    "pages": _pages,
    "anywhere": _anywhere,
    "zeros": _zeros,
    "all zeros": _all_zeros,
    "truncated": _truncated,
    "shifted": _shifted,
    "random": _random,
}
"""What can become of a file's content, by name."""
PLACE = ("missing", "pipe", "folder", "device", "other table's file", "link that leads nowhere")
"""What can stand in a file's place."""


def damage(rng: random.Random, file: Path, kind: str, others: list[Path]) -> None:
    """Damage a file, or put something in its place: another file is one of `others`."""
    if kind in CONTENT:
        content = bytearray(file.read_bytes())
        if len(content) > _FOOTER_BYTES + 4:
            file.write_bytes(CONTENT[kind](rng, content))
        return
    content = rng.choice(others).read_bytes()
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "link that leads nowhere":
        file.symlink_to(file.with_name("nowhere"))
    elif kind == "other table's file":
        file.write_bytes(content)


def repair(file: Path, content: bytes) -> None:
    """Put a file's content back, whatever stands in its place."""
    if file.is_dir() and not file.is_symlink():
        file.rmdir()
    else:
        file.unlink(missing_ok=True)
    file.write_bytes(content)


def _length(content: bytearray) -> int:
    """Return the length of a Parquet file's footer, if it is one."""
    return min(int.from_bytes(content[-8:-4], "little"), len(content) - _FOOTER_BYTES - 4)


def _changed(rng: random.Random, content: bytearray, start: int, end: int) -> bytearray:
    end = max(end, start + 1)
    for _ in range(rng.choice((1, 1, rng.randrange(2, 20)))):
        at = min(rng.randrange(start, end), len(content) - 1)
        content[at] = content[at] ^ (1 << rng.randrange(8)) if rng.random() < 0.5 else rng.randrange(256)
    return content

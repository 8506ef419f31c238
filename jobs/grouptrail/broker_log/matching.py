"""The files that the setting `broker_log.files` names."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grouptrail.broker_log.rotation import rotations_among


@dataclass(frozen=True)
class FollowedFiles:
    """The paths of logs, each with those of the files that it was rotated to, if they match a pattern, too.

    A path that is no pattern need not exist. `without_files` are patterns that no file matches.
    """

    paths: Mapping[str, Sequence[Path]]
    without_files: tuple[str, ...]


def followed_files(patterns: Sequence[str]) -> FollowedFiles:
    """Return the files of paths and patterns; one that has several names once."""
    found: dict[str, str] = {}
    without_files = []
    for pattern in patterns:
        matching = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
        if not matching:
            without_files.append(pattern)
        for name in matching:
            found.setdefault(os.path.realpath(name), name)
    paths = [Path(name) for name in found.values()]
    rotated = {path: rotations_among(path, paths) for path in paths}
    of_others = {other for others in rotated.values() for other in others}
    logs = {str(path): others for path, others in rotated.items() if path not in of_others}
    return FollowedFiles(logs, tuple(without_files))

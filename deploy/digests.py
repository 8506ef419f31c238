"""`make digests`: write the SHA-256 digests of all jars that grouptrail, its demo and its tests download.

Run it after a change of a version, and compare the new digests with those that Maven Central publishes.
"""

from __future__ import annotations

from pathlib import Path

import layouts
from grouptrail.spark.jars import DIGESTS, digests, known_digests
from grouptrail.spark.java import cache_folder
from grouptrail.spark.session import connector_jars, s3_jars
from servers import kafka

FILE = Path(__file__).resolve().parents[1] / "jobs" / "grouptrail" / "spark" / DIGESTS
CONNECT = f"connect/{kafka.VERSIONS[0]}"


def folders() -> list[Path]:
    """Return the folders of jars, which are downloaded if they are missing."""
    connect = cache_folder() / CONNECT
    jars = [
        connector_jars(print),
        s3_jars(print),
        *(kafka.fetch(version, print) for version in (kafka.NEXT, *kafka.VERSIONS)),
    ]
    return [*jars, layouts.fetch(log=print), *([connect] if connect.is_dir() else [])]


def main() -> None:
    """Write the file."""
    # Only the tests download these.
    known = {name: digest for name, digest in known_digests().items() if name.startswith(f"{CONNECT}/")}
    for folder in folders():
        known |= digests(f"{folder.parent.name}/{folder.name}", folder)
    FILE.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(known.items())), "utf-8")
    print(f"{FILE.name}: {len(known)} jars")


if __name__ == "__main__":
    main()

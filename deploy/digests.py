"""`make digests`: write the SHA-256 digests of all jars that grouptrail, its demo and its tests download.

Downloads all of them anew, with Ivy, which finds out which they are. Run it after a change of a version, and compare
the new digests with those that Maven Central publishes.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import layouts
from grouptrail.spark.jars import DIGESTS, list_of_jars
from grouptrail.spark.session import connector_jars, msk_jars, s3_jars
from servers import kafka

FILE = Path(__file__).resolve().parents[1] / "jobs" / "grouptrail" / "spark" / DIGESTS


def main() -> None:
    """Write the file."""
    before = FILE.read_text("utf-8")
    FILE.write_text("")
    try:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["XDG_CACHE_HOME"] = cache
            folders = [
                connector_jars(print),
                s3_jars(print),
                msk_jars(print),
                layouts.fetch(log=print),
                *(kafka.fetch(version, print) for version in kafka.VERSIONS),
                kafka.fetch_connect(log=print),
                *(kafka.fetch_streams(version, print) for version in kafka.VERSIONS),
            ]
            lines = [line for folder in folders for line in list_of_jars(folder).read_text().splitlines()]
        FILE.write_text("".join(f"{line}\n" for line in sorted(lines, key=lambda line: line.split("  ", 1)[1])))
    except BaseException:
        FILE.write_text(before)
        raise
    print(f"{FILE.name}: {len(lines)} jars")


if __name__ == "__main__":
    main()

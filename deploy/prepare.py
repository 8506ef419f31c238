"""`python -m prepare [KAFKA ...]`: download and create what many JVMs share, before the first of them starts.

Downloads the jars of Spark's connectors, of each Kafka release named (by default the newest), with Kafka Streams, and
of the message definitions that the layouts are compared with. Records an archive of class data for Spark and for the
newest Kafka. Keeps what already exists.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import layouts
from grouptrail.config import load_config
from grouptrail.errors import GrouptrailError
from grouptrail.runtime import pipeline
from grouptrail.spark import class_data, session
from grouptrail.spark.jars import silent
from grouptrail.spark.java import find_java
from servers.kafka import VERSIONS, Broker, class_data_archive, fetch, fetch_streams
from servers.offsets_topic import ensure_offsets_topic, load_raw

# Only the set of loaded classes matters here, not their speed.
_QUICK = "-XX:TieredStopAtLevel=1"


def main(versions: Sequence[str]) -> int:
    say = partial(print, flush=True)
    try:
        java = find_java()
        with ThreadPoolExecutor(2) as pool:
            connectors = pool.submit(session.connector_jars, say)
            messages = pool.submit(layouts.fetch, log=say)
            releases = versions or VERSIONS[:1]
            kafkas = list(pool.map(lambda version: fetch(version, say), releases))
            list(pool.map(lambda version: fetch_streams(version, say), releases))
            connectors.result()
            messages.result()
        archives = [
            ("Kafka", class_data_archive(java, kafkas[0]), _run_kafka),
            ("Spark", session.class_data_archive(java), _run_spark),
        ]
        missing = [one for one in archives if class_data.is_supported(java) and not one[1].is_file()]
        if missing:
            say(f"class data of {' and '.join(name for name, _, _ in missing)}, once: about a minute")
        with ThreadPoolExecutor(len(archives)) as pool:
            for making in [pool.submit(class_data.make, archive, run) for _, archive, run in missing]:
                making.result()
    except GrouptrailError as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 1
    return 0


def _run_kafka(options: str) -> None:
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder), java_options=f"{_QUICK} {options}") as broker:
        ensure_offsets_topic(broker.bootstrap)


def _run_spark(options: str) -> None:
    """Decode one commit, so that the archive has the classes of the decode job."""
    from pyspark import SparkContext

    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "kafka") as broker:
        ensure_offsets_topic(broker.bootstrap)
        key = b"\x00\x01\x00\x07billing\x00\x06orders\x00\x00\x00\x04"
        load_raw(broker.bootstrap, [(0, key, b"\x00\x03" + bytes(7) + b"\x01" + b"\xff" * 4 + bytes(10))])
        settings = {
            "warehouse": f"{folder}/warehouse",
            "kafka.bootstrap.servers": broker.bootstrap,
            "spark.spark.driver.extraJavaOptions": f"{_QUICK} {options}",
        }
        pipeline.run([load_config(None, settings, {})], jobs=("decode",), once=True, log=silent)
        # The archive is written when the JVM exits, which it does once its gateway is closed.
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

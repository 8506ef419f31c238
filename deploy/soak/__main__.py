"""`make soak`: run active groups and all jobs with random faults for a given time.

First with tables in a local folder and every kind of fault, then with tables in an S3 store that throttles its
clients. At the end of each part every record of the topic must be in the tables once, as Kafka's own formatters print
it, `grouptrail check` must find nothing, and neither memory nor live files may have grown. The seed decides which
fault comes when; what happens at that moment depends on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from servers.kafka import Broker
from servers.object_store import BUCKET, object_store
from servers.offsets_topic import ensure_offsets_topic
from servers.pipeline import Pipeline
from servers.small_disk import SmallDisk, in_mount_namespace
from soak.faults import PARTITIONS, plan
from soak.soak import EVERY_SECONDS, Soak

# One fault in ten is the object store's: each of the others has a pipeline on a local disk.
_STORE_SHARE = 10
_DISK_BYTES = 4 << 30

_CONFIG = """
[log_offsets]
interval_seconds = 3
"""


class Parts:
    """The two parts of a run on one broker: with tables in a local folder, and in an object store."""

    def __init__(self, broker: Broker, folder: Path, seed: int) -> None:
        self._broker = broker
        self._folder = folder
        self._started = time.monotonic()
        self._random = random.Random(seed)
        self.soaks: list[Soak] = []

    def local(self, count: int, *, has_disk: bool) -> list[str]:
        """Try faults of all kinds; return the problems found."""
        folder = self._folder / "local"
        folder.mkdir()
        pipeline = Pipeline(folder, self._broker.proxied_bootstrap, lambda _line: None, settings=_CONFIG)
        soak = self._soak(pipeline, folder)
        fatal, others = soak.faults.local()
        with contextlib.ExitStack() as mounted:
            if has_disk:
                disk = mounted.enter_context(SmallDisk(folder / "warehouse", _DISK_BYTES))
                others["full disk"] = lambda: soak.faults.fill_disk(disk)
            else:
                print("not tried: a full disk, because this user may not mount a file system")
            return soak.run(fatal | others, plan(sorted(fatal), sorted(others), count, self._random))

    def on_object_store(self, count: int) -> list[str]:
        """Throttle the store of a second pipeline; return the problems found."""
        folder = self._folder / "store"
        folder.mkdir()
        with object_store(folder) as options:
            settings = _CONFIG + "\n[storage]\n" + "".join(f'{key} = "{text}"\n' for key, text in options.items())
            warehouse = f"s3a://{BUCKET}/grouptrail"
            bootstrap = self._broker.proxied_bootstrap
            pipeline = Pipeline(folder, bootstrap, lambda _line: None, warehouse=warehouse, settings=settings)
            soak = self._soak(pipeline, folder)
            name = "throttling object store"
            return soak.run({name: lambda: soak.faults.throttle_store(options)}, [name] * count)

    def _soak(self, pipeline: Pipeline, folder: Path) -> Soak:
        self.soaks.append(Soak(self._broker, pipeline, folder, self._started, self._random))
        return self.soaks[-1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=8)
    arguments = parser.parse_args()
    has_disk = in_mount_namespace([sys.executable, "-m", "soak", *sys.argv[1:]])
    count = max(2, round(arguments.seconds / EVERY_SECONDS))
    on_store = max(1, count // _STORE_SHARE)
    print(f"soaking for {arguments.seconds:.0f} s, {count} faults, seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        properties = {"offsets.topic.num.partitions": str(PARTITIONS)}
        with Broker(folder / "kafka", properties=properties, proxied=True) as broker:
            ensure_offsets_topic(broker.bootstrap)
            parts = Parts(broker, folder, arguments.seed)
            try:
                wrong = parts.local(count - on_store, has_disk=has_disk) + parts.on_object_store(on_store)
            finally:
                for soak in parts.soaks:
                    soak.print_faults()
                tried = sum((soak.tried for soak in parts.soaks), Counter())
                survived = sum((soak.survived for soak in parts.soaks), Counter())
                print(f"faults: {survived.total()} survived / {tried.total()} tried")
    for line in wrong:
        print(f"WRONG: {line}")
    print("no losses, no duplicates, no growth" if not wrong else f"{len(wrong)} checks failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

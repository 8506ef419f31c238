"""Write the small pipeline that later versions must resume, with `deploy` and `tests` on PYTHONPATH:
`python tests/support/frozen_pipeline.py tests/data/pipeline-0.1.zip`.

A warehouse with the checkpoints of all jobs after two runs, and the records that were in partition 0 of the offsets
topic: a broker that is given these has the offsets that the checkpoints know. `tests/broker/test_upgrade.py`
continues with it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from servers.kafka import VERSIONS, Broker
from servers.offsets_topic import ensure_offsets_topic, load_raw, read_records
from support.frozen_warehouse import CLUSTER, consumer_group
from support.history_batches import BATCHES

ARCHIVE = Path(__file__).parents[1] / "data" / "pipeline-0.1.zip"
PARTITIONS = 2
LANDED = [BATCHES[0], [*BATCHES[1], *consumer_group()]]

Raw = tuple[bytes, bytes | None]


def load(bootstrap: str, records: list[Raw]) -> None:
    """Write the records to partition 0."""
    load_raw(bootstrap, [(0, key, value) for key, value in records])


def thaw(folder: Path) -> list[Raw]:
    """Unpack the warehouse of version 0.1 into the folder `warehouse`; return the topic's records."""
    shutil.unpack_archive(ARCHIVE, folder)
    lines = (folder / "topic.jsonl").read_text().splitlines()
    return [
        (bytes.fromhex(key), None if value is None else bytes.fromhex(value)) for key, value in map(json.loads, lines)
    ]


def main(archive: str) -> None:
    """Write the archive."""
    properties = {"offsets.topic.num.partitions": str(PARTITIONS)}
    with (
        TemporaryDirectory() as folder,
        TemporaryDirectory() as kafka,
        Broker(Path(kafka), version=VERSIONS[-1], properties=properties) as broker,
    ):
        ensure_offsets_topic(broker.bootstrap)
        for batch in LANDED:
            load(broker.bootstrap, batch)
            place = {"warehouse": f"{folder}/warehouse", "bootstrap-server": broker.bootstrap, "cluster": CLUSTER}
            options = [f"--{name}={value}" for name, value in place.items()]
            subprocess.run([sys.executable, "-m", "grouptrail", "run", "--once", *options], check=True)
        # All records of the partition: the broker adds its own for groups whose members do not answer.
        records = [record for record in read_records(broker.bootstrap) if record.partition == 0]
        lines = [json.dumps([part and part.hex() for part in (record.key, record.value)]) for record in records]
        Path(folder, "topic.jsonl").write_text("".join(f"{line}\n" for line in lines))
        for leftover in [*Path(folder).rglob("*.crc"), *Path(folder).rglob("*.lock")]:
            leftover.unlink()
        shutil.make_archive(archive.removesuffix(".zip"), "zip", folder)


if __name__ == "__main__":
    main(sys.argv[1])

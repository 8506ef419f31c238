"""Checkpoints are checked before a query starts: a damaged one is refused with a one-line error."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from grouptrail.config import Config
from grouptrail.runtime.lease import AlreadyRunningError, sole_driver
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.spark.streams import start_query
from grouptrail.storage import checkpoints
from grouptrail.storage.engines.engine import Once
from grouptrail.storage.warehouse import Warehouse
from support.small_tables import lay

JOB, TABLE = "copy", "offset_commits"


@pytest.fixture
def folder(warehouse: Warehouse, config: Config, tmp_path: Path) -> Path:
    """The checkpoint of a job that has landed four batches, each one row read from another warehouse."""
    elsewhere = config.model_copy(update={"warehouse": str(tmp_path / "elsewhere")})
    table, checkpoint = warehouse.table(TABLE), warehouse.checkpoint(JOB)
    table.ensure()
    assert checkpoint.fault([table]) is None

    def process(rows: DataFrame, batch: int) -> None:
        table.append(rows.toArrow(), Once(checkpoint.query_id(), batch))

    for number in range(4):
        lay(elsewhere, TABLE, {"cluster": config.cluster, "record_partition": 0, "record_offset": number})
        run_once(warehouse, elsewhere, process)
    assert checkpoint.fault([table]) is None
    return Path(checkpoint.folder)


def run_once(warehouse: Warehouse, elsewhere: Config, process: Callable[[DataFrame, int], None]) -> None:
    """Run the job over the rows of another warehouse."""
    checkpoint = warehouse.checkpoint(JOB)
    rows = warehouse.session.readStream.format("delta").load(warehouse_of(elsewhere).table(TABLE).path)
    query = start_query(rows, checkpoint.query_name, checkpoint.folder, process=process, once=True, every_seconds=1)
    query.awaitTermination()


def write(file: Path, content: bytes) -> None:
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    file.write_bytes(content)


def remove(*files: Path) -> None:
    for file in files:
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        file.unlink()


def test_checkpoints_open_first_batch_that_could_not_write_its_offsets_is_tried_again(
    warehouse: Warehouse, config: Config, tmp_path: Path
) -> None:
    """A disk that is full at that moment leaves a part of the file, with which Spark would never start again."""
    elsewhere = config.model_copy(update={"warehouse": str(tmp_path / "elsewhere")})
    lay(elsewhere, TABLE, {"cluster": config.cluster, "record_partition": 0, "record_offset": 0})
    warehouse.table(TABLE).ensure()
    offsets = Path(warehouse.checkpoint_path(JOB), "offsets")
    offsets.mkdir(parents=True)
    (offsets / ".0.3c1f0a52-0000-0000-0000-000000000000.tmp").write_bytes(b"v1")
    landed: list[int] = []
    assert warehouse.checkpoint(JOB).open([warehouse.table(TABLE)]) == {}
    run_once(warehouse, elsewhere, lambda _rows, batch: landed.append(batch))
    assert landed == [0]


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "deleted": (shutil.rmtree, "does not exist, but its tables have rows"),
    "metadata lost": (lambda at: remove(at / "metadata"), r"cannot be read \(metadata\)"),
    "metadata garbage": (lambda at: write(at / "metadata", b"\xff{"), r"cannot be read \(metadata\)"),
    "offsets empty": (lambda at: write(at / "offsets" / "3", b""), r"cannot be read \(offsets/3\)"),
    "offsets cut": (lambda at: write(at / "offsets" / "3", b'v1\n{"batchW'), r"cannot be read \(offsets/3\)"),
    "commits garbage": (lambda at: write(at / "commits" / "3", b"\x00\x01"), r"cannot be read \(commits/3\)"),
    "offsets lost": (lambda at: shutil.rmtree(at / "offsets"), "is older than the tables .*batch is -1, theirs 3"),
    "a batch behind": (
        lambda at: remove(at / "offsets" / "3", at / "commits" / "3"),
        "is older than the tables .*batch is 2, theirs 3",
    ),
}


def test_checkpoints_open_damaged_is_refused_and_a_written_start_is_accepted(
    warehouse: Warehouse, folder: Path, tmp_path: Path
) -> None:
    checkpoint, writes = warehouse.checkpoint(JOB), [warehouse.table(TABLE)]
    whole = shutil.copytree(folder, tmp_path / "whole")
    for name, (damage, message) in DAMAGE.items():
        damage(folder)
        with pytest.raises(checkpoints.CheckpointError, match=f"checkpoint of job copy, .*{message}") as refusal:
            checkpoint.open(writes)
        assert "\n" not in str(refusal.value), name
        assert str(refusal.value).endswith("run grouptrail recover"), name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)

    aside = checkpoint.put_aside()
    assert Path(str(aside), "metadata").read_bytes() == (whole / "metadata").read_bytes()
    checkpoint.write_start({"version": 4})
    assert checkpoint.open(writes) == {"version": 4}
    assert warehouse.checkpoint("never-run").put_aside() is None


def test_sole_driver_checkpoints_on_uri_holds_lease_and_refuses_second_driver(
    spark: SparkSession, config: Config, tmp_path: Path
) -> None:
    """The lease is written through Hadoop's file system, as on an object store."""
    of_store = config.model_copy(update={"checkpoints": (tmp_path / "store").as_uri()})
    lease = tmp_path / "store" / config.cluster / "copy.lease"
    with sole_driver(warehouse_of(of_store, spark), [JOB], print):
        held = lease.read_text()
        assert '"renewals": 1' in held
        # The holder renews its lease every ten seconds.
        renewed: list[str] = []

        def report(line: str) -> None:
            renewed.append(line)
            write(lease, held.replace("1}", "2}").encode())

        with (
            pytest.raises(AlreadyRunningError, match=r"job copy is already run by pid \d+"),
            sole_driver(warehouse_of(of_store, spark), [JOB], report),
        ):
            pass
        assert len(renewed) == 1
    assert not lease.exists()

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
from grouptrail.spark.streams import query_id, start_query
from grouptrail.storage import checkpoints, tables
from support.small_tables import lay

pytestmark = pytest.mark.spark

JOB, TABLE = "copy", "offset_commits"


@pytest.fixture
def folder(spark: SparkSession, config: Config, tmp_path: Path) -> Path:
    """The checkpoint of a job that has landed four batches, each one row read from another warehouse."""
    elsewhere = config.model_copy(update={"warehouse": str(tmp_path / "elsewhere")})
    tables.ensure_table(spark, config, TABLE)
    assert checkpoints.fault(spark, config, JOB, [TABLE]) is None

    def land(rows: DataFrame, batch: int) -> None:
        tables.append(spark, rows.toArrow(), config, TABLE, app=query_id(spark, config, JOB), version=batch)

    for number in range(4):
        lay(elsewhere, TABLE, {"cluster": config.cluster, "record_partition": 0, "record_offset": number})
        source = tables.read_appends(spark, elsewhere, TABLE)
        start_query(source, config, JOB, land=land, once=True).awaitTermination()
    assert checkpoints.fault(spark, config, JOB, [TABLE]) is None
    return Path(config.checkpoint_path(JOB))


def write(file: Path, content: bytes) -> None:
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    file.write_bytes(content)


def remove(*files: Path) -> None:
    for file in files:
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        file.unlink()


def test_checkpoints_begin_first_batch_that_could_not_write_its_offsets_is_tried_again(
    spark: SparkSession, config: Config, tmp_path: Path
) -> None:
    """A disk that is full at that moment leaves a part of the file, with which Spark would never start again."""
    elsewhere = config.model_copy(update={"warehouse": str(tmp_path / "elsewhere")})
    lay(elsewhere, TABLE, {"cluster": config.cluster, "record_partition": 0, "record_offset": 0})
    tables.ensure_table(spark, config, TABLE)
    offsets = Path(config.checkpoint_path(JOB), "offsets")
    offsets.mkdir(parents=True)
    (offsets / ".0.3c1f0a52-0000-0000-0000-000000000000.tmp").write_bytes(b"v1")
    landed: list[int] = []
    assert checkpoints.begin(spark, config, JOB, [TABLE]) == {}
    source = tables.read_appends(spark, elsewhere, TABLE)
    query = start_query(source, config, JOB, land=lambda _rows, batch: landed.append(batch), once=True)
    query.awaitTermination()
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


def test_checkpoints_begin_damaged_is_refused_and_a_written_start_is_accepted(
    spark: SparkSession, config: Config, folder: Path, tmp_path: Path
) -> None:
    whole = shutil.copytree(folder, tmp_path / "whole")
    for name, (damage, message) in DAMAGE.items():
        damage(folder)
        with pytest.raises(checkpoints.CheckpointError, match=f"checkpoint of job copy, .*{message}") as refusal:
            checkpoints.begin(spark, config, JOB, [TABLE])
        assert "\n" not in str(refusal.value), name
        assert str(refusal.value).endswith("run grouptrail recover"), name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)

    aside = checkpoints.put_aside(spark, config, JOB)
    assert Path(str(aside), "metadata").read_bytes() == (whole / "metadata").read_bytes()
    checkpoints.write_start(spark, config, JOB, {"version": 4})
    assert checkpoints.begin(spark, config, JOB, [TABLE]) == {"version": 4}
    assert checkpoints.put_aside(spark, config, "never-run") is None


def test_sole_driver_checkpoints_on_uri_holds_lease_and_refuses_second_driver(
    spark: SparkSession, config: Config, tmp_path: Path
) -> None:
    """The lease is written through Hadoop's file system, as on an object store."""
    of_store = config.model_copy(update={"checkpoints": (tmp_path / "store").as_uri()})
    lease = tmp_path / "store" / config.cluster / "copy.lease"
    with sole_driver(spark, of_store, [JOB], print):
        held = lease.read_text()
        assert '"renewals": 1' in held
        # The holder renews its lease every ten seconds.
        renewed: list[str] = []

        def report(line: str) -> None:
            renewed.append(line)
            write(lease, held.replace("1}", "2}").encode())

        with (
            pytest.raises(AlreadyRunningError, match=r"job copy is already run by pid \d+"),
            sole_driver(spark, of_store, [JOB], report),
        ):
            pass
        assert len(renewed) == 1
    assert not lease.exists()
